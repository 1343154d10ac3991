//! Parameters of requests: bounded, and each at most once. One without a value counts as absent (RFC 6749 §3.1).

use std::time::Duration;

use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::request::Parts;

use crate::reply::Refused;

/// Largest query or body. The longest honest one holds a state of a few hundred bytes.
pub(crate) const MAX_BYTES: usize = 16 * 1024;
/// A client that sends a few KiB slower than this is not sending.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn parse(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).into_owned().filter(|(_, value)| !value.is_empty()).collect())
    }

    /// The only value with this name; an error when there are several.
    pub(crate) fn one(&self, name: &str) -> Result<Option<&str>, Refused> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            _ => Err(Refused::invalid_request("a parameter is there more than once")),
        }
    }

    /// The value that must be there.
    pub(crate) fn needed(&self, name: &str, or: &'static str) -> Result<&str, Refused> {
        self.one(name)?.ok_or(Refused::invalid_request(or))
    }

    pub(crate) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The body of a form.
pub(crate) async fn read(parts: &Parts, body: Body) -> Result<Params, Refused> {
    Ok(Params::parse(&bytes(parts, body, "application/x-www-form-urlencoded").await?))
}

/// A small body of this type. The type matters: a page of another site can send no JSON without being asked first.
pub(crate) async fn bytes(parts: &Parts, body: Body, wanted: &str) -> Result<Vec<u8>, Refused> {
    let mut types = parts.headers.get_all(CONTENT_TYPE).iter();
    let essence = match (types.next(), types.next()) {
        (Some(one), None) => one.to_str().ok().and_then(|value| value.split(';').next()),
        _ => None,
    };
    if !essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(wanted)) {
        return Err(Refused::CONTENT_TYPE);
    }
    match tokio::time::timeout(BODY_WITHIN, axum::body::to_bytes(body, MAX_BYTES)).await {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        Ok(Err(_)) => Err(Refused::TOO_LARGE),
        Err(_) => Err(Refused::SLOW),
    }
}
