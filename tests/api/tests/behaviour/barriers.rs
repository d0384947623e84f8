//! Barriers, through every way in.

use holdfast_proto::v1;
use holdfast_proto::v1::barrier_answer::Outcome;
use holdfast_proto::v1::barriers_service_client::BarriersServiceClient;
use serde_json::{Value, json};
use tonic::Code;

use crate::support::frontends::Failure;
use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, SessionSocket, connect_new_tenant, create_tenant, server, wait_until};

/// Longer than any test takes.
const WAIT_MS: u64 = 300_000;

async fn tenant_with_namespace() -> RestClient {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    tenant.rest
}

fn line(verb: &str) -> String {
    format!("POST /v1/namespaces/ns/barriers/{verb}")
}

async fn call(rest: &RestClient, verb: &str, body: Value) -> Value {
    rest.json(&line(verb), body).await.ok()
}

/// The body of a party of two that does not wait.
fn arrival(process_id: &str) -> Value {
    json!({"name": "b", "process_id": process_id, "parties": 2, "ttl_ms": 60_000})
}

fn with(mut body: Value, field: &str, value: impl Into<Value>) -> Value {
    body[field] = value.into();
    body
}

async fn wait_until_arrived(rest: &RestClient, count: u64) {
    let arrived = async || call(rest, "get", json!({"name": "b"})).await["barrier"]["arrived"].clone();
    wait_until("they have arrived", async || arrived().await == count).await;
}

#[tokio::test]
async fn the_last_arrival_trips_the_barrier_for_all_and_each_has_an_index() {
    let rest = tenant_with_namespace().await;
    let waits = tokio::spawn({
        let rest = rest.clone();
        async move { call(&rest, "arrive", with(arrival("one"), "wait_ms", WAIT_MS)).await }
    });
    wait_until("the barrier is there", async || rest.json(&line("get"), json!({"name": "b"})).await.status == 200)
        .await;
    let last = call(&rest, "arrive", arrival("two")).await;
    let first = waits.await.unwrap();
    assert_eq!((&first["outcome"], &first["index"]), (&json!("TRIPPED"), &json!(0)));
    assert_eq!((&last["outcome"], &last["index"]), (&json!("TRIPPED"), &json!(1)));
    assert_eq!(first["generation"], last["generation"]);
    assert!(last["next_generation"].as_u64() > last["generation"].as_u64());
    let again = call(&rest, "arrive", with(arrival("one"), "generation", first["generation"].clone())).await;
    assert_eq!((&again["outcome"], &again["index"]), (&json!("TRIPPED"), &json!(0)), "a repeat is told the same");
    let stranger = json!({"name": "b", "generation": first["generation"]});
    assert_eq!(call(&rest, "wait", stranger).await["outcome"], "TRIPPED");
    let late = call(&rest, "arrive", with(arrival("late"), "generation", first["generation"].clone())).await;
    assert_eq!((&late["outcome"], &late["ended"]), (&json!("PAST"), &json!("TRIPPED")));
    let shown = call(&rest, "get", json!({"name": "b"})).await;
    assert_eq!((&shown["arrivals"], &shown["generations"][0]["outcome"]), (&json!([]), &json!("TRIPPED")));
    assert_eq!(shown["generations"][0]["parties"], 2);
}

#[tokio::test]
async fn whoever_leaves_before_the_trip_breaks_it_for_those_who_wait() {
    let rest = tenant_with_namespace().await;
    call(&rest, "configure", json!({"name": "b", "parties": 3})).await;
    let mine = call(&rest, "arrive", arrival("one")).await;
    let generation = &mine["generation"];
    assert_eq!((&mine["outcome"], &mine["barrier"]["parties"]), (&json!("WAITING"), &json!(3)));
    let others = ["arrive", "wait"].map(|verb| {
        let body = match verb {
            "arrive" => with(arrival("two"), "generation", generation.clone()),
            _ => json!({"name": "b", "generation": generation}),
        };
        let (rest, body) = (rest.clone(), with(body, "wait_ms", WAIT_MS));
        tokio::spawn(async move { call(&rest, verb, body).await["outcome"].clone() })
    });
    wait_until_arrived(&rest, 2).await;
    let leave = json!({"name": "b", "process_id": "one", "generation": generation});
    assert_eq!(call(&rest, "leave", leave.clone()).await["outcome"], "BROKEN");
    assert_eq!(call(&rest, "leave", leave).await["outcome"], "BROKEN", "a repeat is told the same");
    for other in others {
        assert_eq!(other.await.unwrap(), "BROKEN");
    }
    let withdraws = json!({"name": "b", "parties": 3, "on_loss": "WITHDRAW"});
    let next = call(&rest, "configure", withdraws).await["barrier"]["generation"].clone();
    call(&rest, "arrive", arrival("one")).await;
    call(&rest, "arrive", with(arrival("two"), "ttl_ms", 100)).await;
    wait_until_arrived(&rest, 1).await;
    let leave = json!({"name": "b", "process_id": "one", "generation": next});
    assert_eq!(call(&rest, "leave", leave).await["outcome"], "WITHDRAWN");
}

