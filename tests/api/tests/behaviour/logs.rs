//! One request id finds what gateway and node logged about a call.

use std::collections::BTreeSet;

use bytes::Bytes;
use holdfast_testkit::{Standalone, scratch};
use serde_json::Value;

use crate::support::{RestClient, wait_until};

#[tokio::test]
async fn gateway_and_node_name_a_call_by_its_request_id_and_no_secret() {
    let flags = ["--log-format", "json", "--log", "holdfast_gateway=debug,holdfast_node=debug"];
    let server = Standalone::start(&scratch(), &flags);
    let key = server.secret("demo.key");
    let rest = RestClient::new(server.address(), &key);
    let body = Bytes::from_static(br#"{"process_id": "p", "ttl_ms": 60000}"#);
    let headers = [("holdfast-request-id", "find-me"), ("content-type", "application/json")];
    rest.send("POST /v1/namespaces/demo/locks/l/acquire", &headers, body).await.ok();
    let targets = || {
        let text = server.log();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_call = lines.filter(|line| line["span"]["request_id"] == "find-me");
        let crates = of_call.map(|line| line["target"].as_str().unwrap().split(':').next().unwrap().to_owned());
        crates.collect::<BTreeSet<String>>()
    };
    let both = BTreeSet::from(["holdfast_gateway".to_owned(), "holdfast_node".to_owned()]);
    wait_until("both have logged the call", async || targets() == both).await;
    let text = server.log();
    let secret = key.splitn(3, '_').nth(2).unwrap();
    assert!(!text.contains(secret) && !text.contains(&server.secret("operator.token")), "a secret is in the log");
}
