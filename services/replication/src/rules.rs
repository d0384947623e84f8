//! The rules by which a group applies its entries, and the rest of the state of a group besides its shards.
//!
//! Rules are a number that determines which commands exist and what they mean. A group replicates its rules, and they
//! only rise: replicas of two releases reach the same state as long as both know the current rules.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::exceptions::{Exception, MAX_EXCEPTIONS};
use crate::state_machine::StateMachineError;

/// The rules that a program knows: from the lowest to the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownRules {
    /// Entries of lower rules can't be applied any more.
    pub lowest: u16,
    /// Entries of higher rules need a later release.
    pub highest: u16,
}

impl KnownRules {
    /// Returns true if the program knows these rules.
    pub fn contains(self, rules: u16) -> bool {
        (self.lowest..=self.highest).contains(&rules)
    }
}

impl fmt::Display for KnownRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.lowest, self.highest)
    }
}

/// The replicated state of a group besides that of its shards: a function of the entries alone, whichever shards have
/// failed here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupState {
    /// The rules from the next entry on. `None` in a new group: its first leader sets them before anything is proposed.
    /// Also `None` in a replica that has applied neither its snapshot nor an entry since it was started. Only a leader
    /// that has applied an entry of its own term can tell the two apart.
    pub(crate) rules: Option<u16>,
    /// What is left out of the histories of shards, in the order in which it was decided: at most [`MAX_EXCEPTIONS`].
    pub(crate) exceptions: Vec<Exception>,
}

impl GroupState {
    /// Returns the state after an entry that names these rules; they never decrease.
    ///
    /// # Errors
    /// When this program does not know the resulting rules.
    pub(crate) fn raised(&self, rules: u16, known: KnownRules) -> Result<Self, StateMachineError> {
        let raised = Self { rules: self.rules.max(Some(rules)), ..self.clone() };
        raised.check(known)?;
        Ok(raised)
    }

    /// Returns the state after this was decided; `None` if it was before, or if there are too many exceptions, which
    /// changes nothing.
    pub(crate) fn with_exception(&self, exception: &Exception) -> Option<Self> {
        if self.exceptions.contains(exception) || self.exceptions.len() >= MAX_EXCEPTIONS {
            return None;
        }
        let mut after = self.clone();
        after.exceptions.push(exception.clone());
        Some(after)
    }

    /// Checks whether a program can continue from this state.
    ///
    /// # Errors
    /// When it does not know the current rules.
    pub(crate) fn check(&self, known: KnownRules) -> Result<(), StateMachineError> {
        match self.rules.filter(|rules| !known.contains(*rules)) {
            None => Ok(()),
            Some(rules) => Err(StateMachineError(format!(
                "the group goes by rules {rules}, and this program knows rules {known}: start this node with the \
                 release of the other nodes, or a later one"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: KnownRules = KnownRules { lowest: 2, highest: 3 };

    #[test]
    fn rules_only_rise() {
        let state = GroupState::default().raised(2, KNOWN).unwrap();
        assert_eq!(state.rules, Some(2));
        assert_eq!(state.raised(3, KNOWN).unwrap().raised(2, KNOWN).unwrap().rules, Some(3));
    }

    #[test]
    fn an_exception_is_added_once_and_so_many_at_most() {
        let exception = |index| Exception { shard: 1, index, what: bytes::Bytes::from_static(b"it") };
        let mut state = GroupState { rules: Some(2), ..GroupState::default() };
        for index in 0..MAX_EXCEPTIONS as u64 {
            state = state.with_exception(&exception(index)).unwrap();
            assert_eq!(state.with_exception(&exception(index)), None);
        }
        assert_eq!((state.exceptions.len(), state.with_exception(&exception(1_000))), (MAX_EXCEPTIONS, None));
        assert_eq!(state.raised(3, KNOWN).unwrap().exceptions, state.exceptions);
    }

    #[test]
    fn rules_that_a_program_does_not_know_stop_it() {
        for rules in [1, 4] {
            let refusal = GroupState::default().raised(rules, KNOWN).unwrap_err().to_string();
            assert!(refusal.contains(&format!("rules {rules}")) && refusal.contains("2 to 3"), "{refusal}");
        }
    }
}
