//! One byte of a stopped node's data is changed, in one file after the other: nothing damaged is served, the node says
//! which file it is and what to do, and what it says to do brings the node back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{Load, LoadPlan, assert_no_violations, lock_ids, print_summary, read_all_locks};
use holdfast_testkit::{Cluster, Setup, eventually, run_admin};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const DAMAGED_NODE: usize = 2;

/// Every file with something in it, the latest last.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("the data directory can be listed");
    let files = entries.map(|entry| entry.expect("it can be listed").path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| std::fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() > 0)).collect();
    files.sort();
    files
}

/// The header of a record in a log: checksum (4), length (2), kind (1), low bits of the file's number (4).
const LOG_HEADER_BYTES: usize = 11;
/// The kind of a record that is a whole write.
const WHOLE_WRITE: u8 = 5;

/// How many bytes of a file, from its start, may be changed: of a log its first write, if another follows. Damage to the
/// last write looks like a write that a crash cut off: the node starts without it, and its peers refuse it.
fn bytes_to_damage(file: &Path) -> usize {
    let data = std::fs::read(file).unwrap_or_default();
    if file.extension().is_none_or(|extension| extension != "log") {
        return data.len();
    }
    let header_at = |at: usize| data.get(at..at + LOG_HEADER_BYTES).unwrap_or(&[0; LOG_HEADER_BYTES]);
    let first = header_at(0);
    let end = LOG_HEADER_BYTES + usize::from(u16::from_le_bytes([first[4], first[5]]));
    // A file that is used again may have writes of its earlier use behind the end.
    let another_follows = header_at(end)[6] != 0 && header_at(end)[7..] == first[7..];
    if first[6] == WHOLE_WRITE && another_follows { end } else { 0 }
}

/// The next file to be damaged: of each kind one, and of tables three.
fn next_file(dir: &Path, tried: &mut BTreeMap<String, usize>) -> Option<PathBuf> {
    let can_be = |file: &PathBuf| bytes_to_damage(file) > 0;
    files(dir).into_iter().filter(can_be).find(|file| {
        let kind = file_name(file).replace(|letter: char| letter.is_ascii_digit(), "");
        let most = if kind == ".sst" { 3 } else { 1 };
        let times = tried.entry(kind).or_insert(0);
        *times += 1;
        *times <= most || {
            *times = most;
            false
        }
    })
}

fn file_name(file: &Path) -> String {
    file.file_name().expect("a file has a name").to_string_lossy().into_owned()
}

/// Changes a byte of the file, starts the node, and puts the byte right. Whether the node refused the file. Nothing else
/// is put back: what the node has acknowledged meanwhile must not be undone.
async fn damage_one(cluster: &mut Cluster, file: &Path, random: &mut SmallRng) -> bool {
    let (name, data) = (file_name(file), cluster.data_dir(DAMAGED_NODE));
    let (at, mask) = (random.random_range(0..bytes_to_damage(file)), 1 << random.random_range(0..8));
    let changed = flip_bits(file, at, mask).expect("it can be changed");
    let refusal = start_error(cluster, file).await;
    match &refusal {
        None => println!("{name}, byte {at}: it serves all that it should"),
        Some(log) => {
            println!("{name}, byte {at}: refused");
            let says = log.contains(&data.display().to_string()) && log.contains(&name);
            assert!(says, "{name}: it does not say which file: {log}");
            assert!(log.contains("holdfast-admin node rebuild"), "{name}: it does not say what to do: {log}");
        }
    }
    // A file that is served from may be gone by now, or written anew.
    if std::fs::read(file).is_ok_and(|now| now.get(at) == Some(&changed)) {
        flip_bits(file, at, mask).expect("it can be changed");
    }
    refusal.is_some()
}

/// Flips bits of one byte; the byte as it then is.
fn flip_bits(file: &Path, at: usize, mask: u8) -> std::io::Result<u8> {
    let mut bytes = std::fs::read(file)?;
    bytes[at] ^= mask;
    std::fs::write(file, &bytes)?;
    Ok(bytes[at])
}

/// Starts the node on damaged data. Answers why it refused, or nothing when it serves what it should.
async fn start_error(cluster: &mut Cluster, file: &Path) -> Option<String> {
    let before = cluster.nodes[DAMAGED_NODE].log().len();
    cluster.nodes[DAMAGED_NODE].start();
    let what = format!("it refuses or is ready with a changed byte in {}", file.display());
    let serves = eventually(&what, async || match cluster.nodes[DAMAGED_NODE].readiness_if_running().await {
        None => Ok(false),
        Some(Ok(())) => Ok(true),
        // A damaged part that is met only now takes its replica out.
        Some(Err(reason)) if reason.contains("corrupt") => Ok(false),
        Some(Err(reason)) => Err(reason),
    })
    .await;
    if serves {
        cluster.wait_equal_states().await;
    }
    if cluster.nodes[DAMAGED_NODE].try_exit_status().is_none() {
        cluster.nodes[DAMAGED_NODE].kill().await;
    }
    (!serves).then(|| cluster.nodes[DAMAGED_NODE].log()[before..].to_owned())
}

