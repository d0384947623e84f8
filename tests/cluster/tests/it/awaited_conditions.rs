//! Owners that await conditions of a lock, and the loss of the leader: nobody sleeps on, and no signal is lost.

use holdfast_testkit::{CallError, CallOutcome, Cluster, RestClient, Setup, eventually, wait_before_retry};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::waiting_acquires::lose_leader;

const NAMESPACE: &str = "orders";
const AWAITING: usize = 6;

/// Makes a call until it is answered: each of them may be repeated.
async fn call(api: &RestClient, below: &str, body: Value) -> Value {
    loop {
        let line = format!("POST /v1/namespaces/{NAMESPACE}/{below}");
        let answer: Result<Value, CallError> = api.fetch(&line, Some(body.clone())).await;
        match answer {
            Ok(answer) => return answer,
            Err(error) => {
                let is_transient = error.outcome == CallOutcome::Unknown || error.status == 503 || error.status == 0;
                assert!(is_transient, "{below}: {error}");
                wait_before_retry().await;
            }
        }
    }
}

async fn lock(api: &RestClient, owner: &str) -> u64 {
    let body = json!({"process_id": owner, "ttl_ms": 3_600_000, "wait_ms": 60_000});
    let answer = call(api, "locks/one/acquire", body).await;
    answer["fencing_token"].as_u64().unwrap_or_else(|| panic!("{owner}: {answer}"))
}

async fn unlock(api: &RestClient, owner: &str) {
    call(api, "locks/one/release", json!({"process_id": owner})).await;
}

async fn signal(api: &RestClient, owner: &str, id: &str) -> Value {
    call(api, "conditions/signal", json!({"name": "one", "process_id": owner, "signal_id": id})).await
}

/// Gives the lock up until a signal, in long polls.
async fn await_with_polls(api: RestClient, owner: String, token: u64) -> Value {
    let body = json!({
        "name": "one", "process_id": owner, "fencing_token": token, "ttl_ms": 3_600_000, "wait_ms": 600_000,
        "relock_ms": 600_000, "poll_ms": 15_000,
    });
    loop {
        let answer = call(&api, "conditions/await", body.clone()).await;
        if answer["reason"]["code"] != "QUEUED" {
            return answer;
        }
    }
}

async fn wait_for_awaiting(api: &RestClient, count: usize) {
    eventually(&format!("{count} await it"), async || {
        let line = format!("GET /v1/namespaces/{NAMESPACE}/waits?kinds=conditions");
        let page: Result<Value, CallError> = api.fetch(&line, None).await;
        match page.map_err(|error| error.to_string())?["waits"].as_array().map(Vec::len) {
            Some(now) if now == count => Ok(()),
            now => Err(format!("{now:?} await it")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_await_a_condition_are_woken_in_order_whatever_leader_is_lost() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("awaits", &[NAMESPACE]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let shard = cluster.locks_shard(&tenant, NAMESPACE);
    let mut awaiting: Vec<JoinHandle<Value>> = Vec::new();
    for number in 0..AWAITING {
        let owner = format!("p{number}");
        let token = lock(&api, &owner).await;
        awaiting.push(tokio::spawn(await_with_polls(cluster.rest_client(number % 2, &tenant.key), owner, token)));
        wait_for_awaiting(&api, number + 1).await;
    }
    lose_leader(&mut cluster, &shard, true).await;
    wait_for_awaiting(&api, AWAITING).await;
    // One is woken, and waits for the lock while the leader is lost once more.
    lock(&api, "signaller").await;
    assert_eq!(signal(&api, "signaller", "first").await["signalled"], 1);
    lose_leader(&mut cluster, &shard, false).await;
    assert_eq!(signal(&api, "signaller", "first").await["signalled"], 1, "a repeat wakes nobody");
    wait_for_awaiting(&api, AWAITING - 1).await;
    let rest = call(&api, "conditions/signal", json!({"name": "one", "process_id": "signaller", "all": true})).await;
    assert_eq!(rest["signalled"], AWAITING - 1);
    unlock(&api, "signaller").await;
    let mut last = 0;
    for (number, awaiting) in awaiting.into_iter().enumerate() {
        let answer = awaiting.await.unwrap();
        assert_eq!((&answer["success"], &answer["woken"]), (&json!(true), &json!("SIGNALLED")), "{answer}");
        let token = answer["fencing_token"].as_u64().unwrap();
        assert!(token > last, "in order");
        last = token;
        unlock(&api, &format!("p{number}")).await;
    }
    cluster.wait_equal_states().await;
}
