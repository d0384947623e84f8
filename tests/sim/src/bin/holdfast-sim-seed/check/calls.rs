//! Every call of every client, against the history of the shards.
//!
//! Shards are logs, so the order of all commands is known. For each call there must be a position in that order where
//! its answer is right, after everything that had been answered before the call was made, and not after what was
//! applied when it was answered. Readers see a shard only where an apply slice of an entry ends, and writers are
//! answered after the whole entry. A call of unknown outcome may have taken effect or not.

use std::collections::BTreeMap;

use holdfast_api::Code;
use holdfast_core::{Incarnation, Path, Phase};

use super::linearization::{
    CheckContext, LinearizationPoint, LocksReplays, LowerBounds, NamespacesReplays, Window, end_of_entry,
};
use super::locks_replay::LocksReplay;
use super::namespace_model::Expected;
use super::outcomes::{CommandOutcome, Write};
use crate::client::STABLE_NAMESPACES;
use crate::history::{AcquireOp, Answer, Call, CallReturn, ObservedLock, Op};
use crate::world::World;

pub(crate) fn check(
    world: &World,
    calls: &[Call],
    locks: &LocksReplays,
    names: &NamespacesReplays,
    findings: &mut Vec<String>,
) {
    let invocations = calls.iter().map(|call| (call.invoked.number, call, None));
    let returns = calls.iter().filter_map(|call| {
        let returned = call.returned.as_ref()?;
        Some((returned.point.number, call, Some(returned)))
    });
    let mut moments: Vec<(usize, &Call, Option<&CallReturn>)> = invocations.chain(returns).collect();
    moments.sort_unstable_by_key(|(number, ..)| *number);
    let mut grounds = CheckContext { world, locks, names, at_invocation: BTreeMap::new() };
    let mut floors = LowerBounds::new();
    for (_, call, returned) in moments {
        let Some(returned) = returned else {
            grounds.at_invocation.insert(call.id, floors.clone());
            continue;
        };
        match grounds.check_call(call, returned) {
            Ok(LinearizationPoint::At(places)) => {
                for (shard, place) in places {
                    let floor = floors.entry(shard).or_default();
                    *floor = place.max(*floor);
                }
            }
            Ok(LinearizationPoint::Unordered) => {}
            Err(what) => {
                let after = grounds.at_invocation.get(&call.id);
                findings
                    .push(format!("[history] call {} of {}: {what}; {call:?}; after {after:?}", call.id, call.client));
            }
        }
    }
}

