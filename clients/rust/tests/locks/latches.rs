//! Latches and wait groups.

use holdfast_client::{Error, LatchOutcome, LatchStatus, WaitGroup};

use crate::support::{NAMESPACE, client, eventually, in_time, unique_name};

#[tokio::test]
async fn all_who_wait_go_on_when_the_last_job_is_done() {
    let name = unique_name("nightly");
    let latch = client().latch(NAMESPACE, name.as_str()).create(3).await.unwrap();
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let latch = client().latch(NAMESPACE, name.as_str());
            tokio::spawn(async move { latch.wait().await })
        })
        .collect();
    assert_eq!(latch.count_down_all(["a", "b", "a"]).await, Ok(2));
    assert_eq!(latch.wait_timeout(std::time::Duration::from_millis(50)).await, Ok(None));
    assert!(latch.count_down("c").await.unwrap());
    for waiter in waiting {
        assert_eq!(in_time("the end of a wait", waiter).await.unwrap(), Ok(LatchOutcome::Completed));
    }
    latch.delete().await.unwrap();
}

#[tokio::test]
async fn a_latch_is_about_the_one_that_it_met_first() {
    let name = unique_name("again");
    let template = client().latch(NAMESPACE, name.as_str());
    let old = template.create(1).await.unwrap();
    let met = client().latch(NAMESPACE, name.as_str());
    assert_eq!((met.id(), met.get().await.unwrap().status), (None, LatchStatus::Active));
    assert_eq!(met.id(), old.id());
    let waiting = client().latch(NAMESPACE, name.as_str());
    let waiter = tokio::spawn({
        let waiting = waiting.clone();
        async move { waiting.wait().await }
    });
    eventually("a wait knows its latch at once", async || waiting.id() == old.id()).await;
    old.delete().await.unwrap();
    let error = in_time("the end of the wait", waiter).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some("PRIMITIVE_NOT_FOUND"), "{error}");
    let new = template.create(1).await.unwrap();
    assert_ne!(new.id(), old.id());
    for gone in [&old, &met] {
        let error = gone.count_down("a").await.unwrap_err();
        assert_eq!(error.code(), Some("PRIMITIVE_NOT_FOUND"), "{error}");
    }
    assert_eq!(new.get().await.unwrap().done, 0);
    let other = client().latch(NAMESPACE, name.as_str()).create(2).await.unwrap_err();
    assert!(matches!(other, Error::Service { ref code, .. } if code == "ALREADY_EXISTS"), "{other}");
    new.delete().await.unwrap();
}

#[tokio::test]
async fn a_group_is_done_when_all_guards_are_dropped_and_its_producer_may_add_jobs() {
    let name = unique_name("group");
    let group = WaitGroup::new(client().latch(NAMESPACE, name.as_str()).create(1).await.unwrap());
    let first = group.done_on_drop();
    assert!(group.latch().set_total(4, Some(1)).await.unwrap());
    let jobs: Vec<_> = (0..3).map(|_| group.done_on_drop()).collect();
    first.done().await.unwrap();
    drop(jobs);
    assert_eq!(in_time("the end of the group", group.wait()).await, Ok(LatchOutcome::Completed));
    eventually("all are counted", async || group.latch().get().await.unwrap().done == 4).await;
    assert!(!group.latch().set_total(5, Some(4)).await.unwrap(), "it is complete");
}

#[tokio::test]
async fn indexes_are_counted_by_ranges() {
    let name = unique_name("shards");
    let latch = client().latch(NAMESPACE, name.as_str()).indexed().create(100).await.unwrap();
    assert_eq!(latch.count_down_indexes([0..=9, 5..=14]).await, Ok(15));
    assert_eq!(latch.count_down_indexes([100..=100]).await.unwrap_err().code(), Some("INVALID_ARGUMENT"));
    assert!(latch.set_total(200, Some(100)).await.unwrap());
    assert!(!latch.set_total(300, Some(100)).await.unwrap());
    assert_eq!(latch.count_down_indexes([0..=199]).await, Ok(185));
    assert_eq!(latch.wait().await, Ok(LatchOutcome::Completed));
}
