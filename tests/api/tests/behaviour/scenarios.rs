//! The scenarios of `dev`: each ends as it says, and leaves nothing behind.

use std::process::Command;

use holdfast_testkit::{Standalone, executable};
use serde_json::Value;

use crate::locktopus::locktopus_server;
use crate::support::RestClient;

/// A process with a demo account, which the scenarios act for.
fn demo_server() -> &'static Standalone {
    &locktopus_server().0
}

fn run_scenario(scenario: &str, flags: &[&str]) -> (bool, String, String) {
    let server = demo_server();
    let mut command = Command::new(executable("dev"));
    command.env_clear().arg(scenario).args(flags);
    command.args(["--url", &format!("http://{}", server.address())]);
    command.env("HOLDFAST_OPERATOR_TOKEN", server.secret("operator.token"));
    let output = command.output().unwrap();
    let [told, noted] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.success(), told, noted)
}

/// Runs it, and checks that neither its namespace nor its key is left.
async fn assert_scenario_passes(scenario: &str) {
    let (success, told, noted) = run_scenario(scenario, &[]);
    assert!(success, "{told}{noted}");
    assert!(told.ends_with("# All responses were as expected\n"), "{told}");
    assert!(told.contains("\n   so: "), "{told}");
    assert!(!told.contains("hf_"), "the key is not shown: {told}");
    assert_nothing_is_left(scenario).await;
}

/// Checks that neither the namespace of a scenario nor its key is left.
async fn assert_nothing_is_left(scenario: &str) {
    let rest = RestClient::new(demo_server().address(), &demo_server().secret("demo.key"));
    for call in ["GET /v1/namespaces?page_size=1000", "GET /v1/api-keys"] {
        let left = rest.call(call).await.ok().to_string();
        assert!(!left.contains(scenario), "{left}");
    }
}

#[tokio::test]
async fn tree_locks() {
    assert_scenario_passes("scenario-tree-locks").await;
}

#[tokio::test]
async fn atomic_sets() {
    assert_scenario_passes("scenario-atomic-sets").await;
}

#[tokio::test]
async fn queue() {
    assert_scenario_passes("scenario-queue").await;
}

#[tokio::test]
async fn session_dies() {
    assert_scenario_passes("scenario-session-dies").await;
}

#[tokio::test]
async fn deadlock() {
    assert_scenario_passes("scenario-deadlock").await;
}

#[tokio::test]
async fn watcher_resumes() {
    assert_scenario_passes("scenario-watcher-resumes").await;
}

#[tokio::test]
async fn fencing() {
    assert_scenario_passes("scenario-fencing").await;
}

#[tokio::test]
async fn condition() {
    assert_scenario_passes("scenario-condition").await;
}

#[tokio::test]
async fn semaphore() {
    assert_scenario_passes("scenario-semaphore").await;
}

#[tokio::test]
async fn pool() {
    assert_scenario_passes("scenario-pool").await;
}

#[tokio::test]
async fn barrier() {
    assert_scenario_passes("scenario-barrier").await;
}

#[tokio::test]
async fn asking_back() {
    assert_scenario_passes("scenario-asking-back").await;
}

#[tokio::test]
async fn latch() {
    assert_scenario_passes("scenario-latch").await;
}

#[tokio::test]
async fn a_rebuild_needs_a_node_that_can_lead_next() {
    let (success, told, noted) = run_scenario("scenario-rebuild", &[]);
    assert!(!success && noted.contains("no other node that can lead"), "{told}{noted}");
    assert_nothing_is_left("scenario-rebuild").await;
}

#[test]
fn for_programs_each_step_is_a_json_value_a_line() {
    let (success, told, noted) = run_scenario("scenario-atomic-sets", &["--output", "json"]);
    assert!(success && noted.contains("# "), "{noted}");
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        lines.iter().any(|line| line["said"]["success"] == true) && lines.iter().any(|line| line["seen"].is_string())
    );
}

#[test]
fn an_account_that_is_not_there_ends_a_scenario_with_exit_status_1() {
    let (success, _, noted) = run_scenario("scenario-queue", &["--account-id", "0000000000000001"]);
    assert!(!success && noted.contains("ACCOUNT_NOT_FOUND"), "{noted}");
}
