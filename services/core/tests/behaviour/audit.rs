//! Who did what is noted in the step that does it, on every replica alike.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, Actor, AuditAction, AuditCursor, AuditRecord, Audited, Bounds, Command, LocksCommand, Mode, Path, Query,
    Reset, Response, Rules,
};

use crate::accounts;
use crate::support::{ACCOUNT, Shard, WALL_AHEAD_MS, at, lock_request, orders};

const PER_ACCOUNT: usize = Bounds::of(Rules::ONE).audit_records_per_account;

fn audited_by(actor: Actor, request_id: &str, command: Command) -> Command {
    Command::Audited(Audited { actor, request_id: request_id.to_owned(), command: Box::new(command) })
}

fn audited_by_key(request_id: &str, command: LocksCommand) -> Command {
    audited_by(Actor::ApiKey { account: ACCOUNT, key_id: "k1".into() }, request_id, Command::Locks(command))
}

fn delete(name: &str) -> LocksCommand {
    LocksCommand::Delete { namespace: orders(), path: Path::flat(name) }
}

fn page(
    core: &ShardState,
    account: Option<AccountId>,
    before: Option<AuditCursor>,
    limit: u32,
) -> (Vec<AuditRecord>, bool) {
    match core.query(0, &Query::Audit { account, before, limit }).outcome {
        Ok(Response::AuditRecords { records, more }) => (records, more),
        other => panic!("not a page of the audit log: {other:?}"),
    }
}

#[test]
fn locks_that_are_forced_open_and_resets_are_noted_with_who_did_it() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Write));
    assert_eq!(shard.apply(&audited_by_key("r1", delete("l"))).outcome, Ok(Response::Done));
    shard.granted(lock_request("p2", Mode::Write));
    let reset = Reset { namespace: orders(), live_owners: vec![], before_revision: None };
    let answer = shard.apply(&audited_by_key("r2", LocksCommand::Reset(reset))).outcome;
    assert_eq!(answer, Ok(Response::Reset { removed_holds: 1, removed_waiters: 0 }), "it is done as without");
    let (records, more) = page(&shard.core, Some(ACCOUNT), None, 10);
    let shown: Vec<_> = records.iter().map(|record| (record.action, record.request_id.as_str())).collect();
    assert_eq!(shown, [(AuditAction::NamespaceReset, "r2"), (AuditAction::LockDeleted, "r1")]);
    assert!(!more);
    assert_eq!(records[1].path, Some(Path::flat("l")));
    assert_eq!(records[1].namespace.as_deref(), Some("orders"));
    assert_eq!(records[1].actor, Actor::ApiKey { account: ACCOUNT, key_id: "k1".into() });
    assert_eq!(records[1].at_ms, WALL_AHEAD_MS + 1_000);
    assert_eq!(records[0].detail, "1 holds and 0 waiting requests removed");
    assert_eq!(page(&shard.core, Some(AccountId(8)), None, 10).0, []);
    let restored = ShardState::restore(Application::Locks, "locks_00", shard.core.snapshot()).unwrap();
    assert_eq!(page(&restored, None, None, 10), (records, false));
}

#[test]
fn what_was_refused_and_what_was_repeated_is_not_noted() {
    let mut core = ShardState::new(Application::Accounts, "accounts_00");
    let mut apply = |request_id: &str, command| {
        core.advance(&at(10));
        core.apply(&at(10), &audited_by(Actor::Operator, request_id, command)).outcome.is_ok()
    };
    assert!(apply("r1", accounts::create(1, 5, "a@b.c")));
    assert!(apply("r1", accounts::create(1, 5, "a@b.c")), "the same call, sent again");
    assert!(!apply("r2", accounts::create(2, 6, "a@b.c")), "the e-mail is taken");
    assert!(apply("r3", accounts::create_key("k1", 5)));
    assert!(apply("r4", accounts::delete(5)));
    let (records, _) = page(&core, None, None, 10);
    let shown: Vec<_> = records.iter().map(|record| (record.number, record.action, record.account)).collect();
    let account = AccountId(5);
    let expected = [
        (3, AuditAction::AccountDeleted, account),
        (2, AuditAction::ApiKeyCreated, account),
        (1, AuditAction::AccountCreated, account),
    ];
    assert_eq!(shown, expected, "also of accounts that are gone");
    assert_eq!(records[1].key_id.as_deref(), Some("k1"));
}

#[test]
fn pages_go_back_in_time_and_the_oldest_records_of_an_account_are_forgotten() {
    let mut shard = Shard::new();
    let total = PER_ACCOUNT as u64 + 5;
    for number in 0..total {
        shard.granted(lock_request("p1", Mode::Write));
        shard.apply(&audited_by_key(&format!("r{number}"), delete("l")));
    }
    let (first, more) = page(&shard.core, Some(ACCOUNT), None, 600);
    assert!(more && first.len() == 600);
    let last = first.last().unwrap();
    let place = AuditCursor { at_ms: last.at_ms, number: last.number };
    let (rest, more) = page(&shard.core, Some(ACCOUNT), Some(place), 1_000);
    assert!(!more);
    assert_eq!(first.len() + rest.len(), PER_ACCOUNT);
    let numbers: Vec<u64> = first.iter().chain(&rest).map(|record| record.number).collect();
    assert_eq!(numbers, (6..=total).rev().collect::<Vec<_>>());
}

#[test]
fn what_is_forced_on_nobody_is_not_noted_and_pushes_nothing_out() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Write));
    shard.apply(&audited_by_key("forced", delete("l")));
    let reset = || LocksCommand::Reset(Reset { namespace: orders(), live_owners: vec![], before_revision: None });
    for number in 0..PER_ACCOUNT {
        assert_eq!(shard.apply(&audited_by_key(&format!("d{number}"), delete("l"))).outcome, Ok(Response::Done));
        assert!(shard.apply(&audited_by_key(&format!("r{number}"), reset())).outcome.is_ok());
    }
    let (records, _) = page(&shard.core, Some(ACCOUNT), None, 10);
    assert_eq!(records.iter().map(|record| record.request_id.as_str()).collect::<Vec<_>>(), ["forced"]);
    // A session that holds nothing is something to end.
    shard.open_session("se_1");
    shard.apply(&audited_by_key("ended", reset()));
    assert_eq!(page(&shard.core, Some(ACCOUNT), None, 10).0[0].request_id, "ended");
}

#[test]
fn every_action_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<&str> = AuditAction::ALL.into_iter().map(AuditAction::name).collect();
    assert_eq!(names.len(), AuditAction::ALL.len());
}
