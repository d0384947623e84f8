//! Pages of lists.

use serde::Serialize;

use crate::{MAX_PAGE_BYTES, MAX_PAGE_SIZE, codec};

/// Visits for one page. It may end then with fewer rows than fit, or with none.
pub const VISITS_PER_PAGE: usize = 4_096;

/// The used and the maximum size of a page.
pub struct PageBudget {
    rows: usize,
    bytes: usize,
    max_rows: usize,
    max_bytes: usize,
}

impl PageBudget {
    /// Returns the budget of an empty page of `limit` rows: at least one, at most a full page.
    pub fn of(limit: u32) -> Self {
        Self::new(limit.clamp(1, MAX_PAGE_SIZE) as usize, MAX_PAGE_BYTES)
    }

    /// Creates the budget of a page of so many rows and bytes.
    pub fn new(max_rows: usize, max_bytes: usize) -> Self {
        Self { rows: 0, bytes: 0, max_rows, max_bytes }
    }

    /// Returns whether no further row fits, however small.
    pub fn is_full(&self) -> bool {
        self.rows == self.max_rows
    }

    /// Takes the space of a row of that many bytes. Returns false if it does not fit; the first row always fits.
    pub fn try_take(&mut self, bytes: usize) -> bool {
        let taken = self.bytes.saturating_add(bytes);
        let fits = !self.is_full() && (self.rows == 0 || taken <= self.max_bytes);
        if fits {
            self.rows += 1;
            self.bytes = taken;
        }
        fits
    }
}

/// Returns the views of the first `limit` rows, and whether more follow. A page ends early if it would exceed
/// [`MAX_PAGE_BYTES`] encoded, but has at least one row.
pub fn collect<R, T: Serialize>(
    rows: impl Iterator<Item = R>,
    limit: u32,
    mut show: impl FnMut(R) -> T,
) -> (Vec<T>, bool) {
    let mut budget = PageBudget::of(limit);
    let mut page = Vec::new();
    for row in rows {
        if budget.is_full() {
            return (page, true);
        }
        let shown = show(row);
        if !budget.try_take(codec::size(&shown)) {
            return (page, true);
        }
        page.push(shown);
    }
    (page, false)
}

/// As [`collect`], of rows that are not all shown: the others are skipped. Returns the last row that was
/// visited if more may follow. A page ends after so many visits that it costs at most a slice, even if it is empty.
pub fn collect_visible<R: Clone, T: Serialize>(
    rows: impl Iterator<Item = R>,
    limit: u32,
    is_shown: impl Fn(&R) -> bool,
    mut show: impl FnMut(R) -> T,
) -> (Vec<T>, Option<R>) {
    let mut budget = PageBudget::of(limit);
    let (mut page, mut last) = (Vec::new(), None);
    for (visits, row) in rows.enumerate() {
        if visits >= VISITS_PER_PAGE {
            return (page, last);
        }
        if is_shown(&row) {
            if budget.is_full() {
                return (page, last);
            }
            let shown = show(row.clone());
            if !budget.try_take(codec::size(&shown)) {
                return (page, last);
            }
            page.push(shown);
        }
        last = Some(row);
    }
    (page, None)
}

/// Takes what the first `limit` rows that are shown are made of, so that they can be viewed when the state is no longer
/// needed. `take` returns nothing for a row that is not shown, and how many visits a row takes. Ends and returns as
/// [`collect_visible`].
pub fn gather_visible<R: Copy, T>(
    rows: impl Iterator<Item = R>,
    limit: u32,
    mut take: impl FnMut(R) -> (Option<T>, usize),
) -> (Vec<T>, Option<R>) {
    let mut budget = PageBudget::of(limit);
    let (mut gathered, mut last, mut visits) = (Vec::new(), None, 0);
    for row in rows {
        if visits >= VISITS_PER_PAGE {
            return (gathered, last);
        }
        let (taken, took) = take(row);
        if let Some(taken) = taken {
            if !budget.try_take(0) {
                return (gathered, last);
            }
            gathered.push(taken);
        }
        visits += took;
        last = Some(row);
    }
    (gathered, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_after_so_many_rows_whether_they_are_shown_or_not() {
        let page = |from: usize| collect_visible(from..10_000, 2, |row| *row == 1 || *row >= 9_000, |row| row as u64);
        assert_eq!(page(0), (vec![1], Some(4_095)));
        assert_eq!(page(4_096), (vec![], Some(8_191)));
        assert_eq!(page(8_192), (vec![9_000, 9_001], Some(9_001)));
        assert_eq!(page(9_999), (vec![9_999], None));
        assert_eq!(page(10_000), (vec![], None));
    }

    #[test]
    fn rows_that_take_much_end_a_page_sooner() {
        let gather = |from: u64| gather_visible(from..10_000, 1_000, |row| ((row % 2 == 0).then_some(row), 16));
        let (rows, last) = gather(0);
        assert_eq!((rows.len(), last), (128, Some(255)));
        assert_eq!(gather(9_999), (vec![], None));
        assert_eq!(gather_visible(0..10, 2, |row| (Some(row), 1)), (vec![0, 1], Some(1)));
    }
}
