//! Holders of permits and of members that die by `kill -9`: others go on once the service says that their time is over,
//! and nothing is left of them.
//!
//! The holders are processes of their own, which run a test of this file.

use std::io::{Read, stdin};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_client::Client;
use holdfast_testkit::{Cluster, RestClient, Setup, eventually, wait_before_retry};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const NAMESPACE: &str = "orders";
/// What a holder is told of what it is to hold.
const ORDERS: &str = "HOLDFAST_TEST_HOLDER";
const HOLDER_TEST: &str = "killed_holders::holds_until_it_is_killed";
/// Of a session, and of a hold of a process.
const TTL: Duration = Duration::from_millis(1_500);
/// What the service may be late when the machine does nothing else.
const MAX_LATENESS_MS: u64 = 50;
/// A disk that stalls, or a process that is not run for a while, makes any one late, but not so many in a row.
const MAX_TRIES: usize = 10;
/// Times are cut to whole milliseconds, here and at the leader, whose clock need not run as fast.
const ROUNDING_ERROR_MS: u64 = 5;

/// A process that holds one thing, by a session with a connection or as a process with a time to live.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Holder {
    address: std::net::SocketAddr,
    key: String,
    is_pool: bool,
    has_session: bool,
}

impl Holder {
    /// What it calls itself, and what it holds.
    fn name(&self) -> String {
        let thing = if self.is_pool { "members" } else { "permits" };
        let owner = if self.has_session { "session" } else { "process" };
        format!("{thing}-of-{owner}")
    }

