//! A generator of calls (schemathesis) lets itself be led by the description, and looks for answers that are not in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::json;

use crate::support::{RestClient, create_tenant, operator_client, server};

/// What is looked for: answers of an unlisted status, type or shape, and faults. That a call may be refused which fits
/// its schema is no fault: a name may be taken, a session gone.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
/// Calls for each operation and caller.
const MAX_EXAMPLES: &str = "12";

/// The program: made ready by `tools/schemathesis`, or nothing where it cannot be had.
fn program() -> Option<PathBuf> {
    let said = Command::new("../../tools/schemathesis").output().expect("the script of this repository runs");
    let path = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    if said.status.success() && !path.is_empty() {
        return Some(PathBuf::from(path));
    }
    eprintln!("skipped: schemathesis cannot be had: {}", String::from_utf8_lossy(&said.stderr).trim());
    None
}

fn run_schemathesis(program: &Path, rest: &RestClient, names: &[(&str, &str)], folder: &Path) -> Output {
    std::fs::create_dir_all(folder).unwrap();
    let config = folder.join("schemathesis.toml");
    let names: String = names.iter().map(|(name, value)| format!("\"path.{name}\" = {value:?}\n")).collect();
    // A call that brings a millisecond is answered that this was too short, which is no fault.
    let names = format!("{names}\"header.Holdfast-Timeout-Ms\" = 10000\n");
    // The stream of events has no end, and a WebSocket is no call.
    let endless = "[[operations]]\ninclude-operation-id = [\"watch_events\", \"connect\"]\nenabled = false\n";
    // Nor are these, where they are listed: a call may bring too little time, whatever is said above.
    let refusals = "[checks.not_a_server_error]\nexpected-statuses = [\"2xx\", \"3xx\", \"4xx\", \"503\", \"504\"]\n";
    std::fs::write(&config, format!("[parameters]\n{names}\n{refusals}\n{endless}")).unwrap();
    let mut command = Command::new(program);
    command.current_dir(folder).arg("--config-file").arg(config).arg("run");
    command.arg(format!("http://{}/openapi.json", rest.address));
    command.args(["--header", &format!("Authorization: Bearer {}", rest.key), "--checks", CHECKS]);
    command.args([
        "--max-examples",
        MAX_EXAMPLES,
        "--phases",
        "examples,coverage,fuzzing",
        "--seed",
        "1",
        "--no-color",
    ]);
    command.env_remove("HTTP_PROXY").env_remove("http_proxy").output().expect("the program starts")
}

#[tokio::test]
#[ignore = "it installs a program of others and takes minutes: make api-explore"]
async fn no_answer_is_unlisted() {
    let Some(program) = program() else { return };
    let (own, server) = (create_tenant(server()).await, server());
    // What is made and filled by the calls must not be ended by them all the time, so names are given.
    own.create_namespace("ns").await;
    // No call waits for long, so that the exploration is quick.
    own.update(server, json!({"limits": {"max_wait_ms": 100}})).await;
    let session = json!({"process_id": "p", "ttl_ms": 600_000});
    let session = own.rest.json("POST /v1/namespaces/ns/sessions", session).await.ok();
    let names = [
        ("namespace", "ns"),
        ("name", "l"),
        ("session", session["session_id"].as_str().unwrap()),
        ("account", own.account.as_str()),
    ];
    for (who, rest) in [("tenant", own.rest.clone()), ("operator", operator_client(server))] {
        let folder = holdfast_testkit::scratch();
        let (program, names) = (program.clone(), names.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let explored = tokio::task::spawn_blocking(move || {
            let names: Vec<(&str, &str)> = names.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            run_schemathesis(&program, &rest, &names, &folder)
        });
        let said = explored.await.unwrap();
        let output = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success(), "{who}:\n{output}\n{}", String::from_utf8_lossy(&said.stderr));
    }
}
