//! Backups: their content, a new cluster from one, and the rejected ones.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{Load, LoadPlan, get_lock, lock_ids};
use holdfast_testkit::{Cluster, Setup, eventually};
use serde_json::json;

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
/// A restore raises every revision by so much.
const REVISION_MARGIN: u64 = 1 << 40;

async fn back_up(cluster: &Cluster, dir: &Path) -> Result<String, String> {
    cluster.run_admin_command(&["backup", "--out", &dir.display().to_string()]).await
}

/// Stops everything, and starts every node from the backup in a directory of its own.
async fn restore_cluster(cluster: &mut Cluster, backup: &Path, name: &str) {
    for process in cluster.gateways.iter_mut().chain(&mut cluster.nodes) {
        process.terminate().await;
    }
    let dir = cluster.dir().join(name);
    for node in &mut cluster.nodes {
        node.set_argument("--data-dir", &dir.join(node.name()).display().to_string());
        node.set_argument("--restore-from", &backup.display().to_string());
    }
    for process in cluster.nodes.iter_mut().chain(&mut cluster.gateways) {
        process.start();
    }
    cluster.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_is_restored_and_tokens_go_on_above_all_before() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("backup", &NAMESPACES).await;
    let api = cluster.rest_client(0, &tenant.key);
    let mut kept = Vec::new();
    for namespace in NAMESPACES {
        kept.push((namespace, api.acquire(namespace, "kept", "p").await.unwrap()));
    }
    let history = History::default();
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let plan = LoadPlan { clients: 8, locks, gateways: vec![api.clone()], some_have_short_deadlines: false };
    let load = Load::start_paced(&plan, &history);
    let backup = cluster.dir().join("backup");
    println!("{}", back_up(&cluster, &backup).await.unwrap());
    let refusal = back_up(&cluster, &backup).await.unwrap_err();
    assert!(refusal.contains("choose a new directory"), "{refusal}");
    load.stop().await;
    assert_eq!(history.error_summaries(), [""; 0], "requests failed");

    // What happens after the backup is lost with the cluster, but its tokens never come again.
    api.create_namespace("late", "made after the backup").await.unwrap();
    let mut highest = 0;
    for namespace in NAMESPACES {
        highest = highest.max(api.acquire(namespace, "after", "q").await.unwrap());
    }
    restore_cluster(&mut cluster, &backup, "anew").await;
    for (namespace, token) in &kept {
        let view = get_lock(&api, namespace, "kept").await.unwrap();
        assert_eq!(view.holds.iter().map(|hold| hold.token).collect::<Vec<_>>(), [*token], "{namespace}");
        assert!(get_lock(&api, namespace, "after").await.unwrap().holds.is_empty());
        let token = api.acquire(namespace, "new", "r").await.unwrap();
        assert!(token > highest && token > REVISION_MARGIN, "{token} is not above {highest}");
    }
    // Shards go on telling one another: namespaces and accounts can be made.
    api.create_namespace("late", "made again").await.unwrap();
    api.acquire("late", "lock", "p").await.unwrap();
    cluster.create_tenant("another", &["orders"]).await.key.clear();

    // Once more with the flag, and with data: nothing is restored over it.
    cluster.nodes[0].terminate().await;
    cluster.nodes[0].start();
    cluster.nodes[0].wait_ready().await;
    assert!(cluster.nodes[0].log().contains("was restored from this backup before"));
    let second = cluster.dir().join("second");
    back_up(&cluster, &second).await.unwrap();
    cluster.nodes[0].terminate().await;
    cluster.nodes[0].set_argument("--restore-from", &second.display().to_string());
    cluster.nodes[0].start();
    assert!(!cluster.nodes[0].wait_for_exit().await.success());
    let log = cluster.nodes[0].log();
    assert!(log.contains("is not empty") && log.contains("move it away"), "{log}");

    // Nodes from different backups do not come together.
    let data = cluster.dir().join("other").display().to_string();
    cluster.nodes[0].set_argument("--data-dir", &data);
    cluster.nodes[0].start();
    eventually("it is refused, with what to do", async || {
        let log = cluster.nodes[0].log();
        if log.contains("restore every node from the same one") { Ok(()) } else { Err("it is not".to_owned()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes; `make bench-backup` runs it"]
async fn a_million_holds_are_backed_up_and_restored() {
    const PATHS_PER_SET: usize = 64;
    let wanted = std::env::var("HOLDFAST_BACKUP_HOLDS").ok().and_then(|holds| holds.parse::<usize>().ok());
    let each = wanted.unwrap_or(1_000_000) / NAMESPACES.len();
    let mut cluster = Cluster::start(Setup { shards: 16, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("million", &NAMESPACES).await;
    let api = cluster.rest_client(0, &tenant.key);
    let began = Instant::now();
    let sets = (0..each.div_ceil(PATHS_PER_SET)).flat_map(|set| NAMESPACES.map(|namespace| (namespace, set)));
    let takes = sets.map(|(namespace, set)| {
        let locks = set * PATHS_PER_SET..each.min((set + 1) * PATHS_PER_SET);
        let resources: Vec<_> = locks.map(|lock| json!({"path": [format!("lock-{lock}")], "mode": "WRITE"})).collect();
        let body = json!({"process_id": format!("p-{set}"), "ttl_ms": 86_400_000, "resources": resources});
        let (api, path) = (api.clone(), format!("/v1/namespaces/{namespace}/lock-sets/acquire"));
        async move { api.fetch::<serde_json::Value>(&format!("POST {path}"), Some(body)).await.unwrap() }
    });
    let answers: Vec<_> = stream::iter(takes).buffer_unordered(16).collect().await;
    let mut highest = answers.iter().filter_map(|answer| answer["fencing_token"].as_u64()).max().unwrap();
    assert!(answers.iter().all(|answer| answer["success"] == true));
    println!("{} holds after {:.1?}", each * NAMESPACES.len(), began.elapsed());

    let backup = cluster.dir().join("backup");
    let began = Instant::now();
    println!("{}", back_up(&cluster, &backup).await.unwrap());
    let took = began.elapsed();
    let files = std::fs::read_dir(&backup).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    println!("backup: {:.1} MB in {took:.1?}", files.sum::<u64>() as f64 / 1e6);
    for namespace in NAMESPACES {
        highest = highest.max(api.acquire(namespace, "after", "q").await.unwrap());
    }
    let began = Instant::now();
    restore_cluster(&mut cluster, &backup, "anew").await;
    println!("all stopped, restored, started and ready after {:.1?}", began.elapsed());
    let holds: u64 = eventually("every hold is there", async || {
        let status = cluster.status(0, false).await?;
        let holds = status.replicas.iter().map(|replica| replica.holds).sum();
        if holds == (each * NAMESPACES.len()) as u64 { Ok(holds) } else { Err(format!("{holds} holds")) }
    })
    .await;
    let token = api.acquire("orders", "new", "r").await.unwrap();
    assert!(token > highest && token > REVISION_MARGIN);
    println!("{holds} holds; the first new token is {token}, the highest before was {highest}");
    assert!(took < Duration::from_secs(120));
}
