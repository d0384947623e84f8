use std::pin::pin;
use std::task::{Context, Wake, Waker};

use holdfast_core::{
    Durability, EntryContext, Kind, Limits, LocksCommand, NamespaceMessage, NamespaceRef, OpenSession,
    OpenTableSession, Owner, Path, Release, ReleaseTarget, RequestId, Response, TableCommand, WaitId,
};
use holdfast_replication::{ApplyStep, Continuation};
use tokio::time::{Duration, Instant};

use super::*;
use crate::leader::Attachment;
use crate::testing::{self, finish};

/// Panics in the second entry.
struct PanickingObserver(Mutex<u8>);

impl ApplyObserver for PanickingObserver {
    fn initialized(&self, _: &str, _: &ShardState) {}

    fn applied(&self, _: &str, _: EntryHeader, _: &[Bytes], _: &[Bytes], _: &ShardState) {
        let mut entries = self.0.lock();
        *entries += 1;
        assert!(*entries < 2, "a bug");
    }

    fn restored(&self, _: &str, _: &ShardState) {}
}

/// How far entries came, each time as so many commands, and whether that was all of the entry.
#[derive(Default)]
struct ProgressObserver(Mutex<Vec<(usize, bool)>>);

impl ApplyObserver for ProgressObserver {
    fn initialized(&self, _: &str, _: &ShardState) {}

    fn applied(&self, _: &str, _: EntryHeader, commands: &[Bytes], _: &[Bytes], _: &ShardState) {
        self.0.lock().push((commands.len(), true));
    }

    fn progressed(&self, _: &str, _: EntryHeader, commands: usize) {
        self.0.lock().push((commands, false));
    }

    fn restored(&self, _: &str, _: &ShardState) {}
}

const TERM: u64 = 3;

fn part(applied: Applied<'_>) -> Continuation<'_> {
    match applied {
        Applied::Done(_) => panic!("the entry is short"),
        Applied::Part(rest) => rest,
    }
}

fn header(now_ms: u64) -> EntryHeader {
    EntryHeader { rules: 1, now_ms, wall_ms: now_ms, ..EntryHeader::default() }
}

fn deletion() -> Bytes {
    let namespace = testing::namespace();
    let command = Command::Locks(LocksCommand::Delete { namespace, path: Path(vec!["a".into()]) });
    Bytes::from(codec::encode(&command))
}

fn query_waits(machine: &ShardMachine) -> Option<Reply> {
    let namespace = testing::namespace();
    machine.query(1_000, &Query::Waits { namespace, after: None, limit: 1 })
}

#[test]
fn a_shard_that_failed_is_sent_only_what_is_for_a_later_state() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    let is_proposed = |command: &Command| machine.assess(1, &codec::encode(command)).is_ok();
    let (advance, other) = (Command::AdvanceNumbers, Command::OutboxConfirm { numbers: Vec::new() });
    assert!(is_proposed(&advance) && is_proposed(&other));
    machine.isolate(&FailedEntry { term: 1, index: 5, failure: failure::already_failed() });
    assert!(is_proposed(&advance) && !is_proposed(&other));
}

#[tokio::test]
async fn a_machine_that_failed_in_an_entry_answers_nothing_and_leads_nothing() {
    let observer = Arc::new(PanickingObserver(Mutex::new(0)));
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, Some(observer));
    machine.on_leadership_change(Some(TERM));
    machine.apply(header(1_000), &[deletion()], ReplyMode::Encode).expect("it is sound");
    assert!(
        query_waits(&machine).is_some()
            && machine.with_leader_state(TERM, |_, _| ()).is_some()
            && machine.freeze().is_ok()
    );
    let mut resolved = std::pin::pin!(machine.expiry_resolved().notified());
    resolved.as_mut().enable();

    let failure = machine.apply(header(2_000), &[deletion(), deletion()], ReplyMode::Encode).err().expect("it breaks");
    assert_eq!(failure.step, ApplyStep::Command(1));
    assert_eq!(failure.namespace, "0000000000000007/orders/0000000000000001");
    assert!(failure.command.contains("Delete") && failure.message.contains("a bug"), "{failure:?}");
    assert!(failure.message.contains("tests.rs") && failure.backtrace.contains("apply"), "{failure:?}");
    assert!(query_waits(&machine).is_none(), "half a change is shown to nobody");
    assert!(
        machine.with_leader_state(TERM, |_, _| ()).is_none()
            && machine.frozen_state().is_none()
            && machine.freeze().is_err()
    );
    assert!(
        machine.outbox_messages(&[1]).is_none() && !machine.is_settled(0) && machine.usage() == Footprint::default()
    );
    // Waiters for leader state check again.
    resolved.await;

    machine.on_leadership_change(Some(TERM + 1));
    assert!(machine.with_leader_state(TERM + 1, |_, _| ()).is_none());
    assert_eq!(machine.clock_ms(), 2_000);
    let again = machine.apply(header(3_000), &[deletion()], ReplyMode::Encode).err().expect("it is broken");
    assert_eq!(again.message, "there is no state any more");
}

