//! The attempts of the calls that rely on a hold.

use holdfast_primitives::attempts::{Attempts, PERMANENT};

use super::hold::{Hold, HoldExtras};
use crate::Rules;

/// A hold stores its highest attempt inline (0 if the hold is permanent). The other attempts are in its extras, which
/// few holds have.
impl Hold {
    pub(super) fn attempts(&self) -> Attempts {
        let lower = self.extras.as_deref().map_or_else(Box::default, |rare| rare.attempts.as_slice().into());
        Attempts::of_all(self.attempt, lower)
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
        self.attempt = attempts.highest();
        if self.extras.is_some() || !attempts.lower().is_empty() {
            self.change_extras(|rare| rare.attempts = attempts.lower().to_vec());
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
        self.attempt = others.highest();
        self.upgraded = stays || was_upgraded;
        if rules >= Rules::TWO {
            let is_left = !stays && before.detach(PERMANENT, left, rules);
            let as_reader = if stays || is_left { Vec::new() } else { before.all().collect() };
            self.upgraded = !is_left;
            self.change_extras(|rare| {
                rare.attempts = others.lower().to_vec();
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
        match Attempts::from_rising(self.reader_attempts()) {
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
            && let Some(mut as_reader) = Attempts::from_rising(self.reader_attempts())
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
        if let Some(as_reader) = Attempts::from_rising(self.reader_attempts()) {
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
        let reader_fits = match Attempts::from_rising(as_reader) {
            Some(reader) => {
                let reader = Attempts::restored(reader.highest(), reader.lower().to_vec());
                self.upgraded && reader.is_some_and(|reader| !reader.is_permanent())
            }
            None => true,
        };
        if attempts.is_permanent() || !reader_fits {
            return false;
        }
        self.change_extras(|rare| {
            (rare.attempts, rare.reader_attempts) = (attempts.lower().to_vec(), as_reader.to_vec())
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
