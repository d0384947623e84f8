//! Instants: RFC 3339 UTC, sent with milliseconds, accepted with any fraction.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use utoipa::ToSchema;

/// A wall-clock instant in milliseconds since 1970. Displayed and serialized as RFC 3339 UTC with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-03-01T12:00:00.000Z")]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// This gateway's wall clock.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Nanoseconds since 1970, saturating at the largest i64.
    pub fn as_nanos(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX).saturating_mul(1_000_000)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
        let text = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000)
            .ok()
            .and_then(|instant| instant.format(format).ok());
        match text {
            Some(text) => f.write_str(&text),
            // RFC 3339 cannot express instants past the year 9999.
            None => f.write_str("9999-12-31T23:59:59.999Z"),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parses an RFC 3339 instant with any offset and fraction.
pub fn parse_instant(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

/// This gateway's wall clock, to the nanosecond.
pub fn wall_now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}
