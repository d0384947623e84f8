//! Pages of lists.

use serde::Serialize;

use crate::{MAX_PAGE_BYTES, MAX_PAGE_SIZE, codec};

/// How much of a page is taken.
pub(crate) struct PageBudget {
    rows: usize,
    bytes: usize,
    max_rows: usize,
    max_bytes: usize,
}

impl PageBudget {
    /// That of an empty page of `limit` rows: at least one, at most a page.
    pub(crate) fn of(limit: u32) -> Self {
        Self::new(limit.clamp(1, MAX_PAGE_SIZE) as usize, MAX_PAGE_BYTES)
    }

    pub(crate) fn new(max_rows: usize, max_bytes: usize) -> Self {
        Self { rows: 0, bytes: 0, max_rows, max_bytes }
    }

    /// Whether no row fits, however small.
    pub(crate) fn is_full(&self) -> bool {
        self.rows == self.max_rows
    }

    /// Takes the room of a row of so many bytes; false when it does not fit. The first one always does.
    pub(crate) fn try_take(&mut self, bytes: usize) -> bool {
        let taken = self.bytes.saturating_add(bytes);
        let fits = !self.is_full() && (self.rows == 0 || taken <= self.max_bytes);
        if fits {
            self.rows += 1;
            self.bytes = taken;
        }
        fits
    }
}

/// The first `limit` rows as they are shown, and whether more follow. A page ends early rather than grow past
/// [`MAX_PAGE_BYTES`] as encoded, but has at least one row.
pub(crate) fn collect<R, T: Serialize>(
    rows: impl Iterator<Item = R>,
    limit: u32,
    mut show: impl FnMut(R) -> T,
) -> (Vec<T>, bool) {
    let mut room = PageBudget::of(limit);
    let mut page = Vec::new();
    for row in rows {
        if room.is_full() {
            return (page, true);
        }
        let shown = show(row);
        if !room.try_take(codec::size(&shown)) {
            return (page, true);
        }
        page.push(shown);
    }
    (page, false)
}
