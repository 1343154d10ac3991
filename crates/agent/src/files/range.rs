//! `Range: bytes=…` of one range; several ranges are answered with the whole file, as RFC 9110 permits.

/// What to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Whole,
    /// First byte and number of bytes.
    Part {
        start: u64,
        length: u64,
    },
    Unsatisfiable,
}

pub(super) fn parse(header: Option<&str>, size: u64) -> Wanted {
    let Some(range) = header.and_then(|header| header.trim().strip_prefix("bytes=")) else {
        return Wanted::Whole;
    };
    let Some((first, last)) = range.split_once('-') else { return Wanted::Whole };
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
    };
    match (first, last) {
        ("", suffix) => match number(suffix) {
            None => Wanted::Whole,
            Some(0) => Wanted::Unsatisfiable,
            Some(_) if size == 0 => Wanted::Unsatisfiable,
            Some(suffix) => Wanted::Part { start: size.saturating_sub(suffix), length: suffix.min(size) },
        },
        (first, last) => match (number(first), number(last)) {
            (None, _) => Wanted::Whole,
            (Some(_), None) if !last.is_empty() => Wanted::Whole,
            (Some(start), Some(end)) if end < start => Wanted::Whole,
            (Some(start), _) if start >= size => Wanted::Unsatisfiable,
            (Some(start), end) => {
                let end = end.unwrap_or(u64::MAX).min(size - 1);
                Wanted::Part { start, length: end - start + 1 }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let check =
            |header: &str, size, expected| assert_eq!(parse(Some(header), size), expected, "{header}");
        assert_eq!(parse(None, 10), Wanted::Whole);
        check("bytes=0-3", 10, Wanted::Part { start: 0, length: 4 });
        check("bytes=4-", 10, Wanted::Part { start: 4, length: 6 });
        check("bytes=-4", 10, Wanted::Part { start: 6, length: 4 });
        check("bytes=-40", 10, Wanted::Part { start: 0, length: 10 });
        check("bytes=9-99999999999999999999", 10, Wanted::Whole);
        check("bytes=9-18446744073709551615", 10, Wanted::Part { start: 9, length: 1 });
        check("bytes=10-", 10, Wanted::Unsatisfiable);
        check("bytes=0-", 0, Wanted::Unsatisfiable);
        check("bytes=-0", 10, Wanted::Unsatisfiable);
        check("bytes=5-2", 10, Wanted::Whole);
        check("bytes=0-1,4-5", 10, Wanted::Whole);
        check("bytes=+1-2", 10, Wanted::Whole);
        check("lines=1-2", 10, Wanted::Whole);
        check("bytes=-", 10, Wanted::Whole);
    }
}
