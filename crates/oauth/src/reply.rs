//! Refusals as RFC 6749 §5.2 wants them. Their texts are fixed: none repeats anything of the request, and what is wrong with a
//! code or a token is not told apart.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use serde_json::json;
use store::StoreError;

/// Seconds after which one that asked too often may have another try.
const RETRY_AFTER_SECONDS: &str = "60";

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) error: &'static str,
    pub(crate) description: &'static str,
}

const fn refused(status: StatusCode, error: &'static str, description: &'static str) -> Refused {
    Refused { status, error, description }
}

impl Refused {
    pub(crate) const CONTENT_TYPE: Self = refused(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "invalid_request",
        "the content type is not the one that is needed",
    );
    pub(crate) const TOO_LARGE: Self = refused(
        StatusCode::PAYLOAD_TOO_LARGE,
        "invalid_request",
        "the request is larger than 16 KiB, or broke off",
    );
    pub(crate) const SLOW: Self =
        refused(StatusCode::REQUEST_TIMEOUT, "invalid_request", "the request did not arrive in time");
    pub(crate) const LIMITED: Self = refused(
        StatusCode::TOO_MANY_REQUESTS,
        "temporarily_unavailable",
        "too many tries; wait a few minutes",
    );
    /// Clients register again when they see this.
    pub(crate) const UNKNOWN_CLIENT: Self =
        refused(StatusCode::UNAUTHORIZED, "invalid_client", "this client is not registered here (any more)");
    pub(crate) const GRANT: Self = refused(
        StatusCode::BAD_REQUEST,
        "invalid_grant",
        "the code or token is not valid, or not for this client; ask the user again",
    );
    pub(crate) const TARGET: Self =
        refused(StatusCode::BAD_REQUEST, "invalid_target", "the only resource here is the MCP endpoint");
    pub(crate) const GRANT_TYPE: Self = refused(
        StatusCode::BAD_REQUEST,
        "unsupported_grant_type",
        "grant_type is authorization_code or refresh_token",
    );
    pub(crate) const INTERNAL: Self = refused(
        StatusCode::INTERNAL_SERVER_ERROR,
        "server_error",
        "an internal error; the server's log has the cause",
    );

    pub(crate) const fn invalid_request(description: &'static str) -> Self {
        refused(StatusCode::BAD_REQUEST, "invalid_request", description)
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        tracing::error!(cause = &error as &dyn std::error::Error, "oauth: the database failed");
        Self::INTERNAL
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = json!({"error": self.error, "error_description": self.description});
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        response
    }
}
