//! Tracks which calls rely on a queued request, a hold or a granted request. It is cancelled when the last of them
//! leaves.

use holdfast_mutations::{Mutation, is_enabled};

use super::hold::{Hold, HoldExtras};
use crate::Rules;

/// Maximum number of attempts tracked apart. Beyond it, no leaving caller ends the queued request or the hold any more.
const MAX_TRACKED: usize = 4;

/// The attempt of a caller that never leaves. No call cancels by it, so the hold or request stays.
const PERMANENT: u64 = 0;

/// The attempts of the calls that may rely on an item. A call that received a response counts forever, because no
/// cancel removes it. Under rules 1, only the highest attempt is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempts {
    highest: u64,
    /// The other attempts, in ascending order.
    lower: Box<[u64]>,
}

impl Attempts {
    /// Returns the attempts of a single call.
    pub(crate) fn of(attempt: u64) -> Self {
        Self { highest: attempt, lower: Box::default() }
    }

    /// Restores the attempts from a snapshot.
    pub(crate) fn restored(highest: u64, lower: Vec<u64>) -> Option<Self> {
        let is_rising = lower.is_sorted_by(|one, next| one < next) && lower.last().is_none_or(|last| *last < highest);
        (is_rising && lower.len() < MAX_TRACKED).then(|| Self { highest, lower: lower.into() })
    }

    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    pub(crate) fn lower(&self) -> &[u64] {
        &self.lower
    }

    /// Returns the attempts whose callers may leave.
    pub(crate) fn cancellable(&self) -> impl Iterator<Item = u64> {
        self.all().filter(|attempt| *attempt != PERMANENT)
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        self.lower.iter().copied().chain([self.highest])
    }

    /// Returns whether a caller that never leaves relies on the item.
    pub(crate) fn is_permanent(&self) -> bool {
        self.highest == PERMANENT || self.lower.first() == Some(&PERMANENT)
    }

    /// Adds other attempts and removes the attempts in `left`.
    pub(crate) fn attach(&mut self, others: &Self, left: &[u64], rules: Rules) {
        if rules < Rules::TWO {
            self.highest = self.highest.max(others.highest);
            return;
        }
        let mut all: Vec<u64> = self.all().filter(|attempt| *attempt == PERMANENT || !left.contains(attempt)).collect();
        all.extend(others.all());
        all.sort_unstable();
        all.dedup();
        let highest = all.pop().unwrap_or(PERMANENT);
        let has_room = all.len() < MAX_TRACKED && all.first() != Some(&PERMANENT);
        let lower = if has_room { all } else { vec![PERMANENT] };
        *self = Self { highest, lower: lower.into() };
    }

    /// Removes attempts whose callers left. Returns whether no attempt remains.
    pub(crate) fn detach(&mut self, attempt: u64, left: &[u64], rules: Rules) -> bool {
        if rules < Rules::TWO {
            return self.highest == attempt;
        }
        if self.is_permanent() {
            return false;
        }
        if is_enabled(Mutation::RobbingCancel) && attempt == self.highest {
            return true;
        }
        if is_enabled(Mutation::CancelByHighest) && attempt != self.highest {
            return false;
        }
        let mut rest: Vec<u64> = self.all().filter(|one| *one != attempt && !left.contains(one)).collect();
        let Some(highest) = rest.pop() else { return true };
        *self = Self { highest, lower: rest.into() };
        false
    }
}

/// A hold stores its highest attempt inline (0 if the hold is permanent). The other attempts are in its extras, which
/// few holds have.
impl Hold {
    pub(super) fn attempts(&self) -> Attempts {
        let lower = self.extras.as_deref().map_or_else(Box::default, |rare| rare.attempts.as_slice().into());
        Attempts { highest: self.attempt, lower }
    }

    /// Returns the attempts that rely on this hold as a READ hold, after other attempts upgraded it to WRITE. Returns
    /// none if the READ hold is permanent.
    pub(super) fn reader_attempts(&self) -> &[u64] {
        self.extras.as_deref().map_or(&[], |rare| &rare.reader_attempts)
    }

    pub(super) fn set_attempts(&mut self, attempts: Attempts) {
        if attempts.is_permanent() {
            return self.confirm();
        }
        self.attempt = attempts.highest;
        if self.extras.is_some() || !attempts.lower.is_empty() {
            self.change_extras(|rare| rare.attempts = attempts.lower.into_vec());
        }
    }

