//! Lock tables in the memory of a leader: what it grants, and when it begins to.

use holdfast_core::locks::SoftTable;
use holdfast_core::{
    AcquireOutcome, Command, CommandError, Effect, EntryContext, FencingToken, Forfeit, ForfeitedHold, LockInfo,
    LocksCommand, MessageSeq, Mode, NamespaceMessage, Owner, Path, Query, Release, ReleaseTarget, ReportedHold, Reset,
    Response, RevokedReason, Rules, SessionAcquire, SessionCommand, SessionRequest, SessionView, TableCommand,
    TableEpoch, TableState, Wait,
};

use crate::durability::{session_durable, soft};
use crate::soft_tables::{begin, close, expire, open, table, table_session};
use crate::support::{ACCOUNT, Shard, at};
use crate::wait_requests::write;

/// A shard with a leader and the tables of its epoch.
pub(crate) struct Leader {
    pub(crate) log: Shard,
    pub(crate) table: SoftTable,
    pub(crate) epoch: TableEpoch,
    messages: u64,
}

impl Leader {
    pub(crate) fn new() -> Self {
        Self::of(session_durable(), 1)
    }

    /// The next leader of the same log.
    pub(crate) fn next(self) -> Self {
        let attempt = self.epoch.attempt + 1;
        Self::of(self.log, attempt)
    }

    pub(crate) fn of(mut log: Shard, attempt: u64) -> Self {
        let epoch = begin(&mut log, attempt);
        let table = SoftTable::begin(&log.core, &epoch).expect("it has just begun");
        let mut leader = Self { log, table, epoch, messages: 0 };
        leader.follow();
        leader
    }

    pub(crate) fn context(&self) -> EntryContext {
        EntryContext { rules: Rules::TWO, ..at(self.log.core.clock_ms()) }
    }

    /// What the log has done so far is followed.
    pub(crate) fn follow(&mut self) {
        let context = self.context();
        for effect in self.log.core.take_effects() {
            self.table.follow(&effect);
        }
        self.table.advance(&context);
        self.table.copy_events(&self.log.core);
        self.table.verify();
    }

    pub(crate) fn open(&mut self, id: &str, transition_ms: u64) -> SessionView {
        self.messages += 1;
        let (session, told) = open(&mut self.log, table_session(id, self.messages, transition_ms));
        assert_eq!(told, self.epoch.epoch);
        self.follow();
        session
    }

    pub(crate) fn advance_by(&mut self, ms: u64) {
        self.log.advance_by(ms);
        self.follow();
    }

    pub(crate) fn send(&mut self, session: &SessionView, request: SessionRequest) -> Result<Response, CommandError> {
        self.messages += 1;
        self.send_as(session, self.messages, request)
    }

    pub(crate) fn send_as(
        &mut self,
        session: &SessionView,
        seq: u64,
        request: SessionRequest,
    ) -> Result<Response, CommandError> {
        let message = MessageSeq { epoch: session.epoch, seq };
        let command = SessionCommand { account: ACCOUNT, session: session.number, message, request };
        self.apply(&LocksCommand::Session(command))
    }

    pub(crate) fn apply(&mut self, command: &LocksCommand) -> Result<Response, CommandError> {
        let before = self.log.core.snapshot();
        let context = self.context();
        let reply = self.table.apply(&self.log.core, &context, command);
        self.table.verify();
        assert_eq!(self.log.core.snapshot(), before, "nothing of it is in the log");
        reply.outcome
    }

