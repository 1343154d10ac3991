//! The edge's own answers: the exact texts of `spec/data-plane.md` §2 and the headers of §10. Nothing a client sent is
//! echoed here.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use domain::SandboxState;
use http::header::{CONNECTION, CONTENT_TYPE, REFERRER_POLICY, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::Full;

use crate::hosts::BadHost;
use crate::preview::AnswerBody;
use crate::relay::AgentBody;

/// Seconds a client should wait when the agent does not answer (§2.1).
const AGENT_RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

/// The body of every response of the edge.
pub(crate) enum Body {
    /// Written here.
    Own(Full<Bytes>),
    /// Relayed from an agent.
    Agent(AgentBody),
    /// Relayed from a server in a sandbox.
    Preview(AnswerBody),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Own(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Agent(body) => Pin::new(body).poll_frame(cx),
            Self::Preview(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::Agent(body) => body.is_end_stream(),
            Self::Preview(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            Self::Agent(body) => body.size_hint(),
            Self::Preview(body) => body.size_hint(),
        }
    }
}

/// An answer with an empty body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Own(Full::default()));
    *response.status_mut() = status;
    harden(&mut response);
    response
}

/// A plain-text answer.
pub(crate) fn text(status: StatusCode, message: &'static str) -> Response<Body> {
    let mut response = empty(status);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    *response.body_mut() = Body::Own(Full::from(message));
    response
}

fn json(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let body = serde_json::json!({ "error": { "code": code, "message": message } }).to_string();
    let mut response = empty(status);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *response.body_mut() = Body::Own(Full::from(body));
    response
}

/// Headers of every answer (§10). A file of the guest must not be taken for a page of this host.
pub(crate) fn harden(response: &mut Response<Body>) {
    response.headers_mut().insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// No such sandbox here; clients activate and try again.
pub(crate) fn no_sandbox() -> Response<Body> {
    json(StatusCode::NOT_FOUND, "sandbox_route_stale", "sandbox not found")
}

/// The sandbox does not run; clients activate and try again.
pub(crate) fn not_running(state: SandboxState) -> Response<Body> {
    json(StatusCode::SERVICE_UNAVAILABLE, "sandbox_unavailable", &format!("sandbox is {state}"))
}

/// A host that is refused.
pub(crate) fn bad_host(reason: BadHost) -> Response<Body> {
    match reason {
        BadHost::Unknown => text(
            StatusCode::MISDIRECTED_REQUEST,
            "unknown host: this server answers for its sandbox hosts only (set NO_PROXY to reach other hosts directly)",
        ),
        BadHost::Malformed => {
            text(StatusCode::BAD_REQUEST, "malformed host: boxd-<id> or <port>-<id> expected")
        }
        BadHost::AgentPort => text(StatusCode::BAD_REQUEST, "this port is reserved"),
        BadHost::PrivilegedPort => text(StatusCode::FORBIDDEN, "ports below 1024 cannot be reached"),
    }
}

/// The agent cannot be reached, or was cut off before it answered. Not 503: a client would run the command again, which
/// may have taken effect.
pub(crate) fn agent_unreachable(message: &'static str) -> Response<Body> {
    let mut response = text(StatusCode::BAD_GATEWAY, message);
    response.headers_mut().insert(RETRY_AFTER, AGENT_RETRY_AFTER);
    response
}

/// A cap is reached.
pub(crate) fn too_many(message: &'static str) -> Response<Body> {
    text(StatusCode::TOO_MANY_REQUESTS, message)
}

/// The connection ends after this answer.
pub(crate) fn and_close(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
