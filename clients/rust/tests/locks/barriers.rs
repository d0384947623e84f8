//! Barriers.

use std::time::Duration;

use holdfast_client::protocol::{Barrier as Shown, GetBarrierRequest};
use holdfast_client::{Client, Error, Met, Session};
use tokio::task::JoinHandle;

use crate::support::{NAMESPACE, ProxyMode, TTL, client, eventually, in_time, key, proxy, session, unique_name};

/// The barrier as the service shows it; one that is not there has nobody in it.
async fn shown(name: &str) -> Shown {
    let get = GetBarrierRequest { namespace: NAMESPACE.into(), name: Some(name.into()), ..Default::default() };
    match client().barriers().get_barrier(get).await {
        Ok(answer) => answer.into_inner().barrier.unwrap(),
        Err(status) => match Error::from(status).code() {
            Some("PRIMITIVE_NOT_FOUND") => Shown::default(),
            other => panic!("{other:?}"),
        },
    }
}

async fn eventually_arrived(name: &str, count: u32) {
    eventually("they have arrived", async || shown(name).await.arrived == count).await;
}

/// One of two who waits.
fn waiting(session: &Session, name: &str) -> JoinHandle<Result<Met, Error>> {
    let barrier = session.barrier(name).parties(2);
    tokio::spawn(async move { barrier.wait().await })
}

#[tokio::test]
async fn parties_meet_again_and_again_and_each_has_an_index() {
    let name = unique_name("rounds");
    let party = async |session: Session| {
        let barrier = session.barrier(name.as_str()).parties(3);
        let mut met = Vec::new();
        for _ in 0..5 {
            met.push(barrier.wait().await.unwrap());
        }
        met
    };
    let (one, other) = (session("one").await, session("other").await);
    // Two waits of one task are two parties.
    let all = in_time("all", async { tokio::join!(party(one.clone()), party(one), party(other)) }).await;
    for ((first, second), third) in all.0.iter().zip(&all.1).zip(&all.2) {
        assert_eq!((first.generation, second.generation), (third.generation, third.generation));
        let mut indexes = [first.index, second.index, third.index];
        indexes.sort_unstable();
        assert_eq!(indexes, [Some(0), Some(1), Some(2)]);
    }
    assert!(all.0.windows(2).all(|pair| pair[0].generation < pair[1].generation));
}

#[tokio::test]
async fn a_wait_that_is_dropped_breaks_the_generation_for_all_and_the_next_one_begins() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("rounds");
    let barrier = one.barrier(name.as_str()).parties(3);
    let theirs = other.barrier(name.as_str()).parties(3);
    let waits = tokio::spawn(async move { (theirs.wait().await, theirs) });
    eventually_arrived(&name, 1).await;
    let limit = Duration::from_millis(50);
    assert_eq!(barrier.wait_timeout(limit).await.unwrap_err(), Error::TimedOut(limit));
    let (broken, theirs) = in_time("the end", waits).await.unwrap();
    let generation = match broken.unwrap_err() {
        Error::Broken { generation } => generation,
        other => panic!("{other:?}"),
    };
    assert_eq!(one.request_count() + other.request_count(), 0);
    // Both know that generation and begin anew; a third one comes for the first time.
    let third = session("third").await.barrier(name.as_str()).parties(3);
    let met = in_time("all", async { tokio::try_join!(barrier.wait(), theirs.wait(), third.wait()) }).await.unwrap();
    assert!(met.0.generation > generation);
}

