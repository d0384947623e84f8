//! What only pools do: change their members, and let them rest.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::PermitTable;
use super::end::record;
use super::key::Name;
use super::members::{Member, Members};
use super::source::{Source, Stock};
use crate::kit::{END_UNITS, Kit, quota_exceeded};
use crate::metadata::EncodedMetadata;
use crate::{
    ChangePool, CommandError, ConfigurePool, EventKind, FencingToken, Kind, MAX_NAME_BYTES, MAX_NAMES_PER_POOL_CHANGE,
    MemberSpec, PermitCommand, PermitsEnd, PoolView, Response, Revision,
};

impl PermitTable {
    /// Creates a pool or changes it. Nobody loses a member; what waits for more than there are is refused.
    pub fn configure_pool(&mut self, kit: &mut Kit<'_>, configure: &ConfigurePool) -> Result<Response, CommandError> {
        let name = Arc::new(Name::new(Kind::Pool, &configure.path));
        let names: BTreeSet<&str> = configure.members.iter().map(|member| member.name.as_str()).collect();
        if names.len() < configure.members.len() {
            return Err(CommandError::InvalidArgument("members: each member of a pool is listed once".to_owned()));
        }
        check_names(&configure.members)?;
        if self.by_name.get(&name).is_some_and(|source| source.is_pool_as(configure)) {
            return Ok(self.pool(kit, &name));
        }
        let present = self.by_name.get(&name).and_then(|source| source.members());
        let leaving: Vec<Arc<str>> = present.into_iter().flat_map(|members| missing(members, &names)).collect();
        self.check_members(kit, &name, &names, leaving.iter().map(AsRef::as_ref))?;
        self.check_configured(kit, &name, self.bytes_configured(configure))?;
        let revision = kit.record(EventKind::PoolConfigured, &configure.path);
        if !self.by_name.contains_key(&name) {
            self.insert_source(
                Arc::clone(&name),
                Source::new(Stock::Members(Members::new(configure.cooldown_ms)), revision),
            );
        }
        self.recharge(&name, |source| {
            source.revision = revision;
            source.description.clone_from(&configure.description);
            source.metadata = EncodedMetadata::of(&configure.metadata);
            if let Some(members) = source.members_mut() {
                members.cooldown_ms = configure.cooldown_ms;
            }
        });
        for spec in &configure.members {
            self.add_member(&name, spec, revision, |member| member.set_disabled(spec.disabled, revision));
        }
        leaving.iter().for_each(|member| self.let_go(&name, member));
        self.unsettle(&name);
        self.settle(kit);
        Ok(self.pool(kit, &name))
    }

    /// Changes some members of a pool.
    pub fn change_pool(&mut self, kit: &mut Kit<'_>, change: &ChangePool) -> Result<Response, CommandError> {
        let name = Arc::new(Name::new(Kind::Pool, &change.path));
        let Some(members) = self.by_name.get(&name).and_then(|source| source.members()) else {
            return Err(CommandError::PrimitiveNotFound { kind: Kind::Pool, path: change.path.clone() });
        };
        check_change(change)?;
        let added: BTreeSet<&str> = change.add.iter().map(|member| member.name.as_str()).collect();
        let is_known = |member: &&String| members.get(member).is_some() || added.contains(member.as_str());
        for (field, names) in [("disable", &change.disable), ("enable", &change.enable)] {
            if let Some(unknown) = names.iter().find(|member| !is_known(member)) {
                return Err(CommandError::InvalidArgument(format!("{field}: the pool has no member {unknown:?}")));
            }
        }
        let removed: BTreeSet<&str> = change.remove.iter().map(String::as_str).collect();
        self.check_members(kit, &name, &added, removed.iter().copied())?;
        self.check_configured(kit, &name, self.bytes_changed(change))?;
        let named: BTreeSet<&str> = [&change.disable, &change.enable]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .chain(added)
            .chain(removed)
            .collect();
        let facts = |table: &Self| -> Vec<_> {
            let members = table.by_name.get(&name).and_then(|source| source.members());
            named.iter().map(|member| Some(members?.get(member)?.facts())).collect()
        };
        let before = facts(self);
        let revision = kit.revision() + 1;
        change.add.iter().for_each(|spec| self.add_member(&name, spec, revision, |_| {}));
        let arcs = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect::<Vec<Arc<str>>>();
        arcs(&change.remove).iter().for_each(|member| self.let_go(&name, member));
        for member in arcs(&change.disable) {
            self.change_member(&name, &member, |member| member.is_disabled = true);
        }
        for member in arcs(&change.enable) {
            self.change_member(&name, &member, |member| member.enable(revision));
        }
        if facts(self) != before {
            kit.record(EventKind::PoolConfigured, &change.path);
            self.change(&name, |source| source.revision = revision);
        }
        self.unsettle(&name);
        self.settle(kit);
        Ok(self.pool(kit, &name))
    }

