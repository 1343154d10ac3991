//! `X-API-Key` (§1.2). Every route that is not public passes here before anything else is looked at.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use domain::{Action, Code, NextStep, Problem, TeamId};
use http::HeaderName;
use jiff::{SignedDuration, Timestamp};
use store::KeyRow;

use crate::ApiState;
use crate::reply::Reply;

/// Carries the key.
pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// `last_used_at` is for people who tidy up: to the minute is enough, and spares a write per request.
const TOUCH_EVERY: SignedDuration = SignedDuration::from_mins(1);
/// Longer texts are no keys; hashing them would be work for nothing.
const LONGEST_KEY: usize = 256;

/// Whose request it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) team: TeamId,
}

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
    let row = state.store.key_find(key).await?.ok_or_else(|| refused("the API key is not valid"))?;
    touch(&state, &row).await;
    request.extensions_mut().insert(Caller { team: row.team });
    Ok(next.run(request).await)
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