#[tokio::test]
async fn a_party_that_gives_up_at_the_moment_of_the_trip_is_told_what_the_others_are() {
    let (one, other) = (session("one").await, session("other").await);
    for round in 0..10 {
        let name = unique_name("rounds");
        let (mine, theirs) = (one.barrier(name.as_str()).parties(2), other.barrier(name.as_str()).parties(2));
        in_time("both", async { tokio::try_join!(mine.wait(), theirs.wait()) }).await.unwrap();
        // As long as the other one takes to arrive, a little more or less.
        let (limit, patience) = (Duration::from_micros(500 * round), Duration::from_millis(500));
        let both = async { tokio::join!(mine.wait_timeout(limit), theirs.wait_timeout(patience)) };
        match in_time("both", both).await {
            (Ok(mine), Ok(theirs)) => assert_eq!(mine.generation, theirs.generation),
            (Err(Error::TimedOut(_)), Err(Error::Broken { .. })) => {}
            // It had not even arrived.
            (Err(Error::TimedOut(_)), Err(Error::TimedOut(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn an_owner_waits_once_and_what_others_say_otherwise_is_refused() {
    let session = session("one").await;
    let name = unique_name("rounds");
    let owned = session.barrier(name.as_str()).parties(2).owned_by("a");
    let waits = tokio::spawn({
        let owned = owned.clone();
        async move { owned.wait().await }
    });
    eventually_arrived(&name, 1).await;
    assert_eq!(owned.wait().await.unwrap_err(), Error::AlreadyHeld(name.as_str().into()));
    let differs = session.barrier(name.as_str()).parties(3).wait().await.unwrap_err();
    assert_eq!(differs.code(), Some("INVALID_ARGUMENT"));
    let unknown = session.barrier(unique_name("unknown")).wait().await.unwrap_err();
    assert_eq!(unknown.code(), Some("PRIMITIVE_NOT_FOUND"));
    waits.abort();
    eventually_arrived(&name, 0).await;
}

#[tokio::test]
async fn an_arrival_goes_on_over_another_connection() {
    let proxy = proxy();
    let through = Client::builder().gateway(proxy.url()).api_key(key()).prefer_leader(false).build().unwrap();
    let cut = through.session(NAMESPACE).ttl(TTL).open().await.unwrap();
    let other = session("other").await;
    for is_tripped_meanwhile in [false, true] {
        let name = unique_name("rounds");
        let waits = waiting(&cut, &name);
        eventually_arrived(&name, 1).await;
        let generation = shown(&name).await.generation;
        proxy.set_mode(ProxyMode::Cut);
        if !is_tripped_meanwhile {
            proxy.set_mode(ProxyMode::Open);
        }
        let theirs = in_time("the trip", waiting(&other, &name)).await.unwrap().unwrap();
        proxy.set_mode(ProxyMode::Open);
        let mine = in_time("the answer", waits).await.unwrap().unwrap();
        assert_eq!((mine.generation, theirs.generation), (generation, generation));
        assert_eq!((mine.index, theirs.index), (Some(0), Some(1)));
    }
}

#[tokio::test]
async fn those_who_met_at_a_double_barrier_leave_together() {
    let name = unique_name("phases");
    let sessions = [session("one").await, session("other").await, session("third").await];
    let [one, other, third] = sessions.each_ref().map(|session| session.double_barrier(name.as_str()).parties(2));
    let (mine, theirs) = in_time("both", async { tokio::try_join!(one.enter(), other.enter()) }).await.unwrap();
    assert_eq!(mine.met().generation, theirs.met().generation);
    let limit = Duration::from_millis(50);
    assert_eq!(third.enter_timeout(limit).await.unwrap_err(), Error::TimedOut(limit));
    let leaving = tokio::spawn(async move { one.leave(mine).await });
    eventually("one has left", async || shown(&name).await.inside == 1).await;
    assert!(!leaving.is_finished());
    drop(theirs);
    let left = in_time("the end", leaving).await.unwrap().unwrap();
    assert_eq!((left.lost, shown(&name).await.inside), (0, 0));
    eventually("nothing is left", async || sessions.iter().all(|session| session.request_count() == 0)).await;
}

#[tokio::test]
async fn one_party_too_many_enters_later_and_one_that_dies_inside_is_lost() {
    let name = unique_name("phases");
    let (one, other) = (session("one").await, session("other").await);
    let double = |session: &Session| session.double_barrier(name.as_str()).parties(1);
    let (first, second) = (double(&one), double(&other));
    let inside = first.enter().await.unwrap();
    let gathers = tokio::spawn(async move { second.enter().await });
    eventually_arrived(&name, 1).await;
    let (third, fourth) = (double(&other), double(&one));
    let too_many = tokio::spawn(async move { third.enter().await });
    let left = first.leave(inside).await.unwrap();
    let second = in_time("the second", gathers).await.unwrap().unwrap();
    assert!(second.met().generation > left.generation);
    drop(second);
    let third = in_time("the third", too_many).await.unwrap().unwrap();
    assert!(third.met().generation > left.generation);
    other.close().await;
    let inside = in_time("the fourth", fourth.enter()).await.unwrap();
    assert_eq!(fourth.leave(inside).await.unwrap().lost, 0);
}
