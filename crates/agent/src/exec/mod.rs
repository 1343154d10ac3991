//! `POST /exec` and `POST /exec/stream` (`spec/data-plane.md` §3, §4).

mod kept;
mod launch;
mod run;
mod start;
mod stream;
mod text;

use std::rc::Rc;
use std::time::Duration;

use http::HeaderValue;
use wire::data_plane::{DEFAULT_EXEC_TIMEOUT_S, ExecRequest, SESSION_ID_HEADER, SessionKind};

use crate::agent::Agent;
use crate::reply::{Refusal, Response};
use crate::route::{Request, configured, read_json};
use kept::Kept;

pub(crate) use launch::{Launch, check_variable, launch};
pub(crate) use run::{Channel, Piece, Run};
pub(crate) use start::start_template;
pub(crate) use stream::stream;
pub(crate) use text::whole_characters;

/// Longest time limit a caller can ask for: the longest session of a sandbox (`rest-api.md`, `timeout_seconds`).
const MAX_TIMEOUT: Duration = Duration::from_secs(604_800);

/// Runs a command to its end. When the client goes away the future is dropped, and the command dies with it.
pub(crate) async fn wait(agent: &Rc<Agent>, request: Request) -> Result<Response, Refusal> {
    let config = configured(agent)?;
    let request = parse(request).await?;
    let limit = time_limit(&request, Duration::from_secs(DEFAULT_EXEC_TIMEOUT_S.unsigned_abs()));
    let mut run = launch(agent, &config, Launch::plain(&request, SessionKind::Exec, limit)?).await?;
    let id = run.session().id.clone();
    let mut kept = Kept::new(agent);
    let exit_code = loop {
        match run.next().await {
            Piece::Output(channel, bytes) => kept.push(channel, bytes),
            Piece::Ended(end) => {
                if let Some(note) = end.note {
                    kept.push(Channel::Stderr, note.as_bytes());
                }
                break end.code;
            }
            Piece::Failed(failure) => return Err(failure.into()),
        }
    };
    // Handing over the pipes of daemons before the answer is built.
    drop(run);
    let mut response = kept.answer(exit_code);
    name(&mut response, &id);
    Ok(response)
}

/// Says which session this was.
fn name(response: &mut Response, id: &str) {
    if let Ok(id) = HeaderValue::from_str(id) {
        response.headers_mut().insert(SESSION_ID_HEADER, id);
    }
}

async fn parse(request: Request) -> Result<ExecRequest, Refusal> {
    let body = read_json(request).await?;
    // The parser's own message may quote the body, which is the caller's own; it helps and goes to nobody else.
    let request: ExecRequest = serde_json::from_slice(&body)
        .map_err(|error| Refusal::bad_request(format!("the body is no exec request: {error}")))?;
    if request.command.is_empty() {
        return Err(Refusal::bad_request("command must not be empty"));
    }
    Ok(request)
}

pub(crate) fn time_limit(request: &ExecRequest, default: Duration) -> Duration {
    match request.timeout_s {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds.unsigned_abs()).min(MAX_TIMEOUT),
        _ => default,
    }
}
