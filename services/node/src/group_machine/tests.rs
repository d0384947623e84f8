use holdfast_core::{Application, Command};
use holdfast_storage::{Identity, MemoryDisk, NodeStore};

use super::*;
use crate::machine::{Adoption, FailedHistory, ShardHealth};
use crate::testing;

const SHARDS: u32 = 16;

fn group() -> (GroupMachine, Vec<Arc<ShardMachine>>) {
    let shard = |number: u32| ShardMachine::new(Application::Locks, &format!("locks_{number:02}"), None, None);
    let shards: Vec<Arc<ShardMachine>> = (0..SHARDS).map(|number| Arc::new(shard(number))).collect();
    (GroupMachine::new(shards.clone()), shards)
}

fn header(now_ms: u64) -> EntryHeader {
    EntryHeader { rules: 1, now_ms, wall_ms: now_ms, ..EntryHeader::default() }
}

fn apply(machine: &GroupMachine, shard: u32, now_ms: u64, commands: &[Command]) {
    let commands: Vec<Bytes> = commands.iter().map(|command| codec::encode(command).into()).collect();
    let mut applied = machine.apply(header(now_ms), shard, &commands, ReplyMode::Skip).expect("it is sound");
    while let Applied::Part(rest) = applied {
        applied = rest().expect("it is sound");
    }
}

fn acquire(path: &str) -> Command {
    Command::Locks(testing::acquire(path))
}

fn freeze(machine: &GroupMachine, is_saved: impl Fn(u32) -> bool) -> Vec<PartUpdate> {
    machine.freeze(&is_saved).expect("every shard has a state")
}

/// The parts that are written.
fn written(parts: &[PartUpdate]) -> Vec<SnapshotPart> {
    let written = |part: &PartUpdate| match part {
        PartUpdate::Write(part) => Some(part.clone()),
        PartUpdate::Retain(_) => None,
    };
    parts.iter().filter_map(written).collect()
}

fn names(parts: &[SnapshotPart]) -> Vec<&str> {
    parts.iter().map(SnapshotPart::name).collect()
}

fn chunks_of(part: &SnapshotPart) -> Vec<Bytes> {
    part.chunks().collect::<Result<_, _>>().expect("it is readable")
}

fn all_chunks(parts: &[SnapshotPart]) -> Vec<(&str, Vec<Bytes>)> {
    parts.iter().map(|part| (part.name(), chunks_of(part))).collect()
}

fn failed_entry() -> FailedEntry {
    FailedEntry { term: 1, index: 5, failure: ApplyFailure::invalid_entry("a bug".into()) }
}

