//! A thousand callers wait for locks, permits, members and latches while leaders are killed: all keep their places, each
//! is told one outcome, and nobody is forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use holdfast_proto::v1;
use holdfast_proto::v1::latches_service_client::LatchesServiceClient;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::pools_service_client::PoolsServiceClient;
use holdfast_proto::v1::semaphores_service_client::SemaphoresServiceClient;
use holdfast_testkit::{CallOutcome, Cluster, EventStream, RestClient, Setup, Tenant, eventually, wait_before_retry};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

const NAMESPACE: &str = "orders";
const THINGS_OF_KIND: usize = 5;
const WAITERS_OF_THING: usize = 50;
const CALLERS_PER_CONNECTION: usize = 250;
const GATEWAYS: usize = 2;
/// Longer than the test takes.
const WAIT_MS: u64 = 600_000;
const TTL_MS: u64 = 3_600_000;
/// Of the last latch, which nobody completes. Whoever asks later is told the same.
const EXPIRES_IN_MS: u64 = 20_000;
/// How long it may take until all were told.
const ALL_TOLD_TIMEOUT: Duration = Duration::from_secs(180);
/// Outcomes after which a leader is killed once more.
const TOLD_BEFORE_SECOND_KILL: usize = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ThingKind {
    Lock,
    Semaphore,
    Pool,
    Latch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Thing {
    kind: ThingKind,
    number: usize,
}

impl Thing {
    fn name(self) -> String {
        let kind = match self.kind {
            ThingKind::Lock => "lock",
            ThingKind::Semaphore => "semaphore",
            ThingKind::Pool => "pool",
            ThingKind::Latch => "latch",
        };
        format!("{kind}-{}", self.number)
    }

    /// A call about it.
    fn line(self, verb: &str) -> String {
        let of = match self.kind {
            ThingKind::Lock => format!("locks/{}", self.name()),
            ThingKind::Semaphore => "semaphores".to_owned(),
            ThingKind::Pool => "pools".to_owned(),
            ThingKind::Latch => "latches".to_owned(),
        };
        format!("POST /v1/namespaces/{NAMESPACE}/{of}/{verb}")
    }

    /// Whether those who wait for it have places.
    fn has_queue(self) -> bool {
        self.kind != ThingKind::Latch
    }

    /// Whether nobody completes it.
    fn expires(self) -> bool {
        self.kind == ThingKind::Latch && self.number == THINGS_OF_KIND - 1
    }
}

fn things() -> impl Iterator<Item = Thing> {
    let kinds = [ThingKind::Lock, ThingKind::Semaphore, ThingKind::Pool, ThingKind::Latch];
    kinds.into_iter().flat_map(|kind| (0..THINGS_OF_KIND).map(move |number| Thing { kind, number }))
}

/// What a caller was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    /// With this token.
    Granted(u64),
    Completed,
    Expired,
}

/// A connection to a gateway with a key.
#[derive(Clone)]
struct Connection {
    channel: Channel,
    key: MetadataValue<Ascii>,
}

impl Connection {
    async fn open(cluster: &Cluster, tenant: &Tenant, gateway: usize) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{}", cluster.gateway_address(gateway)));
        let endpoint = endpoint.expect("an address makes a URL").tcp_nodelay(true);
        let channel = endpoint.connect().await.expect("the gateway listens");
        Self { channel, key: format!("Bearer {}", tenant.key).parse().expect("a key is ASCII") }
    }

    fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.key.clone());
        request
    }

    /// Waits for a thing with one call.
    async fn wait_for(&self, thing: Thing, owner: &str) -> Result<Told, Status> {
        let (namespace, name, channel) = (NAMESPACE.to_owned(), Some(thing.name()), self.channel.clone());
        let (process_id, ttl_ms, wait_ms) = (Some(owner.to_owned()), Some(TTL_MS), WAIT_MS);
        let request_id = owner.to_owned();
        match thing.kind {
            ThingKind::Lock => {
                let request =
                    v1::AcquireLockRequest { namespace, name, process_id, ttl_ms, wait_ms, ..Default::default() };
                let answer = LocksServiceClient::new(channel).acquire_lock(self.signed(request)).await?.into_inner();
                Ok(Told::granted(answer.fencing_token, &answer.reason))
            }
            ThingKind::Semaphore => {
                let rest = v1::AcquirePermitsRequest::default();
                let request =
                    v1::AcquirePermitsRequest { namespace, name, process_id, request_id, ttl_ms, wait_ms, ..rest };
                let mut client = SemaphoresServiceClient::new(channel);
                let answer = client.acquire_permits(self.signed(request)).await?.into_inner();
                Ok(Told::granted(answer.fencing_token, &answer.reason))
            }
            ThingKind::Pool => {
                let rest = v1::TakeMembersRequest::default();
                let request =
                    v1::TakeMembersRequest { namespace, name, process_id, request_id, ttl_ms, wait_ms, ..rest };
                let answer = PoolsServiceClient::new(channel).take_members(self.signed(request)).await?.into_inner();
                Ok(Told::granted(answer.fencing_token, &answer.reason))
            }
            ThingKind::Latch => {
                let request = v1::WaitForLatchRequest { namespace, name, wait_ms, ..Default::default() };
                let mut client = LatchesServiceClient::new(channel);
                let answer = client.wait_for_latch(self.signed(request)).await?.into_inner();
                Ok(match answer.outcome() {
                    v1::wait_for_latch_response::Outcome::Completed => Told::Completed,
                    v1::wait_for_latch_response::Outcome::Expired => Told::Expired,
                    other => panic!("{owner} was told {other:?} of {}", thing.name()),
                })
            }
        }
    }
}

