//! Query strings: names and values percent- or form-encoded (§4.4), every parameter at most once.

use std::collections::BTreeMap;

use domain::{MAX_PAGE, Problem, parse_timestamp};
use jiff::Timestamp;
use percent_encoding::percent_decode_str;

/// The decoded parameters.
#[derive(Debug)]
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    /// Decodes a query string.
    pub(crate) fn parse(text: Option<&str>) -> Result<Self, Problem> {
        let mut parameters = BTreeMap::new();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name)?;
            if parameters.insert(name.clone(), decode(value)?).is_some() {
                return Err(Problem::invalid(shown(&name), "this parameter may be given only once"));
            }
        }
        Ok(Self(parameters))
    }

    /// One parameter, or what its absence means.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A parameter that names one of a few things; the first when it is absent.
    pub(crate) fn one_of<T: Copy>(&self, name: &'static str, choices: &[(&str, T)]) -> Result<T, Problem> {
        let accepted = || choices.iter().map(|(text, _)| *text).collect::<Vec<_>>().join(", ");
        let wanted = self.get(name).unwrap_or(choices[0].0);
        let chosen = choices.iter().find(|(text, _)| *text == wanted).map(|(_, value)| *value);
        chosen.ok_or_else(|| Problem::invalid(name, format!("accepted are {}", accepted())))
    }

    /// `limit`, clamped; `None` for all.
    pub(crate) fn limit(&self) -> Result<Option<u32>, Problem> {
        let accepted =
            || Problem::invalid("limit", format!("a whole number from 1 to {MAX_PAGE} is accepted"));
        let Some(text) = self.get("limit") else { return Ok(None) };
        let limit = whole_number(text).filter(|limit| *limit >= 1).ok_or_else(accepted)?;
        Ok(Some(u32::try_from(limit).unwrap_or(MAX_PAGE).min(MAX_PAGE)))
    }

    /// `offset`.
    pub(crate) fn offset(&self) -> Result<u64, Problem> {
        let accepted = || Problem::invalid("offset", "a whole number from 0 is accepted");
        self.get("offset").map_or(Ok(0), |text| whole_number(text).ok_or_else(accepted))
    }

    /// A time.
    pub(crate) fn time(&self, name: &'static str) -> Result<Option<Timestamp>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let bad = || Problem::invalid(name, "an RFC 3339 time is accepted, such as 2026-01-02T03:04:05Z");
        parse_timestamp(text).map(Some).ok_or_else(bad)
    }

    /// The parameters below a prefix, without it.
    pub(crate) fn below(&self, prefix: &str) -> BTreeMap<String, String> {
        let below = self.0.iter().filter_map(|(name, value)| Some((name.strip_prefix(prefix)?, value)));
        below.map(|(name, value)| (name.to_owned(), value.clone())).collect()
    }
}

/// Digits only; a number too large to hold is a large number.
fn whole_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

fn decode(text: &str) -> Result<String, Problem> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    let decoded = decoded.map_err(|_| Problem::invalid("query", "it must be valid UTF-8"))?;
    Ok(decoded.into_owned())
}

fn shown(name: &str) -> String {
    name.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_encodings_are_read() {
        for text in
            ["metadata.a%20b=c%26d%2Be&q=x", "metadata%2Ea+b=c%26d%2Be&q=x", "&metadata.a+b=c%26d%2be&&q=x"]
        {
            let query = Query::parse(Some(text)).unwrap();
            assert_eq!(query.below("metadata."), BTreeMap::from([("a b".to_owned(), "c&d+e".to_owned())]));
            assert_eq!(query.get("q"), Some("x"));
        }
        assert!(Query::parse(Some("metadata.a=1&metadata.a=1")).is_err());
        assert!(Query::parse(Some("metadata.a=1&metadata%2ea=2")).is_err());
        assert!(Query::parse(Some("q=%ff")).is_err());
    }

    #[test]
    fn pages() {
        let limit = |text: &str| Query::parse(Some(text)).unwrap().limit().map_err(|p| p.to_string());
        assert_eq!(limit(""), Ok(None));
        assert_eq!(limit("limit=1"), Ok(Some(1)));
        for text in ["limit=200", "limit=201", "limit=99999999999999999999999"] {
            assert_eq!(limit(text), Ok(Some(200)));
        }
        for text in ["limit=", "limit=0", "limit=-1", "limit=a", "limit=1.5", "limit=%2B5"] {
            assert!(limit(text).is_err(), "{text}");
        }
        assert!(Query::parse(Some("offset=-1")).unwrap().offset().is_err());
        assert_eq!(Query::parse(Some("offset=7")).unwrap().offset().unwrap(), 7);
    }
}
