//! Which calls count on a place in the queue, on a hold, or on a granted request: it is given up with the last of them.

use holdfast_mutations::{Mutation, is_enabled};

use super::hold::{Hold, HoldExtras};
use crate::Rules;

/// As many are kept apart. With one more nobody's leaving ends the place or the hold any more.
const MAX_TRACKED: usize = 4;

/// Of a caller that never leaves: nobody cancels by it, so that what it counts on stays.
const PERMANENT: u64 = 0;

/// The calls whose callers may count on something, by their attempts. A call that was answered counts for ever: nobody
/// takes it out. By rules 1 only the highest is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempts {
    highest: u64,
    /// The others, rising.
    lower: Vec<u64>,
}

impl Attempts {
    /// One call alone.
    pub(super) fn of(attempt: u64) -> Self {
        Self { highest: attempt, lower: Vec::new() }
    }

    /// As they are in a snapshot.
    pub(super) fn restored(highest: u64, lower: Vec<u64>) -> Option<Self> {
        let is_rising = lower.is_sorted_by(|one, next| one < next) && lower.last().is_none_or(|last| *last < highest);
        (is_rising && lower.len() < MAX_TRACKED).then_some(Self { highest, lower })
    }

    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    pub(super) fn lower(&self) -> &[u64] {
        &self.lower
    }

    /// Those whose callers may leave.
    pub(super) fn cancellable(&self) -> impl Iterator<Item = u64> {
        self.all().filter(|attempt| *attempt != PERMANENT)
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        self.lower.iter().copied().chain([self.highest])
    }

    /// Whether somebody counts on it who never leaves.
    pub(super) fn is_permanent(&self) -> bool {
        self.highest == PERMANENT || self.lower.first() == Some(&PERMANENT)
    }

    /// Others come to count on it, in place of those that left.
    pub(super) fn attach(&mut self, others: &Self, left: &[u64], rules: Rules) {
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
        *self = Self { highest, lower };
    }

    /// Callers go away. Whether nobody is left.
    pub(super) fn detach(&mut self, attempt: u64, left: &[u64], rules: Rules) -> bool {
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
        *self = Self { highest, lower: rest };
        false
    }
}

/// A hold keeps the highest attempt in itself, 0 when it stays, and what few holds have aside.
impl Hold {
    pub(super) fn attempts(&self) -> Attempts {
        let lower = self.extras.as_deref().map_or_else(Vec::new, |rare| rare.attempts.clone());
        Attempts { highest: self.attempt, lower }
    }

    /// Those that count on it as a reader's hold, after others made it a writer's; none when as such it stays.
    pub(super) fn reader_attempts(&self) -> &[u64] {
        self.extras.as_deref().map_or(&[], |rare| &rare.reader_attempts)
    }

    pub(super) fn set_attempts(&mut self, attempts: Attempts) {
        if attempts.is_permanent() {
            return self.confirm();
        }
        self.attempt = attempts.highest;
        if self.extras.is_some() || !attempts.lower.is_empty() {
            self.change_extras(|rare| rare.attempts = attempts.lower);
        }
    }

    /// Nobody's leaving ends it from now on.
    pub(super) fn confirm(&mut self) {
        (self.attempt, self.upgraded) = (PERMANENT, false);
        if self.extras.is_some() {
            self.change_extras(|rare| (rare.attempts, rare.reader_attempts) = (Vec::new(), Vec::new()));
        }
    }

    /// Calls of its owner extend it, and count on it from now on.
    pub(super) fn attach(&mut self, others: &Attempts, left: &[u64], rules: Rules) {
        if self.attempt == PERMANENT || others.is_permanent() {
            return self.confirm();
        }
        let mut attempts = self.attempts();
        attempts.attach(others, left, rules);
        self.set_attempts(attempts);
    }

    /// Calls make a writer's hold of a reader's. Those who counted on that one go on to do so.
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
                rare.attempts.clone_from(&others.lower);
                rare.reader_attempts = as_reader;
            });
        }
    }

    /// A writer's hold becomes a reader's.
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

    /// Callers go away.
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

    /// As they are in a snapshot. False when they can't be: nothing is changed then.
    pub(super) fn restore_attempts(&mut self, attempts: Attempts, as_reader: &[u64]) -> bool {
        let reader_fits = match attempts_from_rising(as_reader) {
            Some(Attempts { highest, lower }) => {
                self.upgraded && Attempts::restored(highest, lower).is_some_and(|reader| !reader.is_permanent())
            }
            None => true,
        };
        if attempts.is_permanent() || !reader_fits {
            return false;
        }
        self.change_extras(|rare| (rare.attempts, rare.reader_attempts) = (attempts.lower, as_reader.to_vec()));
        true
    }

    fn change_extras(&mut self, change: impl FnOnce(&mut HoldExtras)) {
        let mut rare = self.extras.take().unwrap_or_default();
        change(&mut rare);
        self.extras = (*rare != HoldExtras::default()).then_some(rare);
    }
}

/// Who still counts on a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetachResult {
    /// As it is.
    InUse,
    /// As a reader's hold only.
    Downgraded,
    Unused,
}

fn attempts_from_rising(rising: &[u64]) -> Option<Attempts> {
    let (highest, lower) = rising.split_last()?;
    Some(Attempts { highest: *highest, lower: lower.to_vec() })
}
