//! The records of a pax extended header: `<length> <key>=<value>\n`, where the length counts the whole record. Values may
//! hold any byte, so records are cut by length, not at line ends.

/// Splits a header into its records; `None` when it is malformed.
pub(crate) fn records(mut data: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut found = Vec::new();
    while !data.is_empty() {
        let space = data.iter().take(8).position(|&b| b == b' ')?;
        let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
        let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&b| b == b'=')?;
        found.push((&record[..equals], &record[equals + 1..]));
        data = &data[length..];
    }
    Some(found)
}

/// A whole decimal number.
pub(crate) fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Seconds since 1970, fraction dropped; times before count as 0.
pub(crate) fn seconds(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    if whole.starts_with('-') { Some(0) } else { whole.parse().ok() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
        let body = key.len() + value.len() + 3;
        let mut length = body + body.to_string().len();
        length = body + length.to_string().len();
        [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
    }

    #[test]
    fn values_may_hold_line_ends() {
        let data = [record(b"path", b"a\nb"), record(b"mtime", b"12.5")].concat();
        let found = records(&data).unwrap();
        assert_eq!(found, [(&b"path"[..], &b"a\nb"[..]), (&b"mtime"[..], &b"12.5"[..])]);
        assert_eq!(seconds(found[1].1), Some(12));
        assert_eq!(seconds(b"-3.5"), Some(0));
    }

    #[test]
    fn malformed_records_are_noticed() {
        for bad in ["7 a=bcdef", "0 a=b\n", "x a=b\n", "6 abc\n", "99 a=b\n", "3 \n", "a"] {
            assert!(records(bad.as_bytes()).is_none(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = records(&data);
        }
    }
}
