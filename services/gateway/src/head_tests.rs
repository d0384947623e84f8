use std::collections::HashSet;

use holdfast_api::Code;

use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn seconds_left(head: &Head) -> f64 {
    head.context().unwrap().deadline.saturating_duration_since(Instant::now()).as_secs_f64()
}

#[test]
fn a_well_formed_request_id_is_taken_over_and_any_other_is_replaced() {
    assert_eq!(Head::rest(&headers(&[("holdfast-request-id", "order-7.A_b")])).request_id.as_ref(), "order-7.A_b");
    for bad in ["", "a b", "a\"b", &"x".repeat(129)] {
        let head = Head::rest(&headers(&[("holdfast-request-id", bad)]));
        assert_ne!(head.request_id.as_ref(), bad);
        assert_eq!(head.request_id.len(), 32);
    }
}

#[test]
fn generated_request_ids_are_random_uuids_and_differ_on_all_threads() {
    let draw = || (0..1_000).map(|_| Head::rest(&HeaderMap::new()).request_id).collect::<Vec<_>>();
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(draw)).collect();
    let ids: HashSet<Arc<str>> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!(ids.len(), 4_000);
    for id in ids {
        let uuid = Uuid::try_parse(&id).unwrap();
        assert_eq!((uuid.get_version_num(), uuid.simple().to_string().as_str()), (4, id.as_ref()));
    }
}

#[test]
fn the_bearer_scheme_is_read_in_any_case_and_other_schemes_are_refused() {
    assert_eq!(bearer(&headers(&[("authorization", "bEARER hf_a_b")])).unwrap(), Some("hf_a_b"));
    assert_eq!(bearer(&HeaderMap::new()).unwrap(), None);
    for bad in ["Basic abc", "hf_a_b", ""] {
        let error = bearer(&headers(&[("authorization", bad)])).unwrap_err();
        assert_eq!(error.code, Code::Unauthenticated);
    }
}

#[test]
fn a_repeated_credential_is_refused() {
    let headers = headers(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]);
    assert_eq!(bearer(&headers).unwrap_err().code, Code::Unauthenticated);
}

#[test]
fn a_call_without_a_deadline_gets_ten_seconds() {
    let left = seconds_left(&Head::rest(&HeaderMap::new()));
    assert!((9.0..=10.0).contains(&left), "{left}");
}

#[test]
fn a_caller_brings_its_own_deadline_over_both_doors() {
    let left = seconds_left(&Head::rest(&headers(&[("holdfast-timeout-ms", "2500")])));
    assert!((2.0..=2.5).contains(&left), "{left}");
    for (text, seconds) in [("3S", 3.0), ("3000m", 3.0), ("1M", 60.0), ("2000000u", 2.0), ("99999999H", 660.0)] {
        let left = seconds_left(&Head::grpc(&headers(&[("grpc-timeout", text)])));
        assert!((seconds - 0.5..=seconds).contains(&left), "{text}: {left}");
    }
}

#[test]
fn a_malformed_deadline_is_refused_by_name() {
    for bad in ["", "0", "-1", "1.5", "soon", "9999999999999"] {
        let error = Head::rest(&headers(&[("holdfast-timeout-ms", bad)])).context().unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.detail.contains("holdfast-timeout-ms"), "{}", error.detail);
    }
    for bad in ["", "S", "10", "10s", "123456789S", "-1S", "5\u{b5}"] {
        let mut map = HeaderMap::new();
        map.insert("grpc-timeout", HeaderValue::from_bytes(bad.as_bytes()).unwrap());
        assert_eq!(Head::grpc(&map).context().unwrap_err().code, Code::InvalidArgument, "{bad}");
    }
}

#[test]
fn an_idempotency_key_is_passed_on_and_may_be_given_once() {
    let head = Head::rest(&headers(&[("idempotency-key", "k-1")]));
    assert_eq!(head.context().unwrap().idempotency_key.as_deref(), Some("k-1"));
    let head = Head::rest(&headers(&[("idempotency-key", "k-1"), ("idempotency-key", "k-2")]));
    assert_eq!(head.context().unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test]
async fn a_call_that_waits_has_more_time_unless_it_brings_its_own() {
    let head = Head::rest(&HeaderMap::new());
    let longer = head.context().unwrap().with_wait(Duration::from_secs(5));
    let left = longer.deadline.saturating_duration_since(Instant::now()).as_secs_f64();
    assert!((14.0..=15.0).contains(&left), "{left}");
    assert_eq!(head.report.deadline_extension(), Duration::from_secs(5));

    let head = Head::grpc(&headers(&[("grpc-timeout", "2S")]));
    let same = head.context().unwrap().with_wait(Duration::from_secs(5));
    assert!(same.deadline <= Instant::now() + Duration::from_secs(2));
    assert_eq!(head.report.deadline_extension(), Duration::ZERO);
}

async fn wait_until(instant: Instant) {
    tokio::time::sleep_until(instant).await;
}

#[tokio::test]
async fn a_door_waits_as_long_as_the_call_that_moved_its_deadline() {
    let mut head = Head::rest(&HeaderMap::new());
    let gives_up = Instant::now() + Duration::from_millis(30);
    head.deadline = Ok(gives_up - RESPONSE_GRACE);
    let context = head.context().unwrap();
    let call = async {
        let longer = context.with_wait(Duration::from_secs(20));
        wait_until(gives_up + Duration::from_millis(10)).await;
        longer.deadline
    };
    assert_eq!(head.within_deadline(call).await, Some(gives_up - RESPONSE_GRACE + Duration::from_secs(20)));

    let mut head = Head::rest(&HeaderMap::new());
    head.deadline = Ok(Instant::now() - RESPONSE_GRACE);
    assert_eq!(head.within_deadline(std::future::pending::<()>()).await, None);
}
