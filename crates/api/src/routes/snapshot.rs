//! Saved snapshots (§5). Making sandboxes from them is `POST /sandboxes`.

use activity::Caller;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use domain::{Problem, SnapshotStatus, format_timestamp, idempotency_key, snapshot_name};
use http::{HeaderName, StatusCode, header};
use lifecycle::{NewSnapshot, Saved};
use store::SnapshotRow;
use wire::rest::{CreateSnapshot, RenameSnapshot, SNAPSHOT_KIND, Snapshot, SnapshotResources};

use crate::ApiState;
use crate::body::{Optional, Strict};
use crate::ids::{SandboxPath, SnapshotPath};
use crate::query::Query;
use crate::reply::Reply;
use crate::routes::sandbox::TOTAL_COUNT;

/// §5: when to look again at one that takes long.
const LOOK_AGAIN: &str = "60";

pub(crate) async fn create(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
    Optional(body): Optional<CreateSnapshot>,
) -> Reply<Response> {
    let (row, done) = match state.lifecycle.snapshot(caller, id, wanted(body)?).await? {
        Saved::New(row) => (row, StatusCode::CREATED),
        Saved::Before(row) => (row, StatusCode::OK),
    };
    if row.status == SnapshotStatus::Creating {
        return Ok(
            (StatusCode::ACCEPTED, [(header::RETRY_AFTER, LOOK_AGAIN)], Json(shown(row))).into_response()
        );
    }
    Ok((done, Json(shown(row))).into_response())
}

fn wanted(body: CreateSnapshot) -> Result<NewSnapshot, Problem> {
    if body.kind.is_some_and(|kind| kind != SNAPSHOT_KIND) {
        return Err(Problem::invalid("kind", format!("{SNAPSHOT_KIND} is accepted")));
    }
    Ok(NewSnapshot {
        name: body.name.map(snapshot_name).transpose()?,
        idempotency_key: body.idempotency_key.map(idempotency_key).transpose()?,
    })
}

pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
    RawQuery(query): RawQuery,
) -> Reply<([(HeaderName, String); 1], Json<Vec<Snapshot>>)> {
    let query = Query::parse(query.as_deref())?;
    let page = state.lifecycle.snapshot_list(caller.team, id, query.limit()?, query.offset()?).await?;
    let rows = page.rows.into_iter().map(shown).collect();
    Ok(([(TOTAL_COUNT, page.total.to_string())], Json(rows)))
}

pub(crate) async fn get(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SnapshotPath(id): SnapshotPath,
) -> Reply<Json<Snapshot>> {
    Ok(Json(shown(state.lifecycle.snapshot_get(caller.team, id).await?)))
}

pub(crate) async fn rename(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SnapshotPath(id): SnapshotPath,
    Strict(body): Strict<RenameSnapshot>,
) -> Reply<Json<Snapshot>> {
    let name = snapshot_name(body.name)?;
    Ok(Json(shown(state.lifecycle.snapshot_rename(caller, id, &name).await?)))
}

pub(crate) async fn delete(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SnapshotPath(id): SnapshotPath,
) -> Reply<StatusCode> {
    state.lifecycle.snapshot_delete(caller, id).await?;
    // Its layer goes when nothing else refers to it.
    state.builds.layers_freed();
    Ok(StatusCode::NO_CONTENT)
}

fn shown(row: SnapshotRow) -> Snapshot {
    Snapshot {
        id: row.id.to_string(),
        sandbox_id: row.sandbox.to_string(),
        template_id: row.template.map(|id| id.to_string()),
        kind: SNAPSHOT_KIND.to_owned(),
        captured: Some(row.captured.to_string()),
        status: row.status.to_string(),
        name: row.name,
        size_bytes: row.size_bytes,
        resources: SnapshotResources {
            vcpu_count: row.shape.vcpu,
            memory_mib: row.shape.memory_mib,
            disk_mib: row.shape.disk_mib,
        },
        source_snapshot_id: row.parent.map(|id| id.to_string()),
        created_at: format_timestamp(row.created_at),
        ready_at: row.ready_at.map(format_timestamp),
    }
}
