//! Checks that the description is complete. `tests/api` compares the responses of calls with it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::*;

fn document() -> Value {
    serde_json::from_str(&DOCUMENT).unwrap()
}

/// Returns every call: its path, its method, and its description.
fn calls(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let calls = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap();
        methods.iter().map(move |(method, call)| (path.as_str(), method.as_str(), call))
    });
    calls.collect()
}

/// Collects all texts under a key of that name, at any depth.
fn values_of<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                if key == name
                    && let Some(text) = member.as_str()
                {
                    found.push(text);
                }
                values_of(member, name, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| values_of(item, name, found)),
        _ => {}
    }
}

#[test]
fn every_call_is_described_in_full() {
    let document = document();
    let tags: BTreeSet<&str> =
        document["tags"].as_array().unwrap().iter().filter_map(|tag| tag["name"].as_str()).collect();
    let mut ids = BTreeMap::new();
    for (path, method, call) in calls(&document) {
        let named = format!("{method} {path}");
        let id = call["operationId"].as_str().unwrap_or_else(|| panic!("{named} has no id"));
        assert_eq!(ids.insert(id.to_owned(), named.clone()), None, "{id} is used twice");
        assert!(call["summary"].as_str().is_some_and(|text| !text.is_empty()), "{named} has no summary");
        assert!(call["tags"].as_array().unwrap().iter().all(|tag| tags.contains(tag.as_str().unwrap())), "{named}");
        assert!(call["security"].as_array().is_some_and(|security| !security.is_empty()), "{named}: for whom?");
        let parameters = call["parameters"].as_array().unwrap();
        for parameter in parameters {
            assert!(parameter["description"].is_string(), "{named}: {} is not described", parameter["name"]);
        }
        let names = path.split('/').filter(|segment| segment.starts_with('{')).count();
        let described = parameters.iter().filter(|parameter| parameter["in"] == "path").count();
        assert_eq!(names, described, "{named}");
        assert!(call["responses"].as_object().unwrap().keys().any(|status| status.as_str() < "400"), "{named}");
    }
    assert!(ids.len() > 35, "{ids:?}");
}

#[test]
fn the_creations_that_take_an_idempotency_key_say_so() {
    let document = document();
    let takes_key = |call: &Value| {
        call["parameters"].as_array().unwrap().iter().any(|parameter| parameter["name"] == "Idempotency-Key")
    };
    let creations = calls(&document).into_iter().map(|(_, _, call)| call).filter(|call| takes_key(call));
    let ids: BTreeSet<&str> = creations.filter_map(|call| call["operationId"].as_str()).collect();
    let expected = ["create_account", "create_api_key", "create_api_key_for", "create_namespace", "create_session"];
    assert_eq!(ids, BTreeSet::from(expected));
}

#[test]
fn whatever_is_referred_to_is_there() {
    let document = document();
    let mut references = Vec::new();
    values_of(&document, "$ref", &mut references);
    assert!(references.len() > 100);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference} is elsewhere"));
        assert!(document.pointer(pointer).is_some(), "{reference} is missing");
    }
}

#[test]
fn the_router_has_the_described_routes_and_no_others() {
    let (router, _) = super::super::openapi_routes().split_for_parts();
    // The debug output is the only way to see the paths of a router.
    let shown = format!("{router:?}");
    let is_route = |text: &&str| text.starts_with('/') && *text != "/" && !text.contains("__private__axum_fallback");
    let routed: BTreeSet<&str> = shown.split('"').filter(is_route).collect();
    let document = document();
    let described: BTreeSet<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(routed, described);
}

#[test]
fn the_page_asks_nobody_else() {
    let outside: Vec<&str> = PAGE.split('"').filter(|text| text.contains("://") || text.starts_with("//")).collect();
    assert!(outside.is_empty(), "{outside:?}");
}
