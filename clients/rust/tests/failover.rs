//! Gateways and leaders of a real cluster are killed under a client, one by one and at once: every caller gets its answer.

use std::time::Duration;

use holdfast_client::{Client, Guard, Session};
use holdfast_contention::{ContendOptions, ContentionFactory, SimbaLocker};
use holdfast_testkit::{Cluster, Setup, Tenant, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const NAMESPACE: &str = "jobs";
/// Long enough for any failover.
const TTL: Duration = Duration::from_secs(20);
const MAX_WAIT: Duration = Duration::from_secs(15);
/// Locks that one holds, and as many that it waits for.
const LOCKS_EACH: usize = 8;

fn client(cluster: &Cluster, tenant: &Tenant) -> Client {
    let urls = cluster.gateways.iter().map(|gateway| format!("http://{}", gateway.address()));
    urls.fold(Client::builder(), |builder, url| builder.gateway(url)).api_key(&tenant.key).build().unwrap()
}

async fn session(cluster: &Cluster, tenant: &Tenant, process_id: &str) -> Session {
    client(cluster, tenant).session(NAMESPACE).process_id(process_id).ttl(TTL).open().await.unwrap()
}

fn spawn_lock(session: &Session, name: &str) -> JoinHandle<Guard> {
    let mutex = session.mutex(name);
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

async fn await_guard(waiting: JoinHandle<Guard>) -> Guard {
    timeout(MAX_WAIT, waiting).await.expect("every caller gets its answer").unwrap()
}

/// Two sessions, each of which holds half of the locks and waits for the other half.
struct SessionPair {
    one: Session,
    other: Session,
    mine: Vec<Guard>,
    theirs: Vec<Guard>,
    waits: Vec<JoinHandle<Guard>>,
    granted: Vec<Guard>,
}

impl SessionPair {
    async fn start(cluster: &Cluster, tenant: &Tenant) -> Self {
        let (one, other) = (session(cluster, tenant, "one").await, session(cluster, tenant, "other").await);
        let (mut mine, mut theirs, mut waits) = (Vec::new(), Vec::new(), Vec::new());
        for at in 0..LOCKS_EACH {
            mine.push(one.mutex(format!("mine-{at}")).lock().await.unwrap());
            let name = format!("theirs-{at}");
            theirs.push(other.mutex(name.as_str()).lock().await.unwrap());
            waits.push(spawn_lock(&one, &name));
        }
        let queued = async || match one.request_count() {
            count if count == 2 * LOCKS_EACH => Ok(()),
            count => Err(format!("{count} requests")),
        };
        eventually("all are asked for", queued).await;
        Self { one, other, mine, theirs, waits, granted: Vec::new() }
    }

    /// Somebody gives a lock back while processes are killed: the next in line gets it, as does one who asks meanwhile.
    async fn survive<T>(&mut self, what: &str, kill: impl Future<Output = T>) {
        let (dying, given) = (self.mine.remove(0), self.theirs.remove(0));
        let (name, token) = (dying.paths().next().unwrap().clone(), dying.fencing_token());
        let mutex = self.other.mutex(&name);
        let next = tokio::spawn(async move { mutex.lock().await.unwrap() });
        // Two releases, two grants and a new request meet those who die.
        let (released, given, _) = tokio::join!(dying.release(), given.release(), kill);
        released.unwrap();
        given.unwrap();
        self.granted.push(await_guard(self.waits.remove(0)).await);
        let next = await_guard(next).await;
        assert!(next.fencing_token() > token, "the unlock took effect");
        self.granted.push(next);
        self.granted.push(await_guard(spawn_lock(&self.one, &format!("asked without {what}"))).await);
        for guard in self.mine.iter().chain(&self.theirs).chain(&self.granted) {
            guard.check().unwrap();
        }
    }

    async fn end(mut self) {
        for guard in self.mine.into_iter().chain(self.theirs).chain(self.granted) {
            guard.check().unwrap();
            guard.release().await.unwrap();
        }
        for wait in self.waits.drain(..) {
            await_guard(wait).await.release().await.unwrap();
        }
        assert_eq!((self.one.request_count(), self.other.request_count()), (0, 0));
    }
}

/// An ownership that is contended for survives it all, too.
struct Contended {
    owner: SimbaLocker,
    next: JoinHandle<SimbaLocker>,
    token: Option<u64>,
}

impl Contended {
    async fn start(cluster: &Cluster, tenant: &Tenant) -> Self {
        let options = ContendOptions::new(TTL);
        let factory = ContentionFactory::service(&client(cluster, tenant), NAMESPACE, options).unwrap();
        let owner = SimbaLocker::new(&factory, "contended").unwrap();
        owner.acquire().await.unwrap();
        let next = SimbaLocker::new(&factory, "contended").unwrap();
        let next = tokio::spawn(async move {
            next.acquire().await.unwrap();
            next
        });
        Self { token: owner.fencing_token(), owner, next }
    }

    async fn end(self) {
        assert!(self.owner.is_owner() && self.owner.fencing_token() == self.token && !self.next.is_finished());
        self.owner.close().await.unwrap();
        let next = timeout(MAX_WAIT, self.next).await.expect("the next one's turn").unwrap();
        assert!(next.is_owner() && next.fencing_token() > self.token);
        next.close().await.unwrap();
    }
}

/// Half of the locks are held, the other half awaited, while one gateway after the other, then the leader, and then a
/// gateway and the leader at once are killed.
#[tokio::test(flavor = "multi_thread")]
async fn every_caller_gets_its_answer_while_gateways_and_leaders_are_killed() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("client", &[NAMESPACE]).await;
    let mut both = SessionPair::start(&cluster, &tenant).await;
    let contended = Contended::start(&cluster, &tenant).await;
    let shard = cluster.locks_shard(&tenant, NAMESPACE);

    // One of them serves each session; both go, one after the other.
    for gateway in 0..2 {
        both.survive(&format!("gateway {gateway}"), cluster.gateways[gateway].kill()).await;
        cluster.gateways[gateway].start();
        cluster.gateways[gateway].wait_ready().await;
    }
    for round in 0..2 {
        let (leader, ..) = cluster.wait_leader(&shard).await;
        both.survive(&format!("leader {round}"), cluster.nodes[leader].kill()).await;
        cluster.nodes[leader].start();
        cluster.wait_ready().await;
    }
    for gateway in 0..2 {
        let (leader, ..) = cluster.wait_leader(&shard).await;
        let (dying_node, dying_gateway) = (&mut cluster.nodes[leader], &mut cluster.gateways[gateway]);
        let kill_both = async { tokio::join!(dying_node.kill(), dying_gateway.kill()) };
        both.survive(&format!("leader and gateway {gateway}"), kill_both).await;
        cluster.nodes[leader].start();
        cluster.gateways[gateway].start();
        cluster.wait_ready().await;
    }
    contended.end().await;
    both.end().await;
}
