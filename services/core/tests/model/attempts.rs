//! Who counts on a place, a hold or a granted request, as the model has it: a list.

use holdfast_core::Rules;

/// As many are told apart; one more makes it stay.
const MAX_TRACKED: usize = 4;

/// The calls that count on something.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attempts {
    pub(crate) tracked: Vec<u64>,
    /// Whether it stays, whoever leaves.
    pub(crate) is_permanent: bool,
}

impl Attempts {
    pub(crate) fn of(attempt: u64) -> Self {
        Self { tracked: Vec::from_iter(Some(attempt).filter(|attempt| *attempt != 0)), is_permanent: attempt == 0 }
    }

    pub(crate) fn highest(&self) -> u64 {
        self.tracked.iter().copied().max().unwrap_or(0)
    }

    /// More of them come, in place of those that left.
    pub(crate) fn attach(&mut self, others: &Self, left: &[u64], rules: Rules) {
        if rules == Rules::ONE {
            *self = Self::of(self.highest().max(others.highest()));
            return;
        }
        self.tracked.retain(|attempt| !left.contains(attempt));
        self.tracked.extend(&others.tracked);
        self.tracked.sort_unstable();
        self.tracked.dedup();
        self.is_permanent |= others.is_permanent || self.tracked.len() > MAX_TRACKED;
    }

    /// The same for what its owner holds: once it stays nobody is told apart any more.
    pub(crate) fn attach_to_hold(&mut self, others: &Self, left: &[u64], rules: Rules) {
        if self.is_permanent || others.is_permanent {
            *self = Self::of(0);
            return;
        }
        self.attach(others, left, rules);
    }

    /// Some leave. Whether nobody is left.
    pub(crate) fn detach(&mut self, attempt: u64, left: &[u64], rules: Rules) -> bool {
        if rules == Rules::ONE {
            return self.highest() == attempt;
        }
        if self.is_permanent {
            return false;
        }
        let is_left = |one: &u64| *one == attempt || left.contains(one);
        if self.tracked.iter().all(is_left) {
            return true;
        }
        self.tracked.retain(|one| !is_left(one));
        false
    }
}
