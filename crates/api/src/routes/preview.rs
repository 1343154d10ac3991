//! Preview ports (§7), and what happens at them. None of it resumes a sandbox.

use activity::Caller;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::{Extension, Json};
use domain::{
    MAX_PREVIEW_TOKEN_SECONDS, PreviewAccess, PreviewPort, Problem, Published, SandboxId, format_timestamp,
};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode, header};
use lifecycle::PreviewOf;
use wire::rest::{self, MintPreviewToken, Preview, PreviewPorts, PreviewRequest, PublishPort};

use crate::ApiState;
use crate::body::{Optional, Strict};
use crate::ids::SandboxPath;
use crate::reply::{Failure, Reply};

/// Header of a preview request that carries its token (§7).
const HEADER: &str = "X-Superserve-Preview-Token";
/// The same in a query.
const QUERY_PARAM: &str = "superserve_preview_token";
/// Tokens are not for caches.
const NO_STORE: [(HeaderName, HeaderValue); 1] =
    [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];

/// `{id}` and `{port}`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortPath {
    id: SandboxId,
    port: PreviewPort,
}

impl<S: Send + Sync> FromRequestParts<S> for PortPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path: Result<Path<(String, String)>, PathRejection> =
            Path::from_request_parts(parts, state).await;
        let Path((id, port)) = path.map_err(|_| Problem::invalid("path", "it is not valid UTF-8"))?;
        let id = id.parse().map_err(|bad: domain::BadId| Problem::invalid("sandbox id", bad.to_string()))?;
        // What is no number is out of every range.
        let port = PreviewPort::new(port.parse().unwrap_or(-1))?;
        Ok(Self { id, port })
    }
}

pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
) -> Reply<Json<PreviewPorts>> {
    let (default, ports) = state.lifecycle.preview_ports(caller.team, id)?;
    let ports = ports.into_iter().map(|(port, published)| shown(port, published)).collect();
    Ok(Json(PreviewPorts { preview_access: default.to_string(), ports }))
}

pub(crate) async fn publish(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
    Strict(body): Strict<PublishPort>,
) -> Reply<Json<rest::PreviewPort>> {
    let port = PreviewPort::new(body.port)?;
    let access = body.access.as_deref().map(str::parse::<PreviewAccess>).transpose();
    let access =
        access.map_err(|unknown: domain::UnknownName| Problem::invalid("access", unknown.to_string()))?;
    let published = state.lifecycle.preview_publish(caller, id, port, access).await?;
    Ok(Json(shown(port, published)))
}

pub(crate) async fn unpublish(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    PortPath { id, port }: PortPath,
) -> Reply<StatusCode> {
    state.lifecycle.preview_unpublish(caller, id, port).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn mint(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    PortPath { id, port }: PortPath,
    Optional(body): Optional<MintPreviewToken>,
) -> Reply<([(HeaderName, HeaderValue); 1], Json<rest::PreviewToken>)> {
    let seconds = body.expires_in_seconds.map(seconds).transpose()?;
    Ok((NO_STORE, Json(token(port, state.lifecycle.preview_token(caller, id, port, seconds)?))))
}

pub(crate) async fn rotate(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    PortPath { id, port }: PortPath,
) -> Reply<([(HeaderName, HeaderValue); 1], Json<rest::PreviewToken>)> {
    Ok((NO_STORE, Json(token(port, state.lifecycle.preview_rotate(caller, id, port).await?))))
}

pub(crate) async fn all(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
) -> Json<Vec<Preview>> {
    let preview = |PreviewOf { row, port, published }| Preview {
        sandbox_id: row.summary.id.to_string(),
        sandbox_name: row.summary.name.clone(),
        sandbox_status: row.summary.state.to_string(),
        port: shown(port, published),
        traffic: state.observer.preview_traffic(row.summary.id, port),
    };
    Json(state.lifecycle.previews(caller.team).into_iter().map(preview).collect())
}

pub(crate) async fn requests(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    PortPath { id, port }: PortPath,
) -> Reply<Json<Vec<PreviewRequest>>> {
    // Whose it is.
    state.lifecycle.preview_ports(caller.team, id)?;
    Ok(Json(state.observer.preview_requests(id, port)))
}

fn shown(port: PreviewPort, published: Published) -> rest::PreviewPort {
    rest::PreviewPort {
        port: port.get(),
        access: published.access.to_string(),
        token_version: published.generation,
    }
}

fn token(port: PreviewPort, minted: lifecycle::PreviewToken) -> rest::PreviewToken {
    rest::PreviewToken {
        token: minted.token.expose_secret().to_owned(),
        port: port.get(),
        header: HEADER.to_owned(),
        query_param: QUERY_PARAM.to_owned(),
        token_version: minted.published.generation,
        access: minted.published.access.to_string(),
        preview_access: minted.default.to_string(),
        expires_at: minted.ends.map(format_timestamp),
    }
}

fn seconds(given: i64) -> Result<u32, Problem> {
    let fitting = u32::try_from(given).ok().filter(|n| (1..=MAX_PREVIEW_TOKEN_SECONDS).contains(n));
    let accepted = || format!("1 to {MAX_PREVIEW_TOKEN_SECONDS} seconds are accepted");
    fitting.ok_or_else(|| Problem::invalid("expires_in_seconds", accepted()))
}
