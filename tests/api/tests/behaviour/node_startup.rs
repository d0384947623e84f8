//! Starting `holdfast-node` where it can't: each refusal names the place, and nothing is changed.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use holdfast_cluster::ClusterConfig;
use holdfast_testkit::{ProgramExit, Secrets, Standalone, free_address, run_to_exit, scratch};
use serde_json::{Value, json};

/// A folder with the secrets of a cluster and a config of three nodes.
struct ClusterFiles {
    folder: PathBuf,
    config: Value,
}

impl ClusterFiles {
    fn new() -> Self {
        let folder = scratch();
        Secrets::create(&folder);
        // No process listens on these ports: no node of these tests gets that far.
        let nodes = ["nd_1", "nd_2", "nd_3"].map(|id| (id.to_owned(), free_address().to_string()));
        let config = ClusterConfig::generate(nodes.into(), 2, 3).unwrap();
        Self { folder, config: serde_json::from_str(&config.to_json()).unwrap() }
    }

    fn start_node(&self, node_id: &str, data_dir: &Path) -> ProgramExit {
        self.start_node_with(&self.config.to_string(), node_id, data_dir)
    }

    fn start_node_with(&self, config: &str, node_id: &str, data_dir: &Path) -> ProgramExit {
        let file = self.folder.join("cluster_config.json");
        fs::write(&file, config).unwrap();
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let arguments = [
            "--node-id".to_owned(),
            node_id.to_owned(),
            "--cluster-config".to_owned(),
            path(&file),
            "--data-dir".to_owned(),
            path(data_dir),
            "--cluster-secret-file".to_owned(),
            path(&self.folder.join("cluster.secret")),
            "--operator-token-file".to_owned(),
            path(&self.folder.join("operator.token")),
        ];
        let ended = run_to_exit("holdfast-node", &arguments.each_ref().map(String::as_str));
        assert!(!ended.success, "{}", ended.output);
        ended
    }

    /// Refuses a config that was spoilt, naming the file and the place.
    fn assert_invalid_config(&self, place: &str, spoil: impl FnOnce(&mut Value)) {
        let mut config = self.config.clone();
        spoil(&mut config);
        let data_dir = scratch();
        let ended = self.start_node_with(&config.to_string(), "nd_1", &data_dir);
        let output = &ended.output;
        assert!(output.contains("cluster_config.json") && output.contains(&format!("{place}: ")), "{place}: {output}");
        assert!(!data_dir.exists(), "{place}");
    }
}

#[test]
fn a_broken_cluster_config_is_refused_with_the_place_named() {
    let cluster = ClusterFiles::new();
    cluster.assert_invalid_config("applications[2].shards[1].lower_bound", |config| {
        config["applications"][2]["shards"][1]["lower_bound"] = json!("80000001");
    });
    cluster.assert_invalid_config("applications[2].shards[1].lower_bound", |config| {
        config["applications"][2]["shards"][1]["lower_bound"] = json!("7fffffff");
    });
    cluster.assert_invalid_config("applications[1].shards[0].lower_bound", |config| {
        config["applications"][1]["shards"][0]["lower_bound"] = json!("xyz");
    });
    cluster.assert_invalid_config("applications[2].shards[1].upper_bound", |config| {
        config["applications"][2]["shards"][1]["upper_bound"] = json!("fffffffe");
    });
    cluster.assert_invalid_config("groups[1].replicas[1].node_id", |config| {
        let node = config["groups"][1]["replicas"][0]["node_id"].clone();
        config["groups"][1]["replicas"][1]["node_id"] = node;
    });
    cluster.assert_invalid_config("groups[2].replicas[0].id", |config| {
        config["groups"][2]["replicas"][0]["id"] = json!(1);
    });
    cluster.assert_invalid_config("groups[0].replicas[0].node_id", |config| {
        config["groups"][0]["replicas"][0]["node_id"] = json!("nd_9");
    });
    cluster.assert_invalid_config("applications[2].shards[0].group", |config| {
        config["applications"][2]["shards"][0]["group"] = json!("g9");
    });
    cluster.assert_invalid_config("nodes[1].id", |config| config["nodes"][1]["id"] = json!("nd_1"));
    cluster.assert_invalid_config("version", |config| config["version"] = json!("one"));
}

