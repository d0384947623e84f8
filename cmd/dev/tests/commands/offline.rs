//! Subcommands that need no service, by running the program.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::running::blocking_output;

/// Runs `dev` in a directory, without anything that the environment says.
fn dev(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dev"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HOLDFAST_")) {
        command.env_remove(name);
    }
    command.current_dir(directory).args(arguments);
    blocking_output(command)
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
    assert_eq!(printed(&["seed-cluster-config"]), include_str!("../../../../cluster_config.json"));
}

#[test]
fn a_given_number_of_groups_is_listed_and_the_shards_are_found_all_the_same() {
    let text = printed(&["seed-cluster-config", "--groups", "2"]);
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(config["groups"].as_array().unwrap().len(), 2);
    assert_eq!(config["applications"][1]["shards"][0]["group"], "g2");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster_config.json");
    std::fs::write(&path, text).unwrap();
    let found =
        printed(&["shard-key", "--account", "17376851231650125672", "--cluster-config", path.to_str().unwrap()]);
    assert!(found.contains("namespaces_11"), "{found}");
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
    let error = error_of(&["seed-cluster-config", "--groups", "0"]);
    assert!(error.contains("groups"), "{error}");
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
fn subcommands_that_moved_are_answered_with_their_new_name() {
    let error = error_of(&["backup", "--out", "b", "--cluster-config", "cluster_config.json"]);
    assert!(error.contains("`dev backup` is now `holdfast-admin backup`"), "{error}");
    let error = error_of(&["--output", "json", "cluster", "finalize"]);
    assert!(error.contains("`dev cluster finalize` is now `holdfast-admin cluster finalize`"), "{error}");
    let error = error_of(&["no-such-command"]);
    assert!(error.contains("unrecognized subcommand"), "{error}");
}
