use holdfast_types::{MAX_NAME_BYTES, Mode, Owner};
use time::macros::datetime;

use super::*;
use crate::{Code, Resource, Terms};

pub(super) const NOW: OffsetDateTime = datetime!(2024-05-06 07:08:09 UTC);

pub(super) fn assert_invalid<T: std::fmt::Debug>(result: ApiResult<T>, field: &str) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    assert_eq!(error.ids.first(), Some(&("field", field.to_owned())), "{error}");
    let first = field.split('.').next().unwrap();
    assert!(error.detail.starts_with(first), "the detail names the field: {error}");
    error.detail
}

#[test]
fn names_of_any_characters_but_nul_are_accepted_up_to_their_length() {
    for good in ["a", "..", "a/b", "ключ", "a b\n", &"n".repeat(MAX_NAME_BYTES)] {
        name("name", good).unwrap();
    }
    for bad in ["", "a\0b", &"n".repeat(MAX_NAME_BYTES + 1), &"ö".repeat(65)] {
        assert_invalid(name("name", bad), "name");
    }
}

#[test]
fn a_process_id_may_not_look_like_a_session() {
    process_id("worker se_1").unwrap();
    assert_invalid(process_id("se_1"), "process_id");
    assert_invalid(process_id(""), "process_id");
}

#[test]
fn emails_are_trimmed_and_lower_cased() {
    assert_eq!(email("  Ann.Lee+x@Example.COM ").unwrap(), "ann.lee+x@example.com");
    let long = format!("{}@example.com", "a".repeat(250));
    for bad in ["", "  ", "ann", "@example.com", "ann@", "a@b@c", "a b@c", "a\0@b", &long] {
        assert_invalid(email(bad), "email");
    }
}

#[test]
fn exactly_one_way_to_say_how_long_is_needed() {
    let limits = Limits::default();
    let later = NOW + time::Duration::seconds(1);
    let ns = i64::try_from(later.unix_timestamp_nanos()).unwrap();
    assert_eq!(ttl_ms(Some(1_000), None, None, &limits, NOW).unwrap(), 1_000);
    assert_eq!(ttl_ms(None, Some(later), None, &limits, NOW).unwrap(), 1_000);
    assert_eq!(ttl_ms(None, None, Some(ns), &limits, NOW).unwrap(), 1_000);
    assert_invalid(ttl_ms(None, None, None, &limits, NOW), "ttl_ms");
    assert_invalid(ttl_ms(Some(1_000), Some(later), None, &limits, NOW), "ttl_ms");
    assert_invalid(ttl_ms(Some(1_000), None, Some(ns), &limits, NOW), "ttl_ms");
}

#[test]
fn times_to_live_outside_the_limits_are_refused() {
    let limits = Limits::default();
    for bad in [0, limits.min_ttl_ms - 1, limits.max_ttl_ms + 1, u64::MAX] {
        assert_invalid(ttl_ms(Some(bad), None, None, &limits, NOW), "ttl_ms");
    }
    for good in [limits.min_ttl_ms, limits.max_ttl_ms] {
        ttl_ms(Some(good), None, None, &limits, NOW).unwrap();
    }
}

#[test]
fn past_and_distant_instants_are_refused() {
    let limits = Limits::default();
    for bad in [NOW, NOW - time::Duration::seconds(1), datetime!(1970-01-01 0:00 UTC), NOW + time::Duration::days(2)] {
        assert_invalid(ttl_ms(None, Some(bad), None, &limits, NOW), "expires_at");
    }
    for bad in [0, -1, i64::MIN, i64::MAX, i64::try_from(NOW.unix_timestamp_nanos()).unwrap()] {
        assert_invalid(ttl_ms(None, None, Some(bad), &limits, NOW), "expires_at");
    }
}

#[test]
fn a_dlocks_instant_may_be_sooner_than_the_shortest_time_to_live() {
    let soon = i64::try_from(NOW.unix_timestamp_nanos()).unwrap() + 5_900_000;
    assert_eq!(ttl_ms(None, None, Some(soon), &Limits::default(), NOW).unwrap(), 5);
}

