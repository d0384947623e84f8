//! Holders of permits and of members, arrivals at barriers and owners that await a signal, which die by `kill -9`:
//! others go on once the service says that their time is over, and nothing is left of them.
//!
//! The holders are processes of their own, which run a test of this file.

use std::io::{Read, stdin};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_client::Client;
use holdfast_testkit::{Cluster, EventStream, RestClient, Setup, eventually, wait_before_retry};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const NAMESPACE: &str = "orders";
/// What a holder is told of what it is to hold.
const ORDERS: &str = "HOLDFAST_TEST_HOLDER";
const HOLDER_TEST: &str = "killed_holders::holds_until_it_is_killed";
/// Of the barriers. One of them never comes.
const PARTIES: u32 = 3;
const CONDITION: &str = "news";
/// Of a session, and of a hold of a process.
const TTL: Duration = Duration::from_millis(1_500);
/// What the service may be late when the machine does nothing else.
const MAX_LATENESS_MS: u64 = 50;
/// A disk that stalls, or a process that is not run for a while, makes any one late, but not so many in a row.
const MAX_TRIES: usize = 10;
/// Times are cut to whole milliseconds, here and at the leader, whose clock need not run as fast.
const ROUNDING_ERROR_MS: u64 = 5;

/// Long enough for all that a wait is for.
const WAIT_MS: u64 = 15_000;
/// Of what the others get.
const LONG_TTL: Duration = Duration::from_secs(600);

/// What a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum HeldKind {
    Permit,
    Member,
    /// At a barrier, for which somebody else has come, too, and one is missing.
    Arrival,
    /// It has given a lock up for it, and waits for the lock again.
    Signal,
}

/// A process that holds one thing, by a session with a connection or as a process with a time to live.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Holder {
    address: std::net::SocketAddr,
    key: String,
    held: HeldKind,
    has_session: bool,
}

impl Holder {
    /// What it calls itself, and what it holds.
    fn name(&self) -> String {
        let thing = match self.held {
            HeldKind::Permit => "permits",
            HeldKind::Member => "members",
            HeldKind::Arrival => "arrival",
            HeldKind::Signal => "signal",
        };
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
        let kind = match self.held {
            HeldKind::Permit => "semaphores",
            HeldKind::Member => "pools",
            HeldKind::Arrival => "barriers",
            HeldKind::Signal => "conditions",
        };
        format!("POST /v1/namespaces/{NAMESPACE}/{kind}/{verb}")
    }

    /// A call about the lock that somebody gives up for a signal.
    async fn lock_call(&self, api: &RestClient, verb: &str, owner: &str) -> Value {
        let line = format!("POST /v1/namespaces/{NAMESPACE}/locks/{}/{verb}", self.name());
        let mut body = json!({"process_id": owner});
        if verb == "acquire" {
            body["ttl_ms"] = (LONG_TTL.as_millis() as u64).into();
            body["wait_ms"] = WAIT_MS.into();
        }
        api.json(&line, body).await.ok()
    }

    /// The request of a process for the thing.
    fn request(&self, process_id: &str, ttl: Duration, wait_ms: u64) -> Value {
        let ttl_ms = ttl.as_millis() as u64;
        let mut body = json!({"name": self.name(), "process_id": process_id, "ttl_ms": ttl_ms, "wait_ms": wait_ms});
        if matches!(self.held, HeldKind::Permit | HeldKind::Member) {
            body["request_id"] = "r".into();
        }
        match self.held {
            // It is made by whoever comes first, and gone with the last.
            HeldKind::Permit => body["permits"] = 1.into(),
            HeldKind::Arrival => body["parties"] = PARTIES.into(),
            HeldKind::Member | HeldKind::Signal => {}
        }
        body
    }

    fn acquire_line(&self) -> String {
        self.line(match self.held {
            HeldKind::Permit => "acquire",
            HeldKind::Member => "take",
            HeldKind::Arrival => "arrive",
            HeldKind::Signal => "await",
        })
    }

    /// How many wait for what it has, and whoever has the thing; null if nobody has.
    async fn thing(&self, api: &RestClient) -> (u64, Value) {
        if self.held == HeldKind::Signal {
            return self.awaited_signal(api).await;
        }
        let answer = api.json(&self.line("get"), json!({"name": self.name()})).await;
        if answer.status == 404 {
            return (0, Value::Null);
        }
        let shown = answer.ok();
        match self.held {
            HeldKind::Permit => (count(&shown["semaphore"]["waiting"]), shown["holders"][0].clone()),
            HeldKind::Member => (count(&shown["pool"]["waiting"]), shown["members"][0]["holder"].clone()),
            _ => (count(&shown["barrier"]["arrived"]).saturating_sub(1), shown["arrivals"][0].clone()),
        }
    }

