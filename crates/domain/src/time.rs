//! The one way to write a time: RFC 3339, UTC, `Z`, and exactly six digits, because older Python clients refuse other
//! fractions (`spec/rest-api.md` §1.5).

use jiff::Timestamp;

/// `2026-01-02T03:04:05.000006Z`.
#[must_use]
pub fn format_timestamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Reads any RFC 3339 time; `None` when it is none.
#[must_use]
pub fn parse_timestamp(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_six_digits() {
        let time = Timestamp::from_microsecond(1_700_000_000_000_006).unwrap();
        assert_eq!(format_timestamp(time), "2023-11-14T22:13:20.000006Z");
        assert_eq!(parse_timestamp("2023-11-14T22:13:20.000006Z"), Some(time));
        let whole = Timestamp::from_second(1_700_000_000).unwrap();
        assert_eq!(format_timestamp(whole), "2023-11-14T22:13:20.000000Z");
    }
}
