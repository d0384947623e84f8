//! Pages of lists.

use crate::MAX_PAGE_SIZE;

/// The first `limit` rows (at least one, at most a page) and whether more follow.
pub(crate) fn cut<T>(rows: impl Iterator<Item = T>, limit: u32) -> (Vec<T>, bool) {
    let size = limit.clamp(1, MAX_PAGE_SIZE) as usize;
    let mut rows = rows;
    let page: Vec<T> = rows.by_ref().take(size).collect();
    let more = rows.next().is_some();
    (page, more)
}
