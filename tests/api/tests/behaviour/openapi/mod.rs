//! What the service answers, held against what its own description says. Calls are taken from the description, so that
//! a new one cannot be forgotten.

mod conformance;
mod document;
mod schemathesis;

use document::Document;

use crate::support::{RestClient, server};

#[tokio::test]
async fn the_description_and_its_page_are_for_everybody() {
    let nobody = RestClient::new(server().address(), "");
    let described = nobody.call("GET /openapi.json").await;
    assert_eq!(described.header("content-type"), "application/json");
    assert_eq!(described.ok()["openapi"], "3.1.0");
    let page = nobody.call("GET /docs").await;
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    assert!(page.text.contains("/openapi.json") && page.status == 200);
}

#[tokio::test]
async fn every_path_takes_the_methods_that_are_described_and_no_others() {
    let nobody = RestClient::new(server().address(), "");
    let document = Document::fetch(server()).await;
    for (path, mut methods) in document.methods() {
        let answer = nobody.call(&format!("PROPFIND {path}")).await;
        if methods.contains("GET") {
            methods.insert("HEAD".to_owned());
        }
        let allowed = answer.header("allow").split(',').map(|method| method.trim().to_owned()).collect();
        assert_eq!(methods, allowed, "{path}");
        answer.expect_error("METHOD_NOT_ALLOWED");
    }
}
