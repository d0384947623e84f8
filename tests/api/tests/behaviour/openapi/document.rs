//! The description as the tests read it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_testkit::Standalone;
use serde_json::Value;

use crate::support::RestClient;
use holdfast_testkit::Response;

const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

/// The description.
pub(super) struct Document(Value);

/// Who may call, as one of the ways that a call lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecurityRequirement {
    Anonymous,
    Operator,
    /// A key or token.
    Key,
}

/// One call.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) security: Vec<SecurityRequirement>,
    /// The example of its body.
    pub(super) body: Option<Value>,
    /// Names of its parameters in the query.
    pub(super) query: Vec<String>,
    responses: Value,
}

impl Document {
    pub(super) async fn fetch(server: &Standalone) -> Self {
        Self(RestClient::new(server.address(), "").call("GET /openapi.json").await.ok())
    }

    pub(super) fn operations(&self) -> Vec<Operation> {
        let mut calls = Vec::new();
        for (path, item) in self.0["paths"].as_object().unwrap() {
            for method in METHODS.into_iter().filter(|method| item.get(method).is_some()) {
                calls.push(Operation::parse(path, method, &item[method]));
            }
        }
        assert!(calls.len() > 35, "the description has its calls");
        calls
    }

    /// The methods of every path, in capitals.
    pub(super) fn methods(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut methods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for call in self.operations() {
            methods.entry(call.path).or_default().insert(call.method);
        }
        methods
    }
}

impl Operation {
    fn parse(path: &str, method: &str, described: &Value) -> Self {
        let parameters = described["parameters"].as_array().unwrap().iter();
        let in_query = parameters.filter(|parameter| parameter["in"] == "query");
        let body = described.pointer("/requestBody/content/application~1json");
        Self {
            method: method.to_uppercase(),
            path: path.to_owned(),
            security: described["security"].as_array().unwrap().iter().map(security_requirement).collect(),
            body: body.map(|body| body.get("example").unwrap_or_else(|| panic!("{method} {path}: no example")).clone()),
            query: in_query.map(|parameter| parameter["name"].as_str().unwrap().to_owned()).collect(),
            responses: described["responses"].clone(),
        }
    }

    pub(super) fn is_public(&self) -> bool {
        self.security.contains(&SecurityRequirement::Anonymous)
    }

    pub(super) fn is_for_operator(&self) -> bool {
        self.security.contains(&SecurityRequirement::Operator)
    }

    pub(super) fn is_for_keys(&self) -> bool {
        self.security.contains(&SecurityRequirement::Key)
    }

    /// Panics unless the answer is one that the description lists: its status, its type and, of an error, its code.
    pub(super) fn check_response(&self, who: &str, answer: &Response) {
        let told = format!("{} {} by {who}: {} {}", self.method, self.path, answer.status, answer.text);
        let listed = self.responses.get(answer.status.to_string());
        let listed = listed.unwrap_or_else(|| panic!("{told}: the status is not listed"));
        assert!(answer.status < 500, "{told}");
        let kind = answer.header("content-type").split(';').next().unwrap_or_default();
        match listed["content"].as_object() {
            None => assert_eq!(answer.text, "", "{told}: no body is listed"),
            Some(content) => assert!(content.contains_key(kind), "{told}: {kind} is not listed"),
        }
        if kind == "application/problem+json" {
            let codes = listed["x-codes"].as_array().unwrap_or_else(|| panic!("{told}: no codes are listed"));
            assert!(codes.contains(&answer.body["code"]), "{told}: the code is not listed");
        }
    }
}

fn security_requirement(described: &Value) -> SecurityRequirement {
    let members = described.as_object().unwrap();
    let Some(scheme) = members.keys().next() else { return SecurityRequirement::Anonymous };
    match scheme.as_str() {
        "operator" => SecurityRequirement::Operator,
        "key" => SecurityRequirement::Key,
        other => panic!("the tests do not know the credential {other}"),
    }
}
