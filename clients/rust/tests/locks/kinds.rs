//! Read locks, sets, trees, and what is refused.

use holdfast_client::{Client, Error, Mode, Path, Reason};

use crate::support::{
    NAMESPACE, client, eventually_nothing_left, eventually_waiting, in_time, session, unique_name, url,
};

#[tokio::test]
async fn readers_share_and_a_writer_waits_for_all_of_them_and_before_later_readers() {
    let (one, other, third) = (session("one").await, session("other").await, session("third").await);
    let name = unique_name("prices");
    let first = one.rw_lock(name.as_str()).read().await.unwrap();
    let second = other.rw_lock(name.as_str()).read().await.unwrap();
    let writing = tokio::spawn({
        let lock = third.rw_lock(name.as_str());
        async move { lock.write().await.unwrap() }
    });
    eventually_waiting(&client(), &name, 1).await;
    let late = third.rw_lock(name.as_str()).owned_by("late").try_read().await.unwrap_err();
    assert_eq!(late.refusal().unwrap().reason, Reason::Queued);
    first.release().await.unwrap();
    assert!(!writing.is_finished());
    second.release().await.unwrap();
    let written = in_time("the writer's turn", writing).await.unwrap();
    assert!(one.rw_lock(name.as_str()).try_read().await.is_err());
    written.release().await.unwrap();
    eventually_nothing_left(&third, &name).await;
}

#[tokio::test]
async fn a_writer_may_read_and_a_reader_may_not_write() {
    let session = session("one").await;
    let lock = session.rw_lock(unique_name("modes"));
    let writing = lock.write().await.unwrap();
    let reading = lock.read_again().await.unwrap();
    assert_eq!(reading.fencing_token(), writing.fencing_token());
    drop((writing, reading));
    let _reading = lock.read().await.unwrap();
    assert_eq!(lock.write_again().await.unwrap_err().refusal().unwrap().reason, Reason::Upgrade);
}

#[tokio::test]
async fn a_set_is_taken_together_or_not_at_all_and_keeps_older_tokens() {
    let (one, other) = (session("one").await, session("other").await);
    let (x, y, z) = (unique_name("x"), unique_name("y"), unique_name("z"));
    let alone = one.mutex(x.as_str()).owned_by("a").lock().await.unwrap();
    let set = one.lock_set([(x.as_str(), Mode::Write), (y.as_str(), Mode::Read)]).owned_by("a");
    assert_eq!(set.lock().await.unwrap_err(), Error::AlreadyHeld(x.as_str().into()));
    let both = set.lock_again().await.unwrap();
    assert_eq!(both.fencing_token_of(x.as_str()), Some(alone.fencing_token()));
    assert_eq!(both.fencing_token_of(y.as_str()), Some(both.fencing_token()));
    assert!(both.fencing_token() > alone.fencing_token());
    let theirs = other.lock_set([(z.as_str(), Mode::Write), (x.as_str(), Mode::Write)]);
    assert!(theirs.try_lock().await.is_err());
    other.mutex(z.as_str()).try_lock().await.unwrap().release().await.unwrap();
    both.release().await.unwrap();
    assert!(theirs.try_lock().await.is_err(), "the first guard still holds it");
    alone.release().await.unwrap();
    theirs.try_lock().await.unwrap().release().await.unwrap();
    let none = one.lock_set(Vec::<(Path, Mode)>::new()).lock().await.unwrap_err();
    assert!(matches!(none, Error::Invalid(_)));
}

#[tokio::test]
async fn a_lock_on_a_path_keeps_everybody_out_below() {
    let (one, other) = (session("one").await, session("other").await);
    let user = unique_name("user");
    let above = one.mutex(Path::of([user.as_str()])).lock().await.unwrap();
    let below = Path::of([user.as_str(), "ann"]);
    let refused = other.mutex(&below).try_lock().await.unwrap_err();
    assert_eq!(refused.refusal().unwrap().reason, Reason::Ancestor);
    above.release().await.unwrap();
    other.mutex(&below).try_lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_observed_wait_says_who_is_in_the_way_and_where_it_stands() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("observed");
    let guard = one.mutex(name.as_str()).lock().await.unwrap();
    let (seen, mut standings) = tokio::sync::mpsc::unbounded_channel();
    let waiting = tokio::spawn({
        let mutex = other.mutex(name.as_str());
        async move { mutex.lock_observed(|standing| seen.send(standing).unwrap()).await.unwrap().fencing_token() }
    });
    // At once, and again while it lasts.
    for _ in 0..2 {
        let standing = in_time("a standing", standings.recv()).await.unwrap();
        assert_eq!(standing.queue_position, Some(0));
        assert_eq!(standing.blockers[0].holder.process_id, "one");
        assert_eq!(standing.blockers[0].holder.fencing_token, guard.fencing_token());
        assert!(standing.blockers[0].holder.locked_at.is_some());
    }
    guard.release().await.unwrap();
    in_time("its turn", waiting).await.unwrap();
}

#[tokio::test]
async fn what_the_service_refuses_comes_with_its_code() {
    let unknown = client().session("nowhere").open().await.unwrap_err();
    assert_eq!(unknown.code(), Some("NAMESPACE_NOT_FOUND"));
    let stranger = Client::new(&url(), "hf_nobody_nothing").unwrap();
    assert_eq!(stranger.session(NAMESPACE).open().await.unwrap_err().code(), Some("UNAUTHENTICATED"));
    let session = session("one").await;
    let long = session.mutex("x".repeat(129)).lock().await.unwrap_err();
    assert_eq!(long.code(), Some("INVALID_ARGUMENT"));
    assert_eq!(session.request_count(), 0);
    let nobody = Client::new("http://127.0.0.1:1", "key").unwrap();
    let opening = nobody.session(NAMESPACE).open_within(std::time::Duration::from_millis(100)).open();
    assert!(matches!(opening.await.unwrap_err(), Error::Unreachable(_)));
}
