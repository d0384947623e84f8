//! The phase of a hold. A hold past its deadline, or of an owner whose end goes on, counts as over at once, though the
//! slice that ends it may come later.

use super::item::PermitHold;
use super::key::Name;
use super::many::item_of;
use super::{HoldOrWait, PermitTable};
use crate::kit::Sight;
use crate::{PermitHolderView, Phase};

impl PermitTable {
    /// Returns the phase of a hold and the end of that phase.
    pub(super) fn phase_of(&self, hold: &PermitHold, sight: Sight<'_>) -> (Phase, Option<u64>) {
        if let Some(forced_at_ms) = hold.asks.forced_at_ms.filter(|at_ms| *at_ms <= sight.visible_ms) {
            return (Phase::Transition, Some(forced_at_ms));
        }
        if !hold.is_held() {
            return (hold.phase, hold.ends_at_ms());
        }
        let transition_ms = u64::from(hold.transition_ms);
        let ending = hold.key.session().and_then(|number| self.ending.get(&number));
        let swept = (sight.sweep_of)(&item_of(&hold.key, HoldOrWait::Hold(hold.token))).filter(|mark| mark.at_once);
        let due_ms = hold.deadline_ms.filter(|at_ms| *at_ms <= sight.visible_ms);
        match (ending, swept, due_ms) {
            _ if self.is_being_deleted(&hold.key.name) => (Phase::Transition, Some(sight.visible_ms)),
            (Some(ending), ..) => {
                let transition_ms = if ending.has_expired { transition_ms } else { 0 };
                (Phase::Transition, Some(ending.since_ms.saturating_add(transition_ms)))
            }
            (None, Some(swept), _) => (Phase::Transition, Some(swept.since_ms)),
            (None, None, Some(due_ms)) => (Phase::Transition, Some(due_ms.saturating_add(transition_ms))),
            (None, None, None) => (hold.phase, hold.ends_at_ms()),
        }
    }

    /// Returns the view of a hold.
    pub(super) fn view_of_hold(&self, hold: &PermitHold, sight: Sight<'_>) -> PermitHolderView {
        let members = hold.members().iter().map(ToString::to_string).collect();
        PermitHolderView { members, ..self.view_of_holder(hold, sight) }
    }

    /// Returns the view of a hold without its members.
    pub(super) fn view_of_holder(&self, hold: &PermitHold, sight: Sight<'_>) -> PermitHolderView {
        let (phase, deadline_ms) = self.phase_of(hold, sight);
        PermitHolderView { phase, deadline_ms, ..hold.view() }
    }

    pub(super) fn is_being_deleted(&self, name: &Name) -> bool {
        self.by_name.get(name).is_some_and(|source| source.deleting.is_some())
    }
}
