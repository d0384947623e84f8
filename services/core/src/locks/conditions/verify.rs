//! Checks for tests whether all counters and indexes are consistent.

use holdfast_mutations::{Mutation, is_enabled};

use super::{AwaitStage, Conditions};
use crate::locks::namespace::Namespace;

impl Namespace {
    /// Panics if a counter or an index of awaits is inconsistent.
    pub(in crate::locks) fn verify_conditions(&self) {
        let mut rebuilt = Conditions::default();
        for (wait, awaits) in self.conditions.iter() {
            let session = self.owners.name(awaits.owner).session().map(|session| session.number);
            rebuilt.insert(wait, session, awaits.as_ref().clone());
            assert_eq!(awaits.owner_bytes, self.owners.name(awaits.owner).name_bytes(), "names of owners count");
            assert!(self.owners.get(awaits.owner).await_ids().any(|id| id == wait), "an owner knows what it awaits");
        }
        for (position, waiting) in self.waits.iter() {
            let Some(came_from) = &waiting.came_from else { continue };
            assert_eq!((waiting.claims.len(), position.is_upgrade()), (1, false), "it has one claim");
            rebuilt.insert_position(&waiting.claims[0].path, came_from.token, *position);
        }
        let kept = &self.conditions;
        assert_eq!(rebuilt.bytes, kept.bytes, "awaits are charged");
        assert_eq!((&rebuilt.called, &rebuilt.due), (&kept.called, &kept.due), "calls and ends of awaits are known");
        assert_eq!(rebuilt.of_sessions, kept.of_sessions, "what a session awaits is known");
        if !is_enabled(Mutation::CondTwoSteps) {
            assert_eq!(rebuilt.by_lock, kept.by_lock, "who gave a lock up is known");
        }
        assert!(kept.owed.is_empty(), "every signal was handed on");
        let named: usize = self.owners.iter().map(|(_, record)| record.await_ids().count()).sum();
        assert_eq!(named, kept.len());
        let by_token = kept.by_lock.values().flat_map(|lock| lock.stages.values());
        let awaiting = by_token.filter(|stage| matches!(stage, AwaitStage::Awaiting(_))).count();
        assert_eq!(awaiting, kept.len(), "a hold is given up once");
    }
}
