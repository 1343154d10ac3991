//! Answers and refusals. Every refusal has the nested body `{"error":{"code","message"}}`.

use std::convert::Infallible;
use std::pin::Pin;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full};
use serde::Serialize;

/// Any answer's body.
pub(crate) type Body = Pin<Box<dyn hyper::body::Body<Data = Bytes, Error = std::io::Error>>>;
/// Any answer.
pub(crate) type Response = http::Response<Body>;

/// Why a request got nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// Facts of a failed file operation.
    pub(crate) fault: Option<Box<Fault>>,
}

/// Where a file system failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Fault {
    pub(crate) errno: i32,
    pub(crate) path: String,
    pub(crate) mount: Mount,
}

/// The mount a path lies on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Mount {
    pub(crate) mountpoint: String,
    pub(crate) fstype: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), fault: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
    }

    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message)
    }
}

impl From<Refusal> for Response {
    fn from(refusal: Refusal) -> Self {
        #[derive(Serialize)]
        struct Outer<'a> {
            error: Inner<'a>,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            code: &'a str,
            message: &'a str,
            #[serde(flatten, skip_serializing_if = "Option::is_none")]
            fault: Option<&'a Fault>,
        }
        let inner = Inner { code: refusal.code, message: &refusal.message, fault: refusal.fault.as_deref() };
        json(refusal.status, &Outer { error: inner })
    }
}

/// An answer with a JSON body.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    // Our own structs have string keys and no failing parts, so this cannot fail.
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut response = http::Response::new(Box::pin(Full::new(Bytes::from(text)).map_err(never)) as Body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Bodies in memory do not fail.
fn never(error: Infallible) -> std::io::Error {
    match error {}
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Response {
    let mut response = http::Response::new(Box::pin(Empty::new().map_err(never)) as Body);
    *response.status_mut() = status;
    response
}

/// 405 naming what is allowed.
pub(crate) fn method_not_allowed(allow: &'static str) -> Response {
    let mut response = Response::from(Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!("this path takes {allow} only"),
    ));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}
