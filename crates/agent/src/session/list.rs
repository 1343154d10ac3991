//! `GET /exec/sessions` and `DELETE /exec/sessions/{id}`.

use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;
use rustix::process::Signal;
use wire::data_plane::SessionList;

use super::signal;
use crate::agent::Agent;
use crate::reply::{Refusal, Response, empty, json};

/// Longer than killing a tree may take.
const KILL_TIMEOUT: Duration = Duration::from_secs(8);

pub(crate) fn list(agent: &Agent) -> Response {
    let all = agent.sessions.all.borrow();
    json(StatusCode::OK, &SessionList { sessions: all.iter().map(|session| session.info()).collect() })
}

/// Sends a signal or, without one, ends the command with everything it started and waits for that.
pub(crate) async fn kill(agent: &Rc<Agent>, id: &str, query: Option<&str>) -> Result<Response, Refusal> {
    let session = agent.sessions.find(id).ok_or_else(|| unknown(id))?;
    let name =
        query.into_iter().flat_map(|query| query.split('&')).find_map(|pair| pair.strip_prefix("signal="));
    match name {
        None => session.kill(),
        Some(name) => match signal::named(name) {
            Some(Signal::KILL) => session.kill(),
            Some(signal) => {
                session.signal(signal);
                return Ok(empty(StatusCode::NO_CONTENT));
            }
            None => return Err(Refusal::bad_request("signal must be the name of a POSIX signal, e.g. TERM")),
        },
    }
    match tokio::time::timeout(KILL_TIMEOUT, session.ended()).await {
        Ok(()) => Ok(empty(StatusCode::NO_CONTENT)),
        Err(_) => {
            Err(Refusal::internal("the command was killed but has not gone yet; list the sessions to see"))
        }
    }
}

pub(super) fn unknown(id: &str) -> Refusal {
    Refusal::not_found(format!("no session {id}; GET /exec/sessions lists them"))
}
