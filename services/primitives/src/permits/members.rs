//! The members of one pool: which are free, and who waits for which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::item::QueueRank;
use crate::item_bytes::ItemBytes;
use crate::metadata::EncodedMetadata;
use crate::{FencingToken, Reason, Revision, Wanted};

/// A member without texts.
const MEMBER: ItemBytes = ItemBytes { charged: 640, counted: 160 };

/// The members of a pool, and what its queue wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    pub(super) cooldown_ms: u64,
    by_name: BTreeMap<Arc<str>, Arc<Member>>,
    /// The free members: those that have been free longest first.
    free: BTreeSet<(Revision, Arc<str>)>,
    leaving: u64,
    /// The bytes of all members.
    bytes: ItemBytes,
    /// The requests for some members, whichever are free.
    counting: BTreeSet<QueueRank>,
    /// The requests for a member by its name.
    named: BTreeSet<(Arc<str>, QueueRank)>,
    /// The first request for each free member.
    ready: BTreeMap<QueueRank, Arc<str>>,
    /// The names that requests wait for and that no member has which stays.
    gone: BTreeSet<Arc<str>>,
}

/// Until when a member rests, on the shard clock, and the revision at which its hold ended.
pub(super) type MemberRest = (u64, Revision);

/// A member of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Whether it is not given out.
    pub(super) is_disabled: bool,
    /// Whether it is gone once its hold ends.
    pub(super) is_leaving: bool,
    pub(super) metadata: EncodedMetadata,
    /// The latest of these revisions: of its addition, of the end of a hold of it, and of being enabled while it was
    /// disabled or rested.
    pub(super) free_since: Revision,
    /// Shard clock at which its rest ends.
    pub(super) resting_until_ms: Option<u64>,
    pub(super) hold: Option<FencingToken>,
    /// The first request for it, while it is free. Known from the queue.
    ready: Option<QueueRank>,
}

impl Member {
    pub(super) fn new(is_disabled: bool, metadata: EncodedMetadata, free_since: Revision) -> Self {
        let (is_leaving, resting_until_ms, hold, ready) = (false, None, None, None);
        Self { is_disabled, is_leaving, metadata, free_since, resting_until_ms, hold, ready }
    }

    /// Returns its rest, if it rests.
    pub(super) fn rest(&self) -> Option<MemberRest> {
        Some((self.resting_until_ms?, self.free_since))
    }

    fn is_free(&self) -> bool {
        self.hold.is_none() && !self.is_disabled && !self.is_leaving && self.resting_until_ms.is_none()
    }
}

impl Members {
    pub(super) fn new(cooldown_ms: u64) -> Self {
        Self { cooldown_ms, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn bytes(&self) -> ItemBytes {
        self.bytes
    }

    pub(super) fn free(&self) -> u64 {
        self.free.len() as u64
    }

    pub(super) fn leaving(&self) -> u64 {
        self.leaving
    }

    /// Returns the members that do not leave.
    pub(super) fn staying(&self) -> u64 {
        (self.by_name.len() as u64).saturating_sub(self.leaving)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Member> {
        self.by_name.get(name).map(AsRef::as_ref)
    }

    pub(super) fn name_of(&self, name: &str) -> Option<Arc<str>> {
        self.by_name.get_key_value(name).map(|(name, _)| Arc::clone(name))
    }

    /// Returns the bytes of a member.
    pub(super) fn bytes_of(&self, name: &str) -> ItemBytes {
        self.get(name).map_or(ItemBytes::default(), |member| of_member(name, member.metadata.len()))
    }

    /// Returns all members, in order of name.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Arc<str>, &Member)> {
        self.by_name.iter().map(|(name, member)| (name, member.as_ref()))
    }

    /// Returns the members after one, in order of name.
    pub(super) fn after(&self, name: Option<&str>) -> impl Iterator<Item = (&Arc<str>, &Member)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let start = name.map_or(Unbounded, Excluded);
        self.by_name.range::<str, _>((start, Unbounded)).map(|(name, member)| (name, member.as_ref()))
    }

    /// Adds a member, or replaces it.
    pub(super) fn insert(&mut self, name: &Arc<str>, member: Member) {
        self.take(name);
        self.put(name, member);
    }

    /// Removes a member.
    pub(super) fn remove(&mut self, name: &str) -> Option<Member> {
        let name = self.name_of(name)?;
        let member = self.take(&name);
        self.record_gone(&name);
        member
    }

    /// Changes a member where it is, and returns its rest before and after. One that stays the same costs a look: a
    /// configuration names a thousand members of which few are others than before.
    pub(super) fn change(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Member),
    ) -> Option<(Option<MemberRest>, Option<MemberRest>)> {
        let (name, before) = self.by_name.get_key_value(name)?;
        let (name, before) = (Arc::clone(name), Arc::clone(before));
        let mut changed = Member::clone(&before);
        change(&mut changed);
        let rests = (before.rest(), changed.rest());
        if changed != *before {
            self.replace(&name, &before, changed);
        }
        Some(rests)
    }

