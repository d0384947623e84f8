//! Lock tables that a new leader rebuilds in its memory from what is reported to it: claims that compete, requests that
//! wait, and reports that come again or from a connection that is no more.

use holdfast_core::locks::SoftTable;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    Application, Claim, Command, CommandError, Durability, EntryContext, FencingToken, Limits, LocksCommand,
    MessageSeq, Metadata, Mode, NamespaceMessage, Owner, Path, Query, ReportedHold, ReportedRequest, ReportedWait,
    Response, Rules, SessionCommand, SessionRequest, SessionView, TableCommand, TableReport, WaitId,
};

use crate::context;
use crate::mutations::enable_mutation_from_env;
use crate::random::namespace;
use crate::soft_tables::{begun, opening};

const LOCK: &str = "l";

fn entry() -> EntryContext {
    context(1_000, Rules::TWO)
}

/// A leader that has begun its epoch, of sessions that were opened in the one before.
struct Leader {
    log: ShardState,
    table: SoftTable,
    sessions: Vec<SessionView>,
    /// Of the epoch before.
    first_token: FencingToken,
    messages: u64,
}

impl Leader {
    /// The first session is resumed before the epoch begins, so that it has had two connections.
    fn new(sessions: u64) -> Self {
        let mut log = ShardState::new(Application::Locks, "locks_00");
        let message = NamespaceMessage::open_durable(namespace(), Limits::default(), Durability::Session);
        let open = LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message };
        log.advance(&entry());
        log.apply(&entry(), &Command::Locks(open)).outcome.expect("it is opened");
        let first_token = begun(&mut log, &entry(), 1).epoch + 1;
        let mut opened = |number: u64, resume: bool, call: u64| {
            let open = opening(&format!("se_{number}"), resume, call, 0);
            match log.apply(&entry(), &Command::Locks(open)).outcome {
                Ok(Response::TableSessionOpened { session, .. }) => session,
                other => panic!("not opened: {other:?}"),
            }
        };
        let mut sessions: Vec<SessionView> = (0..sessions).map(|number| opened(number, false, number)).collect();
        sessions[0] = opened(0, true, 100);
        let epoch = begun(&mut log, &entry(), 2);
        log.take_effects();
        let table = SoftTable::begin(&log, &epoch).expect("it has begun");
        Self { log, table, sessions, first_token, messages: 0 }
    }

    /// Reports what a session has of the lock: a token, or the ticket with which it waits.
    fn report(
        &mut self,
        at: usize,
        token: Option<FencingToken>,
        ticket: Option<u64>,
    ) -> Result<Response, CommandError> {
        self.report_of(at, self.sessions[at].epoch, (token, ticket))
    }

    fn report_of(
        &mut self,
        at: usize,
        connection_epoch: u64,
        (token, ticket): (Option<FencingToken>, Option<u64>),
    ) -> Result<Response, CommandError> {
        let (path, mode, request_id) = (Path::flat(LOCK), Mode::Write, "request".to_owned());
        let granted = token.map(|fencing_token| ReportedRequest {
            request_id: request_id.clone(),
            holder: None,
            metadata: Metadata::new(),
            claimed: 1,
            claims: vec![ReportedHold { path: path.clone(), mode, fencing_token }],
        });
        let pending = ticket.map(|ticket| ReportedWait {
            request_id: request_id.clone(),
            holder: None,
            metadata: Metadata::new(),
            claims: vec![Claim { path: path.clone(), mode }],
            ticket: Some(WaitId(ticket)),
        });
        let (granted, pending) = (granted.into_iter().collect(), pending.into_iter().collect());
        let (session, table_epoch) = (self.sessions[at].number, self.table.epoch());
        let (namespace, part, parts, seq) = (namespace(), 1, 1, 0);
        let report =
            TableReport { namespace, session, connection_epoch, seq, table_epoch, part, parts, granted, pending };
        self.apply(LocksCommand::Table(TableCommand::Report(report)))
    }

    fn release(&mut self, at: usize) {
        self.messages += 1;
        let SessionView { number, epoch, .. } = self.sessions[at];
        let message = MessageSeq { epoch, seq: self.messages };
        let (account, request_id) = (namespace().account, "request".to_owned());
        let request = SessionRequest::Release { request_id, is_known: true };
        let command = SessionCommand { account, session: number, message, request };
        self.apply(LocksCommand::Session(command)).expect("it is reported");
    }

    fn apply(&mut self, command: LocksCommand) -> Result<Response, CommandError> {
        self.table.apply(&self.log, &entry(), &command).outcome
    }

    /// The place of the session that holds the lock.
    fn holder(&self) -> Option<usize> {
        let query = Query::Lock { namespace: namespace(), path: Path::flat(LOCK) };
        let holder = match self.table.query(&self.log, 0, &query).expect("it is about the table").outcome {
            Ok(Response::Lock(lock)) => lock.write_lock_holder?.owner,
            other => panic!("no lock: {other:?}"),
        };
        let Owner::Session { session_id, .. } = holder else { panic!("a session holds it") };
        self.sessions.iter().position(|session| session.session_id == session_id)
    }
}

#[test]
fn of_claims_that_compete_the_highest_token_wins() {
    enable_mutation_from_env();
    for stale in [0, 1] {
        let mut leader = Leader::new(2);
        let first = leader.first_token;
        leader.report(stale, Some(first), None).expect("it is new");
        leader.report(1 - stale, Some(first + 1), None).expect("it is new");
        assert_eq!((leader.holder(), leader.table.take_conflicts()), (Some(1 - stale), 1));
    }
}

#[test]
fn who_waited_longest_is_first() {
    enable_mutation_from_env();
    let mut leader = Leader::new(4);
    let first = leader.first_token;
    for (at, ticket) in [(1, 7), (2, 3), (3, 5)] {
        leader.report(at, None, Some(first + ticket)).expect("it is new");
    }
    leader.report(0, Some(first), None).expect("it is new");
    for at in [0, 2, 3, 1] {
        assert_eq!(leader.holder(), Some(at));
        leader.release(at);
    }
    assert_eq!(leader.holder(), None);
}

#[test]
fn what_was_released_stays_so_whatever_comes_again() {
    enable_mutation_from_env();
    let mut leader = Leader::new(2);
    let first = leader.first_token;
    leader.report(0, Some(first), None).expect("it is new");
    leader.release(0);
    let again = leader.report(0, Some(first), None);
    leader.report(1, None, None).expect("it is new");
    assert_eq!((leader.holder(), again), (None, Ok(Response::Ignored)));
}

#[test]
fn only_the_last_connection_reports() {
    enable_mutation_from_env();
    let mut leader = Leader::new(2);
    let (first, epoch) = (leader.first_token, leader.sessions[0].epoch);
    let superseded = leader.report_of(0, epoch - 1, (None, None));
    let _ = leader.report(0, Some(first), None);
    leader.report(1, None, None).expect("it is new");
    assert_eq!((leader.holder(), superseded), (Some(0), Err(CommandError::Superseded { epoch })));
}