    /// Before it is signalled: its wait. Once it is signalled it is in the way of the other one, which awaits the next
    /// signal.
    async fn awaited_signal(&self, api: &RestClient) -> (u64, Value) {
        let line = format!("GET /v1/namespaces/{NAMESPACE}/waits?kinds=conditions");
        let waits = api.call(&line).await.ok()["waits"].clone();
        let of = |owner: &str| waits.as_array().into_iter().flatten().find(|wait| wait["process_id"] == owner).cloned();
        let lock = api.call(&format!("GET /v1/namespaces/{NAMESPACE}/locks/{}", self.name())).await.ok();
        let is_woken = of("next").is_some() && lock["lock"]["waiting"] == 1;
        (u64::from(is_woken), of(&self.name()).unwrap_or_default())
    }

    /// How long its hold or its session still lives, as the service says; nothing once it has ended.
    async fn remaining_ms(&self, api: &RestClient) -> Option<u64> {
        if self.has_session {
            let line = format!("GET /v1/namespaces/{NAMESPACE}/sessions");
            let sessions = api.call(&line).await.ok()["sessions"].clone();
            let mine = sessions.as_array()?.iter().find(|session| session["process_id"] == self.name())?;
            return mine["remaining_ms"].as_u64();
        }
        let (_, holder) = self.thing(api).await;
        if holder["process_id"] == self.name() { holder["remaining_ms"].as_u64() } else { None }
    }
}

fn count(value: &Value) -> u64 {
    value.as_u64().expect("a number")
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
            let arrived = holder.held == HeldKind::Arrival && answer["outcome"] == "WAITING";
            assert!(arrived || answer["success"] == true, "{answer}");
        }
    }
    let client = Client::new(&format!("http://{}", holder.address), &holder.key).expect("an address makes a URL");
    let session = client.session(NAMESPACE).process_id(holder.name()).ttl(TTL).open().await.expect("it is opened");
    let name = holder.name();
    match holder.held {
        HeldKind::Permit => {
            let permit = session.semaphore(name.as_str()).permits(1).acquire(1).await.expect("it is free");
            _ = permit.lost().await;
        }
        HeldKind::Member => {
            let lease = session.pool(name.as_str()).take(1).await.expect("it is free");
            _ = lease.lost().await;
        }
        HeldKind::Arrival => _ = session.barrier(name.as_str()).parties(PARTIES).wait().await,
        HeldKind::Signal => {
            let guard = session.mutex(name.as_str()).lock().await.expect("it is free");
            _ = guard.wait(&session.condition(CONDITION)).await;
        }
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
            // The last keep-alive arrived in between.
            seen
        } else {
            let earliest_ms = seen.earliest_ms.max(end.earliest_ms);
            HolderEnd { earliest_ms, latest_ms: seen.latest_ms.min(end.latest_ms).max(earliest_ms) }
        };
        wait_before_retry().await;
    }
}

/// Lets somebody wait for what the holder has. Returns when that one was let go on, as the caller is told.
async fn wait_to_go_on(api: &RestClient, holder: &Holder) -> u64 {
    if holder.held == HeldKind::Signal {
        return wait_for_signal(api, holder).await;
    }
    let answer = api.json(&holder.acquire_line(), holder.request("next", LONG_TTL, WAIT_MS)).await.ok();
    let told_ms = now_ms();
    if holder.held == HeldKind::Arrival {
        assert_eq!(answer["outcome"], "BROKEN", "{}: {answer}", holder.name());
        return told_ms;
    }
    assert_eq!(answer["success"], true, "{}: {answer}", holder.name());
    let (_, next) = holder.thing(api).await;
    assert_eq!(next["process_id"], "next", "{next}");
    told_ms
}