#[tokio::test]
async fn a_look_that_panics_costs_the_table_of_the_leader_and_not_the_state() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    machine.on_leadership_change(Some(TERM));
    assert!(machine.leader_state_failed().borrow().is_none());
    assert_eq!(machine.with_leader_state(TERM, |_, _| -> u8 { panic!("a bug") }), None);
    assert!(machine.leader_state_failed().borrow().as_ref().is_some_and(|reason| reason.contains("a bug")));
    assert_eq!(machine.with_leader_state(TERM, |_, _| ()), None, "what is half changed answers nobody");
    assert!(query_waits(&machine).is_some());
    machine.apply(header(1_000), &[deletion()], ReplyMode::Encode).expect("the state is sound");
}

#[test]
fn all_commands_of_a_section_are_decoded_step_by_step_before_the_first_is_applied() {
    let machine = || ShardMachine::new(Application::Locks, "locks_00", None, None);
    let (applying, unchanged) = (machine(), machine());
    let encoded = |command: LocksCommand| Bytes::from(codec::encode(&Command::Locks(command)));
    let large = |number: usize| encoded(testing::acquire(&format!("{number}{}", "x".repeat(100_000))));
    let mut commands: Vec<Bytes> = (0..6).map(large).collect();
    commands.insert(0, encoded(testing::open_namespace()));
    let unreadable = [commands.clone(), vec![Bytes::from_static(b"no command")]].concat();
    let (mut applied, mut steps) = (applying.apply(header(1_000), &unreadable, ReplyMode::Skip), 0);
    while let Ok(rest) = applied {
        steps += 1;
        applied = part(rest)();
    }
    let failure = applied.err().expect("the last one can't be read");
    assert_eq!((steps, failure.step), (2, ApplyStep::Command(7)));
    assert!(applying.usage() == unchanged.usage());
    finish(applying.apply(header(1_000), &commands, ReplyMode::Skip).expect("it is sound"));
    assert_eq!(applying.usage().holds, 6);
}

/// Notes whether the lock of the state is free whenever a caller is woken.
struct LockProbe {
    machine: Arc<ShardMachine>,
    found_free: Mutex<Vec<bool>>,
}

impl Wake for LockProbe {
    fn wake(self: Arc<Self>) {
        let is_free = self.machine.inner.try_lock().is_some();
        self.found_free.lock().push(is_free);
    }
}

