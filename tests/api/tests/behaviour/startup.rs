//! Starting `holdfast-standalone`: for the first time, again, and where it can't.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use holdfast_testkit::{ProgramExit, Standalone, run_to_exit, scratch};
use serde_json::json;

use crate::support::RestClient;

const SECRETS: [&str; 3] = ["operator.token", "cluster.secret", "demo.key"];

fn failed_start(listen: &str, data_dir: &Path) -> ProgramExit {
    let ended = run_to_exit("holdfast-standalone", &["--listen", listen, "--data-dir", data_dir.to_str().unwrap()]);
    assert!(!ended.success, "{}", ended.output);
    ended
}

/// Every file below a folder with its bytes.
fn dir_contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn read_secrets(data_dir: &Path) -> Vec<Vec<u8>> {
    SECRETS.iter().map(|file| fs::read(data_dir.join(file)).unwrap()).collect()
}

#[tokio::test]
async fn the_first_start_makes_secrets_that_only_their_owner_can_read_and_later_ones_change_none() {
    let data_dir = scratch();
    let first = Standalone::start(&data_dir, &[]);
    for file in SECRETS {
        let mode = fs::metadata(data_dir.join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert_eq!(fs::metadata(data_dir.join("nd_1")).unwrap().permissions().mode() & 0o077, 0);
    let made = read_secrets(&data_dir);
    drop(first);
    let second = Standalone::start(&data_dir, &[]);
    assert_eq!(read_secrets(&data_dir), made);
    let demo = RestClient::new(second.address(), &second.secret("demo.key"));
    let taken =
        demo.json("POST /v1/namespaces/demo/locks/my-lock/acquire", json!({"process_id": "me", "ttl_ms": 60_000}));
    assert_eq!(taken.await.ok()["success"], true);
    let operator = RestClient::new(second.address(), &second.secret("operator.token"));
    let accounts = operator.call("GET /v1/accounts").await.ok();
    assert_eq!(accounts["accounts"].as_array().unwrap().len(), 1, "the demo account is made once");
    assert_eq!(accounts["accounts"][0]["email"], "demo@example.com");
    assert_eq!(accounts["accounts"][0]["limits"]["max_requests_per_second"], 0);
}

#[tokio::test]
async fn a_first_start_that_was_interrupted_is_taken_up_where_it_ended() {
    let data_dir = scratch();
    let first = Standalone::start(&data_dir, &[]);
    let key = first.secret("demo.key");
    drop(first);
    // As if it had been killed before it wrote the key.
    fs::remove_file(data_dir.join("demo.key")).unwrap();
    fs::write(data_dir.join("first-start.pending"), "").unwrap();
    let second = Standalone::start(&data_dir, &[]);
    assert_eq!(second.secret("demo.key"), key);
    assert!(!data_dir.join("first-start.pending").exists());
    let operator = RestClient::new(second.address(), &second.secret("operator.token"));
    let accounts = operator.call("GET /v1/accounts").await.ok();
    assert_eq!(accounts["accounts"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_demo_account_that_was_deleted_is_not_made_again() {
    let data_dir = scratch();
    let first = Standalone::start(&data_dir, &[]);
    let operator = RestClient::new(first.address(), &first.secret("operator.token"));
    let account = operator.call("GET /v1/accounts").await.ok()["accounts"][0]["id"].as_str().unwrap().to_owned();
    operator.call(&format!("DELETE /v1/accounts/{account}")).await.ok();
    drop(first);
    let second = Standalone::start(&data_dir, &[]);
    let operator = RestClient::new(second.address(), &operator.key);
    assert_eq!(operator.call("GET /v1/accounts").await.ok()["accounts"], json!([]));
}

#[tokio::test]
async fn missing_data_is_refused_with_the_place_named_and_never_taken_for_new() {
    let data_dir = scratch();
    drop(Standalone::start(&data_dir, &[]));
    fs::remove_file(data_dir.join("nd_1/CURRENT")).unwrap();
    let before = dir_contents(&data_dir.join("nd_1"));
    let ended = failed_start("127.0.0.1:0", &data_dir);
    assert!(ended.output.contains("corrupt data in") && ended.output.contains("CURRENT"), "{}", ended.output);
    assert_eq!(dir_contents(&data_dir.join("nd_1")), before);
}

#[tokio::test]
async fn a_port_in_use_is_named_and_nothing_is_changed() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let empty = scratch();
    let ended = failed_start(&address, &empty);
    assert!(ended.output.contains(&format!("{address} is already in use")), "{}", ended.output);
    assert!(!empty.exists(), "a start that fails makes no data directory");

    let used = scratch();
    drop(Standalone::start(&used, &[]));
    let before = dir_contents(&used);
    failed_start(&address, &used);
    assert_eq!(dir_contents(&used), before);
}

#[tokio::test]
async fn a_second_process_on_the_same_data_is_refused_and_the_first_goes_on() {
    let first = Standalone::start(&scratch(), &[]);
    let ended = failed_start("127.0.0.1:0", first.data_dir());
    assert!(ended.output.contains("is in use by another process"), "{}", ended.output);
    assert!(ended.output.contains(first.data_dir().join("nd_1").to_str().unwrap()), "{}", ended.output);
    let demo = RestClient::new(first.address(), &first.secret("demo.key"));
    demo.call("GET /v1/namespaces/demo").await.ok();
}

#[tokio::test]
async fn data_of_another_cluster_is_refused_and_not_changed() {
    let (ours, theirs) = (scratch(), scratch());
    drop(Standalone::start(&ours, &[]));
    drop(Standalone::start(&theirs, &[]));
    fs::copy(theirs.join("cluster.secret"), ours.join("cluster.secret")).unwrap();
    let before = dir_contents(&ours);
    let ended = failed_start("127.0.0.1:0", &ours);
    assert!(ended.output.contains("holds the data of node \"nd_1\" of cluster"), "{}", ended.output);
    assert_eq!(dir_contents(&ours), before);
}

#[tokio::test]
async fn a_damaged_secret_is_refused_with_the_file_named() {
    for file in ["cluster.secret", "operator.token"] {
        let data_dir = scratch();
        drop(Standalone::start(&data_dir, &[]));
        fs::write(data_dir.join(file), "nonsense").unwrap();
        let ended = failed_start("127.0.0.1:0", &data_dir);
        assert!(ended.output.contains(file), "{}", ended.output);
        assert_eq!(fs::read_to_string(data_dir.join(file)).unwrap(), "nonsense");
    }
}

#[tokio::test]
async fn data_that_lost_its_secrets_is_refused_and_not_taken_for_new() {
    let data_dir = scratch();
    drop(Standalone::start(&data_dir, &[]));
    fs::remove_file(data_dir.join("cluster.secret")).unwrap();
    let before = dir_contents(&data_dir.join("nd_1"));
    let ended = failed_start("127.0.0.1:0", &data_dir);
    assert!(ended.output.contains("holds the data of"), "{}", ended.output);
    assert_eq!(dir_contents(&data_dir.join("nd_1")), before);
}

#[tokio::test]
async fn an_address_that_others_can_reach_is_refused_without_encryption() {
    let data_dir = scratch();
    let ended = failed_start("0.0.0.0:0", &data_dir);
    assert!(ended.output.contains("--insecure"), "{}", ended.output);
    assert!(!data_dir.exists());
}

#[tokio::test]
async fn a_data_directory_that_cannot_be_made_is_named() {
    let data_dir = scratch();
    fs::create_dir_all(data_dir.parent().unwrap()).unwrap();
    fs::write(&data_dir, "a file").unwrap();
    let ended = failed_start("127.0.0.1:0", &data_dir);
    assert!(ended.output.contains(data_dir.to_str().unwrap()), "{}", ended.output);
    assert_eq!(fs::read_to_string(&data_dir).unwrap(), "a file");
}

#[tokio::test]
async fn bad_flags_are_named() {
    for (flags, named) in [
        (&["--listen", "nowhere"][..], "--listen"),
        (&["--listen", "127.0.0.1:99999"], "--listen"),
        (&["--colour", "red"], "--colour"),
        (&["--log-format", "xml"], "--log-format"),
    ] {
        let ended = run_to_exit("holdfast-standalone", flags);
        assert!(!ended.success && ended.output.contains(named), "{flags:?}: {}", ended.output);
    }
}

#[tokio::test]
async fn a_process_ends_with_its_parent() {
    let mut server = Standalone::start(&scratch(), &[]);
    let address: SocketAddr = server.address();
    drop(server.take_stdin());
    assert!(server.wait_for_exit(), "it goes on without its parent");
    assert!(TcpListener::bind(address).is_ok(), "its port is free again");
}