#[test]
fn metadata_counts_keys_and_values() {
    let limits = Limits { max_metadata_bytes: 10, ..Limits::default() };
    let pairs = |key: &str, value: &str| Metadata::from([(key.to_owned(), value.to_owned())]);
    metadata(&pairs("12345", "67890"), &limits).unwrap();
    assert_invalid(metadata(&pairs("12345", "678901"), &limits), "metadata");
    assert_invalid(metadata(&pairs("", "1"), &limits), "metadata");
    let many = |count: usize| (0..count).map(|number| (format!("{number}"), String::new())).collect::<Metadata>();
    metadata(&many(64), &Limits::default()).unwrap();
    assert_invalid(metadata(&many(65), &Limits::default()), "metadata");
}

#[test]
fn page_sizes_are_1_to_1000_and_100_when_absent() {
    assert_eq!(page_size(None).unwrap(), 100);
    assert_eq!((page_size(Some(1)).unwrap(), page_size(Some(1_000)).unwrap()), (1, 1_000));
    assert_invalid(page_size(Some(0)), "page_size");
    assert_invalid(page_size(Some(1_001)), "page_size");
}

#[test]
fn ids_are_16_lower_case_hex_digits() {
    assert_eq!(account_id("account_id", "9fff3bf7d1f9561d").unwrap(), AccountId(0x9fff_3bf7_d1f9_561d));
    for bad in ["", "9fff3bf7d1f9561", "9FFF3BF7D1F9561D", "17376851231650125672", "+fff3bf7d1f9561d"] {
        assert_invalid(account_id("account_id", bad), "account_id");
        assert_invalid(incarnation(bad), "id");
    }
}

#[test]
fn a_prefix_may_be_empty_and_no_deeper_than_a_path() {
    let limits = Limits { max_path_depth: 2, ..Limits::default() };
    let segments = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(prefix(&[], &limits).unwrap(), Path::default());
    prefix(&segments(&["a", "b"]), &limits).unwrap();
    assert_invalid(prefix(&segments(&["a", "b", "c"]), &limits), "prefix");
    assert_invalid(prefix(&segments(&["a", ""]), &limits), "prefix");
}

#[test]
fn limits_that_contradict_each_other_are_refused() {
    limits(&Limits::default()).unwrap();
    let contradicting = Limits { min_ttl_ms: 10, max_ttl_ms: 5, ..Limits::default() };
    assert_invalid(limits(&contradicting), "limits.min_ttl_ms");
    assert_invalid(limits(&Limits { max_ttl_ms: u64::MAX, ..Limits::default() }), "limits.max_ttl_ms");
    assert_invalid(limits(&Limits { max_metadata_bytes: u32::MAX, ..Limits::default() }), "limits.max_metadata_bytes");
    let many_holds = Limits { max_holds_per_namespace: Limits::HOLDS_PER_NAMESPACE + 1, ..Limits::default() };
    assert_invalid(limits(&many_holds), "limits.max_holds_per_namespace");
    let many_readers = Limits { max_readers_per_lock: Limits::READERS_PER_LOCK + 1, ..Limits::default() };
    assert_invalid(limits(&many_readers), "limits.max_readers_per_lock");
    assert_invalid(limits(&Limits { max_tangle: 1_025, ..Limits::default() }), "limits.max_tangle");
    assert_invalid(limits(&Limits { max_state_bytes: (8 << 30) + 1, ..Limits::default() }), "limits.max_state_bytes");
    assert_invalid(limits(&Limits { max_held_calls: 262_145, ..Limits::default() }), "limits.max_held_calls");
    assert_invalid(limits(&Limits { max_open_calls: 0, ..Limits::default() }), "limits.max_open_calls");
    limits(&Limits { max_requests_per_second: 0, ..Limits::default() }).unwrap();
}

#[test]
fn the_namespaces_of_a_key_are_listed_once_and_not_without_end() {
    let names = |count: usize| (0..count).map(|index| format!("n{index}")).collect::<Vec<_>>();
    let twice = vec!["b".to_owned(), "a".to_owned(), "b".to_owned()];
    assert_eq!(namespaces_of_key(twice).unwrap(), ["a", "b"]);
    namespaces_of_key(names(MAX_NAMESPACES_PER_API_KEY)).unwrap();
    assert_invalid(namespaces_of_key(names(MAX_NAMESPACES_PER_API_KEY + 1)), "namespaces");
    assert_invalid(namespaces_of_key(Vec::new()), "namespaces");
}

