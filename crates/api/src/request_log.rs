//! One log line per request, an id that finds it again, and the news of it for whoever counts.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderName, HeaderValue};
use tracing::Instrument;
use uuid::Uuid;

use crate::ApiState;
use crate::observe::Answered;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What the log calls a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestId(pub(crate) Uuid);

/// Logs method, route (never the query), status and time.
pub(crate) async fn logged(State(state): State<ApiState>, mut request: Request, next: Next) -> Response {
    let id = Uuid::new_v4();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or("-", MatchedPath::as_str).to_owned();
    let begun = Instant::now();
    let span = tracing::info_span!("request", %id, %method, route);
    request.extensions_mut().insert(RequestId(id));
    let mut response = next.run(request).instrument(span.clone()).await;
    let (status, took) = (response.status().as_u16(), begun.elapsed());
    let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    span.in_scope(|| tracing::info!(status, ms, "answered"));
    state.observer.answered(Answered { method: &method, route: &route, status, took });
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}
