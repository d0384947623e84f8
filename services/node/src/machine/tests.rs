use holdfast_core::{Answer, Limits, LocksCommand, NamespaceMessage, Path};
use holdfast_replication::{Rest, Step};

use super::slices::SLICE_COMMANDS;

use super::*;
use crate::testing;

/// Panics in the second entry.
struct Breaks(Mutex<u8>);

impl Observer for Breaks {
    fn began(&self, _: &str, _: &ShardCore) {}

    fn applied(&self, _: &str, _: Stamp, _: &[Bytes], _: &[Bytes], _: &ShardCore) {
        let mut entries = self.0.lock();
        *entries += 1;
        assert!(*entries < 2, "a bug");
    }

    fn restored(&self, _: &str, _: &ShardCore) {}
}

const TERM: u64 = 3;

/// Whether an entry is done, or has more slices.
fn done(applied: Applied<'_>) -> Vec<Bytes> {
    match applied {
        Applied::Done(replies) => replies,
        Applied::Part(_) => panic!("the entry is long"),
    }
}

fn part(applied: Applied<'_>) -> Rest<'_> {
    match applied {
        Applied::Done(_) => panic!("the entry is short"),
        Applied::Part(rest) => rest,
    }
}

fn stamp(now_ms: u64) -> Stamp {
    Stamp { rules: 1, now_ms, wall_ms: now_ms }
}

fn deletion() -> Bytes {
    let namespace = testing::namespace();
    let command = Command::Locks(LocksCommand::Delete { namespace, path: Path(vec!["a".into()]) });
    Bytes::from(codec::encode(&command))
}

fn asks(machine: &ShardMachine) -> Option<Reply> {
    let namespace = testing::namespace();
    machine.query(1_000, &Query::Waits { namespace, after: None, limit: 1 })
}

#[tokio::test]
async fn a_machine_that_failed_in_an_entry_answers_nothing_and_leads_nothing() {
    let observer = Arc::new(Breaks(Mutex::new(0)));
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, Some(observer));
    machine.lead(Some(TERM));
    machine.apply(stamp(1_000), &[deletion()], Replies::Wanted).expect("it is sound");
    assert!(asks(&machine).is_some() && machine.as_leader(TERM, |_, _| ()).is_some() && machine.freeze().is_ok());
    let mut judged = std::pin::pin!(machine.judged().notified());
    judged.as_mut().enable();

    let failure = machine.apply(stamp(2_000), &[deletion(), deletion()], Replies::Wanted).err().expect("it breaks");
    assert_eq!(failure.step, Step::Command(1));
    assert_eq!(failure.namespace, "orders of account 7, incarnation 1");
    assert!(failure.command.contains("Delete") && failure.message.contains("a bug"), "{failure:?}");
    assert!(failure.message.contains("tests.rs") && failure.backtrace.contains("apply"), "{failure:?}");
    assert!(asks(&machine).is_none(), "half a change is shown to nobody");
    assert!(machine.as_leader(TERM, |_, _| ()).is_none() && machine.as_it_is().is_none() && machine.freeze().is_err());
    assert!(machine.outbox(10).is_empty() && !machine.is_settled(0) && machine.footprint() == Footprint::default());
    // Whoever waits for something of the leader looks again.
    judged.await;

    machine.lead(Some(TERM + 1));
    assert!(machine.as_leader(TERM + 1, |_, _| ()).is_none());
    assert_eq!(machine.clock_ms(), 2_000);
    let again = machine.apply(stamp(3_000), &[deletion()], Replies::Wanted).err().expect("it is broken");
    assert_eq!(again.message, "there is no state any more");
}

#[tokio::test]
async fn a_look_that_panics_costs_the_table_of_the_leader_and_not_the_state() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    machine.lead(Some(TERM));
    assert!(machine.table_failed().borrow().is_none());
    assert_eq!(machine.as_leader(TERM, |_, _| -> u8 { panic!("a bug") }), None);
    assert!(machine.table_failed().borrow().as_ref().is_some_and(|reason| reason.contains("a bug")));
    assert_eq!(machine.as_leader(TERM, |_, _| ()), None, "what is half changed answers nobody");
    assert!(asks(&machine).is_some());
    machine.apply(stamp(1_000), &[deletion()], Replies::Wanted).expect("the state is sound");
}

fn opening() -> Bytes {
    let namespace = testing::namespace();
    let message = NamespaceMessage::Open { namespace, limits: Limits::default() };
    let command = LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message };
    Bytes::from(codec::encode(&Command::Locks(command)))
}

