//! Random commands and clocks: the locks shard does exactly what the naive model does, and ends with nothing.

use holdfast_core::{Acquire, Answer, Claim, Command, Limits, LocksCommand, Mode, Path, Refusal, Release};
use proptest::prelude::*;

use crate::model::Model;
use crate::support::{Shard, metadata, orders, process, untouched, want};

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        owner: u8,
        claims: Vec<(u8, bool)>,
        ttl_ms: u64,
        transition_ms: u64,
        /// So many revisions ago.
        token: Option<u64>,
        note: u8,
    },
    Release {
        owner: u8,
        paths: Vec<u8>,
        token: Option<u64>,
    },
    Delete {
        path: u8,
    },
    Pass {
        ms: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let token = || proptest::option::weighted(0.3, 0_u64..6);
    let transition = prop_oneof![Just(0_u64), 1_u64..40];
    let claims = proptest::collection::vec((0_u8..4, any::<bool>()), 1..4);
    let acquire = (0_u8..5, claims, 1_u64..60, transition, token(), 0_u8..3).prop_map(
        |(owner, claims, ttl_ms, transition_ms, token, note)| Step::Acquire {
            owner,
            claims,
            ttl_ms,
            transition_ms,
            token,
            note,
        },
    );
    let release = (0_u8..5, proptest::collection::vec(0_u8..4, 0..3), token());
    let release = release.prop_map(|(owner, paths, token)| Step::Release { owner, paths, token });
    let step = prop_oneof![
        6 => acquire,
        2 => release,
        1 => (0_u8..4).prop_map(|path| Step::Delete { path }),
        3 => (0_u64..40).prop_map(|ms| Step::Pass { ms }),
    ];
    proptest::collection::vec(step, 1..120)
}

fn lock(number: u8) -> Path {
    Path(if number == 3 { vec!["0".into(), "x".into()] } else { vec![number.to_string()] })
}

fn acquire_of(step: &Step, revision: u64) -> Option<Acquire> {
    let Step::Acquire { owner, claims, ttl_ms, transition_ms, token, note } = step else { return None };
    let mode = |write: bool| if write { Mode::Write } else { Mode::Read };
    Some(Acquire {
        claims: claims.iter().map(|(path, write)| Claim { path: lock(*path), mode: mode(*write) }).collect(),
        ttl_ms: Some(*ttl_ms),
        transition_ms: *transition_ms,
        fencing_token: token.map(|ago| revision.saturating_sub(ago)),
        metadata: if *note == 0 { metadata(&[]) } else { metadata(&[("note", &note.to_string())]) },
        asked_expires_at_ns: (*note == 2).then_some(-5),
        ..want(&owner.to_string(), Mode::Write)
    })
}

fn run(shard: &mut Shard, model: &mut Model, now_ms: &mut u64, step: &Step) -> Result<(), TestCaseError> {
    let revision = shard.core.revision();
    match step {
        Step::Acquire { .. } => {
            let request = acquire_of(step, revision).expect("it is an acquire");
            let expected = model.acquire(&request);
            let got = shard.try_acquire(request);
            match expected {
                Some(answer) => prop_assert_eq!(got, Ok(answer)),
                None => prop_assert!(matches!(got, Err(Refusal::QuotaExceeded { .. })), "{:?}", got),
            }
        }
        Step::Release { owner, paths, token } => {
            let request = Release {
                namespace: orders(),
                owner: process(&owner.to_string()),
                paths: paths.iter().map(|path| lock(*path)).collect(),
                fencing_token: token.map(|ago| revision.saturating_sub(ago)),
            };
            let expected = model.release(&request);
            let got = shard.apply(&Command::Locks(LocksCommand::Release(request))).outcome;
            prop_assert_eq!(got, Ok(expected));
        }
        Step::Delete { path } => {
            model.delete(&lock(*path));
            let command = LocksCommand::Delete { namespace: orders(), path: lock(*path) };
            prop_assert_eq!(shard.apply(&Command::Locks(command)).outcome, Ok(Answer::Done));
        }
        Step::Pass { ms } => {
            *now_ms += ms;
            model.advance(*now_ms);
            shard.pass(*ms);
        }
    }
    Ok(())
}

fn assert_same(shard: &Shard, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(shard.core.revision(), model.revision);
    prop_assert_eq!(shard.core.next_deadline_ms(), model.next_deadline());
    let (locks, more) = shard.list(&[], None, 100);
    prop_assert!(!more);
    prop_assert_eq!(locks.iter().map(|lock| lock.path.clone()).collect::<Vec<_>>(), model.held_paths());
    for number in 0..4 {
        let path = lock(number);
        let query = holdfast_core::Query::Lock { namespace: orders(), path: path.clone() };
        prop_assert_eq!(shard.query(&query), Ok(Answer::Lock(model.view(&path, usize::MAX))));
        for fencing_token in model.revision.saturating_sub(6)..=model.revision {
            let query = holdfast_core::Query::Check { namespace: orders(), path: path.clone(), fencing_token };
            let Ok(Answer::Checked { current, .. }) = shard.query(&query) else { panic!("not a check") };
            prop_assert_eq!(current, model.is_current(&path, fencing_token));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_shard_does_what_the_naive_model_does(steps in steps()) {
        let limits = Limits { max_holds_per_namespace: 7, max_readers_per_lock: 3, ..Limits::default() };
        let mut shard = Shard::with_limits(limits.clone());
        let mut model = Model::new(limits.clone());
        let mut now_ms = 1_000;
        model.advance(now_ms);
        for step in &steps {
            run(&mut shard, &mut model, &mut now_ms, step)?;
            assert_same(&shard, &model)?;
        }
        run(&mut shard, &mut model, &mut now_ms, &Step::Pass { ms: 1_000 })?;
        assert_same(&shard, &model)?;
        prop_assert_eq!(&shard.core, &untouched(now_ms, shard.core.revision(), limits));
    }
}
