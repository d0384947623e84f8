//! Connected sessions that say several things at once while leaders are killed: each is done once, and nobody is told of
//! a loss that there was not.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::{SinkExt, StreamExt};
use holdfast_cluster_tests::{Cluster, Setup, eventually};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

const CLIENTS: usize = 16;
const KILLS: usize = 5;
/// Of each client, before the next leader is killed.
const ROUNDS: u64 = 50;
/// Far longer than a failover takes.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const LAST_LOCK: &str = "the last to hold anything";

/// A session and its connection.
struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    seq: u64,
    session_id: String,
}

impl Client {
    async fn connect(address: SocketAddr, key: &str) -> Self {
        let mut request = format!("ws://{address}/v1/namespaces/ns/connect").into_client_request().expect("an address");
        let bearer = format!("Bearer {key}").parse().expect("a header");
        request.headers_mut().insert("authorization", bearer);
        let (socket, _) = connect_async(request).await.expect("it connects");
        let mut client = Self { socket, seq: 0, session_id: String::new() };
        client.send([json!({"type": "open", "process_id": "p", "ttl_ms": 60_000})]).await;
        client.session_id = client.receive().await["session_id"].as_str().expect("a session has an id").to_owned();
        client
    }

    /// Sends all of them in one piece.
    async fn send(&mut self, messages: impl IntoIterator<Item = Value>) {
        for mut message in messages {
            self.seq += 1;
            message["seq"] = json!(self.seq);
            self.socket.feed(message.to_string().into()).await.expect("it takes a message");
        }
        self.socket.flush().await.expect("it takes messages");
    }

    async fn receive(&mut self) -> Value {
        timeout(RESPONSE_TIMEOUT, self.next_text()).await.expect("an answer comes")
    }

    async fn next_text(&mut self) -> Value {
        loop {
            let frame = self.socket.next().await.expect("the connection stays").expect("the connection stays");
            if let Message::Text(text) = frame {
                return serde_json::from_str(&text).expect("messages are JSON");
            }
        }
    }

    /// Waits until all these requests are in that state. What is heard on the way may only be of requests.
    async fn wait_for_state(&mut self, state: &str, mut requests: Vec<&str>) {
        while !requests.is_empty() {
            let heard = self.receive().await;
            assert_eq!(heard["type"], "state", "while {requests:?} were to be {state}: {heard}");
            requests.retain(|request_id| heard["request_id"] != *request_id || heard["state"] != state);
        }
    }

    /// Takes a lock and gives it back; in every other round it hands it on within the session first, all in one piece.
    async fn run_round(&mut self, path: &str, number: u64) {
        let [first, second, third] = ["first", "second", "third"].map(|which| format!("{which}-{number}"));
        let resources = json!([{"path": [path], "mode": "WRITE"}]);
        let lock = |id: &str| json!({"type": "lock", "request_id": id, "holder": id, "resources": resources});
        let release = |id: &str| json!({"type": "release", "request_id": id});
        self.send([lock(&first)]).await;
        self.wait_for_state("ACQUIRED", vec![&first]).await;
        match number % 4 {
            0 | 2 => {
                self.send([release(&first)]).await;
                self.wait_for_state("READY", vec![&first]).await;
            }
            1 => {
                self.send([lock(&second), release(&first), release(&second)]).await;
                self.wait_for_state("READY", vec![&first, &second]).await;
            }
            _ => {
                self.send([lock(&second), release(&first), lock(&third), json!({"type": "release_all"})]).await;
                self.wait_for_state("READY", vec![&first, &second, &third]).await;
            }
        }
    }
}

/// How often each holder of each session was granted its lock, by the events until the last.
async fn count_grants(mut stream: reqwest::Response) -> BTreeMap<(String, String), usize> {
    let (mut grants, mut text) = (BTreeMap::new(), String::new());
    while let Some(bytes) = stream.chunk().await.expect("the stream does not break off") {
        text.push_str(std::str::from_utf8(&bytes).expect("whole characters"));
        while let Some((line, rest)) = text.split_once('\n') {
            if let Some(data) = line.strip_prefix("data:") {
                let event: Value = serde_json::from_str(data.trim()).expect("data is JSON");
                let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
                match text("type").as_str() {
                    "ACQUIRED" if text("process_id") == LAST_LOCK => return grants,
                    "ACQUIRED" => *grants.entry((text("session_id"), text("holder"))).or_default() += 1,
                    _ => {}
                }
            }
            text = rest.to_owned();
        }
    }
    panic!("the stream ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_at_once_is_done_once_while_leaders_are_killed() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("connected", &["ns"]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let grants =
        tokio::spawn(count_grants(api.stream("/v1/namespaces/ns/events?from_revision=1").await.expect("a stream")));
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(parking_lot::Mutex::new(BTreeMap::new()));
    let address = cluster.gateways[0].address();
    let clients = join_all((0..CLIENTS).map(|_| Client::connect(address, &tenant.key))).await;
    let working = clients.into_iter().enumerate().map(|(at, mut client)| {
        let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
        tokio::spawn(async move {
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                client.run_round(&format!("lock-{at}"), number).await;
                done.lock().insert(client.session_id.clone(), number + 1);
            }
        })
    });
    let working: Vec<_> = working.collect();
    for kill in 1..=KILLS as u64 {
        eventually("every client has done its rounds", async || {
            let fewest = done.lock().values().min().copied().unwrap_or_default();
            let is_broken = working.iter().any(tokio::task::JoinHandle::is_finished);
            if fewest >= kill * ROUNDS || is_broken { Ok(()) } else { Err(format!("one has done {fewest}")) }
        })
        .await;
        let (leader, ..) = cluster.wait_leader(&cluster.locks_shard(&tenant, "ns")).await;
        cluster.nodes[leader].kill().await;
        cluster.nodes[leader].start();
        cluster.wait_ready().await;
    }
    stop.store(true, Ordering::Relaxed);
    for client in working {
        client.await.expect("it was told nothing but what became of its requests");
    }
    api.acquire("ns", "last", LAST_LOCK).await.expect("it is free");
    let grants = grants.await.expect("events are told");
    let twice: Vec<_> = grants.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "granted more than once: {twice:?}");
    let rounds: u64 = done.lock().values().sum();
    let first = grants.keys().filter(|(_, holder)| holder.starts_with("first-")).count() as u64;
    assert_eq!(first, rounds, "each round has a grant that its client was told of");
    println!("{rounds} rounds, {} grants, {KILLS} kills", grants.len());
}