    /// Finds the first request for a member anew.
    fn refresh(&mut self, name: &Arc<str>) {
        if let Some(before) = self.by_name.get(name).map(Arc::clone) {
            self.replace(name, &before, Member::clone(&before));
        }
    }

    /// Puts a member where the one is that has been there before.
    fn replace(&mut self, name: &Arc<str>, before: &Member, member: Member) {
        self.remove_from_indexes(name, before);
        let member = Arc::new(self.add_to_indexes(name, member));
        if let Some(there) = self.by_name.get_mut(name) {
            *there = member;
        }
        self.record_gone(name);
    }

    fn put(&mut self, name: &Arc<str>, member: Member) {
        let member = Arc::new(self.add_to_indexes(name, member));
        self.by_name.insert(Arc::clone(name), member);
        self.record_gone(name);
    }

    fn take(&mut self, name: &str) -> Option<Member> {
        let (name, member) = self.by_name.remove_entry(name)?;
        self.remove_from_indexes(&name, &member);
        Some(Member { ready: None, ..Arc::unwrap_or_clone(member) })
    }

    /// Counts a member and, if it is free, records who is next for it. Returns it with that.
    fn add_to_indexes(&mut self, name: &Arc<str>, mut member: Member) -> Member {
        self.bytes += of_member(name, member.metadata.len());
        self.leaving += u64::from(member.is_leaving);
        member.ready = None;
        if member.is_free() {
            self.free.insert((member.free_since, Arc::clone(name)));
            member.ready = self.first_for(name);
            self.ready.extend(member.ready.map(|rank| (rank, Arc::clone(name))));
        }
        member
    }

    fn remove_from_indexes(&mut self, name: &Arc<str>, member: &Member) {
        self.bytes -= of_member(name, member.metadata.len());
        self.leaving -= u64::from(member.is_leaving);
        if let Some(rank) = member.ready {
            self.ready.remove(&rank);
        }
        if member.is_free() {
            self.free.remove(&(member.free_since, Arc::clone(name)));
        }
    }

    /// Returns whether a name is one of a member that stays.
    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some_and(|member| !member.is_leaving)
    }

    fn first_for(&self, name: &Arc<str>) -> Option<QueueRank> {
        if self.named.is_empty() {
            return None;
        }
        let (first, rank) = self.named.range((Arc::clone(name), QueueRank::FIRST)..).next()?;
        (first == name).then_some(*rank)
    }

    fn record_gone(&mut self, name: &Arc<str>) {
        if self.first_for(name).is_some() && !self.has(name) {
            self.gone.insert(Arc::clone(name));
        } else if !self.gone.is_empty() {
            self.gone.remove(name);
        }
    }

    /// Adds a waiting request, or removes one.
    pub(super) fn record_wait(&mut self, wanted: &Wanted, rank: QueueRank, waits: bool) {
        match (wanted, waits) {
            (Wanted::Member(name), _) => {
                let name = self.name_of(name).unwrap_or_else(|| name.as_str().into());
                if waits {
                    self.named.insert((Arc::clone(&name), rank));
                } else {
                    self.named.remove(&(Arc::clone(&name), rank));
                }
                self.refresh(&name);
                self.record_gone(&name);
            }
            (_, true) => _ = self.counting.insert(rank),
            (_, false) => _ = self.counting.remove(&rank),
        }
    }

    /// Returns whether what is wanted is free.
    pub(super) fn fits(&self, wanted: &Wanted) -> bool {
        match wanted {
            Wanted::Member(name) => self.get(name).is_some_and(Member::is_free),
            _ => wanted.weight() <= self.free(),
        }
    }

    /// Returns whether no request is before one of that priority which it must not overtake: for one of some members,
    /// one of some members; for one of a member by its name, also one of the same member.
    pub(super) fn is_first(&self, wanted: &Wanted, priority: u8) -> bool {
        let is_behind = |rank: Option<QueueRank>| rank.is_none_or(|rank| !rank.precedes(priority));
        let of_member = if let Wanted::Member(name) = wanted {
            if is_enabled(Mutation::PoolAnyStarves) {
                return true;
            }
            self.name_of(name).and_then(|name| self.first_for(&name))
        } else {
            None
        };
        is_behind(self.counting.first().copied()) && is_behind(of_member)
    }

    /// Returns why a request is not granted.
    pub(super) fn reason(&self, wanted: &Wanted) -> Reason {
        self.impossible(wanted).unwrap_or(if self.fits(wanted) { Reason::Queued } else { Reason::Exhausted })
    }

    /// Returns why nobody could ever be granted that, if so.
    pub(super) fn impossible(&self, wanted: &Wanted) -> Option<Reason> {
        match wanted {
            Wanted::Member(name) => (!self.has(name)).then_some(Reason::NoMember),
            _ => (wanted.weight() > self.staying()).then_some(Reason::TooLarge),
        }
    }

    /// Returns a request for a member that no longer is one.
    pub(super) fn first_gone(&self) -> Option<QueueRank> {
        self.gone.first().and_then(|name| self.first_for(name))
    }

    /// Returns the first request for some members, and the first for a free member if it comes before that.
    pub(super) fn first_waits(&self) -> (Option<QueueRank>, Option<QueueRank>) {
        let counting = self.counting.first().copied();
        let ready = self.ready.first_key_value().map(|(rank, _)| *rank);
        let is_next = |rank: &QueueRank| counting.is_none_or(|first| *rank < first);
        (counting, ready.filter(|rank| is_next(rank) || is_enabled(Mutation::PoolAnyStarves)))
    }

    /// Returns the members for a request that fits, in order of name: the preferred one first, then those that have
    /// been free longest.
    pub(super) fn choose(&self, wanted: &Wanted) -> Vec<Arc<str>> {
        let (count, prefer) = match wanted {
            Wanted::Member(name) => return self.name_of(name).into_iter().collect(),
            Wanted::Members { count, prefer } => (*count, prefer.as_deref()),
            Wanted::Permits { .. } => return Vec::new(),
        };
        let preferred = prefer.filter(|name| self.get(name).is_some_and(Member::is_free));
        let preferred = preferred.and_then(|name| self.name_of(name));
        let others = self.free.iter().map(|(_, name)| name).filter(|name| Some(*name) != preferred.as_ref());
        let all = preferred.iter().chain(others).take(usize::try_from(count).unwrap_or(usize::MAX));
        let mut chosen: Vec<Arc<str>> = all.cloned().collect();
        chosen.sort_unstable();
        chosen
    }

    /// Returns the same with indexes that follow from the members and from the waiting requests, to check the present
    /// ones.
    pub(super) fn rebuilt<'a>(&self, waits: impl Iterator<Item = (QueueRank, &'a Wanted)>) -> Self {
        let mut rebuilt = Self::new(self.cooldown_ms);
        for (name, member) in self.iter() {
            rebuilt.put(name, member.clone());
        }
        waits.for_each(|(rank, wanted)| rebuilt.record_wait(wanted, rank, true));
        rebuilt
    }
}