fn chunks(names: &[&'static str]) -> Vec<Bytes> {
    names.iter().map(|name| Bytes::from_static(name.as_bytes())).collect()
}

#[tokio::test]
async fn a_snapshot_writes_the_parts_of_busy_shards_and_a_restart_from_it_restores_all() {
    let identity = Identity { cluster_id: "c".into(), node_id: "nd_1".into() };
    let store = NodeStore::in_memory(&MemoryDisk::new(), &identity).expect("the store opens").replica(1);
    let (machine, shards) = group();
    for number in 0..SHARDS {
        apply(&machine, number, 1_000, &[Command::Locks(testing::open_namespace()), acquire("a")]);
    }
    let first = freeze(&machine, |_| false);
    assert_eq!(written(&first).len(), 16);
    store.save_snapshot(Bytes::from_static(b"first"), first).await.expect("it is saved");
    for number in [3, 11] {
        apply(&machine, number, 2_000, &[acquire("b")]);
    }
    let second = freeze(&machine, |number| ![3, 11].contains(&number));
    assert_eq!(names(&written(&second)), ["locks_03", "locks_11"]);
    assert_eq!(second.len(), 16);
    store.save_snapshot(Bytes::from_static(b"second"), second).await.expect("it is saved");

    let saved = store.snapshot().expect("it is readable").expect("there is one").parts();
    let expected = written(&freeze(&machine, |_| false));
    assert_eq!(all_chunks(&saved), all_chunks(&expected), "what is retained equals what would be written");
    let (restarted, again) = group();
    restarted.restore(9, &saved).expect("it fits");
    for (before, after) in shards.iter().zip(&again) {
        let frozen = |shard: &ShardMachine| chunks_of(&shard.freeze().expect("it is sound"));
        assert_eq!(frozen(before), frozen(after));
    }
    assert!(written(&freeze(&restarted, |_| true)).is_empty(), "parts equal states until the next section");
}

#[test]
fn the_part_of_a_shard_with_sections_since_its_state_is_always_written() {
    let (machine, shards) = group();
    assert!(machine.isolate(2, &failed_entry()));
    let outage = shards[2].broken().expect("it has failed");
    let mut kept = FailedHistory::default();
    kept.since.push(header(1_000), &[]);
    shards[2].mark_failed(&outage, outage.failed_entry.clone(), Some(kept));
    for _ in 0..2 {
        assert_eq!(names(&written(&freeze(&machine, |_| true))), ["locks_02"]);
    }
    let with_sections = written(&freeze(&machine, |_| false));

    // Another replica can apply the sections; its part has none.
    let (healthy, _) = group();
    healthy.restore(7, &with_sections).expect("it fits");
    assert_eq!(names(&written(&freeze(&healthy, |_| true))), ["locks_02"]);
    let without = written(&freeze(&healthy, |_| false));
    let (expected, _) = group();
    apply(&expected, 2, 1_000, &[]);
    assert_eq!(all_chunks(&without), all_chunks(&written(&freeze(&expected, |_| false))));
    healthy.restore(8, &without).expect("it fits");
    assert!(written(&freeze(&healthy, |_| true)).is_empty());
}

#[test]
fn a_failed_shard_that_is_to_be_built_again_is_no_part_of_a_snapshot_before_it_was() {
    let (machine, shards) = group();
    assert!(machine.isolate(2, &failed_entry()));
    let outage = shards[2].broken().expect("it has failed");
    shards[2].mark_failed(&outage, outage.failed_entry.clone(), Some(FailedHistory::default()));
    apply(&machine, 2, 1_000, &[]);
    assert!(machine.can_freeze());
    // An order to leave something out comes behind a section that nothing else has.
    assert!(machine.isolate(2, &FailedEntry { index: failed_entry().index + 5, ..failed_entry() }));
    assert!(!machine.can_freeze() && shards[2].broken().is_some());
}

#[test]
fn a_shard_that_fails_again_after_a_restart_names_the_entry_that_it_failed_at() {
    let (machine, shards) = group();
    let at = |index, now_ms| EntryHeader { term: 4, index, ..header(now_ms) };
    let unreadable = [Bytes::from_static(b"no command")];
    let failure = machine.apply(at(9, 1_000), 2, &unreadable, ReplyMode::Skip).err().expect("it can't be read");
    assert!(machine.isolate(2, &FailedEntry { term: 4, index: 9, failure }));
    assert_eq!(machine.failed_shards(), FailedShards::from([(2, 9)]));
    let outage = shards[2].broken().expect("it has failed");
    let mut kept = FailedHistory::default();
    kept.since.push(at(8, 900), &[]);
    kept.since.push(at(9, 1_000), &unreadable);
    shards[2].mark_failed(&outage, outage.failed_entry.clone(), Some(kept));
    apply(&machine, 2, 1_100, &[acquire("a")]);
    let restored = |parts: &[SnapshotPart]| {
        let (restarted, shards) = group();
        restarted.restore(50, parts).expect("it fits");
        let outage = shards[2].outage().expect("it can't be read");
        assert!(matches!(*shards[2].health().borrow(), ShardHealth::Failed(_)));
        assert_eq!(restarted.failed_shards(), FailedShards::from([(2, outage.failed_entry.index)]));
        assert_eq!(outage.history_end, 50, "its part has all sections up to there");
        (outage.failed_entry.term, outage.failed_entry.index, written(&freeze(&restarted, |_| false)))
    };
    let parts = written(&freeze(&machine, |_| false));
    let (term, index, again) = restored(&parts);
    assert_eq!((term, index, all_chunks(&again)), (4, 9, all_chunks(&parts)));
    let (term, index, _) = restored(&again);
    assert_eq!((term, index), (4, 9), "it stays known");
}

#[test]
fn a_part_is_read_back_and_a_cut_one_is_refused() {
    let state = SnapshotPart::from_chunks("a", chunks(&["s1", "s2"]));
    let part = snapshot_part("a", || chunks(&["k1"]), state);
    assert_eq!(part.name(), "a");
    let read = ShardPart::read(&part).expect("it is whole");
    assert_eq!((read.kept, chunks_of(&read.state)), (chunks(&["k1"]), chunks(&["s1", "s2"])));
    let whole = chunks_of(&part);
    for wrong in [&whole[..0], &whole[..1], &chunks(&["no number"])] {
        assert!(ShardPart::read(&SnapshotPart::from_chunks("a", wrong.to_vec())).is_err());
    }
    let huge = snapshot_part("a", || vec![Bytes::from(vec![0; MAX_READ_BYTES + 1])], part);
    assert!(ShardPart::read(&huge).is_err(), "it has more sections than any shard keeps");
}

#[test]
fn a_snapshot_of_other_shards_is_refused() {
    let (machine, _) = group();
    let parts = written(&freeze(&machine, |_| false));
    let more = SnapshotPart::from_chunks("locks_16", chunks_of(&parts[0]));
    let wrong = [parts[1..].to_vec(), [&parts[..], &[more]].concat(), [&parts[..], &parts[..1]].concat()];
    for parts in wrong {
        assert!(machine.restore(1, &parts).is_err(), "{:?}", names(&parts));
    }
}

#[test]
fn a_damaged_part_takes_its_shard_out_of_service_and_no_other() {
    let (machine, _) = group();
    for number in 0..SHARDS {
        apply(&machine, number, 1_000, &[Command::Locks(testing::open_namespace()), acquire("a")]);
    }
    let mut parts = written(&freeze(&machine, |_| false));
    let whole = chunks_of(&parts[2]);
    parts[2] = SnapshotPart::from_chunks("locks_02", whole[..whole.len() - 1].to_vec());
    let (restored, shards) = group();
    restored.restore(7, &parts).expect("the others are sound");
    assert_eq!(restored.failed_shards(), FailedShards::from([(2, 7)]));
    assert!(!restored.can_freeze() && shards[2].broken().is_none(), "only others have its state");
    let outage = shards[2].outage().expect("it has failed");
    assert_eq!((outage.history_end, outage.failed_entry.index), (7, 7));
    for (number, shard) in shards.iter().enumerate().filter(|(number, _)| *number != 2) {
        assert_eq!(chunks_of(&shard.freeze().expect("it is sound")), chunks_of(&parts[number]));
    }
    // A state of another replica at a later entry brings it back.
    let sound = shards[2].for_rebuild();
    sound.install(
        sound.read_state(&ShardPart::read(&part_of(&machine, 2)).expect("it is whole").state).expect("it fits"),
    );
    assert_eq!(shards[2].adopt(outage.epoch, &sound, 9), Ok(Adoption::Done));
    assert!(restored.can_freeze() && restored.failed_shards().is_empty());
}

#[test]
fn a_store_that_can_not_be_read_fails_no_shard() {
    let (machine, _) = group();
    let mut parts = written(&freeze(&machine, |_| false));
    let closed = || StorageError::Closed { place: "memory".to_owned() };
    parts[2] = SnapshotPart::new("locks_02", move || Box::new(std::iter::once(Err(closed()))));
    assert!(machine.restore(7, &parts).is_err());
    assert!(machine.failed_shards().is_empty() && machine.can_freeze(), "nothing was changed");
}

fn part_of(machine: &GroupMachine, shard: usize) -> SnapshotPart {
    written(&freeze(machine, |_| false)).swap_remove(shard)
}
