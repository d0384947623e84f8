//! One hold of one path.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::NamespaceKey;
use crate::{FencingToken, HolderView, Metadata, Mode, Owner, Path, Phase};

/// One hold. A million of them must fit into a node, so what few holds have is kept aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) owner: HoldOwner,
    pub(super) mode: Mode,
    pub(super) phase: Phase,
    pub(super) token: FencingToken,
    pub(super) locked_at_ms: u64,
    /// When the present phase ends.
    pub(super) deadline_ms: u64,
    pub(super) transition_ms: u64,
    pub(super) extras: Option<Box<Extras>>,
}

/// An [`Owner`] in a third of its bytes: nearly all owners are processes, and no name grows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum HoldOwner {
    Process(Box<str>),
    Other(Box<Owner>),
}

/// What is kept with a hold for whoever looks at it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Extras {
    metadata: Metadata,
    asked_expires_at_ns: Option<i64>,
}

/// The end of a hold's present phase: in order of time, then of grant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline {
    pub(super) at_ms: u64,
    pub(super) token: FencingToken,
    pub(super) namespace: NamespaceKey,
    pub(super) path: Arc<Path>,
}

impl Hold {
    pub(super) fn deadline(&self, namespace: NamespaceKey, path: &Arc<Path>) -> Deadline {
        Deadline { at_ms: self.deadline_ms, token: self.token, namespace, path: Arc::clone(path) }
    }

    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    pub(super) fn view(&self) -> HolderView {
        let owner = self.owner.to_owner();
        let process_id = match &owner {
            Owner::Process(process_id) => process_id.clone(),
            Owner::Session { session_id, .. } => session_id.clone(),
        };
        let extras = self.extras.as_deref();
        HolderView {
            process_id,
            owner,
            mode: self.mode,
            fencing_token: self.token,
            locked_at_ms: self.locked_at_ms,
            deadline_ms: Some(self.deadline_ms),
            asked_expires_at_ns: extras.and_then(|extras| extras.asked_expires_at_ns),
            phase: self.phase,
            metadata: extras.map(|extras| extras.metadata.clone()).unwrap_or_default(),
        }
    }
}

impl HoldOwner {
    pub(super) fn of(owner: &Owner) -> Self {
        match owner {
            Owner::Process(process_id) => Self::Process(process_id.as_str().into()),
            Owner::Session { .. } => Self::Other(Box::new(owner.clone())),
        }
    }

    pub(super) fn is(&self, owner: &Owner) -> bool {
        match (self, owner) {
            (Self::Process(own), Owner::Process(other)) => **own == **other,
            (Self::Process(_), Owner::Session { .. }) => false,
            (Self::Other(own), other) => **own == *other,
        }
    }

    fn to_owner(&self) -> Owner {
        match self {
            Self::Process(process_id) => Owner::Process(process_id.to_string()),
            Self::Other(owner) => (**owner).clone(),
        }
    }
}

impl Extras {
    /// Nothing when there is nothing to keep.
    pub(super) fn of(metadata: &Metadata, asked_expires_at_ns: Option<i64>) -> Option<Box<Self>> {
        let is_empty = metadata.is_empty() && asked_expires_at_ns.is_none();
        (!is_empty).then(|| Box::new(Self { metadata: metadata.clone(), asked_expires_at_ns }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_takes_little_memory() {
        assert!(size_of::<Hold>() <= 64, "a hold takes {} bytes", size_of::<Hold>());
    }

    #[test]
    fn an_owner_comes_back_as_it_was_and_is_told_apart_from_others() {
        let session =
            |holder: Option<&str>| Owner::Session { session_id: "se_1".into(), holder: holder.map(str::to_owned) };
        let all = [Owner::Process("se_1".into()), Owner::Process("p".into()), session(None), session(Some("p"))];
        for (place, owner) in all.iter().enumerate() {
            let kept = HoldOwner::of(owner);
            assert_eq!(kept.to_owner(), *owner);
            let same: Vec<usize> = (0..all.len()).filter(|other| kept.is(&all[*other])).collect();
            assert_eq!(same, [place]);
        }
    }
}
