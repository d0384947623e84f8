//! Names: what is one, and what is none.

use crate::support::segment;
use crate::support::{AcquireRequest, LockClient, TestEnv, frontends, raw, through};

through! {
    every_frontend:
        a_name_is_taken_whatever_characters_it_has,
        names_have_at_most_128_bytes,
        names_without_bytes_and_with_nul_are_refused,
        process_ids_that_look_like_sessions_are_refused,
        namespaces_have_names_of_any_characters_too;
    with_tokens:;
}

const UNUSUAL_NAMES: [&str; 16] = [
    "..",
    ".",
    "a/b",
    "/",
    "//",
    "a%2Fb",
    "%",
    " ",
    "a b",
    "ü",
    "锁",
    "🔒",
    "acquire",
    "?x=1#y",
    "\u{1}\t\n",
    "\u{202e}\"\\",
];

async fn a_name_is_taken_whatever_characters_it_has<D: LockClient>(world: TestEnv<D>) {
    for name in UNUSUAL_NAMES {
        let taken = world.client.expect_granted(AcquireRequest::write(name, name)).await;
        assert_eq!((taken.lock.name.as_str(), taken.lock.writer_id()), (name, name));
        assert_eq!(world.client.get(name).await.unwrap().writer_id(), name);
    }
    let mut expected = UNUSUAL_NAMES.to_vec();
    expected.sort_unstable();
    assert_eq!(world.held_locks().await, expected, "each is a lock of its own");
    for name in UNUSUAL_NAMES {
        world.client.release(name, name).await.unwrap().lock.assert_free();
    }
    assert_eq!(world.held_locks().await, [""; 0]);
}

async fn names_have_at_most_128_bytes<D: LockClient>(world: TestEnv<D>) {
    // 42 of three bytes and one of two.
    let longest = format!("{}ü", "锁".repeat(42));
    assert_eq!(longest.len(), 128);
    world.client.expect_granted(AcquireRequest::write(&longest, &longest)).await;
    world.client.create_namespace(&longest, "").await.unwrap();
    let too_long = format!("{longest}x");
    assert_invalid_name(&world, &too_long, "must have 1 to 128 bytes, has 129").await;
}

async fn names_without_bytes_and_with_nul_are_refused<D: LockClient>(world: TestEnv<D>) {
    assert_invalid_name(&world, "a\0b", "must not contain NUL").await;
    let client = &world.client;
    let refused = client.acquire(AcquireRequest::write("l", "")).await.unwrap_err();
    assert_eq!((refused.code.as_str(), refused.ids["field"].as_str()), ("INVALID_ARGUMENT", "process_id"));
    for refused in [
        client.acquire(AcquireRequest::write("", "p")).await.unwrap_err(),
        client.get("").await.unwrap_err(),
        client.create_namespace("", "").await.unwrap_err(),
    ] {
        assert_eq!(refused.code, "INVALID_ARGUMENT", "{refused:?}");
        assert!(refused.detail.contains("1 to 128 bytes"), "{}", refused.detail);
    }
}

/// Refuses the name wherever one is given, naming the field and what is wrong.
async fn assert_invalid_name<D: LockClient>(world: &TestEnv<D>, name: &str, why: &str) {
    let client = &world.client;
    for (field, refused) in [
        ("name", client.acquire(AcquireRequest::write(name, "p")).await.map(drop)),
        ("name", client.release(name, "p").await.map(drop)),
        ("name", client.get(name).await.map(drop)),
        ("name", client.delete(name).await),
        ("process_id", client.acquire(AcquireRequest::write("l", name)).await.map(drop)),
        ("process_id", client.release("l", name).await.map(drop)),
        ("name", client.create_namespace(name, "").await.map(drop)),
        ("namespace", client.get_namespace(name).await.map(drop)),
        ("namespace", client.delete_namespace(name).await),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!((refused.code.as_str(), refused.ids["field"].as_str()), ("INVALID_ARGUMENT", field));
        assert_eq!(refused.detail, format!("{field}: {why}"));
    }
    let held = world.held_locks().await;
    assert!(!held.iter().any(|lock| lock == name || lock == "l"), "{held:?}");
}

async fn process_ids_that_look_like_sessions_are_refused<D: LockClient>(world: TestEnv<D>) {
    for process_id in ["se_", "se_1"] {
        let acquired = world.client.acquire(AcquireRequest::write("l", process_id)).await.map(drop);
        for refused in [acquired, world.client.release("l", process_id).await.map(drop)] {
            let refused = refused.unwrap_err();
            assert_eq!((refused.code.as_str(), refused.ids["field"].as_str()), ("INVALID_ARGUMENT", "process_id"));
        }
    }
    world.client.expect_granted(AcquireRequest::write("l", "SE_1")).await;
}

async fn namespaces_have_names_of_any_characters_too<D: LockClient>(world: TestEnv<D>) {
    for name in UNUSUAL_NAMES {
        let made = world.client.create_namespace(name, name).await.unwrap();
        assert_eq!((made.name.as_str(), made.description.as_str()), (name, name));
        assert_eq!(world.client.get_namespace(name).await.unwrap(), made);
        let line = format!("GET /v1/namespaces/{}/locks", segment(name));
        world.rest.call(&line).await.ok();
        world.client.delete_namespace(name).await.unwrap();
    }
    assert_eq!(world.client.list_namespaces().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_path_is_decoded_once_and_never_normalised() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    for (path, name) in [
        ("..", ".."),
        (".", "."),
        ("%2e%2E", ".."),
        ("a%2Fb", "a/b"),
        ("a%2fb", "a/b"),
        ("%252F", "%2F"),
        ("a+b", "a+b"),
        ("a;b=c", "a;b=c"),
        ("a%", "a%"),
        ("a%zz", "a%zz"),
    ] {
        let line = format!("GET /v1/namespaces/ns/locks/{path}");
        assert_eq!(world.rest.call(&line).await.ok()["lock"]["name"], name, "{path}");
    }
}

#[tokio::test]
async fn a_path_that_is_not_utf_8_or_has_empty_segments_is_refused() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    // The last four say `/`, NUL and `.` in more bytes than they have.
    let overlong = ["%C0%AF", "%C0%80", "%E0%80%AF", "%F0%80%80%AE"];
    for path in ["%ff", "%C3", "%00", "a%ED%A0%80"].into_iter().chain(overlong) {
        world.rest.call(&format!("GET /v1/namespaces/ns/locks/{path}")).await.expect_field_error("name");
        world.rest.call(&format!("GET /v1/namespaces/{path}/locks/l")).await.expect_field_error("namespace");
        world.rest.call(&format!("GET /v1/namespaces/{path}")).await.expect_field_error("namespace");
    }
    world.rest.call("GET /v1/namespaces//locks/l").await.expect_field_error("namespace");
    for line in ["GET /v1/namespaces/ns/locks/", "GET /v1//namespaces", "POST /v1/namespaces/ns/locks//acquire/"] {
        world.rest.call(line).await.expect_field_error("path");
    }
}

#[tokio::test]
async fn bytes_in_a_path_that_are_not_ascii_are_utf_8_or_refused() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    let get = async |name: &[u8]| {
        let path = [b"/v1/namespaces/ns/locks/", name].concat();
        raw::send(world.rest.address, &raw::request("GET", &path, &world.rest.key)).await
    };
    let answer = get("ü".as_bytes()).await;
    assert!(answer.status == 400 || answer.body["lock"]["name"] == "ü", "{}", answer.text);
    assert_eq!(get(b"\xff\xfe").await.status, 400);
    assert_eq!(get(b"a\x01b").await.status, 400);
}
