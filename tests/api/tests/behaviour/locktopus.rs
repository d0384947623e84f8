//! Existing Locktopus clients: their messages over WebSocket v1, and the answers.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use holdfast_testkit::{Standalone, scratch};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::support::{CONDITION_TIMEOUT, RestClient, wait_until};

static SERVER: OnceLock<(Standalone, SocketAddr)> = OnceLock::new();

/// A process that lets Locktopus clients in, and where.
pub(crate) fn locktopus_server() -> &'static (Standalone, SocketAddr) {
    SERVER.get_or_init(|| {
        let frontend = ["--locktopus-listen", "127.0.0.1:0", "--locktopus-account", "demo"];
        let origins = ["--locktopus-origin", "https://app.example", "--locktopus-origin", "http://localhost:3000"];
        let flags = [frontend, origins].concat();
        let server = Standalone::start(&scratch(), &flags);
        let log = server.log();
        let address = log.split_once("ws://").and_then(|(_, rest)| rest.split_once('/')).expect("it says where").0;
        let address = address.parse().unwrap();
        (server, address)
    })
}

/// The account of all Locktopus clients, over REST.
fn demo_client() -> RestClient {
    let (server, _) = locktopus_server();
    RestClient::new(server.address(), &server.secret("demo.key"))
}

/// A client that is connected.
struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    async fn connect(query: &str) -> Self {
        let (_, address) = locktopus_server();
        Self(connect_async(format!("ws://{address}/v1?{query}")).await.unwrap().0)
    }

    async fn send(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    async fn lock(&mut self, resources: Value) {
        self.send(&json!({"action": "lock", "resources": resources}).to_string()).await;
    }

    async fn release(&mut self) {
        self.send(r#"{"action":"release"}"#).await;
    }

    async fn receive(&mut self) -> Message {
        loop {
            let frame = timeout(CONDITION_TIMEOUT, self.0.next()).await.expect("a message in good time");
            match frame.expect("the connection is open").unwrap() {
                Message::Ping(_) | Message::Pong(_) => {}
                message => return message,
            }
        }
    }

    /// The next message, which says that of the lock; the lock's id.
    #[track_caller]
    fn expect_state(&mut self, action: &str, state: &str) -> impl Future<Output = String> {
        let expected = (json!(action), json!(state));
        async move {
            let Message::Text(text) = self.receive().await else { panic!("not a text") };
            let message: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
            assert_eq!((&message["action"], &message["state"]), (&expected.0, &expected.1), "{message}");
            let id = message["id"].as_str().unwrap();
            assert!(id.bytes().all(|byte| byte.is_ascii_digit()) && !id.is_empty(), "{id}");
            id.to_owned()
        }
    }

    /// Sends a forbidden message. Returns the text of the error.
    async fn expect_close(&mut self, code: u16) -> String {
        let Message::Text(text) = self.receive().await else { panic!("the reason comes first") };
        assert!(serde_json::from_str::<Value>(&text).is_err(), "the reason is for people: {text}");
        let Message::Close(Some(close)) = self.receive().await else { panic!("then it is closed") };
        assert_eq!(u16::from(close.code), code, "{text}");
        text.to_string()
    }

    /// Locks, and waits its turn.
    async fn lock_and_wait(&mut self, resources: Value) {
        self.lock(resources).await;
        let first = self.receive().await;
        if first.to_text().unwrap().contains("enqueued") {
            self.expect_state("lock", "acquired").await;
        }
    }

    async fn expect_acquired(&mut self, resources: Value) -> String {
        self.lock(resources).await;
        self.expect_state("lock", "acquired").await
    }
}

fn write(path: &[&str]) -> Value {
    json!([{"type": "write", "path": path}])
}

fn read(path: &[&str]) -> Value {
    json!([{"type": "read", "path": path}])
}

#[tokio::test]
async fn a_client_locks_waits_its_turn_and_releases() {
    let mut one = Client::connect("namespace=turns").await;
    let mut other = Client::connect("namespace=turns").await;
    let id = one.expect_acquired(write(&["x"])).await;
    other.lock(write(&["x"])).await;
    let waiting = other.expect_state("lock", "enqueued").await;
    one.release().await;
    assert_eq!(one.expect_state("release", "ready").await, id);
    assert_eq!(other.expect_state("lock", "acquired").await, waiting, "a lock keeps its id");
    // Each lock has its own, and a client may lock as often as it likes.
    one.lock(read(&["x", "y"])).await;
    let again = one.expect_state("lock", "enqueued").await;
    assert!(again != id && again != waiting);
    other.release().await;
    other.expect_state("release", "ready").await;
    one.expect_state("lock", "acquired").await;
}

#[tokio::test]
async fn several_resources_are_locked_together_and_readers_share_a_tree() {
    let mut one = Client::connect("namespace=tree").await;
    let mut other = Client::connect("namespace=tree").await;
    one.expect_acquired(json!([{"type": "r", "path": ["a"]}, {"type": "W", "path": ["b", "c"]}])).await;
    other.expect_acquired(json!([{"type": "READ", "path": ["a", "d"]}, {"type": "w", "path": ["b", "e"]}])).await;
    let mut third = Client::connect("namespace=tree").await;
    third.lock(json!([{"type": "w", "path": ["free"]}, {"type": "r", "path": ["b"]}])).await;
    third.expect_state("lock", "enqueued").await;
    let lock = demo_client().json("POST /v1/namespaces/tree/lock-sets/get", json!({"path": ["free"]})).await.ok();
    assert_eq!(lock["lock"]["state"], "UNLOCKED", "nothing is taken before all of it is");
    one.release().await;
    one.expect_state("release", "ready").await;
    other.release().await;
    other.expect_state("release", "ready").await;
    third.expect_state("lock", "acquired").await;
}

#[tokio::test]
async fn a_client_that_no_longer_wants_to_wait_leaves_the_queue() {
    let mut one = Client::connect("namespace=leave").await;
    let mut other = Client::connect("namespace=leave").await;
    one.expect_acquired(write(&["x"])).await;
    other.lock(write(&["x"])).await;
    let id = other.expect_state("lock", "enqueued").await;
    other.release().await;
    assert_eq!(other.expect_state("release", "ready").await, id);
    one.release().await;
    one.expect_state("release", "ready").await;
    one.expect_acquired(write(&["x"])).await;
}

#[tokio::test]
async fn bad_input_is_answered_with_a_text_and_the_close_code_3000() {
    for bad in [
        "nonsense",
        r#"{"action":"steal"}"#,
        r#"{"action":"release"}"#,
        r#"{"action":"lock","resources":[]}"#,
        r#"{"action":"lock","resources":[{"type":"x","path":["a"]}]}"#,
        r#"{"action":"lock","resources":[{"type":"r","path":[""]}]}"#,
    ] {
        let mut client = Client::connect("namespace=bad").await;
        client.send(bad).await;
        client.expect_close(3000).await;
    }
    let mut client = Client::connect("namespace=bad&abandon-timeout-ms=0").await;
    client.expect_acquired(write(&["x"])).await;
    client.lock(write(&["y"])).await;
    let text = client.expect_close(3000).await;
    assert!(text.contains("lock") && text.contains("acquired"), "{text}");
    // Its time was up at once.
    Client::connect("namespace=bad").await.lock_and_wait(write(&["x"])).await;
}

/// How long the next one waits for the lock of a client that is gone.
async fn wait_after_disconnect(namespace: &str, abandon_ms: u64, leave: impl AsyncFnOnce(Client)) -> Duration {
    let mut one = Client::connect(&format!("namespace={namespace}&abandon-timeout-ms={abandon_ms}")).await;
    let mut other = Client::connect(&format!("namespace={namespace}")).await;
    one.expect_acquired(write(&["x"])).await;
    other.lock(write(&["x"])).await;
    other.expect_state("lock", "enqueued").await;
    let left_at = Instant::now();
    leave(one).await;
    other.expect_state("lock", "acquired").await;
    left_at.elapsed()
}

#[tokio::test]
async fn a_lock_outlives_its_connection_by_the_abandon_timeout_and_no_more() {
    let timeout_ms = 1_000;
    let close = async |mut client: Client| client.0.close(None).await.unwrap();
    let waited = wait_after_disconnect("closed", timeout_ms, close).await;
    assert!(waited >= Duration::from_millis(timeout_ms), "{waited:?}");
    assert!(waited < Duration::from_secs(8), "{waited:?}: sooner than a session would end by itself");
    let break_off = async |client: Client| drop(client);
    let waited = wait_after_disconnect("broken", timeout_ms, break_off).await;
    assert!(waited >= Duration::from_millis(timeout_ms) && waited < Duration::from_secs(8), "{waited:?}");
    let waited = wait_after_disconnect("at-once", 0, close).await;
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    let release = async |mut client: Client| {
        client.release().await;
        client.expect_state("release", "ready").await;
    };
    let waited = wait_after_disconnect("released", 60_000, release).await;
    assert!(waited < Duration::from_secs(5), "{waited:?}: nothing is held any more");
}

/// The numbers of waiting requests and of holds in a namespace.
async fn waiting_and_held(namespace: &str) -> (u64, u64) {
    let (status, text) = get(&format!("/stats_v1?namespace={namespace}")).await;
    assert_eq!(status, 200, "{text}");
    let figures: Value = serde_json::from_str(&text).unwrap();
    let number = |name: &str| figures[name].as_u64().unwrap();
    (number("GroupsPending"), number("LocksAcquired"))
}

#[tokio::test]
async fn a_client_that_does_not_come_back_in_time_loses_its_place_and_all_that_it_holds() {
    let timeout_ms = 1_000;
    let absent = format!("namespace=evicted&abandon-timeout-ms={timeout_ms}");
    let mut one = Client::connect("namespace=evicted").await;
    let (mut waits, mut holds) = (Client::connect(&absent).await, Client::connect(&absent).await);
    let mut behind = Client::connect("namespace=evicted").await;
    one.expect_acquired(write(&["x"])).await;
    holds.expect_acquired(json!([{"type": "w", "path": ["y"]}, {"type": "r", "path": ["z"]}])).await;
    for client in [&mut waits, &mut behind] {
        client.lock(write(&["x"])).await;
        client.expect_state("lock", "enqueued").await;
    }
    assert_eq!(waiting_and_held("evicted").await, (2, 3));
    let left_at = Instant::now();
    drop((waits, holds));
    wait_until("both are evicted", || async { waiting_and_held("evicted").await == (1, 1) }).await;
    let waited = left_at.elapsed();
    assert!(waited >= Duration::from_millis(timeout_ms) && waited < Duration::from_secs(8), "{waited:?}");
    // Whoever comes back later is behind those who stayed.
    let mut back = Client::connect(&absent).await;
    back.lock(write(&["x"])).await;
    back.expect_state("lock", "enqueued").await;
    one.release().await;
    one.expect_state("release", "ready").await;
    behind.expect_state("lock", "acquired").await;
    assert_eq!(waiting_and_held("evicted").await, (1, 1));
}

#[tokio::test]
async fn an_open_connection_keeps_its_lock_for_longer_than_its_abandon_timeout() {
    let mut one = Client::connect("namespace=kept&abandon-timeout-ms=1").await;
    one.expect_acquired(write(&["x"])).await;
    let rest = demo_client();
    let session = rest.call("GET /v1/namespaces/kept/sessions").await.ok();
    let path = format!("GET /v1/namespaces/kept/sessions/{}", session["sessions"][0]["session_id"].as_str().unwrap());
    // Its remaining time is seen to shrink and to be restored: the gateway sends keep-alives for it.
    let last = AtomicU64::new(u64::MAX);
    let (rest, path, last) = (&rest, &path, &last);
    wait_until("the session is kept alive", || async move {
        let now = rest.call(path).await.ok()["remaining_ms"].as_u64().unwrap();
        now > last.swap(now, Ordering::Relaxed)
    })
    .await;
    let lock = rest.call("GET /v1/namespaces/kept/locks/x").await.ok();
    assert_eq!(lock["lock"]["state"], "WRITE_LOCKED");
    drop(one);
    Client::connect("namespace=kept").await.lock_and_wait(write(&["x"])).await;
}

#[tokio::test]
async fn a_client_whose_lock_is_forced_open_is_told_and_cut_off() {
    let mut client = Client::connect("namespace=forced").await;
    client.expect_acquired(write(&["x"])).await;
    demo_client().call("DELETE /v1/namespaces/forced/locks/x").await.ok();
    let text = client.expect_close(1011).await;
    assert!(text.contains("lost"), "{text}");
}

/// The status and the text at an address of the frontend.
async fn get(path: &str) -> (u16, String) {
    let (_, address) = locktopus_server();
    let answer = RestClient::new(*address, "none").call(&format!("GET {path}")).await;
    (answer.status, answer.text)
}

#[tokio::test]
async fn a_namespace_is_made_on_first_use_and_shown() {
    assert_eq!(get("/stats_v1?namespace=figures").await.0, 404);
    let mut client = Client::connect("namespace=figures").await;
    client.expect_acquired(json!([{"type": "w", "path": ["x"]}, {"type": "r", "path": ["y"]}])).await;
    let (status, text) = get("/stats_v1?namespace=figures").await;
    let figures: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &figures["LocksAcquired"], &figures["GroupsPending"]), (200, &json!(2), &json!(0)), "{text}");
    let (status, text) = get("/").await;
    assert!(status == 200 && text.contains("/v1?namespace") && text.contains("figures"), "{text}");
    assert_eq!(get("/stats_v1").await.0, 400);
}

