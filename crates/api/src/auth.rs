//! `X-API-Key` (§1.2). Every route that is not public passes here before anything else is looked at.

use std::net::SocketAddr;

use activity::{Actor, Caller};
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use domain::{Action, Code, NextStep, Problem};
use http::HeaderName;
use jiff::{SignedDuration, Timestamp};
use store::KeyRow;

use crate::ApiState;
use crate::reply::Reply;
use crate::request_log::RequestId;

/// Carries the key.
pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// `last_used_at` is for people who tidy up: to the minute is enough, and spares a write per request.
const TOUCH_EVERY: SignedDuration = SignedDuration::from_mins(1);
/// Longer texts are no keys; hashing them would be work for nothing.
const LONGEST_KEY: usize = 256;

fn refused(message: &str) -> Problem {
    Problem::new(Code::AuthFailed, message, NextStep::Do(Action::CheckKey))
}

/// Lets a request with a working key through, as a [`Caller`].
pub(crate) async fn with_key(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Reply<Response> {
    let key = request.headers().get(API_KEY).ok_or_else(|| refused("the API key is missing"))?;
    let key = key.to_str().ok().filter(|key| !key.is_empty() && key.len() <= LONGEST_KEY);
    let key = key.ok_or_else(|| refused("the API key is not valid"))?;
    let row = match &state.delegation {
        Some(delegation) if key.starts_with(oauth::PREFIX) => delegation.key(key).await?,
        _ => state.store.key_find(key).await?,
    };
    let row = row.ok_or_else(|| refused("the API key is not valid"))?;
    touch(&state, &row).await;
    let actor = Actor::Key { id: row.id, name: row.name.as_str().into() };
    let id = request.extensions().get::<RequestId>().map(|id| id.0);
    request.extensions_mut().insert(Caller { team: row.team, actor, request: id });
    Ok(next.run(request).await)
}

/// Lets a request from this machine through, and one from elsewhere if it has a key.
pub(crate) async fn local_or_with_key(
    state: State<ApiState>,
    request: Request,
    next: Next,
) -> Reply<Response> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip().to_canonical());
    if peer.is_some_and(|ip| ip.is_loopback()) {
        return Ok(next.run(request).await);
    }
    with_key(state, request, next).await
}

async fn touch(state: &ApiState, row: &KeyRow) {
    let now = Timestamp::now();
    if row.last_used_at.is_some_and(|last| now.duration_since(last) < TOUCH_EVERY) {
        return;
    }
    // A note for people: a request does not fail because of it.
    if let Err(error) = state.store.key_touch(row.id, now).await {
        tracing::warn!(cause = &error as &dyn std::error::Error, "cannot note the use of a key");
    }
}
