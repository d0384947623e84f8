//! What the log has of lock tables in the leader's memory: epochs, blocks, sessions and claims that were ended by force.

use holdfast_core::{
    Actor, Audited, BLOCK_REVISIONS, Command, CommandError, Durability, Forfeit, ForfeitedHold, Limits, LocksCommand,
    MAX_FORFEITS, NamespaceMessage, NamespaceRef, OpenSession, OpenTableSession, Path, Query, RESTORE_MARGIN, Reset,
    Response, RevisionBlock, SessionNumber, SessionView, TableCommand, TableEpoch,
};

use crate::durability::{session_durable, soft};
use crate::soft_grants::{Leader, acquire, is_busy};
use crate::soft_reports::reported;
use crate::support::{ACCOUNT, Shard, namespace, orders};
use crate::wait_requests::open_command;

pub(crate) fn table(shard: &mut Shard, command: TableCommand) -> Result<Response, CommandError> {
    let answer = shard.apply(&Command::Locks(LocksCommand::Table(command))).outcome;
    shard.core.verify();
    answer
}

pub(crate) fn begin(shard: &mut Shard, attempt: u64) -> TableEpoch {
    match table(shard, TableCommand::BeginEpoch { attempt }) {
        Ok(Response::TableEpoch(epoch)) => epoch,
        other => panic!("no epoch: {other:?}"),
    }
}

pub(crate) fn table_session(id: &str, call: u64, transition_ms: u64) -> OpenTableSession {
    OpenTableSession { open: OpenSession { namespace: soft(), ..open_command(id, false, call) }, transition_ms }
}

/// The session, and the epoch that its client is told.
pub(crate) fn open(shard: &mut Shard, open: OpenTableSession) -> (SessionView, u64) {
    match table(shard, TableCommand::OpenSession(open)) {
        Ok(Response::TableSessionOpened { session, table_epoch, .. }) => (session, table_epoch),
        other => panic!("no session: {other:?}"),
    }
}

pub(crate) fn expire(shard: &mut Shard, number: SessionNumber) {
    let (ids, known_revision) = (vec![number], shard.core.revision());
    let expired = shard.apply(&Command::Locks(LocksCommand::ExpireSessions { ids, known_revision })).outcome;
    assert_eq!(expired, Ok(Response::SessionsExpired { ended: vec![number] }));
    shard.core.verify();
}

pub(crate) fn close(shard: &mut Shard, id: &str) {
    let close = LocksCommand::CloseSession { namespace: soft(), session_id: id.to_owned(), message: None };
    assert_eq!(shard.apply(&Command::Locks(close)).outcome, Ok(Response::Done));
    shard.core.verify();
}

fn forfeit(namespace: NamespaceRef, holds: &[(SessionNumber, u64)]) -> TableCommand {
    let holds =
        holds.iter().map(|(session, fencing_token)| ForfeitedHold { session: *session, fencing_token: *fencing_token });
    TableCommand::Forfeit(Forfeit { namespace, path: Path::flat("l"), holds: holds.collect() })
}

fn is_invalid(outcome: &Result<Response, CommandError>, field: &str) -> bool {
    matches!(outcome, Err(CommandError::InvalidArgument(text)) if text.starts_with(&format!("{field}:")))
}

#[test]
fn an_epoch_takes_a_block_above_all_that_was_given_out_before() {
    let mut shard = session_durable();
    let before = shard.core.revision();
    let epoch = begin(&mut shard, 5);
    assert_eq!(epoch.block, RevisionBlock { first: before + 1, last: before + BLOCK_REVISIONS });
    assert_eq!((epoch.epoch, epoch.attempt), (epoch.block.first, 5));
    let (session, told) = open(&mut shard, table_session("se_1", 1, 0));
    assert!(session.number > epoch.block.last && told == epoch.epoch);
    let next = begin(&mut shard, 6);
    assert!(next.epoch > session.number);
    assert_eq!(open(&mut shard, table_session("se_2", 2, 0)).1, next.epoch);
}

