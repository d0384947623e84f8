//! A thousand callers wait for locks, permits, members, latches, barriers and signals while leaders are killed: all
//! keep their places, each is told one outcome, and nobody is forgotten.

mod connection;
mod things;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use holdfast_testkit::{Cluster, EventStream, RestClient, Setup, Tenant, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use connection::{Connection, Told, wait_until_told};
use things::{NAMESPACE, THINGS_OF_KIND, Thing, ThingKind, WAITERS_OF_THING, complete, let_go, make_things, things};

const CALLERS_PER_CONNECTION: usize = 250;
const GATEWAYS: usize = 2;
/// How long it may take until all were told.
const ALL_TOLD_TIMEOUT: Duration = Duration::from_secs(180);
/// Outcomes after which a leader is killed once more.
const TOLD_BEFORE_SECOND_KILL: usize = 400;

/// Who waits for each thing, in order: by the list of waits, and at barriers as they have arrived.
async fn queues(api: &RestClient) -> Result<BTreeMap<String, Vec<String>>, String> {
    let (mut queues, mut token) = (BTreeMap::<String, Vec<String>>::new(), String::new());
    loop {
        let query = format!("kinds=locks,semaphores,pools,conditions&page_size=1000{token}");
        let page = api.fetch::<Value>(&format!("GET /v1/namespaces/{NAMESPACE}/waits?{query}"), None).await;
        let page = page.map_err(|error| error.to_string())?;
        for row in page["waits"].as_array().into_iter().flatten() {
            let path = if row["kind"].is_null() { &row["resources"][0]["path"] } else { &row["path"] };
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            // Whoever waits for the lock of a condition will await it.
            let awaits = row["kind"].is_null() && text(&path[0]).starts_with("condition-");
            if !awaits {
                queues.entry(text(&path[0])).or_default().push(text(&row["process_id"]));
            }
        }
        match page["next_page_token"].as_str() {
            Some(next) => token = format!("&page_token={next}"),
            None => break,
        }
    }
    for barrier in things().filter(|thing| thing.kind == ThingKind::Barrier) {
        queues.insert(barrier.name(), arrivals(api, barrier).await?);
    }
    Ok(queues)
}

/// Who has come to a barrier, in order, but for the one that was there before.
async fn arrivals(api: &RestClient, barrier: Thing) -> Result<Vec<String>, String> {
    let line = format!("POST /v1/namespaces/{NAMESPACE}/barriers/get");
    let shown = api.fetch::<Value>(&line, Some(json!({"name": barrier.name()}))).await;
    let shown = shown.map_err(|error| error.to_string())?;
    let owners = shown["arrivals"].as_array().into_iter().flatten().filter_map(|row| row["process_id"].as_str());
    Ok(owners.filter(|owner| *owner != "holder").map(str::to_owned).collect())
}

/// How many wait for latches and at barriers at a gateway.
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
        let least_asked = (2 * THINGS_OF_KIND - 1) * WAITERS_OF_THING;
        if waiting == expected && asked >= least_asked as u64 {
            Ok(queues)
        } else {
            Err(format!("{waiting} wait in queues, and {asked} for latches and at barriers"))
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

/// Waits until all were told. Who was granted each thing, in order of their tokens; and who met at each barrier.
async fn join_callers(callers: Callers, told: &AtomicUsize) -> (Grants, Grants) {
    let (mut granted, mut met) = (Grants::new(), Grants::new());
    let all = async {
        for (thing, owner, caller) in callers {
            match caller.await.expect("it is told an outcome") {
                Told::Granted(token) => granted.entry(thing.name()).or_default().push((token, owner)),
                Told::Met(index) => met.entry(thing.name()).or_default().push((index, owner)),
                outcome => {
                    let expected = match (thing.kind, thing.is_given_up()) {
                        (ThingKind::Barrier, _) => Told::Broken,
                        (_, true) => Told::Expired,
                        (_, false) => Told::Completed,
                    };
                    assert_eq!(outcome, expected, "{owner} waited for {}", thing.name());
                    assert!(outcome != Told::Broken || thing.is_given_up(), "{} was to trip", thing.name());
                }
            }
        }
    };
    let in_time = tokio::time::timeout(ALL_TOLD_TIMEOUT, all).await;
    in_time.unwrap_or_else(|_| panic!("only {} were told an outcome", told.load(Ordering::Relaxed)));
    granted.values_mut().chain(met.values_mut()).for_each(|grants| grants.sort_unstable());
    (granted, met)
}

/// Everybody was granted once, in the order of the queues, and told so.
fn assert_grants(told: &Grants, queues: &BTreeMap<String, Vec<String>>, mut history: Grants) {
    let is_granted = |thing: &Thing| !matches!(thing.kind, ThingKind::Latch | ThingKind::Barrier);
    for thing in things().filter(is_granted) {
        let name = thing.name();
        let (told, mut granted) = (&told[&name], history.remove(&name).expect("it was granted"));
        let owners = |grants: &[(u64, String)]| grants.iter().map(|(_, owner)| owner.clone()).collect::<Vec<_>>();
        assert_eq!(owners(told), queues[&name], "the order of {name}");
        if thing.kind == ThingKind::Condition {
            // They have had the lock in this order before they gave it up.
            let before = granted.drain(..WAITERS_OF_THING).collect::<Vec<_>>();
            assert_eq!(owners(&before), queues[&name], "the order of the awaits of {name}");
        }
        assert_eq!(granted.remove(0).1, "holder");
        assert_eq!(granted, *told, "what callers were told of {name} is what happened");
    }
    assert!(history.is_empty(), "nobody else was granted anything: {history:?}");
}

/// Each met the others in its place, behind whoever came first; and all did, or none.
fn assert_met(met: &Grants, queues: &BTreeMap<String, Vec<String>>) {
    for barrier in things().filter(|thing| thing.kind == ThingKind::Barrier && !thing.is_given_up()) {
        let name = barrier.name();
        let order: Vec<(u64, String)> = (1..).zip(queues[&name].clone()).collect();
        assert_eq!(met[&name], order, "the places at {name}");
    }
    assert_eq!(met.len(), THINGS_OF_KIND - 1);
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
    join_all(things().filter(|thing| thing.has_queue()).map(|thing| let_go(&api, thing))).await;
    eventually("many were told", async || match told.load(Ordering::Relaxed) {
        many if many >= TOLD_BEFORE_SECOND_KILL => Ok(()),
        few => Err(format!("{few} were")),
    })
    .await;
    kill_leader(&mut cluster, &shard, async {}).await;

    let (granted, met) = join_callers(callers, &told).await;
    assert_met(&met, &before);
    assert_grants(&granted, &before, grants_by_history(&api).await);
    let usage = api.call("GET /v1/usage").await.ok();
    for nothing in ["holds", "waiting", "permit_holds", "permit_waits", "awaiting", "arrivals"] {
        assert_eq!(usage["namespaces"][0][nothing], 0, "{usage}");
    }
    cluster.wait_equal_states().await;
}
