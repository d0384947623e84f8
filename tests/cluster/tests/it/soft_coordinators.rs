//! What the tests of JGroups' `CENTRAL_LOCK2` check of a coordinator that leaves or crashes, for the leader of a namespace
//! whose durability is SESSION: who holds and who waits stays so, a grant under way is made once, and who joins late is
//! behind. Two members that claim the same lock can't be made with real processes: see `soft_reports.rs` of the core.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use holdfast_client::{Client, Guard, Session};
use holdfast_testkit::{Cluster, RestClient, Setup, Tenant, eventually_within};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::waiting_acquires::{lose_leader, wait_for_another_leader};

const NAMESPACE: &str = "soft";
/// Longer than all changes of leader here.
const TTL: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(40);
const WAITERS: u64 = 4;
/// More than are found by scanning them.
const READERS: usize = 20;

struct World {
    cluster: Cluster,
    tenant: Tenant,
    api: RestClient,
    shard: String,
}

impl World {
    async fn start() -> Self {
        let cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
        let tenant = cluster.create_tenant("soft", &[]).await;
        let api = cluster.rest_client(0, &tenant.key);
        api.json("POST /v1/namespaces", json!({"name": NAMESPACE, "durability": "SESSION"})).await.ok();
        let shard = cluster.locks_shard(&tenant, NAMESPACE);
        Self { cluster, tenant, api, shard }
    }

    async fn member(&self, number: usize) -> Session {
        let url = format!("http://{}", self.cluster.gateway_address(number % 2));
        let client = Client::new(&url, &self.tenant.key).expect("it is a client");
        client.session(NAMESPACE).ttl(TTL).open().await.expect("it is opened")
    }

    /// Members that wait for a lock one after the other. Each notes when it has it, and passes it on.
    async fn waiters(&self, order: &Arc<Mutex<Vec<u64>>>) -> Vec<tokio::task::JoinHandle<Session>> {
        let mut waiting = Vec::new();
        for number in 0..WAITERS {
            let (member, order) = (self.member(number as usize).await, Arc::clone(order));
            waiting.push(tokio::spawn(async move {
                let guard = member.mutex("one").lock_timeout(4 * TIMEOUT).await.expect("it is granted in the end");
                order.lock().push(number);
                guard.release().await.expect("it has it");
                member
            }));
            self.wait_for_queue(number + 1).await;
        }
        waiting
    }

    async fn wait_for_queue(&self, length: u64) {
        eventually_within(TIMEOUT, "so many wait", async || {
            let waits = self.api.call(&format!("GET /v1/namespaces/{NAMESPACE}/waits")).await.ok();
            let count = waits["waits"].as_array().map(Vec::len);
            if count == Some(length as usize) { Ok(()) } else { Err(waits.to_string()) }
        })
        .await;
    }

    async fn wait_for_table(&self) {
        eventually_within(TIMEOUT, "the table is complete", async || {
            let table = self.api.call(&format!("GET /v1/namespaces/{NAMESPACE}")).await.ok()["table"].clone();
            if table["state"] == "READY" { Ok(()) } else { Err(table.to_string()) }
        })
        .await;
    }

    async fn lock(&self, name: &str) -> Value {
        self.api.call(&format!("GET /v1/namespaces/{NAMESPACE}/locks/{name}")).await.ok()["lock"].clone()
    }

    /// The leader stops by itself, as one that is shut down, and starts again once another one leads.
    async fn leader_leaves(&mut self) {
        let (leader, _, term) = self.cluster.wait_leader(&self.shard).await;
        assert!(self.cluster.nodes[leader].terminate().await.success());
        wait_for_another_leader(&self.cluster, &self.shard, (leader, term)).await;
        self.cluster.nodes[leader].start();
        self.cluster.wait_ready().await;
    }
}

async fn expect_order(order: &Mutex<Vec<u64>>, waiting: Vec<tokio::task::JoinHandle<Session>>) {
    for ended in join_all(waiting).await {
        assert_eq!(ended.expect("it was granted").end_reason(), None);
    }
    assert_eq!(*order.lock(), (0..WAITERS).collect::<Vec<u64>>(), "first come, first served");
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_and_waiters_stay_when_the_coordinator_leaves() {
    let mut world = World::start().await;
    let holder = world.member(0).await;
    let guard = holder.mutex("one").lock_timeout(TIMEOUT).await.expect("it is free");
    let order = Arc::default();
    let waiting = world.waiters(&order).await;
    for _ in 0..2 {
        world.leader_leaves().await;
        world.wait_for_table().await;
        world.wait_for_queue(WAITERS).await;
    }
    assert_eq!(world.lock("one").await["write_lock_holder"]["fencing_token"].as_u64(), Some(guard.fencing_token()));
    // One that joins late can't take it, and is behind all others.
    let late = world.member(1).await;
    assert!(late.mutex("one").try_lock().await.is_err());
    let last =
        tokio::spawn(async move { late.mutex("one").lock_timeout(TIMEOUT).await.map(|guard| guard.fencing_token()) });
    world.wait_for_queue(WAITERS + 1).await;
    assert!(!guard.is_lost() && order.lock().is_empty());
    guard.release().await.expect("it has it");
    let token = last.await.expect("it ends").expect("it is granted");
    assert!(token > 0 && order.lock().len() as u64 == WAITERS, "it is the last: {:?}", order.lock());
    expect_order(&order, waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_under_way_is_made_once_when_the_coordinator_crashes() {
    let mut world = World::start().await;
    for _ in 0..3 {
        world.wait_for_table().await;
        let holder = world.member(1).await;
        let guard = holder.mutex("one").lock_timeout(TIMEOUT).await.expect("it is free");
        let order = Arc::default();
        let waiting = world.waiters(&order).await;
        // The release makes a grant, of which anything may be lost with the leader.
        let shard = world.shard.clone();
        let (released, ()) = tokio::join!(guard.release(), lose_leader(&mut world.cluster, &shard, true));
        released.expect("it is released, by this leader or by the next one");
        expect_order(&order, waiting).await;
        assert_eq!(world.lock("one").await["state"], "UNLOCKED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_readers_of_one_lock_outlive_their_coordinator() {
    let mut world = World::start().await;
    let mut readers: Vec<(Session, Guard)> = Vec::new();
    for number in 0..READERS {
        let member = world.member(number).await;
        let guard = member.rw_lock("read").read_timeout(TIMEOUT).await.expect("it is granted");
        readers.push((member, guard));
    }
    let writer = world.member(0).await;
    let writing = tokio::spawn(async move {
        let guard = writer.rw_lock("read").write_timeout(4 * TIMEOUT).await.expect("it is granted in the end");
        guard.fencing_token()
    });
    world.wait_for_queue(1).await;
    let shard = world.shard.clone();
    lose_leader(&mut world.cluster, &shard, true).await;
    world.wait_for_table().await;
    assert_eq!(world.lock("read").await["holders_total"], READERS);
    for (member, guard) in readers {
        assert!(!guard.is_lost() && member.end_reason().is_none() && !writing.is_finished());
        guard.release().await.expect("it has it");
    }
    assert!(writing.await.expect("it ends") > 0);
    world.cluster.wait_equal_states().await;
}