#[test]
fn an_epoch_that_is_begun_again_is_the_same_and_an_earlier_attempt_begins_none() {
    let mut shard = session_durable();
    let epoch = begin(&mut shard, 5);
    assert_eq!(begin(&mut shard, 5), epoch);
    assert!(is_invalid(&table(&mut shard, TableCommand::BeginEpoch { attempt: 4 }), "attempt"));
    shard = shard.restored();
    assert_eq!(begin(&mut shard, 5), epoch, "after a restore");
}

#[test]
fn another_block_is_taken_once_and_for_the_last_epoch_only() {
    let mut shard = session_durable();
    let reserve = |epoch: TableEpoch| TableCommand::ReserveBlock { epoch: epoch.epoch, after: epoch.block.last };
    let first = begin(&mut shard, 5);
    let second = match table(&mut shard, reserve(first)) {
        Ok(Response::TableEpoch(epoch)) => epoch,
        other => panic!("no block: {other:?}"),
    };
    assert_eq!(second.epoch, first.epoch);
    assert_eq!(second.block.first, first.block.last + 1);
    assert_eq!(table(&mut shard, reserve(first)), Ok(Response::TableEpoch(second)), "a repeat");
    let third = begin(&mut shard, 6);
    assert!(third.epoch > second.block.last);
    assert!(is_invalid(&table(&mut shard, reserve(second)), "epoch"));
}

#[test]
fn a_namespace_that_opens_later_has_the_epoch_of_its_shard() {
    let mut shard = session_durable();
    let epoch = begin(&mut shard, 5);
    let message = NamespaceMessage::open_durable(namespace("later", 3), Limits::default(), Durability::Session);
    let deliver = LocksCommand::Deliver { source: "namespaces_00".into(), number: 3, message };
    shard.apply(&Command::Locks(deliver)).outcome.unwrap();
    shard = shard.restored();
    let mut opening = table_session("se_1", 1, 0);
    opening.open.namespace = namespace("later", 3);
    assert_eq!(open(&mut shard, opening).1, epoch.epoch);
}

#[test]
fn what_lies_after_a_backup_is_unknown_so_its_blocks_are_not_used() {
    let mut shard = session_durable();
    let epoch = begin(&mut shard, 5);
    shard.core.advance_after_restore().unwrap();
    let reserve = TableCommand::ReserveBlock { epoch: epoch.epoch, after: epoch.block.last };
    assert!(is_invalid(&table(&mut shard, reserve), "epoch"));
    assert!(begin(&mut shard, 1).epoch > epoch.block.last + RESTORE_MARGIN, "attempts begin anew");
}

#[test]
fn times_of_a_session_that_keeps_a_table_are_bounded() {
    let mut shard = session_durable();
    for ttl_ms in [0, 1_999, 60_001] {
        let mut opening = table_session("se_1", 1, 0);
        opening.open.ttl_ms = ttl_ms;
        assert!(is_invalid(&table(&mut shard, TableCommand::OpenSession(opening)), "ttl_ms"));
    }
    let opening = TableCommand::OpenSession(table_session("se_1", 1, 600_001));
    assert!(is_invalid(&table(&mut shard, opening), "transition_ms"));
    let (session, _) = open(&mut shard, table_session("se_1", 1, 600_000));
    let mut resume = table_session("se_1", 2, 0);
    (resume.open.resume, resume.open.ttl_ms) = (true, 0);
    let (resumed, _) = open(&mut shard, resume);
    assert_eq!((resumed.number, resumed.ttl_ms), (session.number, 10_000));
}

#[test]
fn where_the_table_is_in_the_log_a_session_that_keeps_one_is_like_any_other() {
    let mut shard = session_durable();
    let mut opening = table_session("se_1", 1, 5);
    opening.open.namespace = orders();
    let opened = table(&mut shard, TableCommand::OpenSession(opening));
    assert!(matches!(opened, Ok(Response::SessionOpened { resumed: false, .. })), "{opened:?}");
    assert!(is_invalid(&table(&mut shard, forfeit(orders(), &[(1, 1)])), "namespace"));
}