    fn spawn(&self) -> Running {
        let program = std::env::current_exe().expect("the system knows which program runs");
        let mut command = Command::new(program);
        command.args(["--exact", HOLDER_TEST, "--ignored", "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::null());
        command.env(ORDERS, serde_json::to_string(self).expect("it can be written"));
        Running(command.spawn().expect("it starts"))
    }

    fn line(&self, verb: &str) -> String {
        let kind = if self.is_pool { "pools" } else { "semaphores" };
        format!("POST /v1/namespaces/{NAMESPACE}/{kind}/{verb}")
    }

    /// The request of a process for the thing.
    fn request(&self, process_id: &str, ttl: Duration, wait_ms: u64) -> Value {
        let mut body = json!({
            "name": self.name(), "process_id": process_id, "request_id": "r", "ttl_ms": ttl.as_millis() as u64,
            "wait_ms": wait_ms,
        });
        if !self.is_pool {
            // It is made by whoever comes first, and gone with the last.
            body["permits"] = 1.into();
        }
        body
    }

    fn acquire_line(&self) -> String {
        self.line(if self.is_pool { "take" } else { "acquire" })
    }

    /// The thing and who has it; null if there is neither.
    async fn thing(&self, api: &RestClient) -> (Value, Value) {
        let answer = api.json(&self.line("get"), json!({"name": self.name()})).await;
        if answer.status == 404 {
            return (Value::Null, Value::Null);
        }
        let shown = answer.ok();
        match self.is_pool {
            true => (shown["pool"].clone(), shown["members"][0]["holder"].clone()),
            false => (shown["semaphore"].clone(), shown["holders"][0].clone()),
        }
    }

    /// How long its hold or its session still lives, as the service says; nothing once it has ended.
    async fn remaining_ms(&self, api: &RestClient) -> Option<u64> {
        let (_, holder) = self.thing(api).await;
        if holder["process_id"] != self.name() {
            return None;
        }
        let Some(session_id) = holder["session_id"].as_str() else { return holder["remaining_ms"].as_u64() };
        let session = api.call(&format!("GET /v1/namespaces/{NAMESPACE}/sessions/{session_id}")).await;
        if session.status == 404 { None } else { session.ok()["remaining_ms"].as_u64() }
    }
}

/// Holds its thing and shows that it lives, for as long as that is so.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in processes of its own, which are killed"]
async fn holds_until_it_is_killed() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let holder: Holder = serde_json::from_str(&orders).expect("orders can be read");
    std::thread::spawn(|| {
        // It ends with the process that started it.
        let _ = stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    if !holder.has_session {
        let (api, mut beat) = (RestClient::new(holder.address, &holder.key), tokio::time::interval(TTL / 3));
        loop {
            beat.tick().await;
            let request = holder.request(&holder.name(), TTL, 0);
            let answer = api.json(&holder.acquire_line(), request).await.ok();
            assert_eq!(answer["success"], true, "{answer}");
        }
    }
    let client = Client::new(&format!("http://{}", holder.address), &holder.key).expect("an address makes a URL");
    let session = client.session(NAMESPACE).process_id(holder.name()).ttl(TTL).open().await.expect("it is opened");
    if holder.is_pool {
        let lease = session.pool(holder.name().as_str()).take(1).await.expect("it is free");
        lease.lost().await;
    } else {
        let permit = session.semaphore(holder.name().as_str()).permits(1).acquire(1).await.expect("it is free");
        permit.lost().await;
    }
    panic!("it lost what it holds");
}

/// A process that is killed with this value.
struct Running(Child);

impl Running {
    /// `kill -9`, and waits until it is gone.
    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Milliseconds since the first call. The clocks of shards show another time, each its own.
fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64
}

/// When the time of a holder is over, as far as looks at it tell.
#[derive(Debug)]
struct HolderEnd {
    earliest_ms: u64,
    latest_ms: u64,
}

/// Looks until it has ended.
async fn observe_end(api: &RestClient, holder: &Holder) -> HolderEnd {
    let mut end = HolderEnd { earliest_ms: 0, latest_ms: u64::MAX };
    loop {
        let asked_ms = now_ms();
        let Some(remaining_ms) = holder.remaining_ms(api).await else { return end };
        let seen = HolderEnd { earliest_ms: asked_ms + remaining_ms, latest_ms: now_ms() + remaining_ms };
        end = if seen.earliest_ms > end.latest_ms {
            // The last sign of life arrived in between.
            seen
        } else {
            let earliest_ms = seen.earliest_ms.max(end.earliest_ms);
            HolderEnd { earliest_ms, latest_ms: seen.latest_ms.min(end.latest_ms).max(earliest_ms) }
        };
        wait_before_retry().await;
    }
}

/// Lets somebody wait for what the holder has. Returns when that was granted, as the caller is told.
async fn wait_for_grant(api: &RestClient, holder: &Holder) -> u64 {
    let answer = api.json(&holder.acquire_line(), holder.request("next", Duration::from_secs(600), 15_000)).await.ok();
    let told_ms = now_ms();
    assert_eq!(answer["success"], true, "{}: {answer}", holder.name());
    let (_, next) = holder.thing(api).await;
    assert_eq!(next["process_id"], "next", "{next}");
    told_ms
}

/// Kills all holders while others wait. How late each of these was let in.
async fn kill_all(api: &RestClient, holders: &[Holder]) -> Vec<u64> {
    let running: Vec<Running> = holders.iter().map(Holder::spawn).collect();
    for holder in holders {
        eventually(&format!("{} holds", holder.name()), async || {
            let (_, by) = holder.thing(api).await;
            if by["process_id"] == holder.name() { Ok(()) } else { Err(by.to_string()) }
        })
        .await;
    }
    let observe = async |holder: &Holder| {
        let (told_ms, end) = tokio::join!(wait_for_grant(api, holder), observe_end(api, holder));
        assert!(told_ms + ROUNDING_ERROR_MS >= end.earliest_ms, "{}: {told_ms} is before {end:?}", holder.name());
        (told_ms, end)
    };
    let kill = async {
        for holder in holders {
            eventually("somebody waits", async || match holder.thing(api).await.0["waiting"].as_u64() {
                Some(1) => Ok(()),
                other => Err(format!("{}: {other:?}", holder.name())),
            })
            .await;
        }
        running.into_iter().for_each(Running::kill);
        now_ms()
    };
    let (observed, killed_ms) = tokio::join!(join_all(holders.iter().map(observe)), kill);
    let late = holders.iter().zip(observed).map(|(holder, (told_ms, end))| {
        let at_most_ms = killed_ms + TTL.as_millis() as u64 + ROUNDING_ERROR_MS;
        println!("{}: killed at {killed_ms}, over at {end:?}, the next was told at {told_ms}", holder.name());
        told_ms.saturating_sub(end.latest_ms).max(end.latest_ms.saturating_sub(at_most_ms))
    });
    let late: Vec<u64> = late.collect();
    for holder in holders {
        let release = json!({"name": holder.name(), "process_id": "next", "request_id": "r"});
        assert_eq!(api.json(&holder.line("release"), release).await.ok()["released"], true);
    }
    late
}

/// What `GET /v1/usage` says of what is there now.
async fn usage(api: &RestClient) -> Value {
    let usage = api.call("GET /v1/usage").await.ok();
    let of = &usage["namespaces"][0];
    let names = ["holds", "waiting", "sessions", "semaphores", "pools", "permit_holds", "permit_waits"];
    let mut now: Value = names.iter().map(|name| ((*name).to_owned(), of[name].clone())).collect();
    now["bytes"] = json!({"semaphores": of["state_bytes"]["semaphores"], "sessions": of["state_bytes"]["sessions"]});
    now
}

#[tokio::test(flavor = "multi_thread")]
async fn others_go_on_when_the_time_of_a_killed_holder_is_over_and_nothing_is_left() {
    let cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("killed", &[NAMESPACE]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    let (address, key) = (cluster.gateway_address(0), &tenant.key);
    let holders = kinds.map(|(is_pool, has_session)| Holder { address, key: key.clone(), is_pool, has_session });
    for pool in holders.iter().filter(|holder| holder.is_pool) {
        let one_member = json!({"name": pool.name(), "members": [{"name": "only"}]});
        api.json(&pool.line("configure"), one_member).await.ok();
    }
    let before = usage(&api).await;
    for nothing in ["sessions", "semaphores", "permit_holds", "permit_waits"] {
        assert_eq!(before[nothing], 0, "{before}");
    }
    let mut best = [u64::MAX; 4];
    for attempt in 1.. {
        for (best, late) in best.iter_mut().zip(kill_all(&api, &holders).await) {
            *best = late.min(*best);
        }
        eventually("nothing is left", async || match usage(&api).await {
            now if now == before => Ok(()),
            now => Err(now.to_string()),
        })
        .await;
        if best.iter().all(|late| *late <= MAX_LATENESS_MS) {
            break;
        }
        assert!(attempt < MAX_TRIES, "at best they were let in {best:?} ms late");
    }
    cluster.wait_equal_states().await;
}