#[test]
fn callers_of_held_back_replies_are_woken_after_the_lock_of_the_state_is_released() {
    let machine = Arc::new(ShardMachine::new(Application::Locks, "locks_00", None, None));
    let probe = Arc::new(LockProbe { machine: Arc::clone(&machine), found_free: Mutex::new(Vec::new()) });
    let waker = Waker::from(Arc::clone(&probe));
    let apply = |command: LocksCommand| {
        let commands = [Bytes::from(codec::encode(&Command::Locks(command)))];
        finish(machine.apply(header(1_000), &commands, ReplyMode::Encode).expect("it is sound"));
    };
    machine.on_leadership_change(Some(TERM));
    apply(testing::open_namespace());
    let message = NamespaceMessage::Purge { namespace: testing::namespace() };
    let purge = LocksCommand::Deliver { source: "namespaces_00".into(), number: 2, message };
    let ends: [&dyn Fn(); 3] = [
        &|| machine.with_leader_state(TERM, |_, table| table.redirect_callers()).expect("it leads"),
        &|| apply(purge.clone()),
        &|| machine.on_leadership_change(None),
    ];
    for (ended, end) in ends.into_iter().enumerate() {
        let held = machine.with_leader_state(TERM, |_, table| {
            table.questions.hold(&testing::namespace(), Kind::Latch, &Path::flat("l")).ok()
        });
        let mut held = held.flatten().expect("there is room");
        let mut settled = pin!(held.settled());
        assert!(settled.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        end();
        assert_eq!(*probe.found_free.lock(), vec![true; ended + 1]);
    }
}

#[test]
fn whoever_defers_a_reply_is_woken_by_completions_only() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", Some(Bounds::tiny()), None);
    let apply = |now_ms: u64, command: LocksCommand| {
        let header = EntryHeader { rules: Rules::TWO.0, ..header(now_ms) };
        let commands = [Bytes::from(codec::encode(&Command::Locks(command)))];
        let replies = finish(machine.apply(header, &commands, ReplyMode::Encode).expect("it is sound"));
        codec::decode::<Reply>(&replies[0]).expect("it is a reply")
    };
    apply(1_000, testing::open_namespace());
    let (mut signals, mut completions) = (machine.signals(), machine.completions());
    for path in ["a", "b", "c", "d", "e", "f"] {
        apply(1_000, testing::acquire(path));
    }
    let owner = Owner::Process("p".into());
    let release = Release { namespace: testing::namespace(), owner, what: ReleaseTarget::All, message: None };
    let job = apply(2_000, LocksCommand::Release(release)).awaits.expect("it is more than a slice");
    assert_eq!((signals.has_changed().ok(), completions.has_changed().ok()), (Some(true), Some(false)));
    signals.borrow_and_update();
    // Each entry continues the job.
    for now_ms in 2_001..2_010 {
        assert_eq!(completions.has_changed().ok(), Some(machine.job_state(job) != JobState::Running));
        apply(now_ms, testing::open_namespace());
    }
    assert!(matches!(machine.job_state(job), JobState::Done { .. }));
    completions.borrow_and_update();
    machine.isolate(&FailedEntry { term: 1, index: 5, failure: failure::already_failed() });
    assert_eq!(completions.has_changed().ok(), Some(true), "it is not known any more");
}

#[tokio::test(start_paused = true)]
async fn a_leader_state_that_panicked_is_built_again_in_its_term() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    machine.on_leadership_change(Some(TERM));
    let commands = [opening(), Bytes::from(codec::encode(&Command::Locks(testing::open_session("se_1", 10_000))))];
    finish(machine.apply(header(1_000), &commands, ReplyMode::Encode).expect("it is sound"));
    let remaining_ms = || {
        let of_session = |core: &ShardState, table: &mut LeaderState| {
            let session = core.sessions().next().expect("it is open");
            table.heartbeats.remaining_ms(session.number, Instant::now())
        };
        machine.with_leader_state(TERM, of_session).flatten()
    };
    tokio::time::advance(Duration::from_millis(100)).await;
    assert_eq!(remaining_ms(), Some(9_900));
    let begin = |table: &mut LeaderState| {
        let attempt = table.next_attempt().expect("there are numbers");
        table.waits.enqueued(&testing::namespace(), WaitId(7), attempt, attempt);
        attempt
    };
    let first = machine.with_leader_state(TERM, |_, table| begin(table)).expect("it leads");
    let attached = machine.with_leader_state(TERM, |_, table| table.attach(WaitId(7), first)).flatten();
    let Some(Attachment::Pending(caller)) = attached else { panic!("it waits") };

    assert_eq!(machine.with_leader_state(TERM, |_, _| -> u8 { panic!("a bug") }), None);
    assert!(caller.await.is_err(), "whoever waits is redirected");
    machine.rebuild_leader_state(TERM + 1);
    assert!(machine.leader_state_failed().borrow().is_some() && remaining_ms().is_none(), "it leads in another term");
    machine.rebuild_leader_state(TERM);
    assert!(machine.leader_state_failed().borrow().is_none());
    assert_eq!(remaining_ms(), Some(10_000));
    let second = machine.with_leader_state(TERM, |_, table| begin(table)).expect("it leads");
    assert!(second > first, "attempts rise within a term");
    let attach = |attempt| machine.with_leader_state(TERM, |_, table| table.attach(WaitId(7), attempt)).flatten();
    assert!(attach(first).is_none(), "that caller calls again, or it would count as disconnected");
    assert!(attach(second).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_leadership_begins_with_what_was_taken_over_in_pages_unless_the_state_has_changed_since() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    let open = |number: usize| {
        let command = Command::Locks(testing::open_session(&format!("se_{number}"), 10_000));
        Bytes::from(codec::encode(&command))
    };
    let apply = |commands: &[Bytes]| finish(machine.apply(header(1_000), commands, ReplyMode::Encode).expect("sound"));
    apply(&std::iter::once(opening()).chain((0..2_500).map(open)).collect::<Vec<_>>());
    // How many pages follow the next one.
    let prepare =
        |term| std::iter::repeat_with(|| machine.prepare_leadership(term)).take_while(|is_done| !is_done).count();
    assert_eq!((prepare(TERM), prepare(TERM)), (2, 0), "1,024 sessions in a page");
    assert!(!machine.prepare_leadership(TERM + 1), "it is of another term");
    apply(&[open(2_500)]);
    assert_eq!(prepare(TERM), 2, "it was out of date");
    tokio::time::advance(Duration::from_millis(100)).await;
    machine.on_leadership_change(Some(TERM));
    let remaining_ms = |core: &ShardState, table: &mut LeaderState| {
        let of_session = |number| table.heartbeats.remaining_ms(number, Instant::now());
        core.sessions().map(|session| of_session(session.number)).collect::<Vec<_>>()
    };
    assert_eq!(machine.with_leader_state(TERM, remaining_ms), Some(vec![Some(10_000); 2_501]));

    machine.on_leadership_change(None);
    assert!(!machine.prepare_leadership(TERM + 1), "half of it");
    machine.on_leadership_change(Some(TERM + 1));
    assert_eq!(machine.with_leader_state(TERM + 1, remaining_ms), Some(vec![Some(10_000); 2_501]), "the rest as well");
}