impl CheckContext<'_> {
    fn check_call(&self, call: &Call, returned: &CallReturn) -> Result<LinearizationPoint, String> {
        let is_of_names = matches!(call.op, Op::CreateNamespace | Op::GetNamespace | Op::DeleteNamespace { .. });
        match &returned.answer {
            Answer::Unknown => Ok(LinearizationPoint::Unordered),
            // What ended with an earlier life of the namespace is as good as never done.
            Answer::Unavailable => {
                self.check_not_begun(call)?;
                self.check_not_asked(call)?;
                self.check_not_applied(call, self.current_incarnation_since(call, returned))
            }
            Answer::Refused(code) if is_of_names => self.check_namespace_error(call, returned, *code),
            // What a call was granted while it waited may have ended with its session or namespace before it heard of it.
            Answer::Refused(Code::NamespaceNotFound) => {
                self.check_not_applied(call, self.applied_slices(call, returned))?;
                self.check_namespace_not_found(call, returned)
            }
            Answer::Refused(Code::SessionNotFound) => {
                self.check_not_applied(call, self.applied_slices(call, returned))?;
                match session_id_of(&call.op) {
                    Some(session) => self.check_session(call, returned, session, false),
                    None => Err("names no session, and the answer says that there is none".to_owned()),
                }
            }
            Answer::Refused(Code::QuotaExceeded) if self.world.plan.bounds.is_some() => {
                self.check_not_applied(call, self.applied_slices(call, returned))
            }
            Answer::Refused(Code::PrimitiveNotFound | Code::AlreadyExists) | Answer::Thing(_) => match &call.op {
                Op::Thing(op) => self.check_thing_call(call, op, returned),
                _ => Err("the answer is of another kind than the question".to_owned()),
            },
            Answer::Refused(code) => Err(format!("nothing in these calls should be refused with {code:?}")),
            _ if is_of_names => self.check_namespace_call(call, returned),
            Answer::Session { id } => self.check_session(call, returned, id, true),
            Answer::KeptAlive { remaining_ms } => self.check_keep_alive(call, returned, *remaining_ms),
            _ => self.check_lock_call(call, returned),
        }
    }

    fn check_keep_alive(
        &self,
        call: &Call,
        returned: &CallReturn,
        remaining_ms: u64,
    ) -> Result<LinearizationPoint, String> {
        match &call.op {
            Op::KeepAlive { ttl_ms, .. } if remaining_ms > *ttl_ms => {
                Err(format!("the session is said to live for {remaining_ms} ms more, beyond its time to live"))
            }
            Op::KeepAlive { session, .. } => self.check_session(call, returned, session, true),
            _ => Err("the answer is of another kind than the question".to_owned()),
        }
    }

    /// How many slices of its locks shard had been applied when a call was answered.
    fn applied_slices(&self, call: &Call, returned: &CallReturn) -> usize {
        let (shard, _) = self.locks_shard(call);
        *self.window(&shard, call, returned).end()
    }

    /// Since which slice its namespace had been as it was when the call was answered: open, or not there.
    fn current_incarnation_since(&self, call: &Call, returned: &CallReturn) -> usize {
        let (_, replayed) = self.locks_shard(call);
        replayed.incarnation_since(self.applied_slices(call, returned), call.account, &call.namespace)
    }

    /// Nothing was granted to the call in that slice or later.
    pub(super) fn check_not_applied(&self, call: &Call, from: usize) -> Result<LinearizationPoint, String> {
        let acquired = self.locks.values().filter_map(|shard| shard.acquires.get(&call.id)).flatten();
        let granted = |(at, came): &&(usize, CommandOutcome)| *at >= from && came.is_grant();
        if let Some((at, _)) = acquired.clone().find(granted) {
            return Err(format!("the answer says that it has nothing, but slice {at} grants it"));
        }
        let created = self.names.values().filter_map(|shard| shard.creates.get(&format!("call {}", call.id))).flatten();
        match created.clone().next() {
            Some((at, Expected::Namespace { .. })) => {
                Err(format!("the answer says that nothing was done, but slice {at} has it"))
            }
            _ => Ok(LinearizationPoint::Unordered),
        }
    }

    fn check_lock_call(&self, call: &Call, returned: &CallReturn) -> Result<LinearizationPoint, String> {
        let (shard, replayed) = self.locks_shard(call);
        let window = self.window(&shard, call, returned);
        let write = |write: Write, meant: CommandOutcome| replayed.find_answered(call, write, &window, &meant);
        let place = match (&call.op, &returned.answer) {
            (Op::Acquire(_), Answer::Acquired { outcome, locks }) => {
                let meant = CommandOutcome::Acquired { outcome: *outcome, locks: locks.clone() };
                if outcome.is_err() {
                    // No request is granted after its wait has ended.
                    self.check_not_applied(call, *window.end())?;
                }
                find_write(replayed.acquires.get(&call.id), &window, &meant)
            }
            (Op::Release { owner, path, token }, Answer::Released { released, locks }) => write(
                Write::Release { owner: owner.clone(), path: path.clone(), token: *token },
                CommandOutcome::Released { released: *released, locks: locks.clone() },
            ),
            (Op::ReleaseAll { owner }, Answer::Released { released, locks }) => write(
                Write::ReleaseAll { owner: owner.clone() },
                CommandOutcome::Released { released: *released, locks: locks.clone() },
            ),
            (Op::Delete { path }, Answer::Done) => write(Write::Delete { path: path.clone() }, CommandOutcome::Done),
            (Op::CloseSession { session }, Answer::Done) => return self.check_session_end(call, returned, session),
            (Op::Get { path }, Answer::Lock(lock)) => self.find_view(call, &window, path, |view| view == lock),
            (Op::Check { path, token }, Answer::Checked { current, lock }) => {
                self.find_view(call, &window, path, |view| {
                    let is_held = view.holders.iter().any(|held| held.token == *token && held.phase == Phase::Held);
                    view == lock && is_held == *current
                })
            }
            _ => return Err("the answer is of another kind than the question".to_owned()),
        };
        match place {
            Some(place) => Ok(LinearizationPoint::At(vec![(shard, place)])),
            None => Err(format!("its answer is right nowhere in {window:?} of {shard}")),
        }
    }

    /// A slice after which the lock was in that state.
    fn find_view(
        &self,
        call: &Call,
        window: &Window,
        path: &Path,
        fits: impl Fn(&ObservedLock) -> bool,
    ) -> Option<usize> {
        let (_, replayed) = self.locks_shard(call);
        window.clone().find(|place| {
            let life = replayed.open_incarnation(*place, call.account, &call.namespace);
            life.is_some_and(|life| fits(&replayed.view(*place, &life, path)))
        })
    }

    fn check_namespace_call(&self, call: &Call, returned: &CallReturn) -> Result<LinearizationPoint, String> {
        let (shard, replayed) = self.names_shard(call);
        let window = self.window(&shard, call, returned);
        let in_window = |at: usize| at + 1 > *window.start() && window.contains(&(at + 1));
        match (&call.op, &returned.answer) {
            (Op::CreateNamespace, Answer::Namespace { id }) => {
                let life: Incarnation = id.parse().map_err(|_| "the id of the namespace is no id".to_owned())?;
                let seen = Expected::Namespace { incarnation: Some(life) };
                let writes = replayed.creates.get(&format!("call {}", call.id)).into_iter().flatten();
                let place = writes.filter(|(at, what)| *what == seen && in_window(*at)).map(|(at, _)| at + 1).next();
                let place = place.ok_or_else(|| format!("is in no slice in {window:?} of {shard}"))?;
                let end = end_of_entry(&replayed.ends, place);
                let (locks, replayed) = self.locks_shard(call);
                let opened = replayed.opened.get(&(call.account, life)).copied();
                let opened = opened.filter(|at| *at <= self.place_applied(&locks, returned));
                let opened = opened.ok_or("was answered before its locks shard had opened it")?;
                Ok(LinearizationPoint::At(vec![(shard, end), (locks, opened)]))
            }
            (Op::DeleteNamespace { .. }, Answer::Done) => {
                let key = (call.account, call.namespace.clone());
                let writes = replayed.deletes.get(&key).into_iter().flatten();
                let mut done = writes.filter(|(at, _, what)| *what == Expected::Done && in_window(*at));
                let (at, life, _) = done.next().ok_or_else(|| format!("is in no slice in {window:?} of {shard}"))?;
                let end = end_of_entry(&replayed.ends, at + 1);
                let life = life.ok_or("deletes no incarnation by name")?;
                let (locks, replayed) = self.locks_shard(call);
                let purged = replayed.purged.get(&(call.account, life)).copied();
                let purged = purged.filter(|at| *at <= self.place_applied(&locks, returned));
                let purged = purged.ok_or("was answered before its locks shard had purged it")?;
                Ok(LinearizationPoint::At(vec![(shard, end), (locks, purged)]))
            }
            (Op::GetNamespace, Answer::Namespace { id }) => {
                let life = id.parse().ok();
                let is_there = |place: &usize| replayed.states[*place].get(call.account, &call.namespace) == life;
                let place = window.clone().find(is_there);
                let place = place.ok_or_else(|| format!("its answer is right nowhere in {window:?} of {shard}"))?;
                Ok(LinearizationPoint::At(vec![(shard, place)]))
            }
            _ => Err("the answer is of another kind than the question".to_owned()),
        }
    }

    /// A refusal of a call about a name must be right somewhere.
    fn check_namespace_error(
        &self,
        call: &Call,
        returned: &CallReturn,
        code: Code,
    ) -> Result<LinearizationPoint, String> {
        let (shard, replayed) = self.names_shard(call);
        let window = self.window(&shard, call, returned);
        let is_there = |place: usize| replayed.states[place].get(call.account, &call.namespace).is_some();
        let right = match (&call.op, code) {
            (Op::CreateNamespace, Code::AlreadyExists) => window.clone().find(|place| is_there(*place)),
            (Op::GetNamespace | Op::DeleteNamespace { .. }, Code::NamespaceNotFound) => {
                window.clone().find(|place| !is_there(*place))
            }
            // Whoever draws these operations makes more changes than an account may.
            (Op::CreateNamespace | Op::DeleteNamespace { .. }, Code::RateLimited) => {
                return Ok(LinearizationPoint::Unordered);
            }
            _ => return Err(format!("nothing in these calls should be refused with {code:?}")),
        };
        // Another incarnation than the one meant may have been there all the time, so this says nothing of the order.
        match right {
            Some(_) => Ok(LinearizationPoint::Unordered),
            None if matches!(call.op, Op::DeleteNamespace { .. }) && self.was_replaced(&window, call) => {
                Ok(LinearizationPoint::Unordered)
            }
            None => Err(format!("is refused with {code:?}, which is right nowhere in {window:?} of {shard}")),
        }
    }

    /// Whether the name passed from one incarnation to another meanwhile.
    fn was_replaced(&self, window: &Window, call: &Call) -> bool {
        let (_, replayed) = self.names_shard(call);
        let lives = window.clone().map(|place| replayed.states[place].get(call.account, &call.namespace));
        lives.collect::<std::collections::BTreeSet<_>>().len() > 1
    }

    /// A call about a lock may find no namespace only while its namespaces shard has none: until the locks shard opens
    /// the namespace, it is unavailable.
    fn check_namespace_not_found(&self, call: &Call, returned: &CallReturn) -> Result<LinearizationPoint, String> {
        if STABLE_NAMESPACES.contains(&call.namespace.as_str()) {
            return Err("a namespace that is never deleted was not found".to_owned());
        }
        let (shard, names) = self.names_shard(call);
        let absent = |place: usize| names.states[place].get(call.account, &call.namespace).is_none();
        if self.window(&shard, call, returned).any(absent) {
            return Ok(LinearizationPoint::Unordered);
        }
        Err("the answer says that the namespace does not exist, though it existed all the time".to_owned())
    }
}