    pub(crate) fn granted(&mut self, session: &SessionView, lock: &str) -> FencingToken {
        match self.send(session, acquire(lock)) {
            Ok(Response::Granted { fencing_token }) => fencing_token,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// What the log is to be told so that a lock opens.
    pub(crate) fn force_open(&mut self, lock: &str) -> Result<Forfeit, CommandError> {
        let (context, path) = (self.context(), Path::flat(lock));
        let outcome = self.table.force_open(&self.log.core, &context, (&soft(), &path));
        self.table.verify();
        outcome.expect("its table is here")
    }

    /// The log is told so, which its leader follows.
    pub(crate) fn forfeit(&mut self, forfeit: &Forfeit) {
        table(&mut self.log, TableCommand::Forfeit(forfeit.clone())).expect("there are few");
        let context = self.context();
        self.table.forfeit(&self.log.core, &context, forfeit);
        self.table.verify();
    }

    /// The one who holds a lock.
    pub(crate) fn holder(&self, lock: &str) -> Option<Owner> {
        let query = Query::Lock { namespace: soft(), path: Path::flat(lock) };
        match self.table.query(&self.log.core, 0, &query).expect("it is about the table").outcome {
            Ok(Response::Lock(lock)) => lock.write_lock_holder.map(|holder| holder.owner),
            other => panic!("no lock: {other:?}"),
        }
    }
}

pub(crate) fn acquire(lock: &str) -> SessionRequest {
    SessionRequest::Acquire(SessionAcquire {
        holder: None,
        claims: vec![write(lock)],
        transition_ms: 0,
        wait: Wait::Unlimited,
        allow_upgrade: false,
        request_id: format!("request for {lock}"),
    })
}

pub(crate) fn release(lock: &str) -> SessionRequest {
    SessionRequest::Release { request_id: format!("request for {lock}"), is_known: true }
}

pub(crate) fn owner(session: &SessionView) -> Option<Owner> {
    Some(Owner::Session { session_id: session.session_id.clone(), holder: None })
}

pub(crate) fn is_busy(outcome: &Result<Response, CommandError>) -> bool {
    matches!(outcome, Err(CommandError::Busy(_)))
}

#[test]
fn grants_come_from_the_block_and_need_no_entry() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    let first = leader.granted(&session, "a");
    let second = leader.granted(&session, "b");
    let block = leader.epoch.block;
    assert!(block.first < first && first < second && second <= block.last);
    assert_eq!(leader.holder("a"), owner(&session));
    assert_eq!(leader.send(&session, release("a")), Ok(Response::Done));
    assert_eq!((leader.holder("a"), leader.holder("c")), (None, None));
}

#[test]
fn who_waits_is_granted_when_the_holder_releases() {
    let mut leader = Leader::new();
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let first = leader.granted(&holder, "l");
    let waits = leader.send(&waiter, acquire("l"));
    assert!(matches!(waits, Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(_), .. })), "{waits:?}");
    leader.table.take_effects();
    leader.send(&holder, release("l")).unwrap();
    let granted = leader.table.take_effects().into_iter().find_map(|effect| match effect {
        Effect::WaitResolved { outcome: AcquireOutcome::Granted { fencing_token }, .. } => Some(fencing_token),
        _ => None,
    });
    assert!(granted > Some(first), "{granted:?}");
    assert_eq!(leader.holder("l"), owner(&waiter));
}

#[test]
fn the_next_leader_grants_nothing_until_all_sessions_of_before_have_ended() {
    let mut leader = Leader::new();
    let (expires, closes) = (leader.open("se_1", 500), leader.open("se_2", 500));
    let last = leader.granted(&closes, "l");

    let mut leader = leader.next();
    let later = leader.open("se_3", 0);
    assert!(is_busy(&leader.send(&later, acquire("l"))));
    let unknown = leader.send(&closes, acquire("m"));
    assert_eq!(unknown, Err(CommandError::Unreported { table_epoch: leader.epoch.epoch }), "nor are its own holds");
    close(&mut leader.log, "se_2");
    leader.follow();
    assert!(is_busy(&leader.send(&later, acquire("l"))), "the other one may hold it");
    expire(&mut leader.log, expires.number);
    leader.follow();
    assert!(is_busy(&leader.send(&later, acquire("l"))), "its transition runs");
    leader.advance_by(499);
    assert!(is_busy(&leader.send(&later, acquire("l"))));
    leader.log = leader.log.restored();
    assert!(is_busy(&leader.send(&later, acquire("l"))), "also after a restore");
    leader.advance_by(1);
    assert!(leader.granted(&later, "l") > last);
}

#[test]
fn a_lock_is_forced_open_once_the_log_knows_of_its_holds() {
    let mut leader = Leader::new();
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let token = leader.granted(&holder, "l");
    leader.send(&waiter, acquire("l")).unwrap();
    let holds = vec![ForfeitedHold { session: holder.number, fencing_token: token }];
    let forfeit = Forfeit { namespace: soft(), path: Path::flat("l"), holds };
    assert_eq!(leader.force_open("l"), Ok(forfeit.clone()));
    assert_eq!(leader.force_open("l"), Ok(forfeit.clone()), "the log was not told");
    assert_eq!(leader.holder("l"), owner(&holder));
    leader.table.take_effects();
    leader.forfeit(&forfeit);
    assert_eq!(leader.holder("l"), owner(&waiter), "whoever forced it may be gone");
    let is_told = |effect: &Effect| matches!(effect, Effect::Revoked { reason: RevokedReason::Deleted, .. });
    assert!(leader.table.take_effects().iter().any(is_told), "its holder hears of it");
    leader.forfeit(&forfeit);
    assert_eq!(leader.holder("l"), owner(&waiter), "who came since is another one");

    let nobody = Forfeit { namespace: soft(), path: Path::flat("free"), holds: Vec::new() };
    assert_eq!(leader.force_open("free"), Ok(nobody), "the log hears of each call");
    let mut next = leader.next();
    assert!(matches!(next.force_open("l"), Err(CommandError::Busy(_))), "its holds are not known yet");
}

