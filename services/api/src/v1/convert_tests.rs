use super::*;
use crate::Code;

#[test]
fn instants_keep_their_milliseconds() {
    let shown = instant(Timestamp(1_900_000_000_123));
    assert_eq!((shown.seconds, shown.nanos), (1_900_000_000, 123_000_000));
    let read = parse_instant("expires_at", Some(shown)).unwrap().unwrap();
    assert_eq!(read.unix_timestamp_nanos(), 1_900_000_000_123_000_000);
    assert_eq!(parse_instant("expires_at", None).unwrap(), None);
}

#[test]
fn instants_that_are_none_are_refused() {
    for (seconds, nanos) in [(0, -1), (0, 1_000_000_000), (i64::MAX, 0), (i64::MIN, 0)] {
        let error = parse_instant("expires_at", Some(prost_types::Timestamp { seconds, nanos })).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert_eq!(error.ids, [("field", "expires_at".to_owned())]);
    }
}

#[test]
fn zero_and_empty_ask_for_the_first_page_of_the_usual_size() {
    let first = page_request(0, String::new());
    assert_eq!((first.page_size, first.page_token), (None, None));
    let next = page_request(5, "t".to_owned());
    assert_eq!((next.page_size, next.page_token.as_deref()), (Some(5), Some("t")));
}

#[test]
fn limits_survive_the_way_out_and_in() {
    let mine = Limits { max_wait_ms: 7, max_requests_per_second: 0, ..Limits::default() };
    assert_eq!(limits_patch(limits(&mine)).applied_to(&Limits::default()), mine);
}