#[test]
fn a_session_that_expired_counts_until_its_transition_is_over() {
    let limits = Limits { max_sessions_per_namespace: 1, ..Limits::default() };
    let mut shard = session_durable();
    let message = NamespaceMessage::open_durable(soft(), limits, Durability::Session);
    let deliver = LocksCommand::Deliver { source: "namespaces_00".into(), number: 3, message };
    shard.apply(&Command::Locks(deliver)).outcome.unwrap();
    let (session, _) = open(&mut shard, table_session("se_1", 1, 500));
    expire(&mut shard, session.number);
    let is_refused = |shard: &mut Shard| {
        let opening = TableCommand::OpenSession(table_session("se_2", 2, 0));
        matches!(table(shard, opening), Err(CommandError::QuotaExceeded { .. }))
    };
    shard.advance_by(499);
    assert!(is_refused(&mut shard));
    shard = shard.restored();
    assert!(is_refused(&mut shard), "after a restore");
    assert_eq!(shard.core.next_deadline_ms(), Some(shard.core.clock_ms() + 1));
    shard.advance_by(1);
    assert!(!is_refused(&mut shard));
    assert_eq!(shard.core.next_deadline_ms(), None);
}

#[test]
fn a_session_that_is_closed_or_reset_counts_no_longer() {
    let mut shard = session_durable();
    open(&mut shard, table_session("se_1", 1, 500));
    open(&mut shard, table_session("se_2", 2, 500));
    close(&mut shard, "se_1");
    let reset = Reset { namespace: soft(), live_owners: Vec::new(), before_revision: None };
    assert!(shard.apply(&Command::Locks(LocksCommand::Reset(reset))).outcome.is_ok());
    shard.core.verify();
    assert_eq!(shard.core.next_deadline_ms(), None, "no transition runs");
    assert_eq!(
        shard.query(&Query::Usage { namespace: soft() }),
        Ok(Response::Usage { holds: 0, waiting: 0, sessions: 0 })
    );
}

#[test]
fn a_reset_ends_the_transition_of_a_session_that_expired() {
    let mut shard = session_durable();
    let (first, _) = open(&mut shard, table_session("se_1", 1, 500));
    let (second, _) = open(&mut shard, table_session("se_2", 2, 500));
    open(&mut shard, table_session("se_3", 3, 500));
    expire(&mut shard, first.number);
    expire(&mut shard, second.number);
    let mut reset = |live: &[&str], before_revision| {
        let live_owners = live.iter().map(|id| (*id).to_owned()).collect();
        let reset = Reset { namespace: soft(), live_owners, before_revision };
        assert!(shard.apply(&Command::Locks(LocksCommand::Reset(reset))).outcome.is_ok());
        shard.core.verify();
        shard.core.next_deadline_ms().is_some()
    };
    assert!(reset(&["se_3", "se_2"], None), "nobody knows any more which of them that was");
    assert!(reset(&["se_3"], Some(second.number)), "it is not older");
    assert!(!reset(&["se_3"], None));
    close(&mut shard, "se_3");
}

#[test]
fn claims_that_were_ended_by_force_are_kept_until_their_sessions_end() {
    let mut shard = session_durable();
    let (session, _) = open(&mut shard, table_session("se_1", 1, 0));
    let before = shard.core.revision();
    assert_eq!(table(&mut shard, forfeit(soft(), &[(session.number, 1), (99, 1)])), Ok(Response::Done));
    assert_eq!(shard.core.revision(), before + 1);
    let kept = shard.core.snapshot();
    assert_eq!(table(&mut shard, forfeit(soft(), &[(session.number, 1)])), Ok(Response::Done));
    assert_eq!(shard.core.revision(), before + 1, "a repeat changes nothing");
    assert_eq!(shard.restored().core.snapshot(), shard.core.snapshot());
    close(&mut shard, "se_1");
    assert!(shard.core.snapshot().concat().len() < kept.concat().len());
    assert_eq!(table(&mut shard, forfeit(soft(), &[(session.number, 1)])), Ok(Response::Done), "it holds nothing");
    assert_eq!(shard.restored().core.snapshot(), shard.core.snapshot());
}