impl Told {
    fn granted(token: Option<u64>, reason: &Option<v1::Refusal>) -> Self {
        Self::Granted(token.unwrap_or_else(|| panic!("a request that waits is refused: {reason:?}")))
    }
}

/// Whether the call may be repeated: it was not answered, or not taken.
fn is_repeatable(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled)
}

/// Waits until it is told an outcome, and gives back what it was granted.
async fn wait_until_told(connection: Connection, api: RestClient, thing: Thing, owner: String) -> Told {
    let told = loop {
        match connection.wait_for(thing, &owner).await {
            Ok(told) => break told,
            Err(status) => assert!(is_repeatable(&status), "{owner} waits for {}: {status}", thing.name()),
        }
        wait_before_retry().await;
    };
    if let Told::Granted(_) = told {
        release(&api, thing, &owner).await;
    }
    told
}

/// Releases, again until that is answered.
async fn release(api: &RestClient, thing: Thing, owner: &str) {
    let mut body = json!({"process_id": owner});
    if thing.kind != ThingKind::Lock {
        body["name"] = thing.name().into();
        body["request_id"] = owner.into();
    }
    let line = thing.line("release");
    while let Err(error) = api.fetch::<Value>(&line, Some(body.clone())).await {
        let may_come = error.outcome == CallOutcome::Unknown || error.status == 503 || error.status == 0;
        assert!(may_come, "{owner} releases {}: {error}", thing.name());
        wait_before_retry().await;
    }
}

/// Makes all things, so that whoever comes has to wait.
async fn make_things(api: &RestClient) {
    let hold = |thing: Thing| json!({"name": thing.name(), "process_id": "holder", "request_id": "holder", "ttl_ms": TTL_MS, "permits": 1});
    for thing in things() {
        match thing.kind {
            ThingKind::Lock => drop(api.acquire(NAMESPACE, &thing.name(), "holder").await.expect("it is free")),
            ThingKind::Semaphore => {
                assert_eq!(api.json(&thing.line("acquire"), hold(thing)).await.ok()["success"], true);
            }
            ThingKind::Pool => {
                let members = json!({"name": thing.name(), "members": [{"name": "only"}]});
                api.json(&thing.line("configure"), members).await.ok();
                let mut take = hold(thing);
                take.as_object_mut().expect("it is an object").remove("permits");
                assert_eq!(api.json(&thing.line("take"), take).await.ok()["success"], true);
            }
            ThingKind::Latch => {
                let expires_in_ms = if thing.expires() { EXPIRES_IN_MS } else { TTL_MS };
                let latch = json!({"name": thing.name(), "total": 2, "expires_in_ms": expires_in_ms});
                api.json(&thing.line("create"), latch).await.ok();
            }
        }
    }
}

