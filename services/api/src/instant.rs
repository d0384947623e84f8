//! Instants: RFC 3339 UTC, sent with milliseconds, accepted with any fraction.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

/// Bytes of the text of an instant.
const TEXT_BYTES: usize = 24;
/// RFC 3339 cannot express instants past the year 9999.
const LAST_INSTANT: [u8; TEXT_BYTES] = *b"9999-12-31T23:59:59.999Z";

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

    /// Returns the digits of its text, written by hand: a view of a lock has three instants, and a general formatter
    /// takes as long for each as for all the rest of the view.
    fn to_text(self) -> [u8; TEXT_BYTES] {
        let seconds = i64::try_from(self.0 / 1_000).ok();
        let Some(instant) = seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok()) else {
            return LAST_INSTANT;
        };
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let (year, month, day) = instant.to_calendar_date();
        let (hour, minute, second) = instant.to_hms();
        write_digits(&mut text[0..4], year.unsigned_abs());
        write_digits(&mut text[5..7], u8::from(month).into());
        write_digits(&mut text[8..10], day.into());
        write_digits(&mut text[11..13], hour.into());
        write_digits(&mut text[14..16], minute.into());
        write_digits(&mut text[17..19], second.into());
        // Less than 1,000.
        write_digits(&mut text[20..23], (self.0 % 1_000) as u32);
        text
    }
}

fn write_digits(place: &mut [u8], mut number: u32) {
    for digit in place.iter_mut().rev() {
        // Less than 10.
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(as_ascii(&self.to_text()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(as_ascii(&self.to_text()))
    }
}

fn as_ascii(text: &[u8; TEXT_BYTES]) -> &str {
    std::str::from_utf8(text).unwrap_or_default()
}

/// Parses an RFC 3339 instant with any offset and fraction.
pub fn parse_instant(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

/// This gateway's wall clock, to the nanosecond.
pub fn wall_now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

#[cfg(test)]
mod tests {
    use time::macros::format_description;

    use super::*;

    /// The text that the general formatter writes.
    fn formatted(millis: u64) -> String {
        let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000).unwrap().format(format).unwrap()
    }

    #[test]
    fn an_instant_is_shown_in_rfc_3339_with_milliseconds() {
        let (leap_day, last) = (1_709_164_800_000, 253_402_300_799_999);
        let steps = (0..last).step_by(86_400_000 * 37 + 3_723_007);
        for millis in [0, 1, 999, 1_000, 951_782_400_000, leap_day - 1, leap_day, last].into_iter().chain(steps) {
            assert_eq!(Timestamp(millis).to_string(), formatted(millis), "{millis}");
        }
        for millis in [last + 1, u64::MAX / 1_000, u64::MAX] {
            assert_eq!(Timestamp(millis).to_string(), "9999-12-31T23:59:59.999Z");
        }
        assert_eq!(serde_json::to_value(Timestamp(0)).unwrap(), "1970-01-01T00:00:00.000Z");
    }
}
