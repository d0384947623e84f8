//! One connection with thousands of requests that wait for one another. The shard serves, also after a kill.

use std::time::{Duration, Instant};

use holdfast_testkit::{Standalone, scratch};
use serde_json::{Value, json};

use crate::support::{RestClient, SessionSocket, create_tenant};

/// Owners that wait and are waited for; with those that wait for them, who waits for whom would take more than a million
/// steps to find out.
const TANGLED_OWNERS: usize = 1_267;
/// So many messages are sent before their answers are read.
const BATCH_SIZE: usize = 100;
/// How soon everybody else has to be served.
const MAX_LATENCY: Duration = Duration::from_secs(5);

/// A request of one thread of the session for some paths in WRITE.
fn lock_message(holder: &str, request_id: &str, paths: &[&str]) -> Value {
    let resources: Vec<Value> = paths.iter().map(|path| json!({"path": [path], "mode": "WRITE"})).collect();
    json!({"type": "lock", "request_id": request_id, "holder": holder, "resources": resources})
}

/// Sends the messages; what each is answered.
async fn send_and_receive(socket: &mut SessionSocket, messages: &[Value]) -> Vec<Value> {
    let mut answers = Vec::new();
    for some in messages.chunks(BATCH_SIZE) {
        for message in some {
            socket.send(message.clone()).await;
        }
        for message in some {
            let answer = socket.receive().await;
            assert_eq!(answer["request_id"], message["request_id"], "{answer}");
            answers.push(answer);
        }
    }
    answers
}

async fn assert_serves(rest: &RestClient, lock: &str) {
    let asked = Instant::now();
    let body = json!({"process_id": "somebody", "ttl_ms": 60_000});
    let taken = rest.json(&format!("POST /v1/namespaces/ns/locks/{lock}/acquire"), body).await.ok();
    assert_eq!(taken["success"], true, "{taken}");
    assert!(asked.elapsed() < MAX_LATENCY, "{:?}", asked.elapsed());
}

/// How many requests wait, and why that of one thread of the session does.
async fn waiting_requests(rest: &RestClient, holder: &str) -> (usize, Value) {
    let (mut count, mut reason, mut token) = (0, Value::Null, String::new());
    loop {
        let page = rest.call(&format!("GET /v1/namespaces/ns/waits?page_size=1000{token}")).await.ok();
        for wait in page["waits"].as_array().expect("a list") {
            count += 1;
            if wait["holder"] == holder {
                reason = wait["reason"].clone();
            }
        }
        match page["next_page_token"].as_str() {
            Some(next) => token = format!("&page_token={next}"),
            None => return (count, reason),
        }
    }
}

/// `t` stands behind `y`, who stands behind `z` without waiting for it, since `z` waits for `y`. Whoever does not look
/// that far takes `y` to wait for `t`, which would let `t` go first.
fn blocked_chain() -> Vec<Value> {
    let mut messages =
        vec![lock_message("h", "h", &["m"]), lock_message("t", "t", &["t"]), lock_message("y", "y", &["y"])];
    messages.extend([lock_message("z", "z waits", &["t", "y", "m"]), lock_message("y", "y waits", &["m", "l"])]);
    for number in 0..TANGLED_OWNERS {
        let holder = format!("f{number}");
        messages.push(lock_message(&holder, &holder, &[&format!("f-{number}")]));
        messages.push(lock_message(&holder, &format!("{holder} waits"), &["t"]));
    }
    messages.push(lock_message("t", "t waits", &["l"]));
    for number in 0..TANGLED_OWNERS {
        let holder = format!("g{number}");
        messages.push(lock_message(&holder, &holder, &[&format!("f-{number}")]));
    }
    // A repetition returns its position.
    messages.push(lock_message("t", "t waits", &["l"]));
    messages
}

#[tokio::test]
async fn thousands_that_wait_for_one_another_on_one_connection_stop_nobody_and_are_found_again_after_a_kill() {
    let data_dir = scratch();
    let server = Standalone::start(&data_dir, &[]);
    let tenant = create_tenant(&server).await;
    tenant.create_namespace("ns").await;
    let mut socket = SessionSocket::connect(&tenant.rest).await;
    socket.open_session(600_000).await;
    let answers = send_and_receive(&mut socket, &blocked_chain()).await;
    let stands = answers.last().expect("there are answers");
    assert_eq!((&stands["request_id"], &stands["state"]), (&json!("t waits"), &json!("ENQUEUED")), "{stands}");
    let refused = answers.iter().filter(|answer| answer["type"] == "refused").count();
    println!("{} messages, of which {refused} were refused", answers.len() + 1);
    assert_serves(&tenant.rest, "after").await;
    drop((socket, server));

    let server = Standalone::start(&data_dir, &[]);
    let rest = RestClient::new(server.address(), &tenant.rest.key);
    assert_serves(&rest, "after-a-kill").await;
    let (waiting, reason) = waiting_requests(&rest, "t").await;
    assert_eq!((&reason["code"], &reason["blockers"][0]["holder"]), (&json!("QUEUED"), &json!("y")), "{reason}");
    assert_eq!(waiting, 3 + 2 * TANGLED_OWNERS - refused, "everybody waits who waited");
    assert_serves(&rest, "at-last").await;
}
