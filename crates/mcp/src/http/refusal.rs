//! Answers that are no results. Every body is a JSON-RPC error, so that a client shows the text (`spec/mcp.md` §B.2). The
//! codes keep away from those that the newest revision gives other meanings to (§J.2).

use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::config::{API_KEY_VAR, CONSOLE_URL};

/// Seconds after which an overloaded server is worth another try.
const RETRY_AFTER_SECONDS: &str = "1";

/// Why a request does not become a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    UnknownPath,
    Method,
    Host,
    Origin,
    NoKey,
    UnusableKey,
    InvalidToken,
    TooLarge,
    Accept,
    ContentType,
    SlowBody,
    BrokenBody,
    NotJson,
    Batch,
    NotAMessage,
    Overload,
    Internal,
}

impl Refusal {
    #[cfg(test)]
    pub(super) const ALL: [Self; 17] = [
        Self::UnknownPath,
        Self::Method,
        Self::Host,
        Self::Origin,
        Self::NoKey,
        Self::UnusableKey,
        Self::InvalidToken,
        Self::TooLarge,
        Self::Accept,
        Self::ContentType,
        Self::SlowBody,
        Self::BrokenBody,
        Self::NotJson,
        Self::Batch,
        Self::NotAMessage,
        Self::Overload,
        Self::Internal,
    ];

    fn status(self) -> StatusCode {
        match self {
            Self::UnknownPath => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Host | Self::Origin => StatusCode::FORBIDDEN,
            Self::NoKey | Self::UnusableKey | Self::InvalidToken => StatusCode::UNAUTHORIZED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Accept => StatusCode::NOT_ACCEPTABLE,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::BrokenBody | Self::NotJson | Self::Batch | Self::NotAMessage => StatusCode::BAD_REQUEST,
            Self::Overload => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn code(self) -> i32 {
        match self {
            Self::NoKey | Self::UnusableKey | Self::InvalidToken => -32001,
            Self::NotJson => -32700,
            Self::Overload | Self::Internal => -32603,
            _ => -32600,
        }
    }

    fn message(self) -> String {
        let form = format!("`Authorization: Bearer <{API_KEY_VAR}>`");
        let text = match self {
            Self::UnknownPath => "Not found: the MCP endpoint is / or /mcp.",
            Self::Method => "Method not allowed: use POST for MCP requests.",
            Self::Host => {
                "This Host is not allowed. The operator lists hosts in SUPERSERVE_MCP_ALLOWED_HOSTS."
            }
            Self::Origin => {
                "This Origin is not allowed. The operator lists origins in SUPERSERVE_MCP_ALLOWED_ORIGINS."
            }
            Self::NoKey => {
                return format!(
                    "Authentication required: send {form}. Production keys begin with `ss_live_`; create one at {CONSOLE_URL}."
                );
            }
            Self::UnusableKey => {
                return format!(
                    "The bearer token cannot be a key: send {form}, the key alone, without quotes or line breaks. Create keys at \
                     {CONSOLE_URL}."
                );
            }
            Self::InvalidToken => {
                "The access token is not valid here: it has expired, was revoked, or is for another server. Renew it, or connect \
                 again."
            }
            Self::TooLarge => {
                "The request is larger than 16 MiB (16777216 bytes). Inline content is limited; send large files with the SDK \
                 or the CLI."
            }
            Self::Accept => {
                "Not acceptable: the Accept header needs both application/json and text/event-stream."
            }
            Self::ContentType => "Unsupported media type: Content-Type must be application/json.",
            Self::SlowBody => "The request body did not arrive in time.",
            Self::BrokenBody => "The request body broke off.",
            Self::NotJson => "Parse error: the body is not valid JSON.",
            Self::Batch => "Batches are not supported: send a single JSON-RPC message per POST.",
            Self::NotAMessage => "Invalid request: the body is not one JSON-RPC 2.0 message.",
            Self::Overload => "The server is busy; retry in a moment.",
            Self::Internal => "Internal error.",
        };
        text.to_owned()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = error_response(self.status(), &Value::Null, self.code(), &self.message(), None);
        let (name, value) = match self {
            Self::Method => (ALLOW, "POST"),
            Self::NoKey | Self::UnusableKey => (WWW_AUTHENTICATE, r#"Bearer realm="superserve-mcp""#),
            Self::InvalidToken => {
                (WWW_AUTHENTICATE, r#"Bearer realm="superserve-mcp", error="invalid_token""#)
            }
            Self::Overload => (RETRY_AFTER, RETRY_AFTER_SECONDS),
            _ => return response,
        };
        response.headers_mut().insert(name, HeaderValue::from_static(value));
        response
    }
}

/// A message that the protocol's rules refuse, and its status.
#[derive(Debug)]
pub(super) struct ProtocolError {
    pub(super) id: Option<Value>,
    pub(super) status: StatusCode,
    pub(super) code: i32,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

impl ProtocolError {
    /// A message with an id whose parts have the wrong types.
    pub(super) fn invalid_request(id: Option<Value>) -> Self {
        Self {
            id,
            status: StatusCode::BAD_REQUEST,
            code: -32600,
            message: "Invalid request: not a JSON-RPC 2.0 request.".to_owned(),
            data: None,
        }
    }
}

impl IntoResponse for ProtocolError {
    fn into_response(self) -> Response {
        let id = self.id.unwrap_or_default();
        error_response(self.status, &id, self.code, &self.message, self.data)
    }
}

fn error_response(status: StatusCode, id: &Value, code: i32, message: &str, data: Option<Value>) -> Response {
    let mut error = json!({"code": code, "message": message});
    if let Some(data) = data {
        error["data"] = data;
    }
    (status, axum::Json(json!({"jsonrpc": "2.0", "id": id, "error": error}))).into_response()
}

/// Both types of answer must be welcome, and the body must say that it is JSON.
pub(super) fn check_types(headers: &HeaderMap) -> Result<(), Refusal> {
    let accepted = |wanted: &str| {
        let kind = wanted.split('/').next().unwrap_or_default();
        let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        ranges.flat_map(|value| value.split(',')).any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let refused = parts.any(|part| {
                let weight = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
                weight.is_some_and(|weight| weight.trim().parse() == Ok(0.0))
            });
            !refused && (name == wanted || name == "*/*" || name.strip_suffix("/*") == Some(kind))
        })
    };
    if !accepted("application/json") || !accepted("text/event-stream") {
        return Err(Refusal::Accept);
    }
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let essence = match (types.next(), types.next()) {
        (Some(one), None) => one.to_str().ok().and_then(|value| value.split(';').next()),
        _ => None,
    };
    if essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json")) {
        Ok(())
    } else {
        Err(Refusal::ContentType)
    }
}
