//! Which request goes where.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use wire::agent::{AgentConfig, CONFIG_PATH, DIAL_PATH, HEALTH_PATH, SETTLE_PATH};
use wire::data_plane::{SESSIONS_PATH, SessionPath, session_path};
use wire::desktop::DesktopMethod;

use crate::agent::Agent;
use crate::reply::{Refusal, Response, empty, json, method_not_allowed};
use crate::serve::TunnelSlot;
use crate::{desktop, dial, exec, files, session, settle, trust};

/// A command with its variables; a long script is the largest sensible part.
const MAX_JSON_BYTES: usize = 8 * 1024 * 1024;
/// For the whole of a JSON body; longer than the slowest client may take for 8 MiB, short of holding a place for ever.
const JSON_BODY_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) type Request = http::Request<Incoming>;

pub(crate) async fn answer(agent: &Rc<Agent>, request: Request, slot: &TunnelSlot) -> Response {
    let method = request.method().clone();
    if matches!(request.uri().path(), "/exec/connect" | "/terminal") {
        agent.conversed.set(true);
    }
    let answered = match (request.uri().path(), &method) {
        (HEALTH_PATH, &Method::GET) => Ok(json(StatusCode::OK, &serde_json::json!({"status": "ok"}))),
        (HEALTH_PATH, _) => Ok(method_not_allowed("GET")),
        (CONFIG_PATH, &Method::PUT) => configure(agent, request).await,
        (CONFIG_PATH, _) => Ok(method_not_allowed("PUT")),
        (DIAL_PATH, &Method::GET) => dial::open(request, slot).await,
        (DIAL_PATH, _) => Ok(method_not_allowed("GET")),
        (SETTLE_PATH, &Method::PUT) => settle::answer(agent).await,
        (SETTLE_PATH, _) => Ok(method_not_allowed("PUT")),
        ("/exec", &Method::POST) => exec::wait(agent, request).await,
        ("/exec/stream", &Method::POST) => exec::stream(agent, request).await,
        ("/exec" | "/exec/stream", _) => Ok(method_not_allowed("POST")),
        ("/exec/connect", &Method::GET) => session::connect(agent, request, slot),
        ("/terminal", &Method::GET) => session::terminal(agent, request, slot),
        (SESSIONS_PATH, &Method::GET) => Ok(session::list(agent)),
        ("/exec/connect" | "/terminal" | SESSIONS_PATH, _) => Ok(method_not_allowed("GET")),
        ("/files", &Method::GET | &Method::HEAD) => files::get(agent, request).await,
        ("/files", &Method::POST) => files::post(agent, request).await,
        ("/files", _) => Ok(method_not_allowed("GET, HEAD, POST")),
        (path, method) => {
            // The request goes along, and its path with it.
            let path = path.to_owned();
            if let Some(call) = DesktopMethod::of_path(&path) {
                return match *method {
                    Method::POST => desktop::answer(agent, call, request).await,
                    _ => method_not_allowed("POST"),
                };
            }
            match (session_path(&path), method) {
                (Some(SessionPath::One(id)), &Method::DELETE) => {
                    session::kill(agent, id, request.uri().query()).await
                }
                (Some(SessionPath::One(_)), _) => Ok(method_not_allowed("DELETE")),
                (Some(SessionPath::Attach(id)), &Method::GET) => session::attach(agent, request, id, slot),
                (Some(SessionPath::Attach(_)), _) => Ok(method_not_allowed("GET")),
                (None, _) => Err(Refusal::not_found("no such path")),
            }
        }
    };
    let mut response = answered.unwrap_or_else(Response::from);
    if method == Method::HEAD && response.status().is_client_error() | response.status().is_server_error() {
        *response.body_mut() = empty(StatusCode::OK).into_body();
    }
    response
}

async fn configure(agent: &Rc<Agent>, request: Request) -> Result<Response, Refusal> {
    let body = read_json(request).await?;
    // The parser's message could quote a value.
    let mut config: AgentConfig = serde_json::from_slice(&body)
        .map_err(|_| Refusal::bad_request("the body is no agent configuration"))?;
    for (name, value) in config.template_env.iter().chain(&config.env) {
        exec::check_variable(name, value)?;
    }
    if let Some(trusted) = config.trust.take() {
        trust::establish(agent, trusted, &mut config.template_env).await;
    }
    let config = Rc::new(config);
    let first = agent.config.replace(Some(Rc::clone(&config))).is_none();
    if first {
        exec::start_template(agent, &config).await;
    }
    Ok(empty(StatusCode::NO_CONTENT))
}

/// The configuration, once there is one.
pub(crate) fn configured(agent: &Agent) -> Result<Rc<AgentConfig>, Refusal> {
    agent.config.borrow().clone().ok_or_else(|| {
        Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "sandbox_unavailable",
            "the sandbox is starting and not configured yet; try again in a moment",
        )
    })
}

/// The whole of a small body.
pub(crate) async fn read_json(request: Request) -> Result<Bytes, Refusal> {
    read_body(request, MAX_JSON_BYTES).await
}

/// The whole of a body of at most so many bytes.
pub(crate) async fn read_body(request: Request, most: usize) -> Result<Bytes, Refusal> {
    let too_large = || Refusal::too_large(format!("the body may have {most} bytes"));
    let length = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    let body = Limited::new(request.into_body(), most).collect();
    match tokio::time::timeout(JSON_BODY_TIMEOUT, body).await {
        Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "bad_request", "the body took too long")),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Refusal::bad_request("the body ended early")),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}