#[test]
fn what_is_in_transition_is_forced_open_too() {
    let mut leader = Leader::new();
    let (expires, waiter) = (leader.open("se_1", 60_000), leader.open("se_2", 0));
    leader.granted(&expires, "l");
    leader.send(&waiter, acquire("l")).unwrap();
    expire(&mut leader.log, expires.number);
    leader.follow();
    assert_eq!(leader.holder("l"), owner(&expires));
    let forfeit = leader.force_open("l").expect("it is complete");
    leader.forfeit(&forfeit);
    assert_eq!(leader.holder("l"), owner(&waiter));
}

#[test]
fn no_sign_of_life_of_a_session_of_before_counts() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    assert!(!leader.log.core.needs_report(session.number));
    let mut leader = leader.next();
    assert!(leader.log.core.needs_report(session.number) && !leader.table.has_reported(session.number));
    let repeated = table(&mut leader.log, TableCommand::OpenSession(table_session("se_1", 1, 0)));
    assert!(is_busy(&repeated), "{repeated:?}");
    let later = leader.open("se_2", 0);
    assert!(!leader.log.core.needs_report(later.number));
}

#[test]
fn how_far_a_table_is_names_whom_the_leader_waits_for() {
    let state = |leader: &mut Leader| match leader.log.query(&Query::TableState { namespace: soft() }) {
        Ok(Response::TableState(state)) => state,
        other => panic!("no state: {other:?}"),
    };
    let mut leader = Leader::new();
    let (expires, _) = (leader.open("se_1", 500), leader.open("se_2", 0));
    assert_eq!((state(&mut leader).sessions, state(&mut leader).missing), (2, 0));
    let mut leader = leader.next();
    leader.open("se_3", 0);
    let waiting_for = vec!["se_1".to_owned(), "se_2".to_owned()];
    let (has_begun, since_ms) = (false, 0);
    let expected = TableState { epoch: leader.epoch.epoch, has_begun, since_ms, sessions: 3, missing: 2, waiting_for };
    assert_eq!(state(&mut leader), expected);
    close(&mut leader.log, "se_2");
    expire(&mut leader.log, expires.number);
    let expected = TableState { sessions: 1, missing: 1, waiting_for: Vec::new(), ..expected };
    assert_eq!(state(&mut leader), expected, "its transition runs");
    leader.advance_by(500);
    assert_eq!(state(&mut leader).missing, 0);
}

