//! Sections of many shards, of which some take long: each shard gets its own in the order of the log, each once, and
//! waits for no other.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use holdfast_replication::testing::{EntryData, Section, StateMachineAdapter, TypeConfig};
use holdfast_replication::{
    Applied, ApplyFailure, CommandCost, EntryHeader, FrozenState, Group, LogLimits, ReplyMode, StateMachine,
    StateMachineError,
};
use holdfast_storage::{Identity, MemoryDisk, NodeStore, PartUpdate, SnapshotPart};
use openraft::entry::RaftEntry;
use openraft::storage::RaftStateMachine;
use openraft::type_config::alias::{CommittedLeaderIdOf, EntryOf, LogIdOf};
use openraft::{EntryPayload, RaftSnapshotBuilder};
use parking_lot::Mutex;
use proptest::collection::{btree_map, vec};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof};
use proptest::proptest;
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::common::node::RULES;
use crate::common::{Cluster, MAX_WAIT, Setup, command, eventually};

const REPLICA: u64 = 1;
const SHARDS: u32 = 40;

/// What was applied to a shard: each command with its entry's index.
type History = Vec<(u64, Vec<u8>)>;

/// Records what each shard is given. The bytes of a command say how many slices come before it has its effect.
#[derive(Default)]
struct Recorder {
    shards: Mutex<BTreeMap<u32, History>>,
    /// Sections that are applied in part, by shard.
    begun: Mutex<BTreeMap<u32, u64>>,
}

impl Recorder {
    fn step<'a>(&'a self, index: u64, shard: u32, commands: &'a [Bytes], waited: u8) -> Applied<'a> {
        let Some((next, rest)) = commands.split_first() else {
            assert_eq!(self.begun.lock().remove(&shard), Some(index));
            return Applied::Done(Vec::new());
        };
        if waited < next[0] {
            return Applied::Part(Box::new(move || Ok(self.step(index, shard, commands, waited + 1))));
        }
        self.shards.lock().entry(shard).or_default().push((index, next.to_vec()));
        self.step(index, shard, rest, 0)
    }
}

impl StateMachine for Recorder {
    fn assess(&self, _: u16, _: u32, _: &[u8]) -> Result<CommandCost, StateMachineError> {
        Ok(CommandCost { account: None, kind: 0, units: 1 })
    }

    fn price(&self, _: u32, _: u64, _: u8, min_units: u64) -> u64 {
        min_units
    }

    fn apply<'a>(
        &'a self,
        header: EntryHeader,
        shard: u32,
        commands: &'a [Bytes],
        _: ReplyMode,
    ) -> Result<Applied<'a>, ApplyFailure> {
        let before = self.begun.lock().insert(shard, header.index);
        assert_eq!(before, None, "shard {shard} gets entry {} too", header.index);
        Ok(self.step(header.index, shard, commands, 0))
    }

    fn set_rules(&self, _: u16) {}

    fn on_leadership_change(&self, _: Option<u64>) {}

    fn clock_ms(&self) -> u64 {
        0
    }

    fn freeze(&self, is_saved: &dyn Fn(u32) -> bool) -> Result<FrozenState, StateMachineError> {
        assert!(self.begun.lock().is_empty(), "frozen in the middle of a section");
        let shards = self.shards.lock();
        let part = |shard: u32| {
            let name = format!("s{shard}");
            if is_saved(shard) {
                return PartUpdate::Retain(name);
            }
            let history = shards.get(&shard).cloned().unwrap_or_default();
            let chunk = postcard::to_allocvec(&history).expect("it is encodable").into();
            PartUpdate::Write(SnapshotPart::from_chunks(name, vec![chunk]))
        };
        Ok((0..SHARDS).map(part).collect())
    }

    fn restore(&self, _: u64, parts: &[SnapshotPart]) -> Result<(), StateMachineError> {
        let read = |part: &SnapshotPart| -> History {
            let chunk = part.chunks().next().expect("it has one").expect("it is readable");
            postcard::from_bytes(&chunk).expect("it is decodable")
        };
        *self.shards.lock() = (0..).zip(parts.iter().map(read)).filter(|(_, history)| !history.is_empty()).collect();
        Ok(())
    }
}