#[test]
fn a_namespace_with_too_many_forced_ends_is_refused_alone() {
    let mut shard = session_durable();
    let message = NamespaceMessage::open_durable(namespace("other", 3), Limits::default(), Durability::Session);
    let deliver = LocksCommand::Deliver { source: "namespaces_00".into(), number: 3, message };
    shard.apply(&Command::Locks(deliver)).outcome.unwrap();
    let number = open(&mut shard, table_session("se_1", 1, 0)).0.number;
    let many: Vec<_> = (1..=MAX_FORFEITS).map(|token| (number, token)).collect();
    assert_eq!(table(&mut shard, forfeit(soft(), &many)), Ok(Response::Done));
    assert_eq!(table(&mut shard, forfeit(soft(), &many)), Ok(Response::Done), "a repeat");
    let kept = shard.core.snapshot();
    let refused = table(&mut shard, forfeit(soft(), &[(number, MAX_FORFEITS + 1)])).unwrap_err();
    assert_eq!(refused.limit().map(|limit| limit.name), Some("forfeits_per_namespace"));
    assert_eq!(shard.core.snapshot(), kept);

    let mut opening = table_session("se_2", 2, 0);
    opening.open.namespace = namespace("other", 3);
    let other = open(&mut shard, opening).0.number;
    assert_eq!(table(&mut shard, forfeit(namespace("other", 3), &[(other, 1)])), Ok(Response::Done));
    close(&mut shard, "se_1");
    let number = open(&mut shard, table_session("se_3", 3, 0)).0.number;
    assert_eq!(table(&mut shard, forfeit(soft(), &[(number, 1)])), Ok(Response::Done));
}

#[test]
fn a_lock_that_was_forced_open_is_audited() {
    let mut shard = session_durable();
    let number = open(&mut shard, table_session("se_1", 1, 0)).0.number;
    let audited = |request_id: &str, token| {
        let actor = Actor::ApiKey { account: ACCOUNT, key_id: "k1".into() };
        let command = Box::new(Command::Locks(LocksCommand::Table(forfeit(soft(), &[(number, token)]))));
        Command::Audited(Audited { actor, request_id: request_id.into(), command })
    };
    shard.apply(&audited("r1", 1)).outcome.unwrap();
    shard.apply(&audited("r2", 1)).outcome.unwrap();
    let Ok(Response::AuditRecords { records, .. }) =
        shard.query(&Query::Audit { account: None, before: None, limit: 5 })
    else {
        panic!("no records")
    };
    let seen: Vec<_> = records.iter().map(|record| (record.request_id.as_str(), record.path.clone())).collect();
    assert_eq!(seen, [("r1", Some(Path::flat("l")))], "only what ended something");
}

#[test]
fn after_a_restore_nothing_is_granted_while_a_session_of_after_the_backup_may_hold_it() {
    let mut leader = Leader::new();
    let known = leader.open("se_1", 500);
    let mut backup = leader.log.restored();
    backup.core.advance_after_restore().unwrap();
    backup.core.verify();
    let mut leader = Leader::of(backup, 1);
    let later = leader.open("se_2", 0);
    reported(&mut leader, &known, &[]);
    assert!(is_busy(&leader.send(&later, acquire("l"))), "one that the backup does not have may hold it");
    leader.advance_by(60_499);
    leader.log = leader.log.restored();
    assert!(is_busy(&leader.send(&later, acquire("l"))), "its transition runs");
    leader.advance_by(1);
    leader.granted(&later, "l");
}
