//! Sessions that lose their connection while they await a condition: a resume that lists the await among the pending
//! messages finds it where it stands, and one that does not ends it. The message names no token, as that of a client
//! which knows the fields of the protocol only.

use serde_json::{Value, json};

use crate::support::{RestClient, SessionSocket, connect_new_tenant, wait_until};

const TTL_MS: u64 = 60_000;

fn lock_message(request_id: &str) -> Value {
    json!({"type": "lock", "request_id": request_id, "resources": [{"path": ["l"]}]})
}

fn await_message() -> Value {
    json!({"type": "await", "request_id": "x", "condition": "c"})
}

async fn shown(rest: &RestClient) -> Value {
    rest.call("GET /v1/namespaces/ns/locks/l").await.ok()["lock"].clone()
}

async fn awaiting(rest: &RestClient) -> u64 {
    let page = rest.call("GET /v1/namespaces/ns/conditions").await.ok();
    page["conditions"].as_array().unwrap().iter().filter_map(|condition| condition["awaiting"].as_u64()).sum()
}

/// Two sessions: the first one has given the lock up and awaits a condition, and the second one has the lock now.
struct Sessions {
    rest: RestClient,
    first: SessionSocket,
    first_id: String,
    /// The token of the hold that the first one gave up.
    given_up: u64,
    second: SessionSocket,
}

impl Sessions {
    async fn open() -> Self {
        let (rest, mut first) = connect_new_tenant().await;
        let mut second = SessionSocket::connect(&rest).await;
        let first_id = first.open_session(TTL_MS).await;
        second.open_session(TTL_MS).await;
        first.send(lock_message("x")).await;
        let given_up = first.expect_acquired("x").await;
        first.send(await_message()).await;
        assert_eq!(first.receive().await["state"], "AWAITING");
        second.send(lock_message("y")).await;
        second.expect_acquired("y").await;
        Self { rest, first, first_id, given_up, second }
    }

    /// The second one signals. Returns how many were woken.
    async fn signal(&mut self) -> u64 {
        self.second.send(json!({"type": "signal", "request_id": "y", "condition": "c"})).await;
        let signalled = self.second.receive().await;
        assert_eq!(signalled["type"], "signalled", "{signalled}");
        signalled["count"].as_u64().unwrap()
    }

    async fn release_second(&mut self) {
        self.second.send(json!({"type": "release", "request_id": "y"})).await;
        self.second.expect_ready("y").await;
    }

    /// The connection of the first one breaks off.
    async fn cut(&mut self) {
        let other = SessionSocket::connect(&self.rest).await;
        drop(std::mem::replace(&mut self.first, other));
    }

    /// The first one is back on another connection, and says what it waits for.
    async fn resume(&mut self, pending: &[Value]) {
        self.first.resume_session(&self.first_id, TTL_MS).await;
        self.first.send(json!({"type": "lock_info", "held": [], "pending": pending})).await;
    }

    async fn expect_woken(&mut self, state: &str) -> Value {
        let told = self.first.receive().await;
        let expected = (&json!("x"), &json!(state), &json!("SIGNALLED"));
        assert_eq!((&told["request_id"], &told["state"], &told["woken"]), expected, "{told}");
        told
    }

    /// The first one waits for the lock that the second one has, and is told so as of any request that waits.
    async fn expect_enqueued(&mut self) {
        let told = self.expect_woken("ENQUEUED").await;
        let blockers = told["blockers"].as_array().map(Vec::len);
        assert_eq!((&told["queue_position"], blockers), (&json!(0), Some(1)), "{told}");
        let blocker = &told["blockers"][0];
        assert_eq!((&blocker["path"], &blocker["waiting"]), (&json!(["l"]), &json!(false)), "{told}");
    }

