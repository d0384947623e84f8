//! The lock service view: status and listeners.

use holdfast_client::{LockService, LockStatus, Session};

use crate::recorder::Recorder;
use crate::support::{client, delete, eventually, session, unique_name};

struct Member {
    session: Session,
    locks: LockService,
    recorder: Recorder,
}

impl Member {
    async fn new(name: &str) -> Self {
        let session = session(name).await;
        let (locks, recorder) = (session.lock_service(), Recorder::default());
        locks.add_listener(recorder.clone());
        Self { session, locks, recorder }
    }

    async fn eventually(&self, path: &str, status: LockStatus) {
        eventually(&format!("{status} of {path}"), async || self.locks.status(path) == status).await;
    }
}

/// Three members lock three locks, and each unlock promotes the next in line, across all locks in turn.
#[tokio::test]
async fn three_members_get_three_locks_in_the_order_in_which_they_came() {
    use LockStatus::{Holding, None as Nothing, Waiting};
    let members = [Member::new("a").await, Member::new("b").await, Member::new("c").await];
    let names = [unique_name("101"), unique_name("102"), unique_name("103")];
    for name in &names {
        for (at, member) in members.iter().enumerate() {
            let expected = if at == 0 { Holding } else { Waiting };
            assert_eq!(member.locks.lock(name.as_str()).await.unwrap(), expected);
            assert_eq!(member.locks.status(name.as_str()), expected);
        }
    }
    for at in 0..3 {
        for name in &names {
            members[at].eventually(name, Holding).await;
            assert!(members[at + 1..].iter().all(|later| later.locks.status(name.as_str()) == Waiting));
        }
        // It is told of all three before it unlocks the first: what it is told and what it does are in one order then.
        for name in &names {
            members[at].locks.unlock(name.as_str()).await;
            assert_eq!(members[at].locks.status(name.as_str()), Nothing);
        }
    }
    for (at, member) in members.iter().enumerate() {
        let change = |change: &'static str| names.iter().map(move |name| format!("{name} {change}"));
        let expected: Vec<String> = if at == 0 {
            change("NONE HOLDING").chain(change("HOLDING NONE")).collect()
        } else {
            // Promoted by the one before, lock by lock, and then it unlocks lock by lock.
            change("NONE WAITING").chain(change("WAITING HOLDING")).chain(change("HOLDING NONE")).collect()
        };
        assert_eq!(member.recorder.eventually_count(expected.len()).await, expected, "{}", member.session.process_id());
    }
}

#[tokio::test]
async fn a_try_takes_or_leaves_and_unlock_all_leaves_nothing() {
    let (a, b) = (Member::new("a").await, Member::new("b").await);
    let (x, y) = (unique_name("x"), unique_name("y"));
    assert_eq!(a.locks.try_lock(x.as_str()).await.unwrap(), LockStatus::Holding);
    assert_eq!(a.locks.try_lock(x.as_str()).await.unwrap(), LockStatus::Holding);
    assert_eq!(b.locks.try_lock(x.as_str()).await.unwrap(), LockStatus::None);
    assert_eq!(b.locks.lock(y.as_str()).await.unwrap(), LockStatus::Holding);
    assert_eq!(a.locks.lock(y.as_str()).await.unwrap(), LockStatus::Waiting);
    assert_eq!(a.locks.try_lock(y.as_str()).await.unwrap(), LockStatus::Waiting);
    a.locks.unlock_all().await;
    assert_eq!((a.locks.status(x.as_str()), a.locks.status(y.as_str())), (LockStatus::None, LockStatus::None));
    assert_eq!(a.session.request_count(), 0);
    assert_eq!(b.locks.try_lock(x.as_str()).await.unwrap(), LockStatus::Holding);
    b.locks.unlock_all().await;
    let told = a.recorder.eventually_count(4).await;
    let of = |name: &str| -> Vec<&String> { told.iter().filter(|line| line.starts_with(name)).collect() };
    assert_eq!(of(&x), [&format!("{x} NONE HOLDING"), &format!("{x} HOLDING NONE")]);
    assert_eq!(of(&y), [&format!("{y} NONE WAITING"), &format!("{y} WAITING NONE")]);
}

#[tokio::test]
async fn a_lock_forced_open_is_told_as_a_change_and_can_be_had_again() {
    let member = Member::new("a").await;
    let name = unique_name("forced");
    member.locks.lock(name.as_str()).await.unwrap();
    delete(&client(), &name).await;
    member.eventually(&name, LockStatus::None).await;
    assert_eq!(member.locks.lock(name.as_str()).await.unwrap(), LockStatus::Holding);
    let told = member.recorder.eventually_count(3).await;
    assert_eq!(told, ["NONE HOLDING", "HOLDING NONE", "NONE HOLDING"].map(|change| format!("{name} {change}")));
    member.locks.unlock(name.as_str()).await;
}
