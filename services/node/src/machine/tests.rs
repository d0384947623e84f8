use holdfast_core::{AccountId, Incarnation, LocksCommand, NamespaceRef, Path};

use super::*;

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

fn stamp(now_ms: u64) -> Stamp {
    Stamp { rules: 1, now_ms, wall_ms: now_ms }
}

fn deletion() -> Bytes {
    let namespace = NamespaceRef { account: AccountId(7), name: "orders".into(), incarnation: Incarnation(1) };
    let command = Command::Locks(LocksCommand::Delete { namespace, path: Path(vec!["a".into()]) });
    Bytes::from(codec::encode(&command))
}

fn asks(machine: &ShardMachine) -> Option<Reply> {
    let namespace = NamespaceRef { account: AccountId(7), name: "orders".into(), incarnation: Incarnation(1) };
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

    let failure = machine.apply(stamp(2_000), &[deletion(), deletion()], Replies::Wanted).unwrap_err();
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
    let again = machine.apply(stamp(3_000), &[deletion()], Replies::Wanted).unwrap_err();
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