#[tokio::test]
async fn those_inside_a_double_barrier_leave_together() {
    let rest = tenant_with_namespace().await;
    let arrival = |process_id: &str| with(arrival(process_id), "double", true);
    let generation = call(&rest, "arrive", arrival("one")).await["generation"].clone();
    let tripped = call(&rest, "arrive", arrival("two")).await;
    assert_eq!((&tripped["outcome"], &tripped["barrier"]["inside"]), (&json!("TRIPPED"), &json!(2)));
    let leave = |process_id: &str| json!({"name": "b", "process_id": process_id, "generation": generation});
    let waits = tokio::spawn({
        let (rest, body) = (rest.clone(), with(leave("one"), "wait_ms", WAIT_MS));
        async move { call(&rest, "leave", body).await }
    });
    wait_until("one has left", async || call(&rest, "get", json!({"name": "b"})).await["barrier"]["inside"] == 1).await;
    for process_id in ["three", "four"] {
        assert_eq!(call(&rest, "arrive", arrival(process_id)).await["outcome"], "WAITING");
    }
    assert_eq!(call(&rest, "arrive", arrival("five")).await["outcome"], "FULL");
    let last = call(&rest, "leave", leave("two")).await;
    assert_eq!((&last["outcome"], &last["lost"]), (&json!("LEFT"), &json!(0)));
    assert_eq!(waits.await.unwrap()["outcome"], "LEFT");
    assert_eq!(call(&rest, "arrive", arrival("three")).await["outcome"], "TRIPPED", "it is inside now");
}

#[tokio::test]
async fn a_body_names_one_barrier_and_has_no_figures_out_of_bounds() {
    let rest = tenant_with_namespace().await;
    for (body, field) in [
        (json!({"parties": 1}), "name"),
        (json!({"name": "b", "path": ["b"], "parties": 1}), "path"),
        (json!({"path": [], "parties": 1}), "path"),
        (json!({"name": "b"}), "parties"),
        (json!({"name": "b", "parties": 0}), "parties"),
        (json!({"name": "b", "parties": 1_001}), "parties"),
        (json!({"name": "b", "parties": 1, "on_loss": "OTHER"}), "on_loss"),
        (json!({"name": "b", "parties": 1, "ttl_ms": 1}), "ttl_ms"),
    ] {
        rest.json(&line("configure"), body).await.expect_field_error(field);
    }
    let without_ttl = json!({"name": "b", "process_id": "p", "parties": 2});
    rest.json(&line("arrive"), without_ttl).await.expect_field_error("ttl_ms");
    rest.json(&line("arrive"), with(arrival("p"), "wait_ms", u64::from(u32::MAX))).await.expect_field_error("wait_ms");
    let unknown = json!({"name": "b", "process_id": "p", "ttl_ms": 60_000});
    rest.json(&line("arrive"), unknown).await.expect_error("PRIMITIVE_NOT_FOUND");
    let made = call(&rest, "arrive", arrival("p")).await;
    rest.json(&line("arrive"), with(arrival("q"), "parties", 3)).await.expect_field_error("parties");
    let later = made["generation"].as_u64().unwrap() + 1_000;
    rest.json(&line("wait"), json!({"name": "b", "generation": later})).await.expect_field_error("generation");
    assert_eq!(rest.json(&line("delete"), json!({"name": "b"})).await.status, 204);
    let wait = with(arrival("p"), "generation", made["generation"].clone());
    assert_eq!(call(&rest, "arrive", wait).await["outcome"], "BROKEN", "it was in it");
    rest.json(&line("get"), json!({"name": "b"})).await.expect_error("PRIMITIVE_NOT_FOUND");
}