    /// Makes the hold permanent: no leaving caller ends it from now on.
    pub(super) fn confirm(&mut self) {
        (self.attempt, self.upgraded) = (PERMANENT, false);
        if self.extras.is_some() {
            self.change_extras(|rare| (rare.attempts, rare.reader_attempts) = (Vec::new(), Vec::new()));
        }
    }

    /// Adds the attempts of calls that extend the hold.
    pub(super) fn attach(&mut self, others: &Attempts, left: &[u64], rules: Rules) {
        if self.attempt == PERMANENT || others.is_permanent() {
            return self.confirm();
        }
        let mut attempts = self.attempts();
        attempts.attach(others, left, rules);
        self.set_attempts(attempts);
    }

    /// Adds the attempts of calls that upgrade the hold to WRITE. The earlier attempts continue to rely on the READ
    /// hold.
    pub(super) fn attach_to_upgrade(&mut self, others: &Attempts, left: &[u64], rules: Rules) {
        if others.is_permanent() {
            return self.confirm();
        }
        let mut before = self.attempts();
        let (stays, was_upgraded) = (before.is_permanent(), self.upgraded);
        self.attempt = others.highest;
        self.upgraded = stays || was_upgraded;
        if rules >= Rules::TWO {
            let is_left = !stays && before.detach(PERMANENT, left, rules);
            let as_reader = if stays || is_left { Vec::new() } else { before.all().collect() };
            self.upgraded = !is_left;
            self.change_extras(|rare| {
                rare.attempts = others.lower.to_vec();
                rare.reader_attempts = as_reader;
            });
        }
    }

    /// Adjusts the attempts when a WRITE hold is downgraded to READ.
    pub(super) fn attach_to_downgrade(&mut self, rules: Rules) {
        if rules < Rules::TWO || self.attempt == PERMANENT {
            return self.confirm();
        }
        if !self.upgraded {
            return;
        }
        match attempts_from_rising(self.reader_attempts()) {
            None => self.confirm(),
            Some(as_reader) => {
                self.upgraded = false;
                self.change_extras(|rare| rare.reader_attempts = Vec::new());
                self.attach(&as_reader, &[], rules);
            }
        }
    }

    /// Removes attempts whose callers left.
    pub(super) fn detach(&mut self, attempt: u64, left: &[u64], rules: Rules) -> DetachResult {
        if rules >= Rules::TWO
            && let Some(mut as_reader) = attempts_from_rising(self.reader_attempts())
        {
            let is_left = as_reader.detach(attempt, left, rules);
            self.upgraded = !is_left;
            let rest = if is_left { Vec::new() } else { as_reader.all().collect() };
            self.change_extras(|rare| rare.reader_attempts = rest);
        }
        let mut attempts = self.attempts();
        if self.attempt == PERMANENT || !attempts.detach(attempt, left, rules) {
            self.set_attempts(attempts);
            return DetachResult::InUse;
        }
        if !self.upgraded {
            return DetachResult::Unused;
        }
        if let Some(as_reader) = attempts_from_rising(self.reader_attempts()) {
            self.set_attempts(as_reader);
            self.upgraded = false;
            self.change_extras(|rare| rare.reader_attempts = Vec::new());
        } else {
            self.confirm();
        }
        DetachResult::Downgraded
    }

    /// Restores the attempts from a snapshot. Returns false and changes nothing if they are inconsistent.
    pub(super) fn restore_attempts(&mut self, attempts: Attempts, as_reader: &[u64]) -> bool {
        let reader_fits = match attempts_from_rising(as_reader) {
            Some(Attempts { highest, lower }) => {
                self.upgraded
                    && Attempts::restored(highest, lower.into_vec()).is_some_and(|reader| !reader.is_permanent())
            }
            None => true,
        };
        if attempts.is_permanent() || !reader_fits {
            return false;
        }
        self.change_extras(|rare| {
            (rare.attempts, rare.reader_attempts) = (attempts.lower.into_vec(), as_reader.to_vec())
        });
        true
    }

    pub(super) fn change_extras(&mut self, change: impl FnOnce(&mut HoldExtras)) {
        let mut rare = self.extras.take().unwrap_or_default();
        change(&mut rare);
        self.extras = (*rare != HoldExtras::default()).then_some(rare);
    }
}

/// Which use of a hold remains after callers left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetachResult {
    /// The hold stays as it is.
    InUse,
    /// The hold remains in use as a READ hold only.
    Downgraded,
    Unused,
}

fn attempts_from_rising(rising: &[u64]) -> Option<Attempts> {
    let (highest, lower) = rising.split_last()?;
    Some(Attempts { highest: *highest, lower: lower.into() })
}
