//! A replica that takes a snapshot somewhere on the way ends with the same state and the same bytes as one that applied
//! everything.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, AccountMessage, AccountStatus, AccountsCommand, Acquire, Actor, Audited, Bounds, Claim, Command, Limits,
    LocksCommand, Mode, NamespacesCommand, Path, Release, ReleaseTarget,
};
use proptest::prelude::*;

use crate::support::{self, at, lock_request, metadata, process};
use crate::{accounts, namespaces};

fn locks_command() -> impl Strategy<Value = Command> {
    let claims = proptest::collection::vec((0_u8..6, any::<bool>()), 1..3).prop_map(|claims| {
        let mode = |write| if write { Mode::Write } else { Mode::Read };
        let claim = |(path, write): (u8, bool)| Claim { path: Path::flat(path.to_string()), mode: mode(write) };
        claims.into_iter().map(claim).collect::<Vec<_>>()
    });
    let acquire = (claims, 0_u8..5, 1_u64..80, 0_u64..20, any::<bool>(), 1_u64..3).prop_map(
        |(claims, owner, ttl_ms, transition_ms, noted, incarnation)| {
            Command::Locks(LocksCommand::Acquire(Acquire {
                namespace: support::namespace("orders", incarnation),
                claims,
                ttl_ms: Some(ttl_ms),
                transition_ms,
                metadata: if noted { metadata(&[("k", "v")]) } else { metadata(&[]) },
                requested_expires_at_ns: noted.then_some(42),
                ..lock_request(&owner.to_string(), Mode::Read)
            }))
        },
    );
    let release = (0_u8..5, 0_u8..6).prop_map(|(owner, path)| {
        Command::Locks(LocksCommand::Release(Release {
            namespace: support::orders(),
            owner: process(&owner.to_string()),
            what: ReleaseTarget::Paths { paths: vec![Path::flat(path.to_string())], fencing_token: None },
            message: None,
        }))
    });
    let open = (1_u64..9, 1_u64..3)
        .prop_map(|(number, life)| support::open(number, support::namespace("orders", life), Limits::default()));
    let purge =
        (1_u64..9, 1_u64..3).prop_map(|(number, life)| support::purge(number, support::namespace("orders", life)));
    let delete = (0_u8..6).prop_map(|path| {
        Command::Locks(LocksCommand::Delete { namespace: support::orders(), path: Path::flat(path.to_string()) })
    });
    prop_oneof![10 => acquire, 3 => release, 2 => open, 1 => purge, 1 => delete, 1 => Just(Command::AdvanceNumbers)]
}

fn namespaces_command() -> impl Strategy<Value = Command> {
    let name = || prop_oneof![Just("a"), Just("b"), Just("c")];
    prop_oneof![
        2 => (1_u64..9, 1_u32..5, 1_u32..3).prop_map(|(number, max, readers)| {
            namespaces::open_account(number, max, Limits { max_readers_per_lock: readers, ..Limits::default() })
        }),
        1 => (1_u64..9).prop_map(namespaces::purge_account),
        5 => (0_u64..20, name()).prop_map(|(number, name)| namespaces::create(number, name)),
        2 => name().prop_map(|name| namespaces::delete(name, None)),
        1 => name().prop_map(|name| Command::Namespaces(NamespacesCommand::Update {
            account: support::ACCOUNT,
            name: name.to_owned(),
            description: Some("changed".into()),
        })),
        2 => proptest::collection::vec(0_u64..20, 0..4).prop_map(|numbers| Command::OutboxConfirm { numbers }),
        1 => Just(Command::AdvanceNumbers),
    ]
}

