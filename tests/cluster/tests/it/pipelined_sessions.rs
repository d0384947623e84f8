//! Connected sessions that send several messages at once while leaders are killed: each takes effect once, and no
//! client learns of a loss that did not happen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use holdfast_testkit::{Cluster, EventStream, RestClient, SessionSocket, Setup, eventually};
use serde_json::json;

const CLIENTS: usize = 16;
const KILLS: usize = 5;
/// Of each client, before the next leader is killed.
const ROUNDS: u64 = 50;
const LAST_LOCK: &str = "the last to hold anything";

/// A session and its connection.
struct Client {
    socket: SessionSocket,
    session_id: String,
}

impl Client {
    async fn connect(api: &RestClient) -> Self {
        let mut socket = SessionSocket::connect(api).await;
        // No keep-alive is sent meanwhile.
        let session_id = socket.open_session(600_000).await;
        Self { socket, session_id }
    }

    /// Waits until all these requests are in that state. Only messages about requests may arrive meanwhile.
    async fn wait_for_state(&mut self, state: &str, mut requests: Vec<&str>) {
        while !requests.is_empty() {
            let heard = self.socket.receive().await;
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
        self.socket.send_all([lock(&first)]).await;
        self.wait_for_state("ACQUIRED", vec![&first]).await;
        match number % 4 {
            0 | 2 => {
                self.socket.send_all([release(&first)]).await;
                self.wait_for_state("READY", vec![&first]).await;
            }
            1 => {
                self.socket.send_all([lock(&second), release(&first), release(&second)]).await;
                self.wait_for_state("READY", vec![&first, &second]).await;
            }
            _ => {
                self.socket
                    .send_all([lock(&second), release(&first), lock(&third), json!({"type": "release_all"})])
                    .await;
                self.wait_for_state("READY", vec![&first, &second, &third]).await;
            }
        }
    }
}

/// How often each holder of each session was granted its lock, by the events until the last.
async fn count_grants(mut events: EventStream) -> BTreeMap<(String, String), usize> {
    let mut grants = BTreeMap::new();
    loop {
        let event = events.next().await.data;
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        match text("type").as_str() {
            "ACQUIRED" if text("process_id") == LAST_LOCK => return grants,
            "ACQUIRED" => *grants.entry((text("session_id"), text("holder"))).or_default() += 1,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_at_once_is_done_once_while_leaders_are_killed() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("connected", &["ns"]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let events = EventStream::open(&api, "ns", "?from_revision=1", None).await.expect("a stream");
    let grants = tokio::spawn(count_grants(events));
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(parking_lot::Mutex::new(BTreeMap::new()));
    let clients = join_all((0..CLIENTS).map(|_| Client::connect(&api))).await;
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