    /// Returns the units that the present members of a pool add to a configuration of it: all are compared with it, and
    /// those leave that it does not list.
    pub fn units_of_present(&self, command: &PermitCommand) -> u64 {
        let PermitCommand::ConfigurePool(configure) = command else { return 0 };
        let source = self.by_name.get(&Name::new(Kind::Pool, &configure.path));
        source.and_then(|source| source.members()).map_or(0, |members| members.len() as u64)
    }

    fn pool(&self, kit: &Kit<'_>, name: &Name) -> Response {
        let absent = || PoolView::absent(&name.path, 0);
        let view = if kit.with_views { self.pool_view(name) } else { None };
        Response::Pool(view.unwrap_or_else(absent))
    }

    /// Checks how many members a pool would have that is given some and loses others.
    fn check_members<'a>(
        &self,
        kit: &Kit<'_>,
        name: &Name,
        added: &BTreeSet<&str>,
        removed: impl Iterator<Item = &'a str>,
    ) -> Result<(), CommandError> {
        let members = self.by_name.get(name).and_then(|source| source.members());
        let find = |name: &str| members.and_then(|members| members.get(name));
        let new = added.iter().filter(|name| find(name).is_none()).count();
        // One that is held stays for now.
        let is_free = |name: &str| find(name).is_some_and(|member| member.hold.is_none());
        let gone = removed.filter(|name| is_free(name) && !added.contains(name)).count();
        let (max, before) = (kit.limits.max_members_per_pool, members.map_or(0, Members::len));
        let after = before + new - gone;
        if after as u64 > max && after > before {
            let hint = "remove members or have the limit raised";
            return Err(quota_exceeded("the number of members of a pool", max, hint));
        }
        Ok(())
    }

    /// Adds a member. One that is there stays, with other metadata, and is changed.
    fn add_member(
        &mut self,
        name: &Arc<Name>,
        spec: &MemberSpec,
        revision: Revision,
        change: impl FnOnce(&mut Member),
    ) {
        let metadata = EncodedMetadata::of(&spec.metadata);
        let present = self.by_name.get(name).and_then(|it| it.members()?.name_of(&spec.name));
        if let Some(member) = present {
            return self.change_member(name, &member, |member| {
                (member.is_leaving, member.metadata) = (false, metadata);
                change(member);
            });
        }
        self.change_members(name, |members| {
            members.insert(&spec.name.as_str().into(), Member::new(spec.disabled, metadata, revision))
        });
    }

    /// Removes a member, or lets it leave with the end of its hold.
    fn let_go(&mut self, name: &Arc<Name>, member: &Arc<str>) {
        let hold = self.by_name.get(name).and_then(|it| it.members()?.get(member)?.hold);
        match hold {
            Some(_) => self.change_member(name, member, |member| member.is_leaving = true),
            None => self.remove_member(name, member),
        }
    }

    /// Marks members as held.
    pub(super) fn occupy(&mut self, name: &Arc<Name>, members: &[Arc<str>], token: FencingToken) {
        if is_enabled(Mutation::PoolTwoHolders) {
            return;
        }
        for member in members {
            self.change_member(name, member, |member| member.hold = Some(token));
        }
    }

    /// Ends the holds of members. They rest, or leave.
    pub(super) fn free_members(&mut self, kit: &Kit<'_>, name: &Arc<Name>, members: &[Arc<str>], revision: Revision) {
        for member in members {
            let found = self.by_name.get(name).and_then(|it| it.members());
            let Some(found) = found.and_then(|it| Some((it.cooldown_ms, it.get(member)?.is_leaving))) else { continue };
            let (cooldown_ms, is_leaving) = found;
            let rests = cooldown_ms > 0 && !is_enabled(Mutation::PoolCooldownLost);
            let until_ms = rests.then(|| kit.clock_ms().saturating_add(cooldown_ms));
            self.change_member(name, member, |member| {
                (member.hold, member.free_since, member.resting_until_ms) = (None, revision, until_ms);
            });
            if is_leaving {
                self.remove_member(name, member);
            }
        }
    }

    /// Returns some members of a hold, which keeps its token; all of them end it. Returns whether it had one of them.
    pub(super) fn return_members(
        &mut self,
        kit: &mut Kit<'_>,
        name: &Arc<Name>,
        token: FencingToken,
        wanted: &[String],
    ) -> bool {
        let Some(hold) = self.hold(name, token) else { return false };
        let wanted: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
        let is_wanted = |member: &Arc<str>| wanted.contains(&**member);
        let (returned, kept): (Vec<Arc<str>>, Vec<Arc<str>>) = hold.members().iter().cloned().partition(is_wanted);
        if returned.is_empty() {
            return false;
        }
        if kept.is_empty() {
            self.end_hold(kit, name, token, PermitsEnd::Released);
            return true;
        }
        let kind = EventKind::MembersReturned { cause: PermitsEnd::Shrunk };
        let revision = record(kit, kind, &hold.key, &Arc::clone(&hold.process_id), (Some(token), &returned));
        self.change_hold(name, token, |hold| {
            hold.weight = kept.len() as u64;
            if let Some(lease) = &mut hold.lease {
                lease.members = kept;
            }
        });
        self.free_members(kit, name, &returned, revision);
        self.change(name, |source| source.revision = revision);
        self.unsettle(name);
        true
    }

    /// Ends the rest of the member that has rested first.
    pub(super) fn end_first_rest(&mut self, kit: &mut Kit<'_>) {
        let Some((_, _, name, member)) = self.rests.first().cloned() else { return };
        kit.spend(END_UNITS);
        self.change_member(&name, &member, |member| member.resting_until_ms = None);
        self.unsettle(&name);
    }
}