#[test]
fn a_resumed_session_has_what_its_client_lists_and_can_release_it_all() {
    let mut leader = Leader::new();
    let (session, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let token = leader.granted(&session, "a");
    leader.granted(&session, "b");
    leader.send(&waiter, acquire("b")).unwrap();
    let mut resume = table_session("se_1", 99, 0);
    resume.open.resume = true;
    let (resumed, _) = open(&mut leader.log, resume);
    leader.follow();
    let held = |lock: &str, fencing_token| ReportedHold { path: Path::flat(lock), mode: Mode::Write, fencing_token };
    let message = |seq| Some(MessageSeq { epoch: resumed.epoch, seq });
    let info = LockInfo {
        namespace: soft(),
        session_id: "se_1".into(),
        message: message(1),
        held: vec![held("a", token), held("c", 7)],
        pending: Vec::new(),
    };
    match leader.apply(&LocksCommand::LockInfo(info)) {
        Ok(Response::Reconciled { lost, ended_holds: 1, ended_waits: 0 }) => assert_eq!(lost[0].path, Path::flat("c")),
        other => panic!("not compared: {other:?}"),
    }
    assert_eq!((leader.holder("a"), leader.holder("b")), (owner(&session), owner(&waiter)));
    let mut view = Response::Session(resumed.clone());
    let query = Query::Session { namespace: soft(), session_id: "se_1".into() };
    leader.table.add_counts(&leader.log.core, &query, &mut view);
    assert!(matches!(&view, Response::Session(view) if view.holds == 1), "{view:?}");
    let usage = leader.table.usage(&leader.log.core, 0, &soft()).expect("its table is here").outcome;
    assert_eq!(usage, Ok(Response::Usage { holds: 2, waiting: 0, sessions: 2 }));

    let account_usage = Query::AccountUsage { account: ACCOUNT };
    let mut of_account = leader.log.query(&account_usage).expect("it has namespaces");
    leader.table.add_counts(&leader.log.core, &account_usage, &mut of_account);
    let Response::AccountUsage { namespaces, .. } = of_account else { panic!("{of_account:?}") };
    let holds: Vec<_> = namespaces.iter().map(|usage| (usage.name.as_str(), usage.holds)).collect();
    assert_eq!(holds, [("orders", 0), ("soft", 2)]);

    let owner = Owner::Session { session_id: "se_1".into(), holder: None };
    let release = Release { namespace: soft(), owner, what: ReleaseTarget::All, message: message(2) };
    assert!(leader.apply(&LocksCommand::Release(release)).is_ok());
    assert_eq!(leader.holder("a"), None);
}

#[test]
fn holds_go_with_their_session_and_stay_in_its_transition() {
    let mut leader = Leader::new();
    let (expires, closes, waiter) = (leader.open("se_1", 500), leader.open("se_2", 500), leader.open("se_3", 0));
    leader.granted(&expires, "a");
    leader.granted(&closes, "b");
    leader.send(&waiter, acquire("a")).unwrap();
    leader.send(&waiter, acquire("b")).unwrap();
    close(&mut leader.log, "se_2");
    leader.follow();
    assert_eq!(leader.holder("b"), owner(&waiter), "nothing is left of a closed one");
    expire(&mut leader.log, expires.number);
    leader.follow();
    leader.advance_by(499);
    assert_eq!(leader.holder("a"), owner(&expires));
    let refused = leader.send(&expires, release("a"));
    assert!(matches!(refused, Err(CommandError::SessionNotFound(_))), "{refused:?}");
    leader.advance_by(1);
    assert_eq!(leader.holder("a"), owner(&waiter));
    let effects = leader.table.take_effects();
    let is_of_log = |effect: &Effect| matches!(effect, Effect::SessionEnded { .. } | Effect::SessionOpened { .. });
    assert!(!effects.iter().any(is_of_log), "the log tells of sessions: {effects:?}");
}

#[test]
fn a_reset_ends_what_expired_sessions_keep_in_transition() {
    let mut leader = Leader::new();
    let (expires, ends, waiter) = (leader.open("se_1", 500), leader.open("se_2", 500), leader.open("se_3", 0));
    leader.granted(&expires, "a");
    leader.granted(&ends, "b");
    leader.send(&waiter, acquire("a")).unwrap();
    leader.send(&waiter, acquire("b")).unwrap();
    expire(&mut leader.log, expires.number);
    leader.follow();
    assert_eq!(leader.holder("a"), owner(&expires));
    let reset = Reset { namespace: soft(), live_owners: vec!["se_3".into()], before_revision: None };
    leader.log.apply(&Command::Locks(LocksCommand::Reset(reset.clone()))).outcome.unwrap();
    let context = leader.context();
    leader.table.reset(&leader.log.core, &context, &reset);
    leader.table.verify();
    assert_eq!((leader.holder("a"), leader.holder("b")), (owner(&waiter), owner(&waiter)));
    leader.follow();
    assert_eq!(leader.holder("a"), owner(&waiter), "it has released nothing");
}

pub(crate) fn expire_all(leader: &mut Leader, sessions: &[&SessionView]) {
    let ids: Vec<_> = sessions.iter().map(|session| session.number).collect();
    let command = LocksCommand::ExpireSessions { ids: ids.clone(), known_revision: leader.log.core.revision() };
    let expired = leader.log.apply(&Command::Locks(command)).outcome;
    assert_eq!(expired, Ok(Response::SessionsExpired { ended: ids }));
}

#[test]
fn sessions_that_end_together_are_granted_nothing_of_each_other() {
    let mut leader = Leader::new();
    let (holder, waiter, other) = (leader.open("se_1", 0), leader.open("se_2", 600_000), leader.open("se_3", 0));
    leader.granted(&holder, "l");
    leader.send(&waiter, acquire("l")).unwrap();
    leader.table.take_effects();
    expire_all(&mut leader, &[&holder, &waiter]);
    leader.follow();
    let granted =
        |effect: &Effect| matches!(effect, Effect::WaitResolved { outcome: AcquireOutcome::Granted { .. }, .. });
    assert!(!leader.table.take_effects().iter().any(granted), "the transition of the other one would keep it");
    leader.granted(&other, "l");
}

#[test]
fn a_session_whose_end_was_not_followed_yet_is_granted_nothing() {
    let mut leader = Leader::new();
    let (holder, waiter, other) = (leader.open("se_1", 0), leader.open("se_2", 600_000), leader.open("se_3", 0));
    leader.granted(&holder, "l");
    leader.send(&waiter, acquire("l")).unwrap();
    expire_all(&mut leader, &[&waiter]);
    leader.send(&holder, release("l")).unwrap();
    leader.follow();
    leader.granted(&other, "l");
}

#[test]
fn messages_of_a_connection_count_once_and_those_of_an_old_one_not_at_all() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    assert!(leader.send_as(&session, 5, acquire("a")).is_ok());
    assert_eq!(leader.send_as(&session, 5, release("a")), Ok(Response::Ignored));
    let mut resume = table_session("se_1", 99, 0);
    resume.open.resume = true;
    let (resumed, _) = open(&mut leader.log, resume);
    leader.follow();
    assert_eq!(leader.send_as(&resumed, 1, release("a")), Ok(Response::Done), "its messages are counted anew");
    let superseded = leader.send_as(&session, 6, acquire("b"));
    assert!(matches!(superseded, Err(CommandError::Superseded { .. })), "{superseded:?}");
}

