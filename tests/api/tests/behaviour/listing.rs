//! Lists of held locks.

use futures::stream::{self, StreamExt};
use serde_json::json;

use crate::support::{AcquireRequest, FencingLockClient, LockClient, TestEnv, frontends, server, through};

through! {
    every_frontend:;
    with_tokens:
        held_locks_are_listed_in_order_of_name_page_by_page,
        a_prefix_is_a_whole_segment_and_not_the_beginning_of_a_name,
        a_page_goes_on_where_the_last_ended_whatever_changed_meanwhile,
        a_page_token_of_another_list_is_refused,
        a_page_size_beyond_the_limit_is_refused,
        a_list_of_an_unknown_namespace_is_not_found;
}

async fn held_locks_are_listed_in_order_of_name_page_by_page<D: FencingLockClient>(world: TestEnv<D>) {
    let mut expected: Vec<String> = (0..25).map(|n| format!("lock-{:02}", (n * 7) % 25)).collect();
    for lock in &expected {
        world.client.expect_granted(AcquireRequest::write(lock, "p")).await;
    }
    expected.sort();
    assert_eq!(world.client.list_locks(&[], 100, "").await.unwrap(), (expected.clone(), None));
    assert_eq!(
        world.client.list_locks(&[], 25, "").await.unwrap(),
        (expected.clone(), None),
        "a full page may be the last"
    );
    let (mut names, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let (page, next) = world.client.list_locks(&[], 10, &token).await.unwrap();
        names.extend(page);
        pages += 1;
        let Some(next) = next else { break };
        token = next;
    }
    assert_eq!((names, pages), (expected, 3));
}

async fn a_prefix_is_a_whole_segment_and_not_the_beginning_of_a_name<D: FencingLockClient>(world: TestEnv<D>) {
    for lock in ["a", "ab", "a/b"] {
        world.client.expect_granted(AcquireRequest::write(lock, "p")).await;
    }
    for (prefix, expected) in [(&["a"][..], &["a"][..]), (&["a/b"], &["a/b"]), (&["x"], &[]), (&["a", "b"], &[])] {
        assert_eq!(world.client.list_locks(prefix, 10, "").await.unwrap().0, expected, "{prefix:?}");
    }
    let too_deep = ["a"; 17];
    assert_eq!(world.client.list_locks(&too_deep, 10, "").await.unwrap_err().ids["field"], "prefix");
    assert_eq!(world.client.list_locks(&[""], 10, "").await.unwrap_err().ids["field"], "prefix");
}

async fn a_page_goes_on_where_the_last_ended_whatever_changed_meanwhile<D: FencingLockClient>(world: TestEnv<D>) {
    for lock in ["b", "d", "f"] {
        world.client.expect_granted(AcquireRequest::write(lock, "p")).await;
    }
    let (first, token) = world.client.list_locks(&[], 2, "").await.unwrap();
    assert_eq!(first, ["b", "d"]);
    world.client.delete("d").await.unwrap();
    world.client.expect_granted(AcquireRequest::write("a", "p")).await;
    world.client.expect_granted(AcquireRequest::write("e", "p")).await;
    assert_eq!(world.client.list_locks(&[], 10, &token.unwrap()).await.unwrap().0, ["e", "f"]);
}

async fn a_page_token_of_another_list_is_refused<D: FencingLockClient>(world: TestEnv<D>) {
    for lock in ["a", "b"] {
        world.client.expect_granted(AcquireRequest::write(lock, "p")).await;
    }
    let token = world.client.list_locks(&[], 1, "").await.unwrap().1.unwrap();
    let mut damaged = token.clone();
    damaged.pop();
    for (prefix, token) in [(&["a"][..], token.as_str()), (&[], "nonsense"), (&[], &damaged), (&[], "AAAAAAAA")] {
        let refused = world.client.list_locks(prefix, 1, token).await.unwrap_err();
        assert_eq!((refused.code.as_str(), refused.ids["field"].as_str()), ("INVALID_ARGUMENT", "page_token"));
    }
}

async fn a_page_size_beyond_the_limit_is_refused<D: FencingLockClient>(world: TestEnv<D>) {
    assert!(world.client.list_locks(&[], 1_000, "").await.is_ok());
    let refused = world.client.list_locks(&[], 1_001, "").await.unwrap_err();
    assert_eq!((refused.code.as_str(), refused.ids["field"].as_str()), ("INVALID_ARGUMENT", "page_size"));
    for size in ["0", "-1", "x", "", "1.5", "99999999999"] {
        let line = format!("GET /v1/namespaces/ns/locks?page_size={size}");
        world.rest.call(&line).await.expect_field_error("page_size");
    }
}

async fn a_list_of_an_unknown_namespace_is_not_found<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.delete_namespace("ns").await.unwrap();
    let refused = world.client.list_locks(&[], 10, "").await.unwrap_err();
    assert_eq!(refused.code_and_detail(), ("NAMESPACE_NOT_FOUND", "namespace not found"));
}

#[tokio::test]
async fn a_list_of_large_locks_is_answered_in_pages_and_harms_nobody() {
    const LOCKS: usize = 20;
    const READERS: usize = 16;
    // What waits in a gateway has a limit in bytes.
    const AT_ONCE: usize = 32;
    let world = TestEnv::<frontends::rest::Client>::open().await;
    world.tenant.update(server(), json!({"limits": {"max_metadata_bytes": 65_536}})).await;
    let client = &world.client;
    let fill = (0..LOCKS * READERS).map(async |number| {
        let mut ask = AcquireRequest::read(&format!("lock-{:02}", number % LOCKS), &format!("p{number}"));
        ask.metadata = [("large".to_owned(), "x".repeat(60_000))].into();
        client.expect_granted(ask).await;
    });
    stream::iter(fill).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    let (mut names, mut token) = (Vec::new(), String::new());
    loop {
        let (page, next) = client.list_locks(&[], 1_000, &token).await.unwrap();
        names.extend(page);
        let Some(next) = next else { break };
        token = next;
    }
    assert_eq!(names.len(), LOCKS);
}
