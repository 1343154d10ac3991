//! Templates, to look at (§10.1–10.2).

use activity::Caller;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::{Extension, Json};
use domain::{Action, Code, NextStep, Problem, TemplateStatus, format_timestamp};
use http::HeaderName;
use store::{TemplateFilter, TemplateOwner, TemplateRow, TemplateSort};
use wire::rest::Template;

use crate::ApiState;
use crate::query::Query;
use crate::reply::Reply;
use crate::routes::sandbox::TOTAL_COUNT;

pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Reply<([(HeaderName, String); 1], Json<Vec<Template>>)> {
    let query = Query::parse(query.as_deref())?;
    let owners =
        [("all", TemplateOwner::All), ("team", TemplateOwner::Team), ("system", TemplateOwner::System)];
    let sorts = [
        ("created_at", TemplateSort::CreatedAt),
        ("name", TemplateSort::Name),
        ("status", TemplateSort::Status),
        ("size", TemplateSort::Size),
        ("built_at", TemplateSort::BuiltAt),
    ];
    let filter = TemplateFilter {
        owner: query.one_of("owner", &owners)?,
        name_prefix: query.get("name_prefix").map(str::to_owned),
        query: query.get("q").map(str::to_owned),
        sort: query.one_of("sort", &sorts)?,
        ascending: query.one_of("order", &[("desc", false), ("asc", true)])?,
        limit: query.limit()?,
        offset: query.offset()?,
    };
    let page = state.store.template_list(caller.team, &filter).await?;
    let rows = page.rows.into_iter().map(shown).collect();
    Ok(([(TOTAL_COUNT, page.total.to_string())], Json(rows)))
}

pub(crate) async fn get(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    name_or_id: Result<Path<String>, PathRejection>,
) -> Reply<Json<Template>> {
    let Path(name_or_id) = name_or_id.map_err(|_| not_a_name())?;
    find(&state, &caller, &name_or_id).await
}

pub(crate) async fn get_owned(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Reply<Json<Template>> {
    let Path((owner, name)) = path.map_err(|_| not_a_name())?;
    find(&state, &caller, &format!("{owner}/{name}")).await
}

pub(crate) fn not_a_name() -> Problem {
    Problem::invalid("template", "a name or an id in valid UTF-8 is expected")
}

async fn find(state: &ApiState, caller: &Caller, name_or_id: &str) -> Reply<Json<Template>> {
    let row = state.store.template_find(caller.team, name_or_id).await?;
    let shown_name: String = name_or_id.chars().take(128).collect();
    let row = row.ok_or_else(|| {
        let message = format!("template `{shown_name}` not found");
        Problem::new(Code::NotFound, message, NextStep::Do(Action::ListTemplates))
    })?;
    Ok(Json(shown(row)))
}

pub(crate) fn shown(row: TemplateRow) -> Template {
    Template {
        id: row.id.to_string(),
        team_id: row.team.to_string(),
        name: row.name,
        status: row.status.to_string(),
        vcpu: row.shape.vcpu,
        memory_mib: row.shape.memory_mib,
        disk_mib: row.shape.disk_mib,
        created_at: format_timestamp(row.created_at),
        size_bytes: row.size_bytes,
        error_message: row.error.filter(|_| row.status == TemplateStatus::Failed),
        built_at: row.built_at.map(format_timestamp),
        isolation: row.engine.map(|engine| engine.to_string()),
    }
}
