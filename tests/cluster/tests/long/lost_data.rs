//! A node that is not the one it claims to be takes no part.

use holdfast_cluster_tests::get_lock;
use std::path::Path;

use holdfast_auth::ClusterSecret;
use holdfast_testkit::{Cluster, NodeClient, Secrets, Setup, Tenant, eventually, run_admin};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_data_is_refused_under_its_old_replica_ids_and_the_others_go_on() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("lost", &["orders"]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let token = api.acquire("orders", "one", "p").await.unwrap();
    cluster.wait_equal_states().await;

    let lost = 2;
    cluster.nodes[lost].kill().await;
    std::fs::remove_dir_all(cluster.data_dir(lost)).expect("its data can be removed");
    cluster.nodes[lost].start();
    eventually("the others say why they refuse it", async || {
        let says = |node: usize| cluster.nodes[node].log().contains("has lost its data and needs a new id");
        if says(0) && says(1) { Ok(()) } else { Err("they do not".to_owned()) }
    })
    .await;
    let reason = cluster.nodes[lost].readiness().await.expect_err("it must not be ready");
    println!("it says: {}", reason.trim());
    let status = cluster.status(lost, false).await.unwrap();
    let led: Vec<_> = status.replicas.iter().filter(|replica| replica.last_log_index > 0 || replica.term > 0).collect();
    assert!(led.is_empty(), "it takes part: {led:?}");

    // The others have all that was answered, and go on.
    let view = get_lock(&api, "orders", "one").await.unwrap();
    assert_eq!(view.holds.iter().map(|hold| hold.token).collect::<Vec<_>>(), [token]);
    let next = api.acquire("orders", "two", "q").await.unwrap();
    assert!(next > token);

    // It does not help a minority to a majority either: one of two with data is not enough.
    cluster.nodes[1].kill().await;
    eventually("writes are refused", async || match api.acquire("orders", "three", "r").await {
        Ok(_) => Err("a write was answered by one replica with data".to_owned()),
        Err(_) => Ok(()),
    })
    .await;
    cluster.nodes[1].start();
    eventually("the service goes on", async || {
        api.acquire("orders", "four", "s").await.map_err(|error| error.to_string())
    })
    .await;
    let view = get_lock(&api, "orders", "one").await.unwrap();
    assert_eq!(view.holds.iter().map(|hold| hold.token).collect::<Vec<_>>(), [token]);
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
async fn a_node_that_came_back_with_an_older_copy_of_its_data_is_refused_and_the_others_go_on() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("copy", &["orders"]).await;
    cluster.rest_client(0, &tenant.key).acquire("orders", "one", "p").await.unwrap();
    let leader = cluster.wait_leader(&cluster.locks_shard(&tenant, "orders")).await.0;
    let node = (leader + 1) % cluster.nodes.len();
    let older = cluster.dir().join("older");
    cluster.nodes[node].kill().await;
    copy_dir(&cluster.data_dir(node), &older);
    cluster.nodes[node].start();
    cluster.wait_ready().await;
    assert_rejected_after_data_loss(&mut cluster, &tenant, leader, node, |data| {
        std::fs::remove_dir_all(data).expect("its data can be removed");
        copy_dir(&older, data);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_log_was_cut_off_is_refused_and_the_others_go_on() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("cut", &["orders"]).await;
    let leader = cluster.wait_leader(&cluster.locks_shard(&tenant, "orders")).await.0;
    let node = (leader + 1) % cluster.nodes.len();
    assert_rejected_after_data_loss(&mut cluster, &tenant, leader, node, |data| {
        let files = std::fs::read_dir(data).expect("it can be listed").map(|entry| entry.expect("it can be").path());
        let log =
            files.filter(|file| file.extension().is_some_and(|kind| kind == "log")).max().expect("there is a log");
        let file = std::fs::OpenOptions::new().write(true).open(&log).expect("it can be written");
        let length = file.metadata().expect("it has a length").len();
        println!("{} is cut off at {} of {length} bytes", log.display(), length / 2);
        file.set_len(length / 2).expect("it can be cut off");
    })
    .await;
}

/// A node acknowledges an entry and loses it: the leader refuses it then, and the others go on.
async fn assert_rejected_after_data_loss(
    cluster: &mut Cluster,
    tenant: &Tenant,
    leader: usize,
    node: usize,
    lose: impl FnOnce(&Path),
) {
    let api = cluster.rest_client(0, &tenant.key);
    let token = api.acquire("orders", "two", "q").await.unwrap();
    cluster.wait_equal_states().await;
    cluster.nodes[node].kill().await;
    lose(&cluster.data_dir(node));
    cluster.nodes[node].start();
    eventually("the leader says why it refuses it", async || {
        let log = cluster.nodes[leader].log();
        if log.contains("came back without data that it had acknowledged") { Ok(()) } else { Err(log) }
    })
    .await;
    // It may have been ready before it was refused.
    eventually("the node says that it can't serve", async || match cluster.nodes[node].readiness().await {
        Err(reason) => {
            println!("it says: {}", reason.trim());
            Ok(())
        }
        Ok(()) => Err("it is ready".to_owned()),
    })
    .await;
    // The others have all that was answered, and go on.
    let next = api.acquire("orders", "three", "r").await.unwrap();
    assert!(next > token);
    let view = get_lock(&api, "orders", "two").await.unwrap();
    assert_eq!(view.holds.iter().map(|hold| hold.token).collect::<Vec<_>>(), [token]);

    // No other process is restarted for it.
    rebuild_node(cluster, node).await;
    let log = cluster.nodes[leader].log();
    let connections = log.lines().filter(|line| line.contains("connected to peer")).count();
    assert!(connections < 100, "it connected {connections} times");
    cluster.wait_equal_states().await;
}

/// Does what the refusal says, as the guide has it: new replica ids, an empty data directory.
async fn rebuild_node(cluster: &mut Cluster, node: usize) {
    cluster.nodes[node].kill().await;
    let data = cluster.data_dir(node);
    std::fs::rename(&data, data.with_extension("refused")).expect("the data can be moved away");
    let (config, name) = (cluster.config_file().display().to_string(), cluster.nodes[node].name().to_owned());
    let next = run_admin(&["node", "rebuild", "--node-id", &name, "--cluster-config", &config]);
    let file = cluster.dir().join("next.json");
    std::fs::write(&file, next.expect("the next config is made")).expect("it can be written");
    cluster
        .run_admin_command(&["config", "apply", "--next", &file.display().to_string()])
        .await
        .expect("the nodes take it");
    cluster.nodes[node].start();
    cluster.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_with_another_cluster_secret_are_refused() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("secret", &["orders"]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let other = Secrets::create(&cluster.dir().join("other-secrets"));
    let other_file = other.cluster_secret_file().display().to_string();

    // A caller of nodes.
    let stranger = ClusterSecret::generate().expect("a secret can be drawn");
    let mut caller = NodeClient::of_cluster(cluster.nodes[0].address(), &stranger);
    let refused = caller.status(false).await.expect_err("it must be refused");
    assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{refused}");

    // A node with its data: it would not be its own any more.
    cluster.nodes[2].kill().await;
    cluster.nodes[2].set_argument("--cluster-secret-file", &other_file);
    cluster.nodes[2].start();
    let status = cluster.nodes[2].wait_for_exit().await;
    assert!(!status.success());
    let log = cluster.nodes[2].log();
    assert!(log.contains("holds the data of node \"nd_3\" of cluster"), "{log}");

    // A node without data: the others do not let it in.
    let data = cluster.dir().join("fresh").display().to_string();
    cluster.nodes[2].set_argument("--data-dir", &data);
    cluster.nodes[2].start();
    eventually("it is refused", async || {
        let log = cluster.nodes[2].log();
        if log.contains("secret") { Ok(()) } else { Err(log) }
    })
    .await;
    assert!(cluster.nodes[2].readiness().await.is_err());
    api.acquire("orders", "one", "p").await.expect("the others go on");

    // A gateway.
    cluster.gateways[0].kill().await;
    cluster.gateways[0].set_argument("--cluster-secret-file", &other_file);
    cluster.gateways[0].start();
    eventually("the gateway says why it cannot serve", async || {
        let log = cluster.gateways[0].log();
        if log.contains("give all processes the same secret") { Ok(()) } else { Err(log) }
    })
    .await;
    assert!(cluster.gateways[0].readiness().await.is_err());
    assert!(get_lock(&api, "orders", "one").await.is_err());
}