/// Each limit of a request's values: what it allows, and one more.
#[test]
fn each_limit_of_a_request_is_named_by_what_exceeds_it() {
    let limits = Limits { max_path_depth: 2, max_claims_per_request: 2, ..Limits::default() };
    let (session, usual) = (limits.max_session_ttl_ms, limits.max_description_bytes as usize);
    let ttl = |ms| ttl_ms(Some(ms), None, None, &limits, NOW);
    let until = |ms: u64| ttl_ms(None, Some(NOW + std::time::Duration::from_millis(ms)), None, &limits, NOW);
    let pairs = |bytes: usize| Metadata::from([("k".to_owned(), "v".repeat(bytes - 1))]);
    let short_pairs = |count: usize| (0..count).map(|pair| (pair.to_string(), String::new())).collect::<Metadata>();
    let claims_of = |count| vec![Resource { path: vec!["a".to_owned()], mode: Mode::Write }; count];
    let deep = |depth| prefix(&vec!["a".to_owned(); depth], &limits).map(drop);
    let waits = |wait_ms| wait_options(&Terms { wait_ms, ..Terms::default() }, &limits);
    let (metadata_bytes, max_wait) = (limits.max_metadata_bytes as usize, limits.max_wait_ms);
    let cases: [(&Limit, ApiResult<()>, ApiResult<()>); 11] = [
        (
            &limit::DESCRIPTION_BYTES,
            description(&"d".repeat(usual), &limits),
            description(&"d".repeat(usual + 1), &limits),
        ),
        (
            &limit::METADATA_BYTES,
            metadata(&pairs(metadata_bytes), &limits),
            metadata(&pairs(metadata_bytes + 1), &limits),
        ),
        (&limit::METADATA_PAIRS, metadata(&short_pairs(64), &limits), metadata(&short_pairs(65), &limits)),
        (&limit::CLAIMS, claims(&claims_of(2), &limits).map(drop), claims(&claims_of(3), &limits).map(drop)),
        (&limit::PATH_DEPTH, deep(2), deep(3)),
        (&limit::MAX_TTL, ttl(limits.max_ttl_ms).map(drop), until(limits.max_ttl_ms + 1).map(drop)),
        (&limit::MIN_TTL, until(limits.min_ttl_ms).map(drop), ttl(limits.min_ttl_ms - 1).map(drop)),
        (
            &limit::TRANSITION,
            transition_ms(limits.max_transition_ms, &limits),
            transition_ms(limits.max_transition_ms + 1, &limits),
        ),
        (&limit::WAIT, waits(max_wait).map(drop), waits(max_wait + 1).map(drop)),
        (&limit::MAX_SESSION_TTL, session_ttl_ms(session, &limits), session_ttl_ms(session + 1, &limits)),
        (
            &limit::MIN_SESSION_TTL,
            session_ttl_ms(limits.min_session_ttl_ms, &limits),
            session_ttl_ms(limits.min_session_ttl_ms - 1, &limits),
        ),
    ];
    for (limit, allowed, exceeded) in cases {
        assert!(allowed.is_ok(), "{}: {allowed:?}", limit.name);
        let error = exceeded.unwrap_err();
        assert_eq!((error.code.name(), error.limit()), (limit.code, Some(limit)), "{error}");
        let names_max = error.ids.iter().any(|(name, _)| *name == "max");
        assert_eq!(names_max, !limit.name.starts_with("min"), "{error:?}");
    }
}

/// A client that is refused at one of them learns from the member `limit` what an operator can raise.
#[test]
fn times_of_other_things_than_locks_name_the_limits_of_locks() {
    let (limits, process) = (Limits::default(), Owner::Process("p".into()));
    let ttl = |ms| permit_ttl_ms(&process, Some(ms), &limits).unwrap_err();
    let cases: [(&Limit, ApiError); 4] = [
        (&limit::MAX_TTL, ttl(limits.max_ttl_ms + 1)),
        (&limit::MIN_TTL, ttl(limits.min_ttl_ms - 1)),
        (&limit::MAX_TTL, cooldown_ms(limits.max_ttl_ms + 1, &limits).unwrap_err()),
        (&limit::WAIT, wait_ms(limits.max_wait_ms + 1, &limits).unwrap_err()),
    ];
    for (limit, error) in cases {
        assert_eq!((error.code.name(), error.limit()), (limit.code, Some(limit)), "{error}");
    }
    assert!(cooldown_ms(limits.max_ttl_ms, &limits).is_ok() && wait_ms(limits.max_wait_ms, &limits).is_ok());
}
