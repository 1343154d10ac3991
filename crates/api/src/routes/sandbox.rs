//! Sandboxes (§3, §4).

mod read;
mod show;

use activity::Caller;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::{HeaderMap, HeaderName, StatusCode, header};
use lifecycle::PauseOutcome;
use wire::rest::{CreateSandbox, PatchSandbox, PauseAccepted, Resumed, Sandbox, SandboxListItem};

pub(crate) use self::read::isolation;
use crate::ApiState;
use crate::body::Strict;
use crate::ids::SandboxPath;
use crate::query::Query;
use crate::reply::Reply;

/// Rows that match in all, this page or not.
pub(crate) const TOTAL_COUNT: HeaderName = HeaderName::from_static("x-total-count");
const PREFER: HeaderName = HeaderName::from_static("prefer");

pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Reply<([(HeaderName, String); 1], Json<Vec<SandboxListItem>>)> {
    let filter = read::filter(&Query::parse(query.as_deref())?)?;
    let page = state.lifecycle.list(caller.team, &filter).await?;
    let rows = page.rows.into_iter().map(show::item).collect();
    Ok(([(TOTAL_COUNT, page.total.to_string())], Json(rows)))
}

pub(crate) async fn create(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Strict(body): Strict<CreateSandbox>,
) -> Reply<(StatusCode, Json<Sandbox>)> {
    let opened = state.lifecycle.create(caller, read::create(body)?).await?;
    Ok((StatusCode::CREATED, Json(show::sandbox(&opened))))
}

pub(crate) async fn get(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
) -> Reply<Json<Sandbox>> {
    Ok(Json(show::sandbox(&state.lifecycle.get(caller.team, id)?)))
}

pub(crate) async fn patch(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
    Strict(body): Strict<PatchSandbox>,
) -> Reply<StatusCode> {
    state.lifecycle.patch(caller, id, read::patch(body)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn delete(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
) -> Reply<StatusCode> {
    state.lifecycle.delete(caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn pause(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
    headers: HeaderMap,
) -> Reply<Response> {
    match state.lifecycle.pause(caller, id, prefers_async(&headers)).await? {
        PauseOutcome::Paused => Ok(StatusCode::NO_CONTENT.into_response()),
        PauseOutcome::Pausing => {
            let body = Json(PauseAccepted { status: "pausing".to_owned() });
            Ok((StatusCode::ACCEPTED, [(header::RETRY_AFTER, "1")], body).into_response())
        }
    }
}

pub(crate) async fn resume(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
) -> Reply<Json<Resumed>> {
    let opened = state.lifecycle.resume(caller, id).await?;
    Ok(Json(Resumed {
        id: id.to_string(),
        status: opened.row.summary.state.to_string(),
        access_token: opened.token.expose_secret().to_owned(),
    }))
}

pub(crate) async fn activate(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
) -> Reply<Json<Sandbox>> {
    Ok(Json(show::sandbox(&state.lifecycle.activate(caller, id).await?)))
}

/// RFC 7240: a list of preferences, names case-insensitive, each perhaps with parameters.
fn prefers_async(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    let mut preferences = lines.flat_map(|line| line.split(','));
    preferences.any(|preference| {
        let name = preference.split(';').next().unwrap_or_default();
        name.trim().eq_ignore_ascii_case("respond-async")
    })
}