fn accounts_command() -> impl Strategy<Value = Command> {
    let suspend = |id| AccountsCommand::Update {
        id: AccountId(id),
        full_name: None,
        status: Some(AccountStatus::Suspended),
        max_number_of_namespaces: Some(3),
        limits: None,
    };
    prop_oneof![
        4 => (0_u64..9, 1_u64..5).prop_map(|(number, id)| accounts::create(number, id, &format!("{id}@example.com"))),
        1 => (1_u64..5).prop_map(accounts::delete),
        3 => (0_u8..6, 1_u64..5).prop_map(|(key, account)| accounts::create_key(&key.to_string(), account)),
        1 => (0_u8..6, 1_u64..5).prop_map(|(key, account)| {
            let key_id = key.to_string();
            Command::Accounts(AccountsCommand::DeleteApiKey { account: AccountId(account), key_id })
        }),
        1 => (1_u64..5).prop_map(move |id| Command::Accounts(suspend(id))),
        1 => (0_u8..6, 0_u64..100).prop_map(|(key, used_ms)| {
            Command::Accounts(AccountsCommand::RecordKeyUse { used: vec![(key.to_string(), used_ms)] })
        }),
        1 => proptest::collection::vec(0_u64..20, 0..4).prop_map(|numbers| Command::OutboxConfirm { numbers }),
        1 => Just(Command::AdvanceNumbers),
    ]
}

/// A shard that applies everything, one that is restored after every so many entries, and one that is restored with
/// other numbers, answer, tell and keep the same.
fn check(
    application: Application,
    entries: &[(u64, Command)],
    (every, is_tiny): RestorePlan,
) -> Result<(), TestCaseError> {
    let (id, bounds) = ("shard_00", is_tiny.then(Bounds::tiny));
    let begin = || match &bounds {
        None => ShardState::new(application, id),
        Some(bounds) => ShardState::with_bounds(application, id, bounds.clone()),
    };
    let restore = |chunks: &[Vec<u8>]| match &bounds {
        None => ShardState::restore(application, id, chunks),
        Some(bounds) => ShardState::restore_with_bounds(application, id, chunks, bounds.clone()),
    };
    let (mut whole, mut twins, mut now_ms) = (begin(), [begin(), begin()], 0);
    for (number, (passed, command)) in entries.iter().enumerate() {
        now_ms += passed;
        whole.advance(&at(now_ms));
        let (reply, effects) = (whole.apply(&at(now_ms), command), whole.take_effects());
        let (chunks, frozen) = (whole.snapshot(), whole.freeze());
        for twin in &mut twins {
            twin.advance(&at(now_ms));
            prop_assert_eq!(&twin.apply(&at(now_ms), command), &reply);
            prop_assert_eq!(&twin.take_effects(), &effects);
            prop_assert_eq!(&*twin, &whole);
            prop_assert_eq!(&twin.snapshot(), &chunks);
        }
        if number % every == 0 {
            let restored = restore(&chunks).expect("a snapshot can be restored");
            prop_assert_eq!(&restored, &whole);
            twins = [restored.clone(), restored.renumbered(number as u64)];
            let mut later = whole.clone();
            later.advance(&at(now_ms + 1_000));
            prop_assert_eq!(frozen.encode(), chunks, "what was frozen stays as it was");
        }
    }
    Ok(())
}

/// After how many entries the twins are restored, and whether within tiny bounds.
type RestorePlan = (usize, bool);

fn way() -> impl Strategy<Value = RestorePlan> {
    (1_usize..20, any::<bool>())
}

/// Some commands are noted in the audit log.
fn audited(command: impl Strategy<Value = Command>) -> impl Strategy<Value = Command> {
    (command, any::<bool>(), 0_u8..3).prop_map(|(command, is_noted, call)| match is_noted {
        true => {
            let (actor, request_id) = (Actor::Account(support::ACCOUNT), call.to_string());
            Command::Audited(Audited { actor, request_id, command: Box::new(command) })
        }
        false => command,
    })
}

