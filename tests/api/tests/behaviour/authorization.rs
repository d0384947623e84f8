//! Every call that the service describes, by every kind of caller.

use serde_json::Value;

use crate::support::callers::{CallerKind, TestCaller, callers};
use crate::support::{RestClient, server};

/// A call as the description has it.
struct Operation {
    line: String,
    body: Option<Value>,
    /// Whether it needs no credential.
    is_public: bool,
    is_for_operator: bool,
    /// Each of which is enough; none when any key is.
    scopes: Vec<String>,
    has_namespace: bool,
    /// Whether it makes a namespace, which a key has to be for as well.
    creates_namespace: bool,
    /// Whether only the key itself will do.
    requires_key: bool,
}

/// What goes in place of the names in a path: things of the callers' account, and of others things that are not there.
const PATH_PARAMETERS: [(&str, &str); 5] = [
    ("{account}", "00000000000000aa"),
    ("{key_id}", "aaaaaaaaaaaaaaaa"),
    ("{namespace}", "ns"),
    ("{name}", "l"),
    ("{session}", "se_aaaaaaaaaaaaaaaaaaaaaaaaaa"),
];

async fn operations(rest: &RestClient) -> Vec<Operation> {
    let document = rest.with_key("").call("GET /openapi.json").await.ok();
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(_, value)| value["responses"].is_object())
        {
            found.push(parse_operation(path, method, operation));
        }
    }
    found
}

fn parse_operation(path: &str, method: &str, operation: &Value) -> Operation {
    let security = operation["security"].as_array().unwrap_or_else(|| panic!("{method} {path} says not who may call"));
    let scopes = security.iter().filter_map(|way| way["key"].as_array()).flatten();
    let mut shown = path.to_owned();
    for (name, value) in PATH_PARAMETERS {
        shown = shown.replace(name, value);
    }
    assert!(!shown.contains('{'), "{shown}: give the name a value");
    Operation {
        line: format!("{} {shown}", method.to_uppercase()),
        body: operation["requestBody"]["content"]["application/json"].get("example").cloned().map(without_scopes),
        is_public: security.iter().any(|way| way.as_object().is_some_and(|way| way.is_empty())),
        is_for_operator: security.iter().any(|way| way.get("operator").is_some()),
        scopes: scopes.map(|scope| scope.as_str().unwrap().to_owned()).collect(),
        has_namespace: path.contains("{namespace}"),
        creates_namespace: path == "/v1/namespaces" && method == "post",
        requires_key: path == "/v1/tokens",
    }
}

/// No key can grant more than its creator has: without this most calls would be rejected for that reason.
fn without_scopes(mut body: Value) -> Value {
    if let Some(fields) = body.as_object_mut() {
        fields.remove("scopes");
    }
    body
}

/// The error that a client gets; none if it is authorized, whatever the result of the call.
fn expected_error(operation: &Operation, caller: &TestCaller) -> Option<&'static str> {
    let needs = &operation.scopes;
    match caller.kind {
        _ if operation.is_public => None,
        CallerKind::Unauthenticated => Some("UNAUTHENTICATED"),
        CallerKind::Suspended => Some("PERMISSION_DENIED"),
        CallerKind::Operator if operation.is_for_operator => None,
        CallerKind::Operator => Some("PERMISSION_DENIED"),
        // Some calls are for the operator and for keys alike.
        _ if operation.is_for_operator && needs.is_empty() => Some("PERMISSION_DENIED"),
        CallerKind::Scoped(scope) if !needs.is_empty() && !needs.iter().any(|need| need == scope) => {
            Some("PERMISSION_DENIED")
        }
        CallerKind::OtherNamespace if operation.has_namespace || operation.creates_namespace => {
            Some("PERMISSION_DENIED")
        }
        CallerKind::OtherTenant if operation.has_namespace => Some("NAMESPACE_NOT_FOUND"),
        _ if operation.requires_key && caller.name.starts_with("a token") => Some("PERMISSION_DENIED"),
        _ => None,
    }
}

#[tokio::test]
async fn every_call_lets_in_who_may_and_tells_the_others_nothing() {
    let callers = callers(server()).await;
    let operations = operations(&callers[0].rest).await;
    assert!(operations.len() > 30, "{} calls are described", operations.len());
    let mut wrong = Vec::new();
    let mut asked = 0;
    for operation in &operations {
        for caller in &callers {
            let (status, code) = caller.rest.status_and_code(&operation.line, operation.body.as_ref()).await;
            asked += 1;
            let is_right = match expected_error(operation, caller) {
                Some(expected) => code.as_deref() == Some(expected),
                None => !matches!(status, 401 | 403 | 500..),
            };
            if !is_right {
                wrong.push(format!("{} by {}: {status} {}", operation.line, caller.name, code.unwrap_or_default()));
            }
        }
    }
    println!("{} calls, {} callers, {asked} asked", operations.len(), callers.len());
    assert!(wrong.is_empty(), "{} of {asked}:\n{}", wrong.len(), wrong.join("\n"));
}