#[test]
fn a_leader_whose_epoch_is_over_in_its_log_grants_nothing() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    begin(&mut leader.log, 2);
    assert!(is_busy(&leader.send(&session, acquire("l"))));
    let query = Query::Lock { namespace: soft(), path: Path::flat("l") };
    assert!(is_busy(&leader.table.query(&leader.log.core, 0, &query).unwrap().outcome));
    assert!(SoftTable::begin(&leader.log.core, &leader.epoch).is_none());
}

#[test]
fn tables_do_not_begin_with_a_further_block_of_their_epoch() {
    let mut leader = Leader::new();
    let TableEpoch { epoch, block, attempt } = leader.epoch;
    assert!(SoftTable::begin(&leader.log.core, &leader.epoch).is_some());
    table(&mut leader.log, TableCommand::ReserveBlock { epoch, after: block.last }).unwrap();
    let repeated = begin(&mut leader.log, attempt);
    assert_eq!(repeated.epoch, epoch);
    assert!(SoftTable::begin(&leader.log.core, &repeated).is_none(), "its first revisions may be tokens");
}

#[test]
fn a_namespace_that_is_gone_leaves_nothing() {
    let mut leader = Leader::new();
    let (holder, waiter) = (leader.open("se_1", 500), leader.open("se_2", 0));
    leader.granted(&holder, "l");
    leader.send(&waiter, acquire("l")).unwrap();
    leader.table.take_effects();
    let purge = NamespaceMessage::Purge { namespace: soft() };
    let deliver = LocksCommand::Deliver { source: "namespaces_00".into(), number: 9, message: purge };
    leader.log.apply(&Command::Locks(deliver)).outcome.unwrap();
    leader.follow();
    let ended = |effect: &Effect| matches!(effect, Effect::WaitResolved { outcome: AcquireOutcome::Refused(_), .. });
    assert!(leader.table.take_effects().iter().any(ended), "who waited is told");
    let gone = leader.send(&waiter, acquire("l"));
    assert!(matches!(gone, Err(CommandError::SessionNotFound(_))), "{gone:?}");
    let query = Query::Lock { namespace: soft(), path: Path::flat("l") };
    assert!(leader.table.query(&leader.log.core, 0, &query).is_none());
    assert!(!leader.log.core.has_soft_tables());
    assert!(!leader.table.take_garbage().is_empty() && leader.table.take_garbage().is_empty(), "it is freed elsewhere");
}

#[test]
fn a_wait_with_a_limit_ends_by_the_clock_of_the_leader() {
    let mut leader = Leader::new();
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    leader.granted(&holder, "l");
    let SessionRequest::Acquire(limited) = acquire("l") else { unreachable!() };
    leader.send(&waiter, SessionRequest::Acquire(SessionAcquire { wait: Wait::For(300), ..limited })).unwrap();
    assert_eq!(leader.table.next_deadline_ms(), Some(leader.log.core.clock_ms() + 300));
    leader.table.take_effects();
    let context = EntryContext { now_ms: leader.log.core.clock_ms() + 300, ..leader.context() };
    leader.table.advance(&context);
    let effects = leader.table.take_effects();
    let timed_out =
        |effect: &Effect| matches!(effect, Effect::WaitResolved { outcome: AcquireOutcome::Refused(_), .. });
    assert!(effects.iter().any(timed_out), "{effects:?}");
}