fn acquire(number: usize) -> Bytes {
    let command = testing::acquire(&format!("l{number}"));
    Bytes::from(codec::encode(&Command::Locks(command)))
}

/// How many locks are held, and whether the one of that number is.
fn held(machine: &ShardMachine, number: usize) -> (usize, bool) {
    let namespace = testing::namespace();
    let reply = machine.query(1_000, &Query::Lock { namespace, path: Path::flat(format!("l{number}")) });
    let Ok(Answer::Lock(lock)) = reply.expect("it has a state").outcome else { panic!("the namespace is open") };
    (machine.footprint().holds, lock.holders_total == 1)
}

/// Time stands still, so that the count of commands alone ends a slice.
#[tokio::test(start_paused = true)]
async fn whoever_asks_in_the_middle_of_a_long_entry_sees_the_commands_before() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    machine.lead(Some(TERM));
    done(machine.apply(stamp(1_000), &[opening()], Replies::Wanted).expect("it is sound"));
    let commands: Vec<Bytes> = (0..=2 * SLICE_COMMANDS).map(acquire).collect();

    let rest = part(machine.apply(stamp(1_000), &commands, Replies::Wanted).expect("it is sound"));
    assert_eq!(held(&machine, SLICE_COMMANDS - 1), (SLICE_COMMANDS, true));
    assert_eq!(held(&machine, SLICE_COMMANDS), (SLICE_COMMANDS, false));
    assert!(machine.as_leader(TERM, |_, _| ()).is_some(), "duties go on as well");
    let rest = part(rest().expect("it is sound"));
    assert_eq!(held(&machine, SLICE_COMMANDS), (2 * SLICE_COMMANDS, true));
    let replies = done(rest().expect("it is sound"));
    assert_eq!(held(&machine, 2 * SLICE_COMMANDS), (2 * SLICE_COMMANDS + 1, true));
    assert_eq!(replies.len(), commands.len());
    let is_granted = |bytes: &Bytes| codec::decode::<Reply>(bytes).is_ok_and(|reply| reply.outcome.is_ok());
    assert!(replies.iter().all(is_granted));
}

#[tokio::test(start_paused = true)]
async fn what_was_done_before_a_leadership_began_in_the_middle_of_an_entry_is_not_told() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    let commands: Vec<Bytes> = [opening()].into_iter().chain((0..SLICE_COMMANDS).map(acquire)).collect();
    let rest = part(machine.apply(stamp(1_000), &commands, Replies::Unwanted).expect("it is sound"));
    let effects = machine.inner.lock().core.as_mut().expect("it is sound").take_effects();
    assert_eq!(effects, [], "nobody was to be told");
    done(rest().expect("it is sound"));
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_failed_in_a_later_slice_answers_nothing() {
    let observer = Arc::new(Breaks(Mutex::new(0)));
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, Some(observer));
    machine.lead(Some(TERM));
    done(machine.apply(stamp(1_000), &[opening()], Replies::Wanted).expect("it is sound"));
    let commands: Vec<Bytes> = (0..=SLICE_COMMANDS).map(acquire).collect();
    let rest = part(machine.apply(stamp(2_000), &commands, Replies::Wanted).expect("it is sound"));
    assert!(asks(&machine).is_some());

    let failure = rest().err().expect("it breaks");
    assert_eq!(failure.step, Step::Command(128));
    assert!(failure.command.contains("l128") && failure.message.contains("a bug"), "{failure:?}");
    assert!(asks(&machine).is_none() && machine.as_leader(TERM, |_, _| ()).is_none() && machine.freeze().is_err());
}

#[tokio::test(start_paused = true)]
async fn only_whoever_owes_a_reply_shows_locks() {
    let (follower, leader) = [0, 1].map(|_| ShardMachine::new(Application::Locks, "locks_00", None, None)).into();
    let commands: Vec<Bytes> = [opening()].into_iter().chain((0..50).map(acquire)).collect();
    for (machine, replies) in [(&follower, Replies::Unwanted), (&leader, Replies::Wanted)] {
        done(machine.apply(stamp(1_000), &commands, replies).expect("it is sound"));
    }
    let shown = |machine: &ShardMachine| machine.inner.lock().core.as_ref().map(ShardCore::locks_shown);
    assert_eq!((shown(&follower), shown(&leader)), (Some(0), Some(50)));
    let state = |machine: &ShardMachine| machine.freeze().expect("it is sound")();
    assert_eq!(state(&follower), state(&leader));
}
