//! Secrets, providers, and what is bound to a sandbox (§8, §11). No answer, refusal or log line has a value.

mod read;
mod show;

use activity::{Action, Caller, Entry};
use axum::extract::{Path, RawQuery, State};
use axum::{Extension, Json};
use domain::{Problem, SecretId};
use http::StatusCode;
use secrets::PROVIDERS;
use store::AuditFilter;
use wire::rest::{
    AttachSecret, CreateSecret, Provider, RotateSecret, Secret, SecretAuditEvent, SecretSandbox,
};

use crate::ApiState;
use crate::body::Strict;
use crate::ids::{SandboxPath, sandbox_id};
use crate::query::Query;
use crate::reply::Reply;

/// Rows of a page of the audit when nobody says how many.
const DEFAULT_ROWS: u32 = 50;

/// Goes on when the caller leaves: what the database says and what is in force must not part.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|error| Err(Problem::internal("changing a secret ended early", error)))
}

pub(crate) async fn create(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Strict(body): Strict<CreateSecret>,
) -> Reply<(StatusCode, Json<Secret>)> {
    let new = read::create(body)?;
    let row = to_its_end(async move {
        let row = state.secrets.create(caller.team, new).await?;
        note(&state, caller, Action::SecretCreated, row.id, &row.name);
        Ok(row)
    })
    .await?;
    Ok((StatusCode::CREATED, Json(show::secret(row))))
}

pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
) -> Reply<Json<Vec<Secret>>> {
    let rows = state.secrets.list(caller.team).await?;
    Ok(Json(rows.into_iter().map(show::secret).collect()))
}

pub(crate) async fn get(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Reply<Json<Secret>> {
    Ok(Json(show::secret(state.secrets.get(caller.team, &name).await?)))
}

pub(crate) async fn rotate(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Strict(body): Strict<RotateSecret>,
) -> Reply<Json<Secret>> {
    let value = read::value(body.value)?;
    let row = to_its_end(async move {
        let row = state.secrets.rotate(caller.team, &name, &value).await?;
        note(&state, caller, Action::SecretRotated, row.id, &row.name);
        Ok(row)
    })
    .await?;
    Ok(Json(show::secret(row)))
}

pub(crate) async fn delete(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Reply<StatusCode> {
    to_its_end(async move {
        let id = state.secrets.delete(caller.team, &name).await?;
        note(&state, caller, Action::SecretDeleted, id, &name);
        Ok(())
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn audit(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Reply<Json<Vec<SecretAuditEvent>>> {
    let query = Query::parse(query.as_deref())?;
    let statuses = [("2xx", (200, 300)), ("3xx", (300, 400)), ("4xx", (400, 500)), ("5xx", (500, 600))];
    let filter = AuditFilter {
        before: query.get("before").map(before).transpose()?,
        status: match query.get("status") {
            None => None,
            // Whatever failed, here or at the service (§15, open point 4).
            Some("errors") => Some((400, u16::MAX)),
            Some(_) => Some(query.one_of("status", &statuses).map_err(|_| unknown_status())?),
        },
        limit: query.limit()?.unwrap_or(DEFAULT_ROWS),
    };
    let secret = state.secrets.get(caller.team, &name).await?;
    state.network.flush().await;
    let rows = state.store.secret_audit_list(secret.id, filter).await?;
    Ok(Json(rows.into_iter().map(show::audit).collect()))
}

fn unknown_status() -> Problem {
    Problem::invalid("status", "accepted are 2xx, 3xx, 4xx, 5xx, errors")
}

fn before(text: &str) -> Result<i64, Problem> {
    let id = text.parse().ok().filter(|id| *id >= 0);
    id.ok_or_else(|| Problem::invalid("before", "the id of an event is accepted"))
}

pub(crate) async fn sandboxes(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Reply<Json<Vec<SecretSandbox>>> {
    let secret = state.secrets.get(caller.team, &name).await?;
    let rows = state.store.binding_sandboxes(secret.id).await?;
    Ok(Json(rows.into_iter().map(show::sandbox).collect()))
}

pub(crate) async fn providers() -> Json<Vec<Provider>> {
    Json(PROVIDERS.iter().map(show::provider).collect())
}

pub(crate) async fn attach(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
    Strict(body): Strict<AttachSecret>,
) -> Reply<(StatusCode, Json<AttachSecret>)> {
    secrets::check_env_key("env_key", &body.env_key)?;
    state.lifecycle.attach_secret(caller, id, &body.env_key, &body.secret_name).await?;
    Ok((StatusCode::CREATED, Json(body)))
}

pub(crate) async fn detach(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path((id, env_key)): Path<(String, String)>,
) -> Reply<StatusCode> {
    state.lifecycle.detach_secret(caller, sandbox_id(&id)?, &env_key).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn note(state: &ApiState, by: Caller, action: Action, id: SecretId, name: &str) {
    let secret = Some((id, name.to_owned()));
    state.activity.record(Entry { secret, ..Entry::new(action, by) });
}
