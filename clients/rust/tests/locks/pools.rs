//! Members of pools.

use std::time::Duration;

use holdfast_client::protocol::{ConfigurePoolRequest, GetPoolRequest, Pool, PoolMember};
use holdfast_client::{Error, Reason};

use crate::support::{NAMESPACE, client, eventually, in_time, session, unique_name};

async fn configure(name: &str, members: &[&str]) {
    let member = |name: &&str| PoolMember { name: (*name).to_owned(), ..Default::default() };
    let (namespace, members) = (NAMESPACE.into(), members.iter().map(member).collect());
    let configure = ConfigurePoolRequest { namespace, name: Some(name.into()), members, ..Default::default() };
    client().pools().configure_pool(configure).await.expect("it is configured");
}

/// The pool as the service shows it.
async fn shown(name: &str) -> Pool {
    let get = GetPoolRequest { namespace: NAMESPACE.into(), name: Some(name.into()), ..Default::default() };
    client().pools().get_pool(get).await.expect("it is there").into_inner().pool.unwrap()
}

#[tokio::test]
async fn members_have_one_holder_each_and_come_back_when_they_are_dropped() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("databases");
    configure(&name, &["a", "b", "c"]).await;
    let first = one.pool(name.as_str()).prefer("b").take(2).await.unwrap();
    assert_eq!(first.members(), ["a", "b"]);
    let second = other.pool(name.as_str()).take(1).await.unwrap();
    assert_eq!(second.members(), ["c"]);
    assert!(second.fencing_token() > first.fencing_token());
    let refused = other.pool(name.as_str()).try_take(1).await.unwrap_err();
    assert_eq!(refused.refusal().unwrap().reason, Reason::Exhausted);
    let waiting = tokio::spawn({
        let pool = other.pool(name.as_str());
        async move { pool.take_member("a").await }
    });
    eventually("one waits", async || shown(&name).await.waiting == 1).await;
    drop(first);
    let third = in_time("its turn", waiting).await.unwrap().unwrap();
    assert_eq!(third.members(), ["a"]);
    third.release().await.unwrap();
    drop(second);
    eventually("all are free", async || shown(&name).await.free == 3).await;
}

#[tokio::test]
async fn a_wait_for_members_ends_when_it_is_dropped_or_can_never_end() {
    let session = session("one").await;
    let name = unique_name("ports");
    configure(&name, &["a"]).await;
    let pool = session.pool(name.as_str());
    let held = pool.take(1).await.unwrap();
    let limit = Duration::from_millis(50);
    assert_eq!(pool.take_timeout(1, limit).await.unwrap_err(), Error::TimedOut(limit));
    eventually("nobody waits", async || shown(&name).await.waiting == 0).await;
    assert_eq!(pool.take(2).await.unwrap_err().refusal().unwrap().reason, Reason::TooLarge);
    assert_eq!(pool.take_member("z").await.unwrap_err().refusal().unwrap().reason, Reason::NoMember);
    let unknown = session.pool(unique_name("unknown")).take(1).await.unwrap_err();
    assert_eq!(unknown.code(), Some("PRIMITIVE_NOT_FOUND"));
    held.release().await.unwrap();
}
