//! Subcommands that need no service, by running the program.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `dev` in a directory, without anything that the environment says.
fn dev(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dev"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HOLDFAST_")) {
        command.env_remove(name);
    }
    command.current_dir(directory).args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = dev(directory.path(), arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn error_of(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = dev(directory.path(), arguments);
    assert!(!output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is printed besides the error");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_shard_key_of_the_contract_is_printed_with_its_shard() {
    let text = printed(&["shard-key", "--account", "17376851231650125672"]);
    let hex = format!("{:016x}", 17_376_851_231_650_125_672_u64);
    assert!(text.contains(&format!("account     {hex} (decimal 17376851231650125672)\n")), "{text}");
    assert!(text.contains("Namespaces  key b207da9a  shard namespaces_11\n"), "{text}");
    assert!(!text.contains("Locks"), "{text}");
}

#[test]
fn hex_and_decimal_mean_the_same_account() {
    let hex = format!("{:016x}", 17_376_851_231_650_125_672_u64);
    assert_eq!(
        printed(&["shard-key", "--account", &hex, "--namespace", "orders"]),
        printed(&["shard-key", "--account", "17376851231650125672", "--namespace", "orders"])
    );
}

#[test]
fn a_namespace_adds_the_key_of_its_locks() {
    let account = ["shard-key", "--account", "17376851231650125672", "--namespace", "orders", "--output", "json"];
    let lines: Vec<serde_json::Value> =
        printed(&account).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["shard_key"], "b207da9a");
    assert_eq!((&lines[1]["application"], &lines[1]["namespace"]), (&"Locks".into(), &"orders".into()));
    let key = u32::from_str_radix(lines[1]["shard_key"].as_str().unwrap(), 16).unwrap();
    // Sixteen equal shards: the first digit of the key counts them.
    assert_eq!(lines[1]["shard_id"], format!("locks_{:02}", key >> 28));
    assert_eq!(lines[1]["nodes"].as_array().unwrap().len(), 3);
}

#[test]
fn shards_are_found_from_the_bounds_of_the_config_given() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster_config.json");
    std::fs::write(&path, printed(&["seed-cluster-config", "--shards", "2"])).unwrap();
    let arguments = ["shard-key", "--account", "17376851231650125672"];
    let here = dev(directory.path(), &arguments);
    assert!(String::from_utf8_lossy(&here.stdout).contains("namespaces_01"), "the config of the directory is used");
    let named = printed(&[&arguments[..], &["--cluster-config", path.to_str().unwrap()]].concat());
    assert!(named.contains("namespaces_01") && named.contains(path.to_str().unwrap()), "{named}");
}

#[test]
fn a_broken_config_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broken.json");
    std::fs::write(&path, "[").unwrap();
    let path = path.to_str().unwrap();
    let error = error_of(&["shard-key", "--account", "17376851231650125672", "--cluster-config", path]);
    assert!(error.contains(path), "{error}");
}

#[test]
fn ids_that_could_mean_two_accounts_are_refused() {
    let error = error_of(&["shard-key", "--account", "12345"]);
    assert!(error.contains("16 hex digits"), "{error}");
    let error = error_of(&["shard-key", "--account", "17376851231650125672", "--namespace", ""]);
    assert!(error.contains("1 to 128 bytes"), "{error}");
}

#[test]
fn the_default_config_is_the_one_that_ships() {
    assert_eq!(printed(&["seed-cluster-config"]), include_str!("../../../cluster_config.json"));
}