/// Returns the bytes of a member.
pub(super) fn of_member(name: &str, metadata: usize) -> ItemBytes {
    let name = name.len() as u64;
    MEMBER + ItemBytes { charged: 2 * name, counted: name } + ItemBytes::of_metadata(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WaitId;

    fn rank(wait: u64) -> QueueRank {
        QueueRank::new(0, WaitId(wait))
    }

    /// Two requests wait for the first of three members.
    fn members() -> (Members, Vec<(QueueRank, Wanted)>) {
        let mut members = Members::new(0);
        for (name, since) in ["a", "b", "c"].into_iter().zip(1..) {
            members.insert(&name.into(), Member::new(false, EncodedMetadata::default(), since));
        }
        let waits = vec![(rank(7), Wanted::Member("a".into())), (rank(8), Wanted::Member("a".into()))];
        waits.iter().for_each(|(rank, wanted)| members.record_wait(wanted, *rank, true));
        (members, waits)
    }

    fn check(members: &Members, waits: &[(QueueRank, Wanted)]) {
        assert_eq!(*members, members.rebuilt(waits.iter().map(|(rank, wanted)| (*rank, wanted))));
    }

    #[test]
    fn who_is_free_and_who_is_next_for_it_follow_each_change_of_a_member() {
        let (mut members, mut waits) = members();
        let changes: [fn(&mut Member); 7] = [
            |_| {},
            |member| member.hold = Some(9),
            |member| (member.hold, member.free_since) = (None, 10),
            |member| member.resting_until_ms = Some(5_000),
            |member| member.is_disabled = true,
            |member| (member.is_disabled, member.resting_until_ms) = (false, None),
            |member| (member.is_leaving, member.hold) = (true, Some(11)),
        ];
        let mut rest = None;
        for change in changes {
            let (before, after) = members.change("a", change).expect("it is there");
            assert_eq!(before, rest);
            rest = after;
            check(&members, &waits);
        }
        assert_eq!(members.first_gone(), Some(rank(7)), "the member does not stay");
        let (first, wanted) = waits.remove(0);
        members.record_wait(&wanted, first, false);
        check(&members, &waits);
        assert_eq!(members.change("d", |_| {}), None);
    }

    #[test]
    fn a_member_that_stays_as_it_is_is_not_replaced() {
        let (mut members, _) = members();
        let before = members.by_name.get("b").map(Arc::clone);
        assert_eq!(members.change("b", |member| member.is_disabled = false), Some((None, None)));
        assert!(before.zip(members.by_name.get("b")).is_some_and(|(before, after)| Arc::ptr_eq(&before, after)));
    }
}
