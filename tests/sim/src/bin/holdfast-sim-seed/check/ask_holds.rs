//! What is held and can be asked for, before and after a step, and why it ended.

use std::collections::BTreeMap;

use holdfast_core::{
    AskRelease, Event, EventKind, Kind, Metadata, NamespaceRef, Owner, Path, PermitHolderView, PermitsEnd, Phase,
    ReleaseRequest,
};

use super::shard_view::ShardView;

/// What stays of a hold when its token changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HoldKey {
    pub(super) kind: Kind,
    pub(super) path: Path,
    pub(super) owner: Owner,
    /// Empty for a lock.
    pub(super) request_id: String,
}

/// A hold in a view.
pub(super) struct Shown<'a> {
    pub(super) token: u64,
    pub(super) phase: Phase,
    pub(super) members: &'a [String],
    pub(super) metadata: &'a Metadata,
    pub(super) request: Option<&'a ReleaseRequest>,
}

/// Why a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Given,
    Deleted,
    Reset,
}

/// Returns all that is held in a namespace and can be asked for.
pub(super) fn shown<'a>(view: &'a ShardView, life: &NamespaceRef) -> BTreeMap<HoldKey, Shown<'a>> {
    let locks = view.holds(life).map(|hold| {
        let (path, holder) = (hold.path.clone(), hold.view);
        let key = HoldKey { kind: Kind::Lock, path, owner: holder.owner.clone(), request_id: String::new() };
        let request = holder.release_requested.as_deref();
        let (token, phase, metadata) = (holder.fencing_token, holder.phase, &holder.metadata);
        (key, Shown { token, phase, members: &[], metadata, request })
    });
    let semaphores = view.semaphores(life).map(|(path, it)| (Kind::Semaphore, path, &it.holders));
    let pools = view.pools(life).map(|(path, it)| (Kind::Pool, path, &it.holders));
    let permits = semaphores.chain(pools).flat_map(|(kind, path, holders)| {
        holders.iter().map(move |holder: &'a PermitHolderView| {
            let (path, owner, request_id) = (path.clone(), holder.owner.clone(), holder.request_id.clone());
            let request = holder.release_requested.as_deref();
            let (token, phase, metadata) = (holder.fencing_token, holder.phase, &holder.metadata);
            let shown = Shown { token, phase, members: &holder.members, metadata, request };
            (HoldKey { kind, path, owner, request_id }, shown)
        })
    });
    locks.chain(permits).collect()
}

/// Whether a request is about a hold.
pub(super) fn concerns(ask: &AskRelease, key: &HoldKey, hold: &Shown<'_>) -> bool {
    let is_same = key.path == ask.path;
    let is_on_the_way = || key.path.0.starts_with(&ask.path.0) || ask.path.0.starts_with(&key.path.0);
    let has_path = is_same || (ask.kind == Kind::Lock && !ask.force && is_on_the_way());
    key.kind == ask.kind && has_path && ask.member.as_ref().is_none_or(|member| hold.members.contains(member))
}

/// Why holds ended, by kind, path and token.
pub(super) fn endings<'a>(
    life: &NamespaceRef,
    events: impl Iterator<Item = &'a (NamespaceRef, Event)>,
) -> BTreeMap<(Kind, Path, u64), Ending> {
    let mut ends = BTreeMap::new();
    for (_, event) in events.filter(|(of, _)| of == life) {
        let (EventKind::PermitsReleased { cause, .. } | EventKind::MembersReturned { cause }) = event.kind else {
            let ending = match event.kind {
                EventKind::Released | EventKind::Expired => Ending::Given,
                EventKind::Deleted => Ending::Deleted,
                EventKind::Reset => Ending::Reset,
                _ => continue,
            };
            let token = event.fencing_token.unwrap_or_default();
            ends.extend(event.claims.iter().map(|claim| ((Kind::Lock, claim.path.clone(), token), ending)));
            continue;
        };
        let ending = match cause {
            PermitsEnd::Released | PermitsEnd::Expired => Ending::Given,
            PermitsEnd::Deleted => Ending::Deleted,
            PermitsEnd::Reset => Ending::Reset,
            PermitsEnd::Shrunk => continue,
        };
        let kind = event.kind.of();
        if let (Some(claim), Some(token)) = (event.claims.first(), event.fencing_token) {
            ends.insert((kind, claim.path.clone(), token), ending);
        }
    }
    ends
}