#[tokio::test]
async fn a_leader_state_that_is_replaced_in_its_term_continues_its_attempts() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    machine.on_leadership_change(Some(TERM));
    let next = || machine.with_leader_state(TERM, |_, table| table.next_attempt()).flatten().expect("it leads");
    let first = next();
    machine.on_leadership_change(Some(TERM));
    let second = next();
    machine.on_leadership_change(None);
    machine.on_leadership_change(Some(TERM));
    assert!(first < second && second < next());
}

fn opening() -> Bytes {
    Bytes::from(codec::encode(&Command::Locks(testing::open_namespace())))
}

fn acquire(number: usize) -> Bytes {
    let command = testing::acquire(&format!("l{number}"));
    Bytes::from(codec::encode(&Command::Locks(command)))
}

/// Returns the number of held locks, and whether lock `number` is held.
fn held(machine: &ShardMachine, number: usize) -> (usize, bool) {
    let namespace = testing::namespace();
    let reply = machine.query(1_000, &Query::Lock { namespace, path: Path::flat(format!("l{number}")) });
    let Ok(Response::Lock(lock)) = reply.expect("it has a state").outcome else { panic!("the namespace is open") };
    (machine.usage().holds, lock.holders_total == 1)
}

/// Time stands still, so only the command count ends a slice.
#[tokio::test(start_paused = true)]
async fn whoever_asks_in_the_middle_of_a_long_entry_sees_the_commands_before() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    machine.on_leadership_change(Some(TERM));
    finish(machine.apply(header(1_000), &[opening()], ReplyMode::Encode).expect("it is sound"));
    let commands: Vec<Bytes> = (0..=2 * MAX_SLICE_COMMANDS).map(acquire).collect();

    let rest = part(machine.apply(header(1_000), &commands, ReplyMode::Encode).expect("it is sound"));
    assert_eq!(held(&machine, MAX_SLICE_COMMANDS - 1), (MAX_SLICE_COMMANDS, true));
    assert_eq!(held(&machine, MAX_SLICE_COMMANDS), (MAX_SLICE_COMMANDS, false));
    assert!(machine.with_leader_state(TERM, |_, _| ()).is_some(), "leader tasks go on as well");
    let rest = part(rest().expect("it is sound"));
    assert_eq!(held(&machine, MAX_SLICE_COMMANDS), (2 * MAX_SLICE_COMMANDS, true));
    let replies = finish(rest().expect("it is sound"));
    assert_eq!(held(&machine, 2 * MAX_SLICE_COMMANDS), (2 * MAX_SLICE_COMMANDS + 1, true));
    assert_eq!(replies.len(), commands.len());
    let is_granted = |bytes: &Bytes| codec::decode::<Reply>(bytes).is_ok_and(|reply| reply.outcome.is_ok());
    assert!(replies.iter().all(is_granted));
}