impl Member {
    /// Returns what a change of the pool may change.
    fn facts(&self) -> impl PartialEq + use<> {
        (self.is_disabled, self.is_leaving, self.metadata.clone(), self.resting_until_ms, self.free_since)
    }

    /// Lets it be given out or not. One that is given out again comes after those that were free meanwhile.
    fn set_disabled(&mut self, is_disabled: bool, revision: Revision) {
        if self.is_disabled && !is_disabled {
            self.free_since = revision;
        }
        self.is_disabled = is_disabled;
    }

    /// Lets it be given out again, at once.
    fn enable(&mut self, revision: Revision) {
        if self.is_disabled || self.resting_until_ms.is_some() {
            (self.is_disabled, self.resting_until_ms, self.free_since) = (false, None, revision);
        }
    }
}

impl Source {
    fn is_pool_as(&self, configure: &ConfigurePool) -> bool {
        let Some(members) = self.members().filter(|_| self.deleting.is_none()) else { return false };
        let is_same = |spec: &MemberSpec| {
            members.get(&spec.name).is_some_and(|member| {
                let is_same = member.metadata == EncodedMetadata::of(&spec.metadata);
                is_same && !member.is_leaving && member.is_disabled == spec.disabled
            })
        };
        members.cooldown_ms == configure.cooldown_ms
            && members.staying() == configure.members.len() as u64
            && configure.members.iter().all(is_same)
            && self.description == configure.description
            && self.metadata == EncodedMetadata::of(&configure.metadata)
    }
}

fn check_names(specs: &[MemberSpec]) -> Result<(), CommandError> {
    let fits = specs.iter().all(|spec| (1..=MAX_NAME_BYTES).contains(&spec.name.len()));
    let text = || CommandError::InvalidArgument(format!("a member has a name of 1 to {MAX_NAME_BYTES} bytes"));
    if fits { Ok(()) } else { Err(text()) }
}

fn check_change(change: &ChangePool) -> Result<(), CommandError> {
    if change.names() > MAX_NAMES_PER_POOL_CHANGE {
        let text = format!(
            "add, remove, disable and enable have at most {MAX_NAMES_PER_POOL_CHANGE} names together in a change of a pool"
        );
        return Err(CommandError::InvalidArgument(text));
    }
    check_names(&change.add)
}

/// Returns the members that are not listed, but for those that leave already.
fn missing(members: &Members, listed: &BTreeSet<&str>) -> Vec<Arc<str>> {
    let missing = members.iter().filter(|(name, member)| !member.is_leaving && !listed.contains(&***name));
    missing.map(|(name, _)| Arc::clone(name)).collect()
}
