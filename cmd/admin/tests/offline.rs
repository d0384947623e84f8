//! Subcommands of `holdfast-admin` that need no running cluster, by running the program.

use std::path::Path;
use std::process::{Command, Output};

use holdfast_cluster::ClusterConfig;

/// Runs the program in a directory, without the variables of the environment.
fn admin(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-admin"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HOLDFAST_")) {
        command.env_remove(name);
    }
    command.current_dir(directory).args(arguments).output().unwrap()
}

fn error_of(directory: &Path, arguments: &[&str]) -> String {
    let output = admin(directory, arguments);
    assert!(!output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is printed besides the error");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the config of three nodes with two shards an application, which listen from a port on.
fn config(base_port: u16) -> String {
    let node = |index: u16| (format!("nd_{}", index + 1), format!("127.0.0.1:{}", base_port + index));
    ClusterConfig::generate((0..3).map(node).collect(), 2, 3).unwrap().to_json()
}

#[test]
fn a_node_that_lost_its_data_gets_new_replica_ids_and_its_operator_is_told_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("cluster_config.json"), config(7_000)).unwrap();
    let output = admin(directory.path(), &["node", "rebuild", "--node-id", "nd_2"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("Move the data directory of nd_2 away"), "{said}");
    let next: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(next["version"], 2);
    assert_eq!(next["groups"][0]["id"], "g1");
    let replicas = next["groups"][0]["replicas"].as_array().unwrap();
    let of = |node: &str| replicas.iter().find(|replica| replica["node_id"] == node).map(|replica| &replica["id"]);
    assert_eq!((of("nd_1"), of("nd_2"), of("nd_3")), (Some(&1.into()), Some(&16.into()), Some(&3.into())));

    let unknown = error_of(directory.path(), &["node", "rebuild", "--node-id", "nd_9"]);
    assert!(unknown.contains("name one of nd_1, nd_2"), "{unknown}");
}

#[test]
fn secrets_are_made_once_and_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let first = admin(directory.path(), &["secrets"]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let read = |name: &str| std::fs::read_to_string(directory.path().join("secrets").join(name)).unwrap();
    let (secret, token) = (read("cluster.secret"), read("operator.token"));
    assert!(secret.trim().len() == 64 && token.starts_with("hfop_"));
    let again = error_of(directory.path(), &["secrets"]);
    assert!(again.contains("is not overwritten"), "{again}");
    assert_eq!((read("cluster.secret"), read("operator.token")), (secret, token));
}

#[test]
fn what_is_no_backup_is_refused_before_anything_is_done() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("backup")).unwrap();
    let error = error_of(directory.path(), &["restore", "--from", "backup", "--data-dir", "data"]);
    assert!(error.contains("no manifest.json") && error.contains("use another one"), "{error}");
    assert!(!directory.path().join("data").exists());
}

#[test]
fn a_cluster_that_does_not_answer_is_said_with_every_node_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    assert!(admin(directory.path(), &["secrets"]).status.success());
    let config = config(1);
    let file = directory.path().join("cluster_config.json");
    std::fs::write(&file, &config).unwrap();
    let flags = ["--cluster-config", "cluster_config.json", "--cluster-secret-file", "secrets/cluster.secret"];
    for words in [&["node", "add", "--node-id", "nd_4", "--address", "127.0.0.1:9"][..], &["backup", "--out", "b"]] {
        let error = error_of(directory.path(), &[words, &flags[..]].concat());
        assert!(error.contains("no node of") && error.contains("nd_3"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), config);
    assert!(!directory.path().join("b").exists());
}

/// The error has the cause once, however many functions added context.
#[test]
fn a_file_that_is_missing_is_named_with_its_reason_once() {
    let directory = tempfile::tempdir().unwrap();
    let refusal = || error_of(directory.path(), &["config", "show", "--cluster-config", "c.json"]);
    let missing = refusal();
    assert!(missing.contains("c.json") && missing.matches("No such file").count() == 1, "{missing}");
    std::fs::write(directory.path().join("c.json"), config(7_000)).unwrap();
    let secret = refusal();
    assert!(secret.contains("cluster.secret") && secret.matches("No such file").count() == 1, "{secret}");
}

#[test]
fn a_node_does_not_take_its_own_place() {
    let directory = tempfile::tempdir().unwrap();
    let replacing = error_of(directory.path(), &["node", "replace", "--node-id", "nd_1", "--with", "nd_1"]);
    assert!(replacing.contains("--node-id and --with are the same node"), "{replacing}");
    let moving = ["replica", "move", "--group", "g1", "--from", "nd_1", "--to", "nd_1"];
    let moving = error_of(directory.path(), &moving);
    assert!(moving.contains("--from and --to are the same node"), "{moving}");
}

#[test]
fn without_an_operator_token_it_is_said_where_it_is_looked_for() {
    let directory = tempfile::tempdir().unwrap();
    let error = error_of(directory.path(), &["status"]);
    assert!(error.contains("HOLDFAST_OPERATOR_TOKEN") && error.contains("./data/cluster/operator.token"), "{error}");
}