/// Counts both jobs of a latch, again until that is answered.
async fn complete(api: &RestClient, latch: usize) {
    let thing = Thing { kind: ThingKind::Latch, number: latch };
    eventually(&format!("{} is complete", thing.name()), async || {
        let body = json!({"name": thing.name(), "ids": ["first", "last"]});
        let answer = api.fetch::<Value>(&thing.line("count_down"), Some(body)).await;
        match answer.map_err(|error| error.to_string())?["latch"]["status"].as_str() {
            Some("COMPLETED") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Who waits for each thing, in order. The list is of locks and of what has permits.
async fn queues(api: &RestClient) -> Result<BTreeMap<String, Vec<String>>, String> {
    let (mut queues, mut token) = (BTreeMap::<String, Vec<String>>::new(), String::new());
    loop {
        let query = format!("kinds=locks,semaphores,pools&page_size=1000{token}");
        let page = api.fetch::<Value>(&format!("GET /v1/namespaces/{NAMESPACE}/waits?{query}"), None).await;
        let page = page.map_err(|error| error.to_string())?;
        for row in page["waits"].as_array().into_iter().flatten() {
            let path = if row["kind"].is_null() { &row["resources"][0]["path"] } else { &row["path"] };
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            queues.entry(text(&path[0])).or_default().push(text(&row["process_id"]));
        }
        match page["next_page_token"].as_str() {
            Some(next) => token = format!("&page_token={next}"),
            None => return Ok(queues),
        }
    }
}

/// How many wait for latches at a gateway.
async fn questions(api: &RestClient) -> Result<u64, String> {
    let usage = api.fetch::<Value>("GET /v1/usage", None).await.map_err(|error| error.to_string())?;
    let row = usage["limit_usage"].as_array().into_iter().flatten().find(|row| row["limit"] == "max_held_questions");
    row.and_then(|row| row["used"].as_u64()).ok_or("no such limit".to_owned())
}

/// Waits until everybody waits. Returns the queues.
async fn wait_for_all(apis: &[RestClient]) -> BTreeMap<String, Vec<String>> {
    eventually("all wait", async || {
        let queues = queues(&apis[0]).await?;
        let mut asked = 0;
        for api in apis {
            asked += questions(api).await?;
        }
        let waiting: usize = queues.values().map(Vec::len).sum();
        let expected = things().filter(|thing| thing.has_queue()).count() * WAITERS_OF_THING;
        // The last latch may have expired.
        let least_asked = (THINGS_OF_KIND - 1) * WAITERS_OF_THING;
        if waiting == expected && asked >= least_asked as u64 {
            Ok(queues)
        } else {
            Err(format!("{waiting} wait in queues, and {asked} for latches"))
        }
    })
    .await
}

/// Who was granted each thing, in order, with tokens; as the history tells it, up to now.
async fn grants_by_history(api: &RestClient) -> Grants {
    let end = json!({"name": "the-end", "total": 1});
    api.json(&format!("POST /v1/namespaces/{NAMESPACE}/latches/create"), end).await.ok();
    let query = "?from_revision=1&kinds=locks,semaphores,pools,latches";
    let mut events = EventStream::open(api, NAMESPACE, query, None).await.expect("the history is kept");
    let mut grants = Grants::new();
    loop {
        let event = events.next().await.data;
        let path = if event["kind"].is_null() { &event["claims"][0]["path"] } else { &event["path"] };
        if path[0] == "the-end" {
            return grants;
        }
        if matches!(event["type"].as_str(), Some("ACQUIRED" | "PERMITS_ACQUIRED" | "MEMBERS_TAKEN")) {
            let (owner, token) = (event["process_id"].as_str(), event["fencing_token"].as_u64());
            let grant = (token.expect("a token"), owner.expect("an owner").to_owned());
            grants.entry(path[0].as_str().expect("a text").to_owned()).or_default().push(grant);
        }
    }
}

/// Kills the leader, does something meanwhile, and starts the node again once another leads.
async fn kill_leader(cluster: &mut Cluster, shard: &str, meanwhile: impl Future<Output = ()>) {
    let (leader, _, _) = cluster.wait_leader(shard).await;
    cluster.nodes[leader].kill().await;
    tokio::join!(cluster.wait_leader(shard), meanwhile);
    cluster.nodes[leader].start();
    cluster.wait_ready().await;
}

/// Tokens and owners of the grants of each thing.
type Grants = BTreeMap<String, Vec<(u64, String)>>;
/// What each waits for, as whom, and what it will be told.
type Callers = Vec<(Thing, String, JoinHandle<Told>)>;

async fn spawn_callers(cluster: &Cluster, tenant: &Tenant, told: &Arc<AtomicUsize>) -> Callers {
    let all: Vec<Thing> = (0..WAITERS_OF_THING).flat_map(|_| things()).collect();
    let mut callers = Vec::new();
    for (number, some) in all.chunks(CALLERS_PER_CONNECTION).enumerate() {
        let gateway = number % GATEWAYS;
        let connection = Connection::open(cluster, tenant, gateway).await;
        for thing in some.iter().copied() {
            let owner = format!("caller-{}", callers.len());
            let (connection, told) = (connection.clone(), Arc::clone(told));
            let (api, name) = (cluster.rest_client(gateway, &tenant.key), owner.clone());
            let caller = tokio::spawn(async move {
                let outcome = wait_until_told(connection, api, thing, name).await;
                told.fetch_add(1, Ordering::Relaxed);
                outcome
            });
            callers.push((thing, owner, caller));
        }
    }
    callers
}

/// Waits until all were told. Who was granted each thing, in order of their tokens.
async fn join_callers(callers: Callers, told: &AtomicUsize) -> Grants {
    let mut granted = Grants::new();
    let all = async {
        for (thing, owner, caller) in callers {
            match caller.await.expect("it is told an outcome") {
                Told::Granted(token) => granted.entry(thing.name()).or_default().push((token, owner)),
                outcome => {
                    let expected = if thing.expires() { Told::Expired } else { Told::Completed };
                    assert_eq!(outcome, expected, "{owner} waited for {}", thing.name());
                }
            }
        }
    };
    let in_time = tokio::time::timeout(ALL_TOLD_TIMEOUT, all).await;
    in_time.unwrap_or_else(|_| panic!("only {} were told an outcome", told.load(Ordering::Relaxed)));
    granted.values_mut().for_each(|grants| grants.sort_unstable());
    granted
}

/// Everybody was granted once, in the order of the queues, and told so.
fn assert_grants(told: &Grants, queues: &BTreeMap<String, Vec<String>>, mut history: Grants) {
    assert_eq!(told.len(), queues.len());
    for (name, told) in told {
        let order: Vec<&String> = told.iter().map(|(_, owner)| owner).collect();
        assert_eq!(order, queues[name].iter().collect::<Vec<_>>(), "the order of {name}");
        let mut granted = history.remove(name).expect("it was granted");
        assert_eq!(granted.remove(0).1, "holder");
        assert_eq!(granted, *told, "what callers were told of {name} is what happened");
    }
    assert!(history.is_empty(), "nobody else was granted anything: {history:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_who_wait_for_things_of_all_kinds_keep_their_places_when_leaders_are_killed() {
    let mut cluster = Cluster::start(Setup { gateways: GATEWAYS, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("mixed", &[NAMESPACE]).await;
    let apis: Vec<RestClient> = (0..GATEWAYS).map(|gateway| cluster.rest_client(gateway, &tenant.key)).collect();
    let (api, shard) = (apis[0].clone(), cluster.locks_shard(&tenant, NAMESPACE));
    make_things(&api).await;
    let told = Arc::<AtomicUsize>::default();
    let callers = spawn_callers(&cluster, &tenant, &told).await;
    let before = wait_for_all(&apis).await;
    // Two latches are completed while nobody leads, and two by the next leader.
    kill_leader(&mut cluster, &shard, async {
        complete(&api, 0).await;
        complete(&api, 1).await;
    })
    .await;
    eventually("all have their places", async || match queues(&api).await? {
        now if now == before => Ok(()),
        now => Err(format!("{now:?} is not {before:?}")),
    })
    .await;
    complete(&api, 2).await;
    complete(&api, 3).await;
    join_all(things().filter(|thing| thing.has_queue()).map(|thing| release(&api, thing, "holder"))).await;
    eventually("many were told", async || match told.load(Ordering::Relaxed) {
        many if many >= TOLD_BEFORE_SECOND_KILL => Ok(()),
        few => Err(format!("{few} were")),
    })
    .await;
    kill_leader(&mut cluster, &shard, async {}).await;

    let granted = join_callers(callers, &told).await;
    assert_grants(&granted, &before, grants_by_history(&api).await);
    let usage = api.call("GET /v1/usage").await.ok();
    for nothing in ["holds", "waiting", "permit_holds", "permit_waits"] {
        assert_eq!(usage["namespaces"][0][nothing], 0, "{usage}");
    }
    cluster.wait_equal_states().await;
}
