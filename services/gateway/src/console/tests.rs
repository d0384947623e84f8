//! Checks that all files exist, and that none calls another host or writes markup.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{Request, Response};
use tower::ServiceExt;

use super::*;

async fn get(path: &str, known: Option<&str>) -> Response<Body> {
    let mut request = Request::get(path);
    if let Some(known) = known {
        request = request.header(IF_NONE_MATCH, known);
    }
    routes().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

#[test]
fn every_file_of_the_folder_is_served_and_no_other() {
    let listed =
        std::fs::read_dir("src/console/assets").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let served = FILES.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(listed.collect::<BTreeSet<_>>(), served.collect::<BTreeSet<_>>());
}

#[test]
fn whatever_a_file_refers_to_is_served() {
    let served: BTreeSet<&str> = FILES.iter().map(|(name, _)| *name).collect();
    for (name, text) in FILES {
        for quoted in text.split('"').filter_map(|quoted| quoted.strip_prefix("/console/")) {
            assert!(served.contains(quoted), "{name} refers to {quoted}");
        }
    }
}

#[test]
fn the_page_has_no_style_of_its_own_which_the_policy_would_forbid() {
    let (_, page) = FILES.iter().find(|(name, _)| *name == PAGE).unwrap();
    assert!(!page.contains("style=") && !page.contains("<style"));
}

#[test]
fn no_file_asks_anybody_else_or_takes_text_for_markup() {
    for (name, text) in FILES {
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("://") && !elsewhere.contains("\"//"), "{name} asks somebody else");
        for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage"] {
            assert!(!text.contains(sink), "{name} uses {sink}");
        }
        assert!(text.lines().count() <= 400, "{name} is long: split it");
    }
}

#[tokio::test]
async fn the_page_says_what_it_may_and_is_kept_until_the_next_release() {
    let page = get("/console", None).await;
    assert_eq!((page.status(), &page.headers()[CONTENT_TYPE]), (StatusCode::OK, &content_type(PAGE).parse().unwrap()));
    let policy = page.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let version = page.headers()[ETAG].to_str().unwrap().to_owned();
    assert_eq!(get("/console", Some(&version)).await.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(get("/console/main.js", Some("\"other\"")).await.status(), StatusCode::OK);
    assert_eq!(get("/console/", None).await.headers()["location"], "/console");
    assert_eq!(get("/console/tests.rs", None).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(get("/console/..%2Fmod.rs", None).await.status(), StatusCode::NOT_FOUND);
}
