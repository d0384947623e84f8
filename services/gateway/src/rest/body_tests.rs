use holdfast_api::LimitsPatch;
use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    name: String,
    ttl_ms: Option<u64>,
    metadata: Option<StringMap>,
    limits: Option<StrictObject<LimitsPatch>>,
    expires_at: Option<Rfc3339>,
}

fn parse_error_of(body: &str) -> ApiError {
    let error = parse::<Sample>(body.as_bytes()).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{body}");
    error
}

#[test]
fn a_good_body_is_read() {
    let body = r#"{"name":"n","ttl_ms":5,"metadata":{"a":"b"},"limits":{"max_ttl_ms":7},"expires_at":"2030-01-01T01:00:00.25+01:00"}"#;
    let sample: Sample = parse(body.as_bytes()).unwrap();
    assert_eq!((sample.name.as_str(), sample.ttl_ms), ("n", Some(5)));
    assert_eq!(sample.metadata.unwrap().0["a"], "b");
    assert_eq!(sample.limits.unwrap().0.max_ttl_ms, Some(7));
    assert_eq!(sample.expires_at.unwrap().0.unix_timestamp_nanos(), 1_893_456_000_250_000_000);
}

#[test]
fn what_is_wrong_with_a_field_names_the_field() {
    for (body, field) in [
        (r#"{"name":"n","colour":1}"#, "colour"),
        (r#"{"name":"n","name":"m"}"#, "name"),
        (r#"{}"#, "name"),
        (r#""#, "name"),
        (r#"{"name":7}"#, "name"),
        (r#"{"name":null}"#, "name"),
        (r#"{"name":"n","ttl_ms":"5"}"#, "ttl_ms"),
        (r#"{"name":"n","ttl_ms":-5}"#, "ttl_ms"),
        (r#"{"name":"n","ttl_ms":1.5}"#, "ttl_ms"),
        (r#"{"name":"n","ttl_ms":99999999999999999999}"#, "ttl_ms"),
        (r#"{"name":"n","metadata":[]}"#, "metadata"),
        (r#"{"name":"n","metadata":{"a":"b","a":"c"}}"#, "metadata"),
        (r#"{"name":"n","metadata":{"a":1}}"#, "metadata.a"),
        (r#"{"name":"n","limits":[1,2]}"#, "limits"),
        (r#"{"name":"n","limits":{"max_ttl_ms":"x"}}"#, "limits.max_ttl_ms"),
        (r#"{"name":"n","limits":{"max_ttl":1}}"#, "limits.max_ttl"),
        (r#"{"name":"n","limits":{"max_ttl_ms":1,"max_ttl_ms":2}}"#, "limits.max_ttl_ms"),
        (r#"{"name":"n","expires_at":"tomorrow"}"#, "expires_at"),
        (r#"{"name":"n","expires_at":1893456000}"#, "expires_at"),
        (r#"{"name":"n","expires_at":"2030-01-01 01:00:00"}"#, "expires_at"),
    ] {
        let error = parse_error_of(body);
        assert_eq!(error.ids, [("field", field.to_owned())], "{body}: {}", error.detail);
        assert!(error.detail.starts_with(&format!("{field}: ")), "{body}: {}", error.detail);
    }
}

#[test]
fn what_is_not_one_json_object_is_refused() {
    for body in [
        "[\"n\"]",
        "\"n\"",
        "7",
        "null",
        "{",
        "{\"name\":}",
        "{\"name\":\"n\"} {}",
        "{\"name\":\"n\"}x",
        "{\"name\":\"\u{1}\"}",
    ] {
        let error = parse_error_of(body);
        assert!(error.detail.contains("body"), "{body}: {}", error.detail);
    }
    assert_eq!(parse::<Sample>(b"{\"name\":\"\xff\"}").unwrap_err().code, Code::InvalidArgument);
}

#[test]
fn the_type_of_a_body_must_be_json() {
    let check = |content_type: Option<&str>, body: &'static str| {
        let mut headers = HeaderMap::new();
        if let Some(text) = content_type {
            headers.insert(CONTENT_TYPE, text.parse().unwrap());
        }
        check_content_type(&headers, &Bytes::from(body)).map_err(|error| error.code)
    };
    for good in ["application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"] {
        assert_eq!(check(Some(good), "{}"), Ok(()));
    }
    for bad in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "", "application/grpc"] {
        assert_eq!(check(Some(bad), "{}"), Err(Code::UnsupportedMediaType), "{bad}");
    }
    assert_eq!(check(None, ""), Ok(()));
    assert_eq!(check(None, "{}"), Err(Code::UnsupportedMediaType));
}

#[tokio::test]
async fn the_service_is_told_how_long_a_body_is() {
    let head = Arc::new(Head::rest(&HeaderMap::new()));
    let context = head.context().unwrap();
    assert_eq!(context.body_bytes(), 0);
    let text = format!("{{\"name\":\"n\"{}}}", " ".repeat(1_000));
    let request = Request::builder().header(CONTENT_TYPE, "application/json").extension(Arc::clone(&head));
    let Body(sample) =
        Body::<Sample>::from_request(request.body(Incoming::from(text.clone())).unwrap(), &()).await.unwrap();
    assert_eq!((sample.name.as_str(), context.body_bytes()), ("n", text.len() as u64));
}