/// The sections of an entry: the commands of each shard.
type Sections = BTreeMap<u32, Vec<u8>>;

#[derive(Debug, Clone)]
enum Op {
    Apply(Sections),
    /// The first entry of a later term.
    Term,
    Snapshot,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let sections = btree_map(0..SHARDS, vec(prop_oneof![4 => Just(0), 1 => 1..6_u8], 1..4), 1..8);
    prop_oneof![
        20 => sections.prop_map(Op::Apply),
        1 => any::<()>().prop_map(|()| Op::Term),
        2 => Just(Op::Snapshot),
        2 => Just(Op::Restart),
    ]
}

/// A replica that applies what it is given, and its log.
struct Replica {
    store: NodeStore,
    machine: Arc<Recorder>,
    adapter: StateMachineAdapter,
    term: u64,
    log: Vec<EntryOf<TypeConfig>>,
}

impl Replica {
    async fn empty() -> Self {
        let identity = Identity { cluster_id: "queues".into(), node_id: "nd_1".into() };
        let store = NodeStore::in_memory(&MemoryDisk::new(), &identity).expect("the store opens");
        let (machine, adapter) = Self::open(&store);
        Self { store, machine, adapter, term: 1, log: Vec::new() }
    }

    fn open(store: &NodeStore) -> (Arc<Recorder>, StateMachineAdapter) {
        let (machine, limits) = (Arc::<Recorder>::default(), LogLimits::default());
        let adapter = StateMachineAdapter::new(machine.clone(), store.replica(REPLICA), limits, RULES);
        (machine, adapter.expect("it is readable"))
    }

    async fn push(&mut self, sections: Option<&Sections>) {
        let index = self.log.len() as u64 + 1;
        let id = LogIdOf::<TypeConfig>::new(CommittedLeaderIdOf::<TypeConfig>::new(self.term), index);
        let section = |(shard, commands): (&u32, &Vec<u8>)| {
            let commands = commands.iter().map(|waits| Bytes::from(vec![*waits])).collect();
            Section { shard: *shard, commands }
        };
        let payload = match sections {
            None => EntryPayload::Blank,
            Some(sections) => {
                let sections: Vec<Section> = sections.iter().map(section).collect();
                EntryPayload::Normal(EntryData::commands(1, index, 0, &sections))
            }
        };
        self.log.push(EntryOf::<TypeConfig>::new(id, payload));
        self.apply_from(index).await;
    }

    /// Applies the log from this index on.
    async fn apply_from(&mut self, index: u64) {
        let entries: Vec<_> = self.log[index as usize - 1..].iter().cloned().map(|entry| Ok((entry, None))).collect();
        self.adapter.apply(stream::iter(entries)).await.expect("it is sound");
    }

    async fn snapshot(&mut self) {
        self.adapter.get_snapshot_builder().await.build_snapshot().await.expect("it is saved");
    }

    /// What is queued is lost, and comes again from the log.
    async fn restart(&mut self) {
        (self.machine, self.adapter) = Self::open(&self.store);
        let mut saved = 0;
        if let Some(snapshot) = self.adapter.get_current_snapshot().await.expect("it is readable") {
            saved = snapshot.meta.last_log_id.expect("it has entries").index;
            self.adapter.install_snapshot(&snapshot.meta, snapshot.snapshot).await.expect("it fits");
        }
        self.apply_from(saved + 1).await;
    }
}

