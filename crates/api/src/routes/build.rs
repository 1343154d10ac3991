//! Making templates, and their builds (§10.2–10.4).

use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use activity::Caller;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use axum::{Extension, Json};
use builds::{Follower, NewTemplate};
use bytes::Bytes;
use domain::{BuildId, BuildSpec, BuildStep, Problem, Shape, format_timestamp, template_name};
use http::{HeaderName, HeaderValue, StatusCode, header};
use store::BuildRow;
use wire::rest::{CreateTemplate, CreatedTemplate, TemplateBuild};

use crate::ApiState;
use crate::body::Strict;
use crate::query::Query;
use crate::reply::Reply;
use crate::routes::sandbox::isolation;
use crate::routes::template::{not_a_name, shown};

/// Shape of a template that names none (§10.3).
const DEFAULT_SHAPE: Shape = Shape { vcpu: 1, memory_mib: 1024, disk_mib: 4096 };
/// Builds of a list that names no limit.
const DEFAULT_BUILDS: u32 = 20;
const MAX_BUILDS: u32 = 100;
/// A silent step must not look like a dead connection to proxies and clients.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

type Name = Result<Path<String>, PathRejection>;
type NameAndBuild = Result<Path<(String, String)>, PathRejection>;

pub(crate) async fn create(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Strict(body): Strict<CreateTemplate>,
) -> Reply<(StatusCode, Json<CreatedTemplate>)> {
    let most = state.max_shape;
    let within = |field: &str, value: Option<i64>, default: u32, range: RangeInclusive<u32>| {
        let value = value.map_or(Ok(default), u32::try_from).ok().filter(|value| range.contains(value));
        let accepted = format!("{} to {} are accepted", range.start(), range.end());
        value.ok_or_else(|| Problem::invalid(field, accepted))
    };
    let shape = Shape {
        vcpu: within("vcpu", body.vcpu, DEFAULT_SHAPE.vcpu, 1..=most.vcpu)?,
        memory_mib: within(
            "memory_mib",
            body.memory_mib,
            DEFAULT_SHAPE.memory_mib,
            *domain::MEMORY_MIB.start()..=most.memory_mib,
        )?,
        disk_mib: within(
            "disk_mib",
            body.disk_mib,
            DEFAULT_SHAPE.disk_mib,
            *domain::DISK_MIB.start()..=most.disk_mib,
        )?,
    };
    let engine = body.isolation.as_deref().map(isolation).transpose()?;
    let new = NewTemplate { name: template_name(&body.name)?, shape, engine, spec: spec(body.build_spec)? };
    let (template, build) = state.builds.create(caller, new).await?;
    let created = CreatedTemplate { template: shown(template), build_id: build.id.to_string() };
    Ok((StatusCode::ACCEPTED, Json(created)))
}

fn spec(body: wire::rest::BuildSpec) -> Result<BuildSpec, Problem> {
    let steps = body.steps.unwrap_or_default().into_iter().enumerate();
    let steps = steps.map(|(number, step)| one_step(number, step)).collect::<Result<_, _>>()?;
    let spec = BuildSpec::new(&body.from, steps, body.start_cmd, body.ready_cmd)?;
    Ok(spec.with_image_cmd(body.image_cmd.unwrap_or(false)))
}

fn one_step(number: usize, step: wire::rest::BuildStep) -> Result<BuildStep, Problem> {
    match step {
        wire::rest::BuildStep { run: Some(run), env: None, workdir: None, user: None } => {
            Ok(BuildStep::Run(run))
        }
        wire::rest::BuildStep { run: None, env: Some(env), workdir: None, user: None } => {
            Ok(BuildStep::Env { key: env.key, value: env.value })
        }
        wire::rest::BuildStep { run: None, env: None, workdir: Some(path), user: None } => {
            Ok(BuildStep::Workdir(path))
        }
        wire::rest::BuildStep { run: None, env: None, workdir: None, user: Some(user) } => {
            Ok(BuildStep::User { name: user.name, sudo: user.sudo.unwrap_or_default() })
        }
        _ => {
            let field = format!("build_spec.steps[{number}]");
            Err(Problem::invalid(field, "exactly one of run, env, workdir and user is expected"))
        }
    }
}

pub(crate) async fn delete(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    name: Name,
) -> Reply<StatusCode> {
    let Path(name) = name.map_err(|_| not_a_name())?;
    state.builds.delete(caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn delete_owned(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    path: NameAndBuild,
) -> Reply<StatusCode> {
    let Path((owner, name)) = path.map_err(|_| not_a_name())?;
    state.builds.delete(caller, &format!("{owner}/{name}")).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn rebuild(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    name: Name,
) -> Reply<(StatusCode, Json<TemplateBuild>)> {
    let Path(name) = name.map_err(|_| not_a_name())?;
    let (build, new) = state.builds.rebuild(caller, &name).await?;
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, Json(shown_build(build))))
}

pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    name: Name,
    RawQuery(query): RawQuery,
) -> Reply<Json<Vec<TemplateBuild>>> {
    let Path(name) = name.map_err(|_| not_a_name())?;
    let limit = Query::parse(query.as_deref())?.limit()?.unwrap_or(DEFAULT_BUILDS).min(MAX_BUILDS);
    let rows = state.builds.list(caller.team, &name, limit).await?;
    Ok(Json(rows.into_iter().map(shown_build).collect()))
}

pub(crate) async fn get(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    path: NameAndBuild,
) -> Reply<Json<TemplateBuild>> {
    let (name, build) = name_and_build(path)?;
    Ok(Json(shown_build(state.builds.get(caller.team, &name, build).await?)))
}

pub(crate) async fn cancel(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    path: NameAndBuild,
) -> Reply<StatusCode> {
    let (name, build) = name_and_build(path)?;
    state.builds.cancel(caller, &name, build).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn logs(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    path: NameAndBuild,
) -> Reply<Response> {
    let (name, build) = name_and_build(path)?;
    let follower = state.builds.logs(caller.team, &name, build).await?;
    let events = futures_util::stream::unfold(follower, |mut follower| async move {
        Some((Ok::<_, Infallible>(record(&mut follower).await?), follower))
    });
    let mut response = Response::new(Body::from_stream(events));
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONNECTION, "keep-alive"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// The next record of the stream; a comment when there is nothing to say.
async fn record(follower: &mut Follower) -> Option<Bytes> {
    match tokio::time::timeout(KEEP_ALIVE, follower.next()).await {
        Ok(line) => line.map(|line: Arc<str>| format!("data: {line}\n\n").into()),
        Err(_) => Some(Bytes::from_static(b": keepalive\n\n")),
    }
}

fn name_and_build(path: NameAndBuild) -> Result<(String, BuildId), Problem> {
    let Path((name, build)) = path.map_err(|_| not_a_name())?;
    let build = build.parse().map_err(|bad: domain::BadId| Problem::invalid("build id", bad.to_string()))?;
    Ok((name, build))
}

fn shown_build(row: BuildRow) -> TemplateBuild {
    TemplateBuild {
        id: row.id.to_string(),
        template_id: row.template.to_string(),
        status: row.status.to_string(),
        build_spec_hash: row.spec_hash,
        created_at: format_timestamp(row.created_at),
        error_message: row.error,
        started_at: row.started_at.map(format_timestamp),
        finalized_at: row.finalized_at.map(format_timestamp),
    }
}
