//! Reads between the commands of one entry: they are right where an apply slice ends, and nowhere else.

use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, Acquire, Claim, Command, EntryContext, Incarnation, Limits, LocksCommand, Metadata, Mode,
    NamespaceMessage, NamespaceRef, Owner, Path, Query, Response, Rules, Wait, codec,
};
use holdfast_node::ApplyObserver;
use holdfast_replication::EntryHeader;

use super::check_all;
use super::shard_view::to_observed_lock;
use super::twins::new_shard;
use crate::apply_log::NodeObserver;
use crate::history::{Answer, Op};
use crate::plan::Plan;
use crate::world::World;

const ACCOUNT: AccountId = AccountId(1);
const NAMESPACE: &str = "alpha";

fn namespace() -> NamespaceRef {
    NamespaceRef { account: ACCOUNT, name: NAMESPACE.to_owned(), incarnation: Incarnation(1) }
}

fn open_namespace() -> LocksCommand {
    let message = NamespaceMessage::Open { namespace: namespace(), limits: Limits::default() };
    LocksCommand::Deliver { source: "namespaces_00".to_owned(), number: 1, message }
}

fn acquire(path: &str) -> LocksCommand {
    LocksCommand::Acquire(Acquire {
        namespace: namespace(),
        owner: Owner::Process("p".to_owned()),
        claims: vec![Claim { path: Path::flat(path), mode: Mode::Write }],
        ttl_ms: Some(60_000),
        transition_ms: 0,
        metadata: Metadata::new(),
        fencing_token: None,
        requested_expires_at_ns: None,
        wait: Wait::No,
        allow_upgrade: false,
        request_id: None,
        attempt: 0,
        message: None,
    })
}

/// A replica that applies what it is told, and what clients did.
struct Replica {
    world: Arc<World>,
    shard: String,
    core: ShardState,
    observer: NodeObserver,
}

impl Replica {
    /// With an open namespace, after one entry.
    fn new(slice_commands: usize) -> Self {
        let plan = Plan { shards: 1, bounds: None, slice_commands, ..Plan::from_seed(1) };
        let world = World::new(plan).expect("the plan is sound");
        let shard = world.locks_shard(ACCOUNT, NAMESPACE).to_owned();
        let observer = NodeObserver { node: 0, apply_log: Arc::clone(&world.ledger) };
        let core = new_shard(&shard, None);
        observer.initialized(&shard, &core);
        let mut replica = Self { world, shard, core, observer };
        replica.apply(1, vec![open_namespace()], |_, _| ());
        replica
    }

    /// Applies an entry, and calls this after its first command.
    fn apply(&mut self, index: u64, commands: Vec<LocksCommand>, midway: impl FnOnce(&Self, EntryHeader)) {
        let (now_ms, rules) = (1_000 * index, Rules::LOWEST);
        let header = EntryHeader { term: 1, index, rules: rules.0, now_ms, wall_ms: now_ms };
        let context = EntryContext { now_ms, wall_ms: now_ms, rules };
        self.core.advance(&context);
        let (mut midway, mut encoded, mut replies) = (Some(midway), Vec::new(), Vec::new());
        for command in commands.into_iter().map(Command::Locks) {
            let reply = self.core.apply(&context, &command);
            self.core.drop_effects();
            encoded.push(Bytes::from(codec::encode(&command)));
            replies.push(Bytes::from(codec::encode(&reply)));
            if let Some(midway) = midway.take() {
                midway(&*self, header);
            }
        }
        self.observer.applied(&self.shard, header, &encoded, &replies, &self.core);
    }

    /// A lock that nobody has ever held, which shows the revision of the shard.
    fn free_lock(&self) -> Answer {
        let query = Query::Lock { namespace: namespace(), path: Path::flat("free") };
        let Ok(Response::Lock(lock)) = self.core.query(1_000, &query).outcome else { panic!("the namespace is open") };
        Answer::Lock(to_observed_lock(&lock))
    }

    fn invoke(&self, op: Op) -> usize {
        self.world.history.invoke("c", ACCOUNT, NAMESPACE, op)
    }

    fn get(&self) -> usize {
        self.invoke(Op::Get { path: Path::flat("free") })
    }

    fn finish(&self, call: usize, answer: Answer) {
        self.world.history.finish(call, answer, self.world.ledger.progress());
    }

    fn violations(&self) -> Vec<String> {
        check_all(&self.world);
        self.world.violations()
    }
}

/// What is found if a client sees the state after the first of two commands of one entry. It is answered when the
/// replica has reported so many commands of the entry, or after the entry.
fn violations_of_read(slice_commands: usize, reported: Option<usize>) -> Vec<String> {
    let mut replica = Replica::new(slice_commands);
    let (read, mut seen) = (replica.get(), None);
    replica.apply(2, vec![acquire("a"), acquire("b")], |replica, header| {
        let lock = replica.free_lock();
        match reported {
            None => seen = Some(lock),
            Some(commands) => {
                if commands > 0 {
                    replica.observer.progressed(&replica.shard, header, commands);
                }
                replica.finish(read, lock);
            }
        }
    });
    if let Some(lock) = seen {
        replica.finish(read, lock);
    }
    replica.violations()
}

#[test]
fn a_read_between_two_commands_is_right_only_if_a_slice_ends_there() {
    assert_eq!(violations_of_read(1, None), Vec::<String>::new());
    let found = violations_of_read(2, None);
    assert!(found.len() == 1 && found[0].contains("right nowhere"), "{found:?}");
}

#[test]
fn a_read_sees_slices_of_an_entry_that_is_not_done_once_they_are_reported() {
    assert_eq!(violations_of_read(1, Some(1)), Vec::<String>::new());
    let found = violations_of_read(1, Some(0));
    assert!(found.len() == 1 && found[0].contains("right nowhere"), "{found:?}");
}

#[test]
fn who_asks_after_a_write_was_answered_sees_its_whole_entry() {
    let mut replica = Replica::new(1);
    let path = Path::flat("a");
    let (write, early, mut seen) = (replica.invoke(Op::Delete { path: path.clone() }), replica.get(), None);
    let delete = LocksCommand::Delete { namespace: namespace(), path };
    replica.apply(2, vec![delete, acquire("b")], |replica, _| seen = Some(replica.free_lock()));
    let seen = seen.expect("the entry has a first command");
    replica.finish(write, Answer::Done);
    let late = replica.get();
    [early, late].into_iter().for_each(|read| replica.finish(read, seen.clone()));
    let found = replica.violations();
    assert!(found.len() == 1 && found[0].contains(&format!("call {late} of")), "{found:?}");
}
