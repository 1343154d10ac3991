//! How answers look: the error body of §1.7, `Retry-After`, and the headers every answer carries (§1.5).

use axum::Json;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::{Code, NextStep, Problem};
use http::{HeaderName, HeaderValue, StatusCode, header};
use wire::rest::ErrorBody;

/// A problem on its way to a client.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Problem);

impl<P: Into<Problem>> From<P> for Failure {
    fn from(problem: P) -> Self {
        Self(problem.into())
    }
}

/// What a handler returns.
pub(crate) type Reply<T> = Result<T, Failure>;

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let problem = self.0;
        let status = StatusCode::from_u16(problem.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // The one place where a problem of a request is logged, with its causes; the span has the request's id.
        if status.is_server_error() {
            tracing::error!(code = %problem.code, cause = problem.chain(), "request failed");
        }
        let mut response = (status, Json(ErrorBody::from(&problem))).into_response();
        if let Some(seconds) = retry_after(&problem) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// §1.7: on every 429 and on `sandbox_pausing`; elsewhere when the problem says how long.
fn retry_after(problem: &Problem) -> Option<u64> {
    match (&problem.next, problem.code) {
        (NextStep::Retry { after }, _) => Some(after.as_secs().max(1)),
        (
            _,
            Code::TooManySandboxes
            | Code::TooManyBuilds
            | Code::TooManyTemplates
            | Code::TooManySnapshots
            | Code::TooManySnapshotsInFlight
            | Code::RateLimited
            | Code::SandboxPausing,
        ) => Some(1),
        _ => None,
    }
}

/// Security headers on every answer.
pub(crate) async fn with_headers(request: Request, next: Next) -> Response {
    const FIXED: [(HeaderName, HeaderValue); 3] = [
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000")),
    ];
    let mut response = next.run(request).await;
    response.headers_mut().extend(FIXED);
    response
}
