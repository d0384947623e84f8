//! Which calls count on a place in the queue, on a hold, or on a granted request: it is given up with the last of them.

use holdfast_plant::{Plant, is_planted};

use super::hold::{Hold, HoldExtras};
use crate::Rules;

/// As many are kept apart. With one more nobody's leaving ends the place or the hold any more.
const KEPT_APART: usize = 4;

/// Of a caller that never leaves: nobody cancels by it, so that what it counts on stays.
const STAYS: u64 = 0;

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
        (is_rising && lower.len() < KEPT_APART).then_some(Self { highest, lower })
    }

    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    pub(super) fn lower(&self) -> &[u64] {
        &self.lower
    }

    /// Those whose callers may leave.
    pub(super) fn leaving(&self) -> impl Iterator<Item = u64> {
        self.all().filter(|attempt| *attempt != STAYS)
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        self.lower.iter().copied().chain([self.highest])
    }

    /// Whether somebody counts on it who never leaves.
    pub(super) fn stays(&self) -> bool {
        self.highest == STAYS || self.lower.first() == Some(&STAYS)
    }

    /// Others come to count on it, in place of those that left.
    pub(super) fn attach(&mut self, others: &Self, left: &[u64], rules: Rules) {
        if rules < Rules::TWO {
            self.highest = self.highest.max(others.highest);
            return;
        }
        let mut all: Vec<u64> = self.all().filter(|attempt| *attempt == STAYS || !left.contains(attempt)).collect();
        all.extend(others.all());
        all.sort_unstable();
        all.dedup();
        let highest = all.pop().unwrap_or(STAYS);
        let has_room = all.len() < KEPT_APART && all.first() != Some(&STAYS);
        let lower = if has_room { all } else { vec![STAYS] };
        *self = Self { highest, lower };
    }

    /// Callers go away. Whether nobody is left.
    pub(super) fn leave(&mut self, attempt: u64, left: &[u64], rules: Rules) -> bool {
        if rules < Rules::TWO {
            return self.highest == attempt;
        }
        if self.stays() {
            return false;
        }
        if is_planted(Plant::RobbingCancel) && attempt == self.highest {
            return true;
        }
        if is_planted(Plant::CancelByHighest) && attempt != self.highest {
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
        let lower = self.rare.as_deref().map_or_else(Vec::new, |rare| rare.attempts.clone());
        Attempts { highest: self.attempt, lower }
    }

    /// Those that count on it as a reader's hold, after others made it a writer's; none when as such it stays.
    pub(super) fn attempts_as_reader(&self) -> &[u64] {
        self.rare.as_deref().map_or(&[], |rare| &rare.attempts_as_reader)
    }

    pub(super) fn set_attempts(&mut self, attempts: Attempts) {
        if attempts.stays() {
            return self.confirm();
        }
        self.attempt = attempts.highest;
        if self.rare.is_some() || !attempts.lower.is_empty() {
            self.change_rare(|rare| rare.attempts = attempts.lower);
        }
    }

    /// Nobody's leaving ends it from now on.
    pub(super) fn confirm(&mut self) {
        (self.attempt, self.upgraded) = (STAYS, false);
        if self.rare.is_some() {
            self.change_rare(|rare| (rare.attempts, rare.attempts_as_reader) = (Vec::new(), Vec::new()));
        }
    }

    /// Calls of its owner extend it, and count on it from now on.
    pub(super) fn attach(&mut self, others: &Attempts, left: &[u64], rules: Rules) {
        if self.attempt == STAYS || others.stays() {
            return self.confirm();
        }
        let mut attempts = self.attempts();
        attempts.attach(others, left, rules);
        self.set_attempts(attempts);
    }

    /// Calls make a writer's hold of a reader's. Those who counted on that one go on to do so.
    pub(super) fn attach_to_upgrade(&mut self, others: &Attempts, left: &[u64], rules: Rules) {
        if others.stays() {
            return self.confirm();
        }
        let mut before = self.attempts();
        let (stays, was_upgraded) = (before.stays(), self.upgraded);
        self.attempt = others.highest;
        self.upgraded = stays || was_upgraded;
        if rules >= Rules::TWO {
            let is_left = !stays && before.leave(STAYS, left, rules);
            let as_reader = if stays || is_left { Vec::new() } else { before.all().collect() };
            self.upgraded = !is_left;
            self.change_rare(|rare| {
                rare.attempts.clone_from(&others.lower);
                rare.attempts_as_reader = as_reader;
            });
        }
    }

    /// A writer's hold becomes a reader's.
    pub(super) fn attach_to_weaker(&mut self, rules: Rules) {
        if rules < Rules::TWO || self.attempt == STAYS {
            return self.confirm();
        }
        if !self.upgraded {
            return;
        }
        match as_attempts(self.attempts_as_reader()) {
            None => self.confirm(),
            Some(as_reader) => {
                self.upgraded = false;
                self.change_rare(|rare| rare.attempts_as_reader = Vec::new());
                self.attach(&as_reader, &[], rules);
            }
        }
    }

    /// Callers go away.
    pub(super) fn leave(&mut self, attempt: u64, left: &[u64], rules: Rules) -> LeaveResult {
        if rules >= Rules::TWO
            && let Some(mut as_reader) = as_attempts(self.attempts_as_reader())
        {
            let is_left = as_reader.leave(attempt, left, rules);
            self.upgraded = !is_left;
            let rest = if is_left { Vec::new() } else { as_reader.all().collect() };
            self.change_rare(|rare| rare.attempts_as_reader = rest);
        }
        let mut attempts = self.attempts();
        if self.attempt == STAYS || !attempts.leave(attempt, left, rules) {
            self.set_attempts(attempts);
            return LeaveResult::Somebody;
        }
        if !self.upgraded {
            return LeaveResult::Nobody;
        }
        if let Some(as_reader) = as_attempts(self.attempts_as_reader()) {
            self.set_attempts(as_reader);
            self.upgraded = false;
            self.change_rare(|rare| rare.attempts_as_reader = Vec::new());
        } else {
            self.confirm();
        }
        LeaveResult::Readers
    }

    /// As they are in a snapshot. False when they can't be: nothing is changed then.
    pub(super) fn restore_attempts(&mut self, attempts: Attempts, as_reader: &[u64]) -> bool {
        let reader_fits = match as_attempts(as_reader) {
            Some(Attempts { highest, lower }) => {
                self.upgraded && Attempts::restored(highest, lower).is_some_and(|reader| !reader.stays())
            }
            None => true,
        };
        if attempts.stays() || !reader_fits {
            return false;
        }
        self.change_rare(|rare| (rare.attempts, rare.attempts_as_reader) = (attempts.lower, as_reader.to_vec()));
        true
    }

    fn change_rare(&mut self, change: impl FnOnce(&mut HoldExtras)) {
        let mut rare = self.rare.take().unwrap_or_default();
        change(&mut rare);
        self.rare = (*rare != HoldExtras::default()).then_some(rare);
    }
}

/// Who still counts on a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaveResult {
    /// As it is.
    Somebody,
    /// As a reader's hold only.
    Readers,
    Nobody,
}

fn as_attempts(rising: &[u64]) -> Option<Attempts> {
    let (highest, lower) = rising.split_last()?;
    Some(Attempts { highest: *highest, lower: lower.to_vec() })
}