    /// The first one has the lock again, under a new token, and may use it.
    async fn expect_lock(&mut self) {
        let token = self.expect_woken("ACQUIRED").await["fencing_token"].as_u64().expect("a token");
        assert!(token > self.given_up);
        assert_eq!(shown(&self.rest).await["write_lock_holder"]["fencing_token"], token);
        assert_eq!(awaiting(&self.rest).await, 0);
        self.first.send(json!({"type": "signal", "request_id": "x", "condition": "c"})).await;
        assert_eq!(self.first.receive().await["count"], 0);
        self.first.send(json!({"type": "release", "request_id": "x"})).await;
        self.first.expect_ready("x").await;
    }
}

#[tokio::test]
async fn one_that_still_awaits_goes_on_awaiting() {
    let mut sessions = Sessions::open().await;
    sessions.cut().await;
    sessions.resume(&[await_message()]).await;
    assert_eq!(sessions.first.receive().await["state"], "AWAITING");
    assert_eq!(sessions.signal().await, 1, "it awaits once");
    sessions.expect_enqueued().await;
    sessions.release_second().await;
    sessions.expect_lock().await;
}

/// A refusal would say that it waits for nothing.
#[tokio::test]
async fn a_lock_with_the_id_of_a_request_that_awaits_is_an_error_and_the_await_stands() {
    let mut sessions = Sessions::open().await;
    sessions.first.send(lock_message("x")).await;
    let told = sessions.first.receive().await;
    assert_eq!((&told["type"], &told["request_id"]), (&json!("error"), &json!("x")), "{told}");
    assert_eq!(sessions.signal().await, 1, "it still awaits");
    sessions.expect_enqueued().await;
    sessions.release_second().await;
    sessions.expect_lock().await;
}

#[tokio::test]
async fn one_that_was_woken_meanwhile_waits_for_the_lock() {
    let mut sessions = Sessions::open().await;
    sessions.cut().await;
    assert_eq!(sessions.signal().await, 1);
    sessions.resume(&[await_message()]).await;
    sessions.expect_enqueued().await;
    assert_eq!(sessions.signal().await, 0, "nobody awaits it");
    sessions.release_second().await;
    sessions.expect_lock().await;
}

#[tokio::test]
async fn one_that_has_the_lock_again_meanwhile_is_told_so_and_keeps_its_signal() {
    let mut sessions = Sessions::open().await;
    sessions.cut().await;
    assert_eq!(sessions.signal().await, 1);
    sessions.release_second().await;
    assert!(shown(&sessions.rest).await["write_lock_holder"]["fencing_token"].as_u64() > Some(sessions.given_up));
    sessions.resume(&[await_message()]).await;
    sessions.expect_lock().await;
}

#[tokio::test]
async fn one_that_is_not_listed_ends_and_its_signal_goes_to_the_next() {
    let mut sessions = Sessions::open().await;
    let body = json!({"process_id": "p", "ttl_ms": TTL_MS, "wait_ms": TTL_MS});
    let (rest, acquire) = (sessions.rest.clone(), "POST /v1/namespaces/ns/locks/l/acquire");
    let granted = tokio::spawn(async move { rest.json(acquire, body).await.ok() });
    wait_until("p waits", async || shown(&sessions.rest).await["waiting"] == 1).await;
    sessions.release_second().await;
    let fencing_token = granted.await.unwrap()["fencing_token"].clone();
    let body = json!({
        "name": "l", "process_id": "p", "fencing_token": fencing_token, "condition": "c", "ttl_ms": TTL_MS,
        "wait_ms": TTL_MS,
    });
    let rest = sessions.rest.clone();
    let second = tokio::spawn(async move { rest.json("POST /v1/namespaces/ns/conditions/await", body).await.ok() });
    wait_until("both await", async || awaiting(&sessions.rest).await == 2).await;
    sessions.second.send(lock_message("y")).await;
    sessions.second.expect_acquired("y").await;
    sessions.cut().await;
    assert_eq!(sessions.signal().await, 1);
    assert_eq!(awaiting(&sessions.rest).await, 1, "the first one is woken");
    sessions.resume(&[]).await;
    wait_until("the signal is handed on", async || awaiting(&sessions.rest).await == 0).await;
    sessions.release_second().await;
    assert_eq!(second.await.unwrap()["woken"], "SIGNALLED");
}