#[tokio::test(start_paused = true)]
async fn a_long_batch_is_applied_in_slices_with_the_reply_and_the_state_of_one_step() {
    let [sliced, whole] = [0, 1].map(|_| ShardMachine::new(Application::Locks, "locks_00", None, None));
    let acquires = (0..=MAX_SLICE_COMMANDS).map(|number| testing::acquire(&format!("l{number}")));
    // One outcome among the others is a refusal, and it ends nothing.
    let unknown = NamespaceRef { name: "unknown".into(), ..testing::namespace() };
    let refused = LocksCommand::Delete { namespace: unknown, path: Path::flat("a") };
    let batch = Command::Locks(LocksCommand::Batch([refused].into_iter().chain(acquires).collect()));
    let commands = [opening(), Bytes::from(codec::encode(&batch)), acquire(0)];

    let rest = part(sliced.apply(header(1_000), &commands, ReplyMode::Encode).expect("it is sound"));
    assert_eq!(held(&sliced, MAX_SLICE_COMMANDS - 3), (MAX_SLICE_COMMANDS - 2, true));
    let replies = finish(rest().expect("it is sound"));

    let context = EntryContext { now_ms: 1_000, wall_ms: 1_000, rules: Rules(1) };
    let mut inner = whole.inner.lock();
    let core = inner.core.as_mut().expect("it is sound");
    core.advance(&context);
    let expected = commands.each_ref().map(|bytes| {
        let command: Command = codec::decode(bytes).expect("it was encoded here");
        Bytes::from(codec::encode(&core.apply(&context, &command)))
    });
    assert_eq!(replies, expected);
    assert_eq!(sliced.inner.lock().core.as_ref(), Some(&*core));
}

/// Time stands still, so it ends a slice only by what the next command takes.
#[tokio::test(start_paused = true)]
async fn a_command_as_long_as_a_slice_begins_its_own() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    let paths = (0..2_100).map(|number| Path::flat(format!("l{number}"))).collect();
    let (namespace, owner) = (testing::namespace(), Owner::Process("p".into()));
    let what = ReleaseTarget::Paths { paths, fencing_token: None };
    let release = Command::Locks(LocksCommand::Release(Release { namespace, owner, what, message: None }));
    assert!(release.min_units() > 4_096);
    let commands = [opening(), acquire(0), Bytes::from(codec::encode(&release)), acquire(1)];

    let rest = part(machine.apply(header(1_000), &commands, ReplyMode::Encode).expect("it is sound"));
    assert_eq!(held(&machine, 0), (1, true));
    let replies = finish(rest().expect("it is sound"));
    assert_eq!((held(&machine, 0), held(&machine, 1)), ((1, false), (1, true)));
    assert_eq!(replies.len(), commands.len());
}

