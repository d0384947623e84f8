//! Two builds in one cluster: the usual one, and one that knows rules and a command more. Needs that other build of
//! holdfast-node: `make mixed` makes it, and names it in `HOLDFAST_OTHER_NODE`.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use holdfast_proto::internal::answer::Outcome;
use holdfast_testkit::{Cluster, Setup, eventually, replica_of};

/// The command that only the other build knows, as it encodes it: the version of the codec, and the place of the command.
const EXTRA_COMMAND: Bytes = Bytes::from_static(&[1, 5]);
/// The shard that gets it, and its first key.
const SHARD: &str = "locks_00";
const KEY: u32 = 0;

/// The other build; nothing, with a notice, where there is none.
fn other_build() -> Option<PathBuf> {
    let path = std::env::var_os("HOLDFAST_OTHER_NODE").map(PathBuf::from);
    if path.is_none() {
        eprintln!("SKIPPED: two builds in one cluster. There is one build only; `make mixed` makes the other one");
    }
    path
}

async fn restart_with_program(cluster: &mut Cluster, node: usize, program: Option<&Path>) {
    cluster.nodes[node].terminate().await;
    cluster.nodes[node].set_program(program);
    cluster.nodes[node].start();
    cluster.wait_ready().await;
}

/// Gives the extra command to the leader of the shard.
async fn send_extra_command(cluster: &Cluster) -> Outcome {
    eventually("the leader answers", async || {
        let (node, replica, term) = cluster.wait_leader(SHARD).await;
        match cluster.node_client(node).encoded_command(replica, term, KEY, EXTRA_COMMAND).await {
            Ok(Outcome::NotLeader(_)) => Err("the leader has changed".to_owned()),
            Ok(outcome) => Ok(outcome),
            Err(status) => Err(status.to_string()),
        }
    })
    .await
}

async fn assert_extra_command_rejected(cluster: &Cluster) {
    match send_extra_command(cluster).await {
        Outcome::NotProposed(reason) => println!("refused: {reason}"),
        other => panic!("not refused: {other:?}"),
    }
}

async fn rules_by_node(cluster: &Cluster) -> Vec<u32> {
    let mut rules = Vec::new();
    for node in 0..cluster.nodes.len() {
        rules.push(replica_of(&cluster.status(node, false).await.unwrap(), SHARD).rules);
    }
    rules
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_of_a_later_build_is_refused_until_all_know_it_and_then_stops_the_build_that_does_not() {
    let Some(later) = other_build() else { return };
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("mixed", &["orders"]).await;
    let api = cluster.rest_client(0, &tenant.key);
    assert_eq!(rules_by_node(&cluster).await, [2, 2, 2]);
    assert_extra_command_rejected(&cluster).await;

    // During the upgrade every leader rejects it: the usual build can't decode it, the later one must not apply it.
    for node in [0, 1] {
        restart_with_program(&mut cluster, node, Some(&later)).await;
    }
    for leader in ["nd_1", "nd_3"] {
        cluster.run_admin_command(&["leader", "transfer", "--from", leader]).await.unwrap();
        assert_extra_command_rejected(&cluster).await;
    }
    let refusal = cluster.run_admin_command(&["cluster", "finalize", "--rules", "3"]).await.unwrap_err();
    assert!(refusal.contains("some nodes know rules up to 2 only"), "{refusal}");
    restart_with_program(&mut cluster, 2, Some(&later)).await;
    assert_extra_command_rejected(&cluster).await;
    api.acquire("orders", "one", "before").await.unwrap();
    assert_eq!(rules_by_node(&cluster).await, [2, 2, 2]);
    cluster.wait_equal_states().await;

    // The end of the upgrade. A copy of what a node had before is kept.
    cluster.nodes[2].terminate().await;
    let (data, before) = (cluster.data_dir(2), cluster.dir().join("before"));
    copy_dir(&data, &before);
    cluster.nodes[2].start();
    cluster.wait_ready().await;
    let done = cluster.run_admin_command(&["cluster", "finalize"]).await.unwrap();
    assert!(done.contains("all shards use rules 3"), "{done}");
    assert!(matches!(send_extra_command(&cluster).await, Outcome::Reply(_)));
    api.acquire("orders", "two", "after").await.unwrap();
    cluster.wait_equal_states().await;
    assert_eq!(rules_by_node(&cluster).await, [3, 3, 3]);

    assert_old_build_stops(&mut cluster, &later, &before).await;
    api.acquire("orders", "three", "in the end").await.unwrap();
    assert!(matches!(send_extra_command(&cluster).await, Outcome::Reply(_)));
    cluster.wait_equal_states().await;
}

/// The usual build is started again, over the node's data and over a copy of before; then the later one once more.
async fn assert_old_build_stops(cluster: &mut Cluster, later: &Path, before: &Path) {
    let (data, after) = (cluster.data_dir(2), cluster.dir().join("after"));
    cluster.nodes[2].terminate().await;
    cluster.nodes[2].set_program(None);
    cluster.nodes[2].start();
    assert!(!cluster.nodes[2].wait_for_exit().await.success());
    wait_for_log(cluster, "its data goes by rules 3, and this program knows rules 1 to 2").await;

    std::fs::rename(&data, &after).expect("the data can be moved");
    copy_dir(before, &data);
    cluster.nodes[2].start();
    wait_for_log(cluster, "knows rules 1 to 2, and group").await;
    cluster.nodes[2].kill().await;

    std::fs::remove_dir_all(&data).expect("the copy can be removed");
    std::fs::rename(&after, &data).expect("the data can be moved");
    cluster.nodes[2].set_program(Some(later));
    cluster.nodes[2].start();
    cluster.wait_ready().await;
}

async fn wait_for_log(cluster: &Cluster, words: &str) {
    eventually("the node says why", async || {
        if cluster.nodes[2].log().contains(words) { Ok(()) } else { Err(format!("its log has no {words:?}")) }
    })
    .await;
}

/// Copies the files of a data directory.
fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder can be made");
    for entry in std::fs::read_dir(from).expect("it can be listed") {
        let file = entry.expect("it can be listed").path();
        std::fs::copy(&file, to.join(file.file_name().expect("a file has a name"))).expect("it can be copied");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_starts_as_a_whole_on_the_later_build_keeps_its_rules_until_it_is_finalized() {
    let Some(later) = other_build() else { return };
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("whole", &["orders"]).await;
    let api = cluster.rest_client(0, &tenant.key);
    api.acquire("orders", "one", "before").await.unwrap();
    for node in &mut cluster.nodes {
        node.terminate().await;
        node.set_program(Some(&later));
    }
    for node in &mut cluster.nodes {
        node.start();
    }
    cluster.wait_ready().await;
    assert_extra_command_rejected(&cluster).await;
    api.acquire("orders", "two", "after").await.unwrap();
    cluster.wait_equal_states().await;
    assert_eq!(rules_by_node(&cluster).await, [2, 2, 2]);

    // So the release can still be rolled back.
    restart_with_program(&mut cluster, 1, None).await;
    cluster.wait_equal_states().await;
}
