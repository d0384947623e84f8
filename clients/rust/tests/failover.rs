//! Gateways and leaders of a real cluster are killed under a client: every caller gets its answer.

use std::time::Duration;

use holdfast_client::{Client, Guard, Session};
use holdfast_cluster_tests::{Cluster, Setup, Tenant, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const NAMESPACE: &str = "jobs";
/// Long enough for any failover.
const TTL: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_secs(15);
/// Locks that one holds, and as many that it waits for.
const EACH: usize = 4;

async fn session(cluster: &Cluster, tenant: &Tenant, process_id: &str) -> Session {
    let urls = cluster.gateways.iter().map(|gateway| format!("http://{}", gateway.address()));
    let client = urls.fold(Client::builder(), |builder, url| builder.gateway(url)).api_key(&tenant.key);
    client.build().unwrap().session(NAMESPACE).process_id(process_id).ttl(TTL).open().await.unwrap()
}

fn waiting(session: &Session, name: &str) -> JoinHandle<Guard> {
    let mutex = session.mutex(name);
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

async fn granted(waiting: JoinHandle<Guard>) -> Guard {
    timeout(SOON, waiting).await.expect("every caller gets its answer").unwrap()
}

/// Half of the locks are held, the other half awaited, while one gateway after the other and then the leader are
/// killed.
#[tokio::test(flavor = "multi_thread")]
async fn every_caller_gets_its_answer_while_gateways_and_leaders_are_killed() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.tenant("client", &[NAMESPACE]).await;
    let (one, other) = (session(&cluster, &tenant, "one").await, session(&cluster, &tenant, "other").await);
    let (mut mine, mut theirs, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..EACH {
        mine.push(one.mutex(format!("mine-{at}")).lock().await.unwrap());
        let name = format!("theirs-{at}");
        theirs.push(other.mutex(name.as_str()).lock().await.unwrap());
        waits.push(waiting(&one, &name));
    }
    let queued = async || match one.request_count() {
        count if count == 2 * EACH => Ok(()),
        count => Err(format!("{count} requests")),
    };
    eventually("all are asked for", queued).await;
    let mut got = Vec::new();

    // One of them serves each session; both go, one after the other.
    for gateway in 0..2 {
        cluster.gateways[gateway].kill().await;
        theirs.remove(0).release().await.unwrap();
        got.push(granted(waits.remove(0)).await);
        cluster.gateways[gateway].start();
        cluster.gateways[gateway].wait_ready().await;
    }

    let shard = cluster.locks_shard(&tenant, NAMESPACE);
    let (leader, ..) = cluster.wait_leader(&shard).await;
    let next = waiting(&other, "mine-0");
    let dying = mine.remove(0);
    let token = dying.fencing_token();
    // A release, a grant and a new request meet the dying leader.
    let (released, _, given) = tokio::join!(dying.release(), cluster.nodes[leader].kill(), theirs.remove(0).release());
    released.unwrap();
    given.unwrap();
    got.push(granted(waits.remove(0)).await);
    let next = granted(next).await;
    assert!(next.fencing_token() > token);
    let fresh = granted(waiting(&one, "asked without that node")).await;
    cluster.nodes[leader].start();
    cluster.wait_ready().await;

    theirs.remove(0).release().await.unwrap();
    got.push(granted(waits.remove(0)).await);
    for guard in mine.into_iter().chain(got).chain([fresh, next]) {
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
    assert_eq!((one.request_count(), other.request_count()), (0, 0));
}
