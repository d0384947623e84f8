//! `docs/limits.md` is made from the table of limits.

use std::fmt::Write as _;
use std::path::Path;

use holdfast_types::limit::{ALL, KeptBy, Limit, Value};

/// Writes the page instead of comparing it.
const WRITE_VARIABLE: &str = "HOLDFAST_WRITE_LIMITS";

const HEAD: &str = "# Limits

Made from `services/types/src/limit.rs`. A refusal has the members `limit` and `max`, and where a later call may do,
`Retry-After`. Operators set the limits that have a maximum for each account (`PATCH /v1/accounts/{id}`, member
`limits`). *Rules* are kept by all replicas alike, as part of the replicated state; all others before anything is
written. [Semantics](semantics.md#limits) explains the limits of locks, [operations](operations.md#tenant-isolation)
those of gateways and nodes. A connection that is closed at a limit gets no answer, which clients report as
`UNAVAILABLE`.

| limit | what | each | default | maximum | kept by | refused with |
|---|---|---|---|---|---|---|
";

fn kept_by(kept_by: KeptBy) -> &'static str {
    match kept_by {
        KeptBy::Rules => "rules",
        KeptBy::Leader => "leader",
        KeptBy::Node => "node",
        KeptBy::Gateway => "gateway",
    }
}

/// With commas between thousands.
fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn row(limit: &Limit) -> String {
    let what: Vec<&str> = limit.what.iter().map(|what| what.trim_end_matches(',').trim_start_matches("the ")).collect();
    let max = match limit.value {
        Value::OfAccount { max, .. } => number(max),
        Value::Fixed(_) | Value::PercentOfMemory(_) => String::new(),
    };
    let default = match limit.value {
        Value::OfAccount { .. } | Value::Fixed(_) => number(limit.default_value()),
        Value::PercentOfMemory(percent) => format!("{percent} % of the memory"),
    };
    let (name, code) = (limit.name, limit.code);
    let (each, by) = (limit.scope.name(), kept_by(limit.kept_by));
    format!("| `{name}` | {} | {each} | {default} | {max} | {by} | `{code}` |", what.join("; "))
}

#[test]
fn the_page_has_every_limit_as_it_is() {
    let mut page = HEAD.to_owned();
    for limit in ALL {
        let _ = writeln!(page, "{}", row(limit));
    }
    let path = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("the folder of the crate"))
        .join("../../docs/limits.md");
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        written, page,
        "{WRITE_VARIABLE}=1 cargo test -p holdfast-types --test limits_page writes docs/limits.md"
    );
}