#[tokio::test(start_paused = true)]
async fn an_observer_hears_of_each_slice_with_the_commands_of_lists_one_by_one() {
    let observer = Arc::new(ProgressObserver::default());
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, Some(observer.clone())).with_slices(2);
    let list = LocksCommand::Batch((1..=3).map(|number| testing::acquire(&format!("l{number}"))).collect());
    let list = Bytes::from(codec::encode(&Command::Locks(list)));
    let apply = |commands: &[Bytes]| {
        finish(machine.apply(header(1_000), commands, ReplyMode::Encode).expect("it is sound"));
        std::mem::take(&mut *observer.0.lock())
    };
    assert_eq!(apply(&[opening(), acquire(0)]), [(2, true)]);
    assert_eq!(apply(&[acquire(4), list, acquire(5)]), [(2, false), (4, false), (3, true)]);
    assert_eq!(machine.for_rebuild().slice_commands, 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_done_before_a_leadership_began_in_the_middle_of_an_entry_is_not_told() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    let commands: Vec<Bytes> = [opening()].into_iter().chain((0..MAX_SLICE_COMMANDS).map(acquire)).collect();
    let rest = part(machine.apply(header(1_000), &commands, ReplyMode::Skip).expect("it is sound"));
    let effects = machine.inner.lock().core.as_mut().expect("it is sound").take_effects();
    assert_eq!(effects, [], "nobody was to be told");
    finish(rest().expect("it is sound"));
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_failed_in_a_later_slice_answers_nothing() {
    let observer = Arc::new(PanickingObserver(Mutex::new(0)));
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, Some(observer));
    machine.on_leadership_change(Some(TERM));
    finish(machine.apply(header(1_000), &[opening()], ReplyMode::Encode).expect("it is sound"));
    let commands: Vec<Bytes> = (0..=MAX_SLICE_COMMANDS).map(acquire).collect();
    let rest = part(machine.apply(header(2_000), &commands, ReplyMode::Encode).expect("it is sound"));
    assert!(query_waits(&machine).is_some());

    let failure = rest().err().expect("it breaks");
    assert_eq!(failure.step, ApplyStep::Command(128));
    assert!(failure.command.contains("l128") && failure.message.contains("a bug"), "{failure:?}");
    assert!(
        query_waits(&machine).is_none()
            && machine.with_leader_state(TERM, |_, _| ()).is_none()
            && machine.freeze().is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn only_whoever_owes_a_reply_shows_locks() {
    let (follower, leader) = [0, 1].map(|_| ShardMachine::new(Application::Locks, "locks_00", None, None)).into();
    let commands: Vec<Bytes> = [opening()].into_iter().chain((0..50).map(acquire)).collect();
    for (machine, replies) in [(&follower, ReplyMode::Skip), (&leader, ReplyMode::Encode)] {
        finish(machine.apply(header(1_000), &commands, replies).expect("it is sound"));
    }
    let shown = |machine: &ShardMachine| machine.inner.lock().core.as_ref().map(ShardState::views_built);
    assert_eq!((shown(&follower), shown(&leader)), (Some(0), Some(50)));
    let state = |machine: &ShardMachine| {
        let part = machine.freeze().expect("it is sound");
        part.chunks().collect::<Result<Vec<Bytes>, _>>().expect("it is readable")
    };
    assert_eq!(state(&follower), state(&leader));
}

/// Its client has to show what it holds: until then nothing puts off the end that the leader waits for.
#[tokio::test(start_paused = true)]
async fn a_resume_of_a_session_of_before_the_epoch_does_not_put_its_end_off() {
    let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
    machine.set_rules(Rules::TWO.0);
    machine.on_leadership_change(Some(TERM));
    let apply = |command: LocksCommand| {
        let commands = [Bytes::from(codec::encode(&Command::Locks(command)))];
        let header = EntryHeader { rules: Rules::TWO.0, ..header(1_000) };
        let replies = finish(machine.apply(header, &commands, ReplyMode::Encode).expect("it is sound"));
        codec::decode::<Reply>(&replies[0]).expect("it was encoded here").outcome
    };
    let open = |number: u8| {
        let LocksCommand::OpenSession(open) = testing::open_session("se_1", 10_000) else { panic!("it opens one") };
        let open = OpenSession { resume: number > 0, request_id: RequestId([number; 16]), ..open };
        LocksCommand::Table(TableCommand::OpenSession(OpenTableSession { open, transition_ms: 0 }))
    };
    let remaining_ms = || {
        let of_session = |core: &ShardState, table: &mut LeaderState| {
            let session = core.sessions().next().expect("it is open");
            table.heartbeats.remaining_ms(session.number, Instant::now())
        };
        machine.with_leader_state(TERM, of_session).flatten()
    };
    let message = NamespaceMessage::open_durable(testing::namespace(), Limits::default(), Durability::Session);
    apply(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message }).expect("it is opened");
    apply(open(0)).expect("it is opened");
    tokio::time::advance(Duration::from_millis(100)).await;
    apply(open(1)).expect("it is resumed");
    assert_eq!(remaining_ms(), Some(10_000));

    let next = |core: &ShardState, table: &mut LeaderState| table.next_table_command(core);
    let begin = machine.with_leader_state(TERM, next).flatten().expect("an epoch is to begin");
    let begun = apply(LocksCommand::Table(begin.clone())).expect("it begins");
    machine.with_leader_state(TERM, |core, table| table.table_written(core, &begin, Some(&begun)));
    tokio::time::advance(Duration::from_millis(100)).await;
    apply(open(2)).expect("it is resumed");
    assert_eq!(remaining_ms(), Some(9_900));
}