/// Runs the operations, and returns what each shard was given, and what it should have been.
async fn run(ops: &[Op]) -> [BTreeMap<u32, History>; 2] {
    let mut replica = Replica::empty().await;
    let mut expected = BTreeMap::<u32, History>::new();
    replica.push(None).await;
    for op in ops {
        match op {
            Op::Apply(sections) => {
                replica.push(Some(sections)).await;
                let index = replica.log.len() as u64;
                for (shard, commands) in sections {
                    let history = expected.entry(*shard).or_default();
                    history.extend(commands.iter().map(|waits| (index, vec![*waits])));
                }
            }
            Op::Term => {
                replica.term += 1;
                replica.push(None).await;
                assert!(replica.machine.begun.lock().is_empty(), "a term begins with sections of the last");
                assert_eq!(*replica.machine.shards.lock(), expected, "a term begins without sections of the last");
            }
            Op::Snapshot => replica.snapshot().await,
            Op::Restart => replica.restart().await,
        }
    }
    replica.snapshot().await;
    let given = replica.machine.shards.lock().clone();
    [given, expected]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn each_shard_gets_its_sections_once_and_in_order(ops in vec(op(), 1..120)) {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("it starts");
        let [given, expected] = runtime.block_on(run(&ops));
        assert_eq!(given, expected);
    }
}

/// A caller of a command for that shard; returns whether it is answered.
fn caller(group: &Group, shard: u32, term: u64, text: &str) -> JoinHandle<bool> {
    let (group, command) = (group.clone(), command(text));
    tokio::spawn(async move { group.propose(shard, term, command, Instant::now() + MAX_WAIT).await.is_ok() })
}

async fn all_answered(callers: Vec<JoinHandle<bool>>) {
    for caller in callers {
        assert!(caller.await.expect("it does not panic"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_stuck_at_its_leader_gets_no_more_entries_and_holds_up_no_other() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("first of the term")).await.expect("answered");
    let (group, machine) = (cluster.group(leader), &cluster.node(leader).machine);
    machine.stall(&[0]);
    let mut stuck = vec![caller(group, 0, leads.term, "stuck")];
    eventually("its section is queued", || async { (group.apply_queue_commands(0) == 1).then_some(()) }).await;
    stuck.extend((0..20).map(|number| caller(group, 0, leads.term, &format!("late {number}"))));
    eventually("the others wait", || async { (group.queued_commands(0) == 20).then_some(()) }).await;
    let before = group.status().last_log_index;
    for number in 0..50 {
        let answered = caller(group, 1, leads.term, &format!("other {number}"));
        assert!(answered.await.expect("it does not panic"), "a shard waits for another");
    }
    assert_eq!((group.apply_queue_commands(0), group.queued_commands(0)), (1, 20), "it got more entries");
    assert_eq!((group.apply_queue_commands(1), group.queued_commands(1)), (0, 0));
    assert!(group.status().last_log_index >= before + 50);
    assert!(group.last_applied_index() < before, "an entry counts as applied before all of it is");
    assert!(stuck.iter().all(|caller| !caller.is_finished()));
    machine.stall(&[]);
    all_answered(stuck).await;
    cluster.all_applied().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_shard_is_stuck_takes_only_so_much_and_catches_up() {
    const COMMANDS: usize = 3_000;
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("first of the term")).await.expect("answered");
    cluster.all_applied().await;
    let follower = (leader + 1) % 3;
    let (behind, machine) = (cluster.group(follower), &cluster.node(follower).machine);
    machine.stall(&[0]);
    let mut most = 0;
    for hundred in 0..COMMANDS / 100 {
        let text = |number| format!("{hundred} {number}");
        all_answered((0..100).map(|n| caller(cluster.group(leader), 0, leads.term, &text(n))).collect()).await;
        most = most.max(behind.apply_queue_commands(0));
    }
    assert!((100..=1_024).contains(&most), "{most} commands are queued");
    machine.stall(&[]);
    cluster.all_applied().await;
    assert_eq!(machine.commands(), cluster.node(leader).machine.commands());
}
