//! The table of limits.

use std::collections::BTreeSet;

use super::*;
use crate::CommandError;

#[test]
fn names_and_descriptions_are_unique() {
    let names: BTreeSet<_> = ALL.iter().map(|limit| limit.name).collect();
    assert_eq!(names.len(), ALL.len());
    let descriptions: Vec<_> = ALL.iter().flat_map(|limit| limit.what).collect();
    assert_eq!(descriptions.iter().collect::<BTreeSet<_>>().len(), descriptions.len());
}

#[test]
fn the_limits_of_accounts_are_the_fields_of_limits() {
    let fields = format!("{:?}", Limits::default());
    let of_accounts = ALL.iter().filter(|limit| matches!(limit.value, Value::OfAccount { .. }));
    let mut count = 0;
    for limit in of_accounts {
        let (default, max) = (limit.default_value(), limit.max_value());
        assert!(fields.contains(&format!(" {}: {default}", limit.name)), "{}: {default}", limit.name);
        assert!(default <= max, "{}", limit.name);
        count += 1;
    }
    assert_eq!(count, fields.matches(':').count(), "each field has a row");
}

#[test]
fn an_error_names_its_limit() {
    let quota = |what: &str| CommandError::QuotaExceeded { what: what.into(), max: 1, hint: String::new() };
    let limit = quota("the number of steps to find out who waits for whom").limit();
    assert_eq!(limit.map(|limit| limit.name), Some("max_tangle"));
    assert!(quota("the number of wishes").limit().is_none());
    assert!(CommandError::NamespaceNotFound.limit().is_none());
}

#[test]
fn the_text_of_a_refusal_names_its_limit_and_what_it_allows() {
    for limit in ALL.iter().copied() {
        let reached = Reached { limit, max: 17 };
        assert_eq!(Reached::of_text(&format!("{reached}; try again later")), Some(reached));
        for what in limit.what {
            assert_eq!(Reached::of_text(&format!("{what} is limited to 17")), Some(reached));
        }
    }
    for text in
        ["", "the leader is changing", "the number of wishes is limited to 3", "the number of pairs in metadata"]
    {
        assert_eq!(Reached::of_text(text), None, "{text}");
    }
    assert_eq!(Reached::of_text("the number of pairs in metadata is limited to many"), None);
    let full = [CommandError::Full, CommandError::Busy, CommandError::NotProposed];
    let text = Reached { limit: &SHARD_BYTES, max: 7 }.to_string();
    for error in full.map(|error| error(text.clone())) {
        assert_eq!(error.reached(), Some(Reached { limit: &SHARD_BYTES, max: 7 }));
    }
}
