//! `holdfast lock` while gateways and leaders of a real cluster are killed.

use std::process::Stdio;
use std::time::Duration;

use holdfast_testkit::{Cluster, Setup, Tenant};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

const NAMESPACE: &str = "builds";
const MAX_WAIT: Duration = Duration::from_secs(20);

/// Says its token when it has the lock, and holds it until its input is closed.
struct LockHolder {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl LockHolder {
    fn start(cluster: &Cluster, tenant: &Tenant) -> Self {
        let urls: Vec<String> = cluster.gateways.iter().map(|it| format!("http://{}", it.address())).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.args(["lock", "deploy", "--ttl", "20s", "--", "sh", "-c", "echo $HOLDFAST_FENCING_TOKEN; cat"]);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOLDFAST_URL", urls.join(",")).env("HOLDFAST_API_KEY", &tenant.key);
        command.env("HOLDFAST_NAMESPACE", NAMESPACE).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn token(&mut self) -> u64 {
        let line = timeout(MAX_WAIT, self.lines.next_line()).await.expect("it gets the lock").unwrap();
        line.expect("it says its token").parse().unwrap()
    }

    async fn end(mut self) {
        drop(self.child.stdin.take());
        let status = timeout(MAX_WAIT, self.child.wait()).await.expect("it ends").unwrap();
        assert!(status.success(), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_keep_their_lock_and_their_place_while_gateways_and_leaders_are_killed() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("shell", &[NAMESPACE]).await;
    let mut holder = LockHolder::start(&cluster, &tenant);
    let first = holder.token().await;
    let mut next = LockHolder::start(&cluster, &tenant);
    // One of them serves each; both go, one after the other.
    for gateway in 0..2 {
        cluster.gateways[gateway].kill().await;
        cluster.gateways[gateway].start();
        cluster.gateways[gateway].wait_ready().await;
    }
    let shard = cluster.locks_shard(&tenant, NAMESPACE);
    let (leader, ..) = cluster.wait_leader(&shard).await;
    cluster.nodes[leader].kill().await;
    cluster.nodes[leader].start();
    cluster.wait_ready().await;
    // Both at once.
    let (leader, ..) = cluster.wait_leader(&shard).await;
    let (node, gateway) = (&mut cluster.nodes[leader], &mut cluster.gateways[0]);
    tokio::join!(node.kill(), gateway.kill());
    assert!(holder.child.try_wait().unwrap().is_none(), "its command still runs");
    assert!(next.child.try_wait().unwrap().is_none());
    holder.end().await;
    assert!(next.token().await > first);
    next.end().await;
}
