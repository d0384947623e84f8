//! Subcommands that call the service, against a small service of the test's own.

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::{Arc, Mutex};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::running::output;

const ACCOUNT: &str = "9fff3bf7d1f9561d";

/// What the service knows and was asked.
#[derive(Default)]
struct ServiceState {
    ids_by_email: BTreeMap<String, String>,
    keys: u32,
    has_namespace: bool,
    calls: Vec<String>,
    fail_next: u32,
}

type Shared = Arc<Mutex<ServiceState>>;
type HttpReply = (StatusCode, Json<Value>);

fn token() -> String {
    format!("hfop_{}", "A".repeat(43))
}

fn problem(status: StatusCode, code: &str) -> HttpReply {
    (status, Json(json!({"status": status.as_u16(), "code": code, "detail": format!("detail of {code}")})))
}

async fn create_account(State(known): State<Shared>, headers: HeaderMap, Json(body): Json<Value>) -> HttpReply {
    let mut known = known.lock().unwrap();
    if headers["authorization"] != format!("Bearer {}", token()) {
        return problem(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED");
    }
    assert!(headers.contains_key("idempotency-key"), "a creation that may be repeated has a key");
    if known.fail_next > 0 {
        known.fail_next -= 1;
        return problem(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE");
    }
    let email = body["email"].as_str().unwrap().to_owned();
    if known.ids_by_email.contains_key(&email) {
        return problem(StatusCode::CONFLICT, "ALREADY_EXISTS");
    }
    let id = format!("{:016x}", known.ids_by_email.len() + 1);
    known.ids_by_email.insert(email.clone(), id.clone());
    (StatusCode::CREATED, Json(json!({"id": id, "email": email})))
}

/// Two accounts a page.
async fn list_accounts(
    State(known): State<Shared>,
    headers: HeaderMap,
    Query(query): Query<BTreeMap<String, String>>,
) -> HttpReply {
    if headers["authorization"] != format!("Bearer {}", token()) {
        return problem(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED");
    }
    let mut known = known.lock().unwrap();
    known.calls.push("list".to_owned());
    let start: usize = query.get("page_token").map_or(0, |token| token.parse().unwrap());
    let rows: Vec<Value> =
        known.ids_by_email.iter().skip(start).take(2).map(|(email, id)| json!({"id": id, "email": email})).collect();
    let next = (start + 2 < known.ids_by_email.len()).then(|| (start + 2).to_string());
    (StatusCode::OK, Json(json!({"accounts": rows, "next_page_token": next})))
}

async fn create_key(State(known): State<Shared>, Path(account): Path<String>) -> HttpReply {
    let mut known = known.lock().unwrap();
    if account == "0000000000000bad" {
        return problem(StatusCode::NOT_FOUND, "ACCOUNT_NOT_FOUND");
    }
    known.keys += 1;
    let key_id = format!("k{}", known.keys);
    (StatusCode::CREATED, Json(json!({"key_id": key_id, "api_key": format!("hf_{key_id}_secret")})))
}

async fn delete_key(State(known): State<Shared>, Path((account, key_id)): Path<(String, String)>) -> StatusCode {
    known.lock().unwrap().calls.push(format!("delete {account} {key_id}"));
    StatusCode::NO_CONTENT
}

async fn get_namespace(State(known): State<Shared>, headers: HeaderMap) -> HttpReply {
    assert_eq!(headers["authorization"], "Bearer hf_k1_secret");
    if known.lock().unwrap().has_namespace {
        return (StatusCode::OK, Json(json!({"name": "my-namespace"})));
    }
    problem(StatusCode::NOT_FOUND, "NAMESPACE_NOT_FOUND")
}

async fn create_namespace(State(known): State<Shared>, Json(body): Json<Value>) -> HttpReply {
    known.lock().unwrap().has_namespace = true;
    (StatusCode::CREATED, Json(body))
}

async fn acquire(State(known): State<Shared>, Json(body): Json<Value>) -> HttpReply {
    if !known.lock().unwrap().has_namespace {
        return problem(StatusCode::NOT_FOUND, "NAMESPACE_NOT_FOUND");
    }
    assert_eq!(body, json!({"process_id": "process-id-1", "mode": "WRITE", "ttl_ms": 60_000}));
    (StatusCode::OK, Json(json!({"success": true, "fencing_token": 57})))
}

/// Serves until the test ends; answers its address.
async fn serve(known: &Shared) -> String {
    let routes = Router::new()
        .route("/v1/accounts", post(create_account).get(list_accounts))
        .route("/v1/accounts/{account}/api-keys", post(create_key))
        .route("/v1/accounts/{account}/api-keys/{key_id}", delete(delete_key))
        .route("/v1/namespaces/my-namespace", get(get_namespace))
        .route("/v1/namespaces", post(create_namespace))
        .route("/v1/namespaces/my-namespace/locks/my-lock-1/acquire", post(acquire))
        .with_state(known.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    url
}

async fn dev(url: &str, token: &str, arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_dev"));
    command.args(arguments).env("HOLDFAST_URL", url).env("HOLDFAST_OPERATOR_TOKEN", token);
    output(command).await
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn seeding_again_finds_what_is_there_and_makes_the_rest() {
    let known = Shared::default();
    let url = serve(&known).await;
    let first = dev(&url, &token(), &["seed-accounts", "--count", "3"]).await;
    let lines = text(&first.stdout);
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert_eq!(lines.lines().count(), 3);
    for (line, number) in lines.lines().zip(1..) {
        let [created, account, _, email, api_key] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!((created, account, email), ("created", "account", &*format!("account+{number:04}@example.com")));
        assert!(api_key.starts_with("hf_"), "{line}");
    }

    let again = dev(&url, &token(), &["seed-accounts", "--count", "5", "--output", "json"]).await;
    let rows: Vec<Value> = text(&again.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let created: Vec<bool> = rows.iter().map(|row| row["created"].as_bool().unwrap()).collect();
    assert_eq!(created, [false, false, false, true, true]);
    let known = known.lock().unwrap();
    assert_eq!((known.ids_by_email.len(), known.keys), (5, 5));
    assert!(rows.iter().all(|row| known.ids_by_email[row["email"].as_str().unwrap()] == row["account_id"]));
    assert!(known.calls.len() <= 3, "the accounts are listed once, page by page: {:?}", known.calls);
}

#[tokio::test]
async fn a_call_that_the_service_cannot_serve_now_is_made_again() {
    let known = Shared::default();
    known.lock().unwrap().fail_next = 2;
    let url = serve(&known).await;
    let output = dev(&url, &token(), &["seed-accounts", "--count", "1"]).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[tokio::test]
async fn a_wrong_operator_token_is_shown_as_the_problem_with_what_to_do() {
    let known = Shared::default();
    let url = serve(&known).await;
    let wrong = format!("hfop_{}", "B".repeat(43));
    let output = dev(&url, &wrong, &["seed-accounts", "--count", "1"]).await;
    let error = text(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("UNAUTHENTICATED: detail of UNAUTHENTICATED\n"), "{error}");
    assert!(error.contains("HOLDFAST_OPERATOR_TOKEN") && !error.contains(&wrong), "{error}");
    let output = dev(&url, "guess", &["seed-accounts", "--count", "1"]).await;
    assert!(text(&output.stderr).contains("looks like hfop_"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn the_scenario_creates_the_namespace_takes_the_lock_and_leaves_no_key() {
    let known = Shared::default();
    let url = serve(&known).await;
    let output = dev(&url, &token(), &["scenario-1", "--account-id", ACCOUNT]).await;
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(shown.contains("NAMESPACE_NOT_FOUND") && shown.contains("POST /v1/namespaces\n"), "{shown}");
    assert!(shown.contains("Granted, with fencing token 57"), "{shown}");
    assert!(!shown.contains("hf_k1_secret"), "{shown}");
    assert_eq!(known.lock().unwrap().calls, [format!("delete {ACCOUNT} k1")]);
}

#[tokio::test]
async fn the_scenario_for_programs_prints_one_answer_a_line() {
    let known = Shared::default();
    known.lock().unwrap().has_namespace = true;
    let url = serve(&known).await;
    let output = dev(&url, &token(), &["--output", "json", "scenario-1", "--account-id", ACCOUNT]).await;
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[2]["answer"]["fencing_token"], 57);
}

#[tokio::test]
async fn an_unknown_account_is_shown_with_how_to_make_one() {
    let known = Shared::default();
    let url = serve(&known).await;
    let output = dev(&url, &token(), &["scenario-1", "--account-id", "0000000000000bad"]).await;
    let error = text(&output.stderr);
    assert!(error.contains("ACCOUNT_NOT_FOUND") && error.contains("dev seed-accounts"), "{error}");
}

#[tokio::test]
async fn of_the_tokens_that_first_starts_left_here_the_one_that_is_accepted_is_used() {
    let known = Shared::default();
    let url = serve(&known).await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("data/cluster")).unwrap();
    let leave = |file: &str, token: &str| std::fs::write(directory.path().join(file), token).unwrap();
    let seed = || {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_dev"));
        command.args(["seed-accounts", "--count", "1", "--url", &url]).env_remove("HOLDFAST_OPERATOR_TOKEN");
        command.current_dir(directory.path());
        output(command)
    };
    leave("data/operator.token", &format!("hfop_{}\n", "B".repeat(43)));
    leave("data/cluster/operator.token", &token());
    let output = seed().await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("using the operator token of ./data/cluster/operator.token"));

    leave("data/cluster/operator.token", &format!("hfop_{}", "C".repeat(43)));
    let output = seed().await;
    let error = text(&output.stderr);
    assert!(!output.status.success() && error.contains("accepts neither ./data/operator.token nor"), "{error}");
}