#[tokio::test]
async fn barriers_are_listed_in_order_page_by_page() {
    let rest = tenant_with_namespace().await;
    for path in [json!(["b"]), json!(["a", "y"]), json!(["a", "x"])] {
        call(&rest, "configure", json!({"path": path, "parties": 2})).await;
    }
    let list = async |query: &str| rest.call(&format!("GET /v1/namespaces/ns/barriers{query}")).await.ok();
    let paths = |page: &Value| -> Vec<Value> {
        page["barriers"].as_array().unwrap().iter().map(|barrier| barrier["path"].clone()).collect()
    };
    assert_eq!(paths(&list("").await), [json!(["a", "x"]), json!(["a", "y"]), json!(["b"])]);
    assert_eq!(paths(&list("?prefix=a").await), [json!(["a", "x"]), json!(["a", "y"])]);
    let page = list("?page_size=2").await;
    let token = page["next_page_token"].as_str().unwrap();
    assert_eq!(paths(&list(&format!("?page_size=2&page_token={token}")).await), [json!(["b"])]);
}

#[tokio::test]
async fn grpc_answers_as_rest_does() {
    let rest = tenant_with_namespace().await;
    let mut barriers = BarriersServiceClient::new(channel(&rest).await);
    let (namespace, name) = ("ns".to_owned(), Some("b".to_owned()));
    let configure = v1::ConfigureBarrierRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        parties: 2,
        ..Default::default()
    };
    let made = barriers.configure_barrier(with_key(configure, &rest.key)).await.unwrap().into_inner().barrier.unwrap();
    assert_eq!((made.parties, made.on_loss().as_str_name(), made.configured), (2, "BREAK", true));
    let arrive = |process_id: &str| v1::ArriveAtBarrierRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        process_id: Some(process_id.to_owned()),
        generation: Some(made.generation),
        ttl_ms: Some(60_000),
        ..Default::default()
    };
    let first = barriers.arrive_at_barrier(with_key(arrive("one"), &rest.key)).await.unwrap().into_inner();
    assert_eq!((first.outcome(), first.generation), (Outcome::Waiting, made.generation));
    let get = v1::GetBarrierRequest { namespace: namespace.clone(), name: name.clone(), ..Default::default() };
    let shown = barriers.get_barrier(with_key(get.clone(), &rest.key)).await.unwrap().into_inner();
    assert_eq!((shown.arrivals.len(), shown.arrivals[0].process_id.as_str()), (1, "one"));
    let leave = v1::LeaveBarrierRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        process_id: Some("one".to_owned()),
        generation: made.generation,
        ..Default::default()
    };
    let left = barriers.leave_barrier(with_key(leave, &rest.key)).await.unwrap().into_inner();
    assert_eq!(left.outcome(), Outcome::Broken);
    let late = barriers.arrive_at_barrier(with_key(arrive("late"), &rest.key)).await.unwrap().into_inner();
    assert_eq!((late.outcome(), late.ended()), (Outcome::Past, Outcome::Broken));
    let list = v1::ListBarriersRequest { namespace: namespace.clone(), ..Default::default() };
    assert_eq!(barriers.list_barriers(with_key(list, &rest.key)).await.unwrap().into_inner().barriers.len(), 1);
    let delete = v1::DeleteBarrierRequest { namespace: namespace.clone(), name: name.clone(), ..Default::default() };
    barriers.delete_barrier(with_key(delete, &rest.key)).await.unwrap();
    let status = barriers.get_barrier(with_key(get, &rest.key)).await.unwrap_err();
    assert_eq!((status.code(), Failure::from_status(status).code.as_str()), (Code::NotFound, "PRIMITIVE_NOT_FOUND"));
}

async fn two_sessions() -> (RestClient, SessionSocket, SessionSocket) {
    let (rest, mut first) = connect_new_tenant().await;
    let mut second = SessionSocket::connect(&rest).await;
    first.open_session(30_000).await;
    second.open_session(30_000).await;
    (rest, first, second)
}

fn arrive(request: &str, is_double: bool) -> Value {
    json!({"type": "arrive", "request_id": request, "path": ["b"], "parties": 2, "double": is_double})
}

/// The message that an arrival gathers; returns its generation.
async fn expect_gathering(socket: &mut SessionSocket, request: &str) -> Value {
    let state = socket.receive().await;
    let expected =
        json!({"type": "state", "request_id": request, "state": "ENQUEUED", "generation": state["generation"]});
    assert_eq!(state, expected);
    state["generation"].clone()
}

