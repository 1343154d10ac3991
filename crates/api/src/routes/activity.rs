//! The activity log (§12), with `sandbox_id` and `action` as filters of our own.

use activity::Caller;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use domain::{MAX_PAGE, Problem, format_timestamp};
use http::HeaderName;
use store::{ActivityFilter, ActivityRow};
use wire::rest::Activity;

use crate::ApiState;
use crate::query::Query;
use crate::reply::Reply;
use crate::routes::sandbox::TOTAL_COUNT;

pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Reply<([(HeaderName, String); 1], Json<Vec<Activity>>)> {
    let filter = filter(&Query::parse(query.as_deref())?)?;
    // Whoever has seen an answer finds what it was about.
    state.activity.flush().await;
    let page = state.store.activity_list(caller.team, &filter).await?;
    let rows = page.rows.into_iter().map(shown).collect();
    Ok(([(TOTAL_COUNT, page.total.to_string())], Json(rows)))
}

fn filter(query: &Query) -> Result<ActivityFilter, Problem> {
    query.one_of("sort", &[("created_at", ())])?;
    let sandbox = query.get("sandbox_id").map(str::parse).transpose();
    Ok(ActivityFilter {
        category: query.get("category").map(str::to_owned),
        action: query.get("action").map(str::to_owned),
        sandbox: sandbox.map_err(|bad: domain::BadId| Problem::invalid("sandbox_id", bad.to_string()))?,
        failed: match query.get("status") {
            None => None,
            Some(_) => Some(query.one_of("status", &[("error", true), ("success", false)])?),
        },
        query: query.get("q").map(str::to_owned),
        start: query.time("start")?,
        end: query.time("end")?,
        ascending: query.one_of("order", &[("desc", false), ("asc", true)])?,
        limit: query.limit()?.unwrap_or(MAX_PAGE),
        offset: query.offset()?,
    })
}

fn shown(row: ActivityRow) -> Activity {
    Activity {
        id: row.id.to_string(),
        sandbox_id: row.sandbox.map(|id| id.to_string()),
        template_id: row.template.map(|id| id.to_string()),
        actor_id: row.actor.map(|id| id.to_string()),
        category: row.category,
        action: row.action,
        status: Some(if row.error.is_some() { "error" } else { "success" }.to_owned()),
        sandbox_name: row.sandbox_name,
        secret_id: row.secret.map(|id| id.to_string()),
        secret_name: row.secret_name,
        duration_ms: row.duration_ms,
        error: row.error,
        metadata: row.metadata,
        created_at: format_timestamp(row.created_at),
    }
}
