//! Strict JSON bodies (§1.4): bounded, one value, no unknown field, and a refusal that names the field but never
//! repeats a value, since values may be private.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use domain::{Code, NextStep, Problem};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::reply::Failure;

/// Largest body: twice the largest permitted create, however it is escaped.
const MAX_BODY: usize = 1024 * 1024;
/// A client that sends a megabyte slower than this is not sending.
const BODY_WITHIN: Duration = Duration::from_secs(30);
/// Longest piece of a serde message that is shown.
const MAX_SHOWN: usize = 300;

/// A request body as a type that refuses unknown fields. The content type does not matter.
#[derive(Debug)]
pub(crate) struct Strict<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Strict<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Failure> {
        let bytes = read(request.into_body()).await?;
        Ok(parse(&bytes).map(Self)?)
    }
}

/// The same where an empty body stands for `{}`.
#[derive(Debug)]
pub(crate) struct Optional<T>(pub(crate) T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for Optional<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Failure> {
        let bytes = read(request.into_body()).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(T::default()));
        }
        Ok(parse(&bytes).map(Self)?)
    }
}

async fn read(body: Body) -> Result<Bytes, Problem> {
    let reading = tokio::time::timeout(BODY_WITHIN, Limited::new(body, MAX_BODY).collect()).await;
    let late = || Problem::invalid("body", format!("it must arrive within {} s", BODY_WITHIN.as_secs()));
    match reading.map_err(|_| late())? {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let accepted = format!("at most {MAX_BODY} bytes are accepted");
            let next = NextStep::Fix { field: "body".to_owned(), accepted };
            Err(Problem::new(Code::TooLarge, "the request is too large", next))
        }
        Err(_) => Err(Problem::invalid("body", "it broke off")),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Problem::invalid("body", "a JSON object is required"));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        explain(&path, &error.into_inner())
    })?;
    json.end().map_err(|_| Problem::invalid("body", "nothing may follow the JSON object"))?;
    Ok(value)
}

fn explain(path: &str, error: &serde_json::Error) -> Problem {
    if !error.is_data() {
        let place = format!("it is not valid JSON (line {}, column {})", error.line(), error.column());
        return Problem::invalid("body", place);
    }
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    // `invalid type: string "…", expected …` would repeat the value; only what is expected is of use.
    let names_only =
        ["unknown field", "missing field", "duplicate field"].iter().any(|p| text.starts_with(p));
    let told = if names_only {
        text.to_owned()
    } else {
        let expected = text.rsplit_once(", expected ").map_or("another type", |(_, expected)| expected);
        format!("expected {expected}")
    };
    let field = if path == "." { "body" } else { path };
    Problem::invalid(cut(field), cut(&told))
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_field_and_keep_the_value() {
        let check = |text: &str, expected: &str| {
            let problem = parse::<wire::rest::CreateSandbox>(text.as_bytes()).unwrap_err();
            assert_eq!(problem.code, Code::BadRequest);
            let told = problem.to_string();
            assert!(told.contains(expected), "{text}: {told}");
            assert!(!told.contains("hunter2"), "{told}");
        };
        check("", "a JSON object is required");
        check(" \n", "a JSON object is required");
        check("{", "not valid JSON");
        check("\u{feff}{}", "not valid JSON");
        check("{\"name\":\"a\"} x", "nothing may follow");
        check("{\"name\":\"a\"}{}", "nothing may follow");
        check("{}", "missing field `name`");
        check("[]", "expected");
        check("null", "expected");
        check(r#"{"name":null}"#, "name: expected a string");
        check(r#"{"name":"a","nonsense":1}"#, "unknown field `nonsense`");
        check(r#"{"name":"a","name":"b"}"#, "duplicate field `name`");
        check(r#"{"name":"a","env_vars":"hunter2"}"#, "env_vars: expected a map");
        check(r#"{"name":"a","env_vars":{"KEY":["hunter2"]}}"#, "env_vars.KEY: expected a string");
        check(r#"{"name":"a","timeout_seconds":"hunter2"}"#, "timeout_seconds: expected i64");
        check(r#"{"name":"a","timeout_seconds":1.5}"#, "timeout_seconds: expected i64");
        check(r#"{"name":"a","network":{"x":1}}"#, "unknown field `x`");
        check(r#"{"name":"a","network":{"allow_out":[1]}}"#, "network.allow_out[0]: expected a string");
    }
}