#[test]
fn a_cluster_config_that_is_no_json_or_missing_is_named() {
    let cluster = ClusterFiles::new();
    let data_dir = scratch();
    for text in ["", "{", "[]", "nonsense"] {
        let ended = cluster.start_node_with(text, "nd_1", &data_dir);
        assert!(ended.output.contains("cluster_config.json"), "{text}: {}", ended.output);
    }
    let arguments = ["--cluster-config", "nowhere/config.json", "--data-dir", data_dir.to_str().unwrap()];
    let secrets = ["--cluster-secret-file", "nowhere", "--operator-token-file", "nowhere"];
    let ended = run_to_exit("holdfast-node", &[arguments, secrets].concat());
    assert!(!ended.success && ended.output.contains("nowhere/config.json"), "{}", ended.output);
    assert!(!data_dir.exists());
}

#[test]
fn a_node_that_is_not_in_the_config_is_named() {
    let data_dir = scratch();
    let ended = ClusterFiles::new().start_node("nd_9", &data_dir);
    assert!(ended.output.contains("node nd_9 is not in the cluster config"), "{}", ended.output);
    assert!(!data_dir.exists());
}

#[test]
fn a_missing_or_damaged_secret_is_named() {
    let cluster = ClusterFiles::new();
    let data_dir = scratch();
    for file in ["cluster.secret", "operator.token"] {
        let path = cluster.folder.join(file);
        let good = fs::read(&path).unwrap();
        fs::write(&path, "nonsense").unwrap();
        let ended = cluster.start_node("nd_1", &data_dir);
        assert!(ended.output.contains(path.to_str().unwrap()), "{}", ended.output);
        fs::remove_file(&path).unwrap();
        let ended = cluster.start_node("nd_1", &data_dir);
        assert!(ended.output.contains(path.to_str().unwrap()), "{}", ended.output);
        fs::write(&path, good).unwrap();
    }
    assert!(!data_dir.exists());
}

#[test]
fn an_address_that_others_can_reach_is_refused_without_encryption() {
    let mut cluster = ClusterFiles::new();
    cluster.config["nodes"][0]["address"] = json!("192.0.2.7:7000");
    let data_dir = scratch();
    let ended = cluster.start_node("nd_1", &data_dir);
    assert!(
        ended.output.contains("--cluster-tls-cert-file") && ended.output.contains("--insecure"),
        "{}",
        ended.output
    );
    assert!(!data_dir.exists());

    let path = |file: &str| cluster.folder.join(file).to_str().unwrap().to_owned();
    let (config, secret, token) = (path("cluster_config.json"), path("cluster.secret"), path("operator.token"));
    let files = ["--cluster-config", &config, "--cluster-secret-file", &secret, "--operator-token-file", &token];
    let locktopus = ["--listen", "127.0.0.1:0", "--locktopus-listen", "0.0.0.0:0", "--locktopus-account", "demo"];
    for listen in [&["--listen", "0.0.0.0:0"][..], &locktopus] {
        let ended = run_to_exit("holdfast-gateway", &[&files[..], listen].concat());
        let output = &ended.output;
        assert!(!ended.success && output.contains("--tls-cert-file") && output.contains("--insecure"), "{output}");
    }
}

#[test]
fn a_port_of_a_node_in_use_is_named_and_nothing_is_changed() {
    let mut cluster = ClusterFiles::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    cluster.config["nodes"][0]["address"] = json!(address);
    let data_dir = scratch();
    let ended = cluster.start_node("nd_1", &data_dir);
    assert!(ended.output.contains(&format!("{address} is already in use")), "{}", ended.output);
    assert!(!data_dir.exists());
}

#[test]
fn data_of_another_node_or_cluster_is_refused_and_not_changed() {
    let standalone = scratch();
    drop(Standalone::start(&standalone, &[]));
    let data_dir = standalone.join("nd_1");
    let marker = fs::read(data_dir.join("STORE")).unwrap();
    let other_cluster = ClusterFiles::new();
    let ended = other_cluster.start_node("nd_1", &data_dir);
    assert!(ended.output.contains("holds the data of node \"nd_1\" of cluster"), "{}", ended.output);
    // The right secret and another node.
    for file in ["cluster.secret", "operator.token"] {
        fs::copy(standalone.join(file), other_cluster.folder.join(file)).unwrap();
    }
    let ended = other_cluster.start_node("nd_2", &data_dir);
    assert!(ended.output.contains("not of node \"nd_2\""), "{}", ended.output);
    assert_eq!(fs::read(data_dir.join("STORE")).unwrap(), marker);
    Standalone::start(&standalone, &[]);
}
