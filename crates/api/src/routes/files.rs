//! One directory, listed by the sandbox's own agent (§6). Resumes a paused sandbox. The agent is untrusted: its answer
//! is bounded, timed and parsed before any of it is passed on.

use std::time::{Duration, Instant};

use activity::{Action as Done, Caller, Entry};
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use bytes::Bytes;
use domain::{Action, BoxError, Code, NextStep, Problem, SandboxId};
use futures_util::future::{Either, select};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use wire::rest::DirectoryListing;

use crate::ApiState;
use crate::ids::SandboxPath;
use crate::query::Query;
use crate::reply::Reply;

/// The agent lists at most 10,000 entries; names have at most 255 bytes, and JSON escapes make six of one.
const MAX_LISTING: usize = 10_000 * (255 * 6 + 128);
/// A directory on a disk that is being hammered; the client gives up after 30 s.
const LIST_WITHIN: Duration = Duration::from_secs(10);
/// Longest path of the kernel.
const MAX_PATH: usize = 4096;

pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
    RawQuery(query): RawQuery,
) -> Reply<Json<DirectoryListing>> {
    let query = Query::parse(query.as_deref())?;
    let path = query.get("path").unwrap_or("/");
    let segments_ok = !path.split('/').any(|segment| segment == "..");
    if !path.starts_with('/') || path.len() > MAX_PATH || path.contains('\0') || !segments_ok {
        let accepted = "an absolute path without `..` segments is accepted";
        return Err(Problem::invalid("path", accepted).into());
    }
    let sandbox = state.lifecycle.get(caller.team, id)?.row;
    let begun = Instant::now();
    let listing = list_active(&state, &caller, id, path).await;
    state.activity.record(Entry {
        sandbox: Some((id, sandbox.summary.name.clone())),
        error: listing.as_ref().err().map(|problem| problem.code.as_str()),
        took: Some(begun.elapsed()),
        ..Entry::new(Done::FileRead, caller)
    });
    Ok(Json(listing?))
}

async fn list_active(
    state: &ApiState,
    caller: &Caller,
    id: SandboxId,
    path: &str,
) -> Result<DirectoryListing, Problem> {
    state.lifecycle.ensure_active(caller.clone(), id).await?;
    let listing = tokio::time::timeout(LIST_WITHIN, ask_agent(state, id, path)).await;
    listing.map_err(|_| unreadable(id, "the sandbox did not answer in time"))?
}

async fn ask_agent(state: &ApiState, id: SandboxId, path: &str) -> Result<DirectoryListing, Problem> {
    let broken = |error: hyper::Error| unreadable(id, "the sandbox did not answer").caused_by(error);
    let stream = state.lifecycle.agent(id).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let request =
        Request::get(format!("/files?path={}&format=json", utf8_percent_encode(path, NON_ALPHANUMERIC)))
            .header(header::HOST, "agent")
            .body(Empty::<Bytes>::new())
            .map_err(|error| Problem::internal("cannot ask the sandbox", error))?;
    let talk = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let (head, body) = response.into_parts();
        match head.status {
            // A file comes as an attachment or inline; a listing as neither.
            StatusCode::OK if !head.headers.contains_key(header::CONTENT_DISPOSITION) => {
                let body = Limited::new(body, MAX_LISTING).collect().await;
                let body =
                    body.map_err(|error: BoxError| unreadable(id, "the listing broke off").caused_by(error))?;
                serde_json::from_slice(&body.to_bytes())
                    .map_err(|error| unreadable(id, "the listing is malformed").caused_by(error))
            }
            StatusCode::OK | StatusCode::BAD_REQUEST => {
                Err(Problem::invalid("path", "it is not a directory"))
            }
            StatusCode::NOT_FOUND => {
                let next =
                    NextStep::Fix { field: "path".to_owned(), accepted: "an existing directory".to_owned() };
                Err(Problem::new(Code::NotFound, "the directory does not exist", next))
            }
            status => {
                Err(unreadable(id, "the directory cannot be read")
                    .caused_by(format!("the agent says {status}")))
            }
        }
    };
    // The connection is driven here and ends with this future: nothing is left running.
    match select(Box::pin(talk), Box::pin(connection)).await {
        Either::Left((listing, _)) => listing,
        Either::Right((Ok(()), talk)) => talk.await,
        Either::Right((Err(error), _)) => Err(broken(error)),
    }
}

fn unreadable(id: SandboxId, what: &str) -> Problem {
    Problem::new(Code::ServiceUnavailable, what, NextStep::Do(Action::Inspect(id)))
}