async fn expect_tripped(socket: &mut SessionSocket, request: &str, outcome: &str) -> Value {
    let tripped = socket.receive().await;
    assert_eq!((&tripped["type"], &tripped["request_id"]), (&json!("tripped"), &json!(request)), "{tripped}");
    assert_eq!(tripped["outcome"], outcome, "{tripped}");
    tripped
}

#[tokio::test]
async fn sessions_meet_on_their_connections() {
    let (_, mut first, mut second) = two_sessions().await;
    for round in ["a", "b"] {
        first.send(arrive(round, false)).await;
        let generation = expect_gathering(&mut first, round).await;
        second.send(arrive(round, false)).await;
        let last = expect_tripped(&mut second, round, "TRIPPED").await;
        assert_eq!((&last["generation"], &last["index"]), (&generation, &json!(1)));
        assert_eq!(expect_tripped(&mut first, round, "TRIPPED").await["index"], 0);
    }
    first.send(arrive("c", false)).await;
    expect_gathering(&mut first, "c").await;
    first.send(json!({"type": "leave", "request_id": "c"})).await;
    expect_tripped(&mut first, "c", "BROKEN").await;
    first.send(arrive("d", false)).await;
    let generation = expect_gathering(&mut first, "d").await;
    first.send(arrive("e", false)).await;
    let replaced = first.receive().await;
    assert_eq!((&replaced["type"], &replaced["request_id"]), (&json!("refused"), &json!("d")), "{replaced}");
    assert_eq!(expect_gathering(&mut first, "e").await, generation);
    second.send(with(arrive("d", false), "parties", 3)).await;
    assert_eq!(second.receive().await["reason"]["code"], "INVALID_ARGUMENT");
    first.send(json!({"type": "leave", "request_id": "unknown"})).await;
    assert_eq!(first.receive().await["code"], "INVALID_ARGUMENT");
}

#[tokio::test]
async fn sessions_leave_a_double_barrier_together_also_when_one_dies_inside() {
    let (_, mut first, mut second) = two_sessions().await;
    first.send(arrive("a", true)).await;
    expect_gathering(&mut first, "a").await;
    second.send(arrive("a", true)).await;
    expect_tripped(&mut second, "a", "TRIPPED").await;
    expect_tripped(&mut first, "a", "TRIPPED").await;
    first.send(json!({"type": "leave", "request_id": "a"})).await;
    second.send(json!({"type": "close"})).await;
    assert_eq!(expect_tripped(&mut first, "a", "LEFT").await["lost"], 1);
}

#[tokio::test]
async fn an_arrival_breaks_with_its_session_and_goes_on_when_its_client_lists_it() {
    let (rest, mut first, mut second) = two_sessions().await;
    first.send(arrive("a", false)).await;
    expect_gathering(&mut first, "a").await;
    rest.json(&line("configure"), json!({"name": "b", "parties": 3})).await.ok();
    second.send(arrive("a", false)).await;
    expect_gathering(&mut second, "a").await;
    second.send(json!({"type": "close"})).await;
    expect_tripped(&mut first, "a", "BROKEN").await;

    let (rest, mut socket) = connect_new_tenant().await;
    let session_id = socket.open_session(30_000).await;
    socket.send(arrive("a", false)).await;
    let kept = expect_gathering(&mut socket, "a").await;
    drop(socket);
    let mut socket = SessionSocket::connect(&rest).await;
    socket.send(json!({"type": "open", "process_id": "p", "ttl_ms": 30_000, "session_id": session_id})).await;
    assert_eq!(socket.receive().await["resumed"], true);
    let things = json!([{"kind": "barrier", "path": ["b"], "request_id": "a", "generation": kept}]);
    socket.send(json!({"type": "lock_info", "held": [], "things": things, "pending": []})).await;
    assert_eq!(call(&rest, "arrive", arrival("two")).await["outcome"], "TRIPPED");
    assert_eq!(expect_tripped(&mut socket, "a", "TRIPPED").await["index"], 0);
}

#[tokio::test]
async fn how_a_generation_ended_is_null_once_that_is_forgotten() {
    const REMEMBERED: usize = 64;
    let rest = tenant_with_namespace().await;
    let alone = with(arrival("one"), "parties", 1);
    let first = call(&rest, "arrive", alone.clone()).await["generation"].clone();
    for _ in 0..REMEMBERED {
        assert_eq!(call(&rest, "arrive", alone.clone()).await["outcome"], "TRIPPED");
    }
    let late = call(&rest, "arrive", with(alone, "generation", first)).await;
    assert_eq!((&late["outcome"], late.get("ended")), (&json!("PAST"), Some(&Value::Null)));
}
