//! A replica that takes a snapshot somewhere on the way ends with the same state and the same bytes as one that applied
//! everything.

use holdfast_core::shard::{Application, ShardCore};
use holdfast_core::{
    AccountId, AccountMessage, AccountStatus, AccountsCommand, Acquire, Claim, Command, Limits, LocksCommand, Mode,
    NamespacesCommand, Path, Release, ToRelease,
};
use proptest::prelude::*;

use crate::support::{self, at, metadata, process, want};
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
                asked_expires_at_ns: noted.then_some(42),
                ..want(&owner.to_string(), Mode::Read)
            }))
        },
    );
    let release = (0_u8..5, 0_u8..6).prop_map(|(owner, path)| {
        Command::Locks(LocksCommand::Release(Release {
            namespace: support::orders(),
            owner: process(&owner.to_string()),
            what: ToRelease::Paths { paths: vec![Path::flat(path.to_string())], fencing_token: None },
            message: None,
        }))
    });
    let open = (1_u64..9, 1_u64..3)
        .prop_map(|(number, life)| support::open(number, support::namespace("orders", life), Limits::default()));
    let purge =
        (1_u64..9, 1_u64..3).prop_map(|(number, life)| support::purge(number, support::namespace("orders", life)));
    prop_oneof![10 => acquire, 3 => release, 2 => open, 1 => purge]
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
            Command::Accounts(AccountsCommand::NoteKeyUse { used: vec![(key.to_string(), used_ms)] })
        }),
        1 => proptest::collection::vec(0_u64..20, 0..4).prop_map(|numbers| Command::OutboxConfirm { numbers }),
    ]
}

fn check(application: Application, entries: &[(u64, Command)], cut: usize) -> Result<(), TestCaseError> {
    let run = |core: &mut ShardCore, now_ms: &mut u64, entries: &[(u64, Command)]| {
        let mut replies = vec![];
        for (passed, command) in entries {
            *now_ms += passed;
            core.advance(&at(*now_ms));
            replies.push(core.apply(&at(*now_ms), command));
        }
        replies
    };
    let cut = cut.min(entries.len());
    let (mut whole, mut now_ms) = (ShardCore::new(application, "shard_00"), 0);
    run(&mut whole, &mut now_ms, &entries[..cut]);
    let (chunks, frozen) = (whole.snapshot(), whole.freeze());
    let mut restored = ShardCore::restore(application, "shard_00", &chunks).expect("a snapshot can be restored");
    prop_assert_eq!(&restored, &whole);
    prop_assert_eq!(&restored.snapshot(), &chunks);
    let mut restored_now_ms = now_ms;
    let replies = run(&mut whole, &mut now_ms, &entries[cut..]);
    prop_assert_eq!(run(&mut restored, &mut restored_now_ms, &entries[cut..]), replies);
    prop_assert_eq!(&restored, &whole);
    prop_assert_eq!(restored.snapshot(), whole.snapshot());
    prop_assert_eq!(frozen.encode(), chunks, "what was frozen stays as it was");
    Ok(())
}

fn entries(command: impl Strategy<Value = Command>) -> impl Strategy<Value = Vec<(u64, Command)>> {
    proptest::collection::vec((0_u64..20, command), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_locks_shard_can_go_on_from_any_snapshot(entries in entries(locks_command()), cut in 0_usize..80) {
        check(Application::Locks, &entries, cut)?;
    }

    #[test]
    fn a_namespaces_shard_can_go_on_from_any_snapshot(entries in entries(namespaces_command()), cut in 0_usize..80) {
        check(Application::Namespaces, &entries, cut)?;
    }

    #[test]
    fn an_accounts_shard_can_go_on_from_any_snapshot(entries in entries(accounts_command()), cut in 0_usize..80) {
        check(Application::Accounts, &entries, cut)?;
    }

    #[test]
    fn damaged_bytes_are_refused_or_make_a_whole_state(
        entries in entries(locks_command()), at_byte in any::<prop::sample::Index>(), bit in 0_u8..8,
    ) {
        let mut core = ShardCore::new(Application::Locks, "shard_00");
        for (number, (_, command)) in entries.iter().enumerate() {
            core.advance(&at(number as u64));
            core.apply(&at(number as u64), command);
        }
        let mut chunks = core.snapshot();
        let index = at_byte.index(chunks[0].len());
        chunks[0][index] ^= 1 << bit;
        if let Ok(mut restored) = ShardCore::restore(Application::Locks, "shard_00", &chunks) {
            restored.advance(&at(u64::MAX / 2));
            restored.snapshot();
        }
    }
}

#[test]
fn a_snapshot_of_another_shard_is_refused() {
    let chunks = ShardCore::new(Application::Locks, "locks_00").snapshot();
    assert!(ShardCore::restore(Application::Locks, "locks_01", &chunks).is_err());
    assert!(ShardCore::restore(Application::Namespaces, "locks_00", &chunks).is_err());
    assert!(ShardCore::restore(Application::Locks, "locks_00", &chunks[1..]).is_err());
    assert!(ShardCore::restore(Application::Locks, "locks_00", &chunks).is_ok());
}

#[test]
fn a_large_state_is_cut_into_chunks_of_bounded_length() {
    let mut shard = support::Shard::new();
    for number in 0..20_000 {
        let claims = vec![Claim { path: Path::flat(format!("lock {number:040}")), mode: Mode::Write }];
        shard.granted(Acquire { claims, ..want("p1", Mode::Write) });
    }
    let chunks = shard.core.snapshot();
    assert!(chunks.len() > 2);
    assert!(chunks.iter().all(|chunk| chunk.len() <= 1 << 20));
    assert_eq!(ShardCore::restore(Application::Locks, "locks_00", &chunks).unwrap(), shard.core);
}

#[test]
fn a_message_of_an_account_is_part_of_the_snapshot() {
    let mut core = ShardCore::new(Application::Accounts, "accounts_00");
    core.apply(&at(1), &accounts::create(1, 5, "ann@example.com"));
    let restored = ShardCore::restore(Application::Accounts, "accounts_00", &core.snapshot()).unwrap();
    let (_, message) = restored.outbox().messages().first_key_value().expect("it is pending");
    let Command::Namespaces(NamespacesCommand::Deliver { message, .. }) = &message.command else { panic!("not that") };
    assert!(matches!(message, AccountMessage::Open { account: AccountId(5), .. }));
}