#[tokio::test]
async fn a_connection_without_what_it_needs_is_refused_before_it_begins() {
    let (_, address) = locktopus_server();
    for query in ["", "?namespace=", "?namespace=n&abandon-timeout-ms=-1", "?namespace=n&abandon-timeout-ms=x"] {
        let error = connect_async(format!("ws://{address}/v1{query}")).await.unwrap_err();
        let Error::Http(response) = error else { panic!("{query}: {error}") };
        assert_eq!(response.status(), 400, "{query}");
        let text = String::from_utf8(response.body().clone().unwrap_or_default()).unwrap();
        assert!(text.starts_with("URL parameter"), "{query}: {text}");
    }
}

/// The status that a request to connect with these headers is answered with.
async fn handshake_status(origin: Option<&str>, host: Option<&str>) -> u16 {
    let (_, address) = locktopus_server();
    let mut request = format!("ws://{address}/v1?namespace=pages").into_client_request().unwrap();
    if let Some(origin) = origin {
        request.headers_mut().insert("origin", origin.parse().unwrap());
    }
    if let Some(host) = host {
        request.headers_mut().insert("host", host.parse().unwrap());
    }
    match connect_async(request).await {
        Ok((_, answer)) => answer.status().as_u16(),
        Err(Error::Http(answer)) => {
            let text = String::from_utf8(answer.body().clone().unwrap_or_default()).unwrap();
            assert!(text.contains("--locktopus-origin"), "{text}");
            answer.status().as_u16()
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_web_page_is_let_in_when_it_is_of_the_port_itself_or_listed() {
    let (_, address) = locktopus_server();
    assert_eq!(handshake_status(None, None).await, 101, "a client that is no browser");
    for own in [format!("http://{address}"), "https://app.example".to_owned(), "http://localhost:3000".to_owned()] {
        assert_eq!(handshake_status(Some(&own), None).await, 101, "{own}");
    }
    for foreign in ["http://evil.example", "null", "http://app.example", "https://app.example:8443"] {
        assert_eq!(handshake_status(Some(foreign), None).await, 403, "{foreign}");
    }
    // A page that gave its own name this address.
    let (host, origin) =
        (format!("evil.example:{}", address.port()), format!("http://evil.example:{}", address.port()));
    assert_eq!(handshake_status(Some(&origin), Some(&host)).await, 403);
    let rest = RestClient::new(*address, "none");
    for path in ["/", "/stats_v1?namespace=pages"] {
        let answer = rest.send(&format!("GET {path}"), &[("origin", "null")], Bytes::new()).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.text);
        let answer = rest.send(&format!("GET {path}"), &[("host", &host)], Bytes::new()).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.text);
    }
}