#[test]
fn certificates_are_renewed_by_the_authority_that_is_there_and_keys_are_their_owners_only() {
    let directory = tempfile::tempdir().unwrap();
    let read = |file: &str| std::fs::read_to_string(directory.path().join("data/certs").join(file)).unwrap();
    let make = || {
        let output = dev(directory.path(), &["certs", "--host", "127.0.0.1", "--host", "locks.example.com"]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.contains("locks.example.com"), "{said}");
        ["ca.pem", "ca-key.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem"].map(read)
    };
    let (first, second) = (make(), make());
    assert_eq!(first[..2], second[..2]);
    assert!(first[2..].iter().zip(&second[2..]).all(|(first, second)| first != second));
    for key in ["ca-key.pem", "server-key.pem", "client-key.pem"] {
        let mode = std::fs::metadata(directory.path().join("data/certs").join(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
}

#[test]
fn sizes_that_make_no_cluster_are_refused_with_the_reason() {
    let error = error_of(&["seed-cluster-config", "--nodes", "2", "--replication-factor", "3"]);
    assert!(error.contains("replication_factor"), "{error}");
    let error = error_of(&["seed-cluster-config", "--shards", "0"]);
    assert!(error.contains("shards"), "{error}");
    error_of(&["seed-cluster-config", "--nodes", "0"]);
}

#[test]
fn without_a_service_it_is_said_how_to_start_one() {
    let token = format!("hfop_{}", "A".repeat(43));
    // Port 1 is that of a service that no machine runs any more.
    let error = error_of(&["seed-accounts", "--url", "http://127.0.0.1:1", "--operator-token", &token]);
    assert!(error.contains("dev cluster up") && error.contains("127.0.0.1:1"), "{error}");
}

#[test]
fn without_an_operator_token_it_is_said_where_it_is_looked_for() {
    let error = error_of(&["seed-accounts"]);
    assert!(error.contains("HOLDFAST_OPERATOR_TOKEN") && error.contains("./data/cluster/operator.token"), "{error}");
}

#[test]
fn a_node_that_lost_its_data_gets_new_replica_ids_and_its_operator_is_told_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("cluster_config.json"), printed(&["seed-cluster-config", "--shards", "2"]))
        .unwrap();
    let output = dev(directory.path(), &["rebuild-node", "--node-id", "nd_2"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("Move the data directory of nd_2 away"), "{said}");
    let next: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(next["version"], 2);
    let replicas = next["applications"][0]["shards"][0]["replicas"].as_array().unwrap();
    let of = |node: &str| replicas.iter().find(|replica| replica["node_id"] == node).map(|replica| &replica["id"]);
    assert_eq!((of("nd_1"), of("nd_2"), of("nd_3")), (Some(&1.into()), Some(&16.into()), Some(&3.into())));

    let unknown = dev(directory.path(), &["rebuild-node", "--node-id", "nd_9"]);
    assert!(!unknown.status.success() && String::from_utf8_lossy(&unknown.stderr).contains("name one of nd_1, nd_2"));
}

#[test]
fn secrets_are_made_once_and_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let first = dev(directory.path(), &["secrets"]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let read = |name: &str| std::fs::read_to_string(directory.path().join("secrets").join(name)).unwrap();
    let (secret, token) = (read("cluster.secret"), read("operator.token"));
    assert!(secret.trim().len() == 64 && token.starts_with("hfop_"));
    let again = dev(directory.path(), &["secrets"]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && said.contains("is not overwritten"), "{said}");
    assert_eq!((read("cluster.secret"), read("operator.token")), (secret, token));
}

#[test]
fn what_is_no_backup_is_refused_before_anything_is_done() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("backup")).unwrap();
    let output = dev(directory.path(), &["restore", "--from", "backup", "--data-dir", "data"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("no manifest.json") && said.contains("use another one"),
        "{said}"
    );
    assert!(!directory.path().join("data").exists());
}

#[test]
fn a_cluster_that_does_not_answer_is_said_with_every_node_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    assert!(dev(directory.path(), &["secrets"]).status.success());
    let config = printed(&["seed-cluster-config", "--base-port", "1"]);
    let file = directory.path().join("cluster_config.json");
    std::fs::write(&file, &config).unwrap();
    let flags = ["--cluster-config", "cluster_config.json", "--cluster-secret-file", "secrets/cluster.secret"];
    for words in [&["add-node", "--node-id", "nd_4", "--address", "127.0.0.1:9"][..], &["backup", "--out", "b"]] {
        let output = dev(directory.path(), &[words, &flags[..]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("no node of") && said.contains("nd_3"), "{said}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), config);
    assert!(!directory.path().join("b").exists());
}

/// Says once why a file is refused, whatever it is wrapped in.
#[test]
fn a_file_that_is_missing_is_named_with_its_reason_once() {
    let directory = tempfile::tempdir().unwrap();
    let refusal =
        || String::from_utf8(dev(directory.path(), &["show-config", "--cluster-config", "c.json"]).stderr).unwrap();
    let config = refusal();
    assert!(config.contains("c.json") && config.matches("No such file").count() == 1, "{config}");
    std::fs::write(directory.path().join("c.json"), printed(&["seed-cluster-config"])).unwrap();
    let secret = refusal();
    assert!(secret.contains("cluster.secret") && secret.matches("No such file").count() == 1, "{secret}");
}

#[test]
fn a_node_does_not_take_its_own_place() {
    let replacing = error_of(&["replace-node", "--node-id", "nd_1", "--with", "nd_1"]);
    assert!(replacing.contains("--node-id and --with are the same node"), "{replacing}");
    let moving = error_of(&["move-replica", "--shard", "locks_03", "--from", "nd_1", "--to", "nd_1"]);
    assert!(moving.contains("--from and --to are the same node"), "{moving}");
}