impl LocksReplay {
    /// The end of an entry of the window in which a write came to that: it is answered after the whole entry.
    pub(super) fn find_answered(
        &self,
        call: &Call,
        write: Write,
        window: &Window,
        meant: &CommandOutcome,
    ) -> Option<usize> {
        let key = (call.account, call.namespace.clone(), write);
        let place = find_write(self.writes.get(&key), window, meant)?;
        Some(end_of_entry(&self.ends, place))
    }
}

/// A place after a slice of the window in which a write came to that.
pub(super) fn find_write(
    writes: Option<&Vec<(usize, CommandOutcome)>>,
    window: &Window,
    meant: &CommandOutcome,
) -> Option<usize> {
    let mut places = writes.into_iter().flatten().filter(|(_, came)| came == meant).map(|(at, _)| at + 1);
    places.find(|place| *place > *window.start() && window.contains(place))
}

fn session_id_of(op: &Op) -> Option<&str> {
    use holdfast_core::Owner::Session;
    match op {
        Op::KeepAlive { session, .. } | Op::CloseSession { session } => Some(session),
        Op::Acquire(AcquireOp { owner: Session { session_id, .. }, .. })
        | Op::Release { owner: Session { session_id, .. }, .. }
        | Op::ReleaseAll { owner: Session { session_id, .. } } => Some(session_id),
        Op::Thing(op) => op.session_id(),
        _ => None,
    }
}