/// Signals while two await that, the holder first; the other one has the signal when the holder has ended without the
/// lock. Returns when the service told of that.
async fn wait_for_signal(api: &RestClient, holder: &Holder) -> u64 {
    let events = EventStream::open(api, NAMESPACE, "?kinds=conditions", None).await;
    let mut events = events.expect("there is room for a watcher");
    let mut body = holder.request("next", LONG_TTL, WAIT_MS);
    body["condition"] = CONDITION.into();
    body["fencing_token"] = holder.lock_call(api, "acquire", "next").await["fencing_token"].clone();
    let line = holder.acquire_line();
    let signal = async {
        eventually("both await", async || {
            let page = api.call(&format!("GET /v1/namespaces/{NAMESPACE}/conditions")).await.ok();
            if page["conditions"][0]["awaiting"] == 2 { Ok(()) } else { Err(page.to_string()) }
        })
        .await;
        let granted = holder.lock_call(api, "acquire", "signaller").await;
        assert_eq!(granted["success"], true, "{granted}");
        let body = json!({"name": holder.name(), "process_id": "signaller", "condition": CONDITION});
        let answer = api.json(&holder.line("signal"), body).await.ok();
        assert_eq!((&answer["signalled"], &answer["awaiting"]), (&json!(1), &json!(1)), "{answer}");
        let told_ms = loop {
            let event = events.next().await.data;
            if event["type"] == "SIGNALLED" && event["process_id"] == "next" {
                break now_ms();
            }
        };
        assert_eq!(holder.lock_call(api, "release", "signaller").await["released"], true);
        told_ms
    };
    let (answer, told_ms) = tokio::join!(api.json(&line, body), signal);
    let answer = answer.ok();
    assert_eq!((&answer["success"], &answer["woken"]), (&json!(true), &json!("SIGNALLED")), "{answer}");
    told_ms
}

/// Gives back what the other one has.
async fn clear(api: &RestClient, holder: &Holder) {
    match holder.held {
        HeldKind::Permit | HeldKind::Member => {
            let release = json!({"name": holder.name(), "process_id": "next", "request_id": "r"});
            assert_eq!(api.json(&holder.line("release"), release).await.ok()["released"], true);
        }
        HeldKind::Arrival => {
            let deleted = api.json(&holder.line("delete"), json!({"name": holder.name()})).await;
            assert_eq!(deleted.status, 204);
        }
        HeldKind::Signal => assert_eq!(holder.lock_call(api, "release", "next").await["released"], true),
    }
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
        let (told_ms, end) = tokio::join!(wait_to_go_on(api, holder), observe_end(api, holder));
        assert!(told_ms + ROUNDING_ERROR_MS >= end.earliest_ms, "{}: {told_ms} is before {end:?}", holder.name());
        (told_ms, end)
    };
    let kill = async {
        for holder in holders {
            eventually("somebody waits", async || match holder.thing(api).await.0 {
                1 => Ok(()),
                other => Err(format!("{}: {other}", holder.name())),
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
        clear(api, holder).await;
    }
    late
}

/// What there is none of when nobody does anything.
const COUNTED: [&str; 9] =
    ["holds", "waiting", "sessions", "semaphores", "permit_holds", "permit_waits", "barriers", "arrivals", "awaiting"];

/// What `GET /v1/usage` says of what is there now.
async fn usage(api: &RestClient) -> Value {
    let usage = api.call("GET /v1/usage").await.ok();
    let of = &usage["namespaces"][0];
    let names = COUNTED.into_iter().chain(["pools"]);
    let mut now: Value = names.map(|name| (name.to_owned(), of[name].clone())).collect();
    let kinds = ["semaphores", "barriers", "conditions", "sessions", "holds", "waiting"];
    now["bytes"] = kinds.into_iter().map(|kind| (kind.to_owned(), of["state_bytes"][kind].clone())).collect();
    now
}

#[tokio::test(flavor = "multi_thread")]
async fn others_go_on_when_the_time_of_a_killed_holder_is_over_and_nothing_is_left() {
    let cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("killed", &[NAMESPACE]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let things = [HeldKind::Permit, HeldKind::Member, HeldKind::Arrival].map(|held| [(held, false), (held, true)]);
    let (address, key) = (cluster.gateway_address(0), &tenant.key);
    // A process that awaits a signal has no time to live: its wait ends with the call.
    let holders: Vec<Holder> = things
        .into_iter()
        .flatten()
        .chain([(HeldKind::Signal, true)])
        .map(|(held, has_session)| Holder { address, key: key.clone(), held, has_session })
        .collect();
    for pool in holders.iter().filter(|holder| holder.held == HeldKind::Member) {
        let one_member = json!({"name": pool.name(), "members": [{"name": "only"}]});
        api.json(&pool.line("configure"), one_member).await.ok();
    }
    let before = usage(&api).await;
    for nothing in COUNTED {
        assert_eq!(before[nothing], 0, "{before}");
    }
    let mut best = vec![u64::MAX; holders.len()];
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