fn entries(command: impl Strategy<Value = Command>) -> impl Strategy<Value = Vec<(u64, Command)>> {
    proptest::collection::vec((0_u64..20, audited(command)), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_locks_shard_can_go_on_from_any_snapshot(entries in entries(locks_command()), way in way()) {
        check(Application::Locks, &entries, way)?;
    }

    #[test]
    fn a_namespaces_shard_can_go_on_from_any_snapshot(entries in entries(namespaces_command()), way in way()) {
        check(Application::Namespaces, &entries, way)?;
    }

    #[test]
    fn an_accounts_shard_can_go_on_from_any_snapshot(entries in entries(accounts_command()), way in way()) {
        check(Application::Accounts, &entries, way)?;
    }

    #[test]
    fn damaged_bytes_are_refused_or_make_a_whole_state(
        entries in entries(locks_command()), at_byte in any::<prop::sample::Index>(), bit in 0_u8..8,
    ) {
        let mut core = ShardState::new(Application::Locks, "shard_00");
        for (number, (_, command)) in entries.iter().enumerate() {
            core.advance(&at(number as u64));
            core.apply(&at(number as u64), command);
        }
        let mut chunks = core.snapshot();
        let index = at_byte.index(chunks[0].len());
        chunks[0][index] ^= 1 << bit;
        if let Ok(mut restored) = ShardState::restore(Application::Locks, "shard_00", &chunks) {
            restored.advance(&at(u64::MAX / 2));
            restored.snapshot();
        }
    }
}

#[test]
fn a_snapshot_of_another_shard_is_refused() {
    let chunks = ShardState::new(Application::Locks, "locks_00").snapshot();
    assert!(ShardState::restore(Application::Locks, "locks_01", &chunks).is_err());
    assert!(ShardState::restore(Application::Namespaces, "locks_00", &chunks).is_err());
    assert!(ShardState::restore(Application::Locks, "locks_00", &chunks[1..]).is_err());
    assert!(ShardState::restore(Application::Locks, "locks_00", &chunks).is_ok());
}

#[test]
fn a_large_state_is_cut_into_chunks_of_bounded_length() {
    let mut shard = support::Shard::new();
    for number in 0..20_000 {
        let claims = vec![Claim { path: Path::flat(format!("lock {number:040}")), mode: Mode::Write }];
        shard.granted(Acquire { claims, ..lock_request("p1", Mode::Write) });
    }
    let chunks = shard.core.snapshot();
    assert!(chunks.len() > 2);
    assert!(chunks.iter().all(|chunk| chunk.len() <= 1 << 20));
    assert_eq!(ShardState::restore(Application::Locks, "locks_00", &chunks).unwrap(), shard.core);
}

#[test]
fn the_chunks_of_a_frozen_state_do_not_change_whenever_they_are_taken() {
    let mut shard = support::Shard::new();
    let mut acquire_all = |prefix: &str| {
        for number in 0..10_000 {
            let claims = vec![Claim { path: Path::flat(format!("{prefix} {number:040}")), mode: Mode::Write }];
            shard.granted(Acquire { claims, ..lock_request("p1", Mode::Write) });
        }
        (shard.core.freeze(), shard.core.snapshot())
    };
    let (frozen, expected) = acquire_all("lock");
    let mut chunks = frozen.chunks();
    let first = chunks.next();
    acquire_all("later");
    assert_eq!(first.into_iter().chain(chunks).collect::<Vec<_>>(), expected);
    assert_eq!(frozen.encode(), expected, "and again");
}

#[test]
fn a_message_of_an_account_is_part_of_the_snapshot() {
    let mut core = ShardState::new(Application::Accounts, "accounts_00");
    core.apply(&at(1), &accounts::create(1, 5, "ann@example.com"));
    let restored = ShardState::restore(Application::Accounts, "accounts_00", core.snapshot()).unwrap();
    let (_, message) = restored.outbox().messages().first_key_value().expect("it is pending");
    let Command::Namespaces(NamespacesCommand::Deliver { message, .. }) = &message.command else { panic!("not that") };
    assert!(matches!(message, AccountMessage::Open { account: AccountId(5), .. }));
}
