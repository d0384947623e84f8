//! Who counts on a place, a hold or a granted request, as the model has it: a list.

use holdfast_core::Rules;

/// As many are told apart; one more makes it stay.
const TOLD_APART: usize = 4;

/// The calls that count on something.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Callers {
    pub(crate) attempts: Vec<u64>,
    /// Whether it stays, whoever leaves.
    pub(crate) stays: bool,
}

impl Callers {
    pub(crate) fn of(attempt: u64) -> Self {
        Self { attempts: Vec::from_iter(Some(attempt).filter(|attempt| *attempt != 0)), stays: attempt == 0 }
    }

    pub(crate) fn highest(&self) -> u64 {
        self.attempts.iter().copied().max().unwrap_or(0)
    }

    /// More of them come, in place of those that left.
    pub(crate) fn join(&mut self, others: &Self, left: &[u64], rules: Rules) {
        if rules == Rules::ONE {
            *self = Self::of(self.highest().max(others.highest()));
            return;
        }
        self.attempts.retain(|attempt| !left.contains(attempt));
        self.attempts.extend(&others.attempts);
        self.attempts.sort_unstable();
        self.attempts.dedup();
        self.stays |= others.stays || self.attempts.len() > TOLD_APART;
    }

    /// The same for what its owner holds: once it stays nobody is told apart any more.
    pub(crate) fn join_hold(&mut self, others: &Self, left: &[u64], rules: Rules) {
        if self.stays || others.stays {
            *self = Self::of(0);
            return;
        }
        self.join(others, left, rules);
    }

    /// Some leave. Whether nobody is left.
    pub(crate) fn leave(&mut self, attempt: u64, left: &[u64], rules: Rules) -> bool {
        if rules == Rules::ONE {
            return self.highest() == attempt;
        }
        if self.stays {
            return false;
        }
        let is_left = |one: &u64| *one == attempt || left.contains(one);
        if self.attempts.iter().all(is_left) {
            return true;
        }
        self.attempts.retain(|one| !is_left(one));
        false
    }
}