/// Does what the refusal says: `holdfast-admin node rebuild`, an empty data directory, and the new config for everybody.
async fn rebuild_node(cluster: &mut Cluster) {
    let config = cluster.config_file();
    let node = cluster.nodes[DAMAGED_NODE].name().to_owned();
    let next = run_admin(&["node", "rebuild", "--node-id", &node, "--cluster-config", &config.display().to_string()]);
    std::fs::write(&config, next.expect("the next config is made")).expect("the config can be written");
    let data = cluster.data_dir(DAMAGED_NODE);
    std::fs::rename(&data, data.with_extension("damaged")).expect("the data can be moved away");
    for gateway in 0..cluster.gateways.len() {
        let gateway = &mut cluster.gateways[gateway];
        assert!(gateway.terminate().await.success());
        gateway.start();
        gateway.wait_ready().await;
    }
    for node in (0..cluster.nodes.len()).filter(|node| *node != DAMAGED_NODE) {
        assert!(cluster.nodes[node].terminate().await.success());
        cluster.nodes[node].start();
        cluster.nodes[node].wait_ready().await;
    }
    cluster.nodes[DAMAGED_NODE].start();
    cluster.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_byte_is_never_served_and_the_node_is_rebuilt_as_it_says() {
    // Snapshots and compactions, so that there are files of every kind.
    let flags = [("--snapshot-after", "200"), ("--retain-entries", "50")];
    let node_flags = flags.map(|(flag, value)| (flag, value.to_owned())).to_vec();
    let mut cluster = Cluster::start(Setup { shards: 2, gateways: 2, node_flags, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("damage", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let gateways = vec![cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key)];
    let history = History::default();
    let plan = LoadPlan { clients: 20, locks: locks.clone(), gateways, some_have_short_deadlines: false };
    let load = Load::start(&plan, &history);
    eventually("there is data", async || if history.len() > 3_000 { Ok(()) } else { Err(String::new()) }).await;
    // A start writes tables.
    cluster.nodes[DAMAGED_NODE].kill().await;
    cluster.nodes[DAMAGED_NODE].start();
    cluster.wait_ready().await;
    cluster.nodes[DAMAGED_NODE].kill().await;
    load.stop().await;

    let data = cluster.data_dir(DAMAGED_NODE);
    let mut random = SmallRng::seed_from_u64(1);
    let (mut tried, mut refused) = (BTreeMap::new(), 0);
    while let Some(file) = next_file(&data, &mut tried) {
        refused += usize::from(damage_one(&mut cluster, &file, &mut random).await);
    }
    println!("{refused} of {} changed bytes were refused", tried.values().sum::<usize>());
    assert!(refused > 0, "nothing was refused");

    // The last damage stays. A log has something in it while the node is at work.
    let load = Load::start(&plan, &history);
    cluster.nodes[DAMAGED_NODE].start();
    cluster.wait_ready().await;
    let had = history.len();
    let busy = async || if history.len() > had + 500 { Ok(()) } else { Err("little was called".to_owned()) };
    eventually("there is something in the log", busy).await;
    cluster.nodes[DAMAGED_NODE].kill().await;
    load.stop().await;
    let files = files(&data);
    let log = files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let log = log.max_by_key(|path| std::fs::metadata(path).map_or(0, |data| data.len())).expect("there is a log");
    flip_bits(log, 20, 1).expect("it can be changed");
    start_error(&mut cluster, log).await.expect("a changed byte in the log is refused");

    let load = Load::start(&plan, &history);
    rebuild_node(&mut cluster).await;
    load.stop().await;
    read_all_locks(&cluster.rest_client(0, &tenant.key), &locks, &history).await;
    print_summary(&history);
    assert_no_violations(&history);
    let compared = cluster.wait_equal_states().await;
    println!("{compared} shards have the same bytes on all three nodes, one of them rebuilt");
    // What it got is good enough to make a majority with.
    cluster.nodes[0].kill().await;
    read_all_locks(&cluster.rest_client(0, &tenant.key), &locks, &history).await;
    assert_no_violations(&history);
}
