//! What a template wants to run in every sandbox: its `start_cmd`, once after each boot, and the wait until its `ready_cmd`
//! succeeds, so that whoever made the sandbox finds it serving. Neither can keep the sandbox from being used: a command
//! that fails is the template's matter, and was tried when the template was built.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use wire::agent::{AgentConfig, READY_WITHIN_S};
use wire::data_plane::{ExecRequest, SessionKind};

use super::run::{Piece, Run};
use super::{Launch, launch};
use crate::agent::Agent;

/// Time limits are for callers' commands; this one lives as long as its sandbox.
const NO_LIMIT: Duration = Duration::from_secs(u32::MAX as u64);
/// Between two tries of `ready_cmd`: servers start within tens of milliseconds or within seconds.
const RETRY: Duration = Duration::from_millis(100);
/// A try that hangs is ended.
const TRY_LIMIT: Duration = Duration::from_secs(5);

/// Starts the template's command and waits a bounded time until it serves.
pub(crate) async fn start_template(agent: &Rc<Agent>, config: &AgentConfig) {
    let Some(command) = &config.start_cmd else { return };
    let Some(run) = begin(agent, config, command, NO_LIMIT).await else { return };
    agent.spawn(async move {
        let _nobody_asks = ended(run).await;
    });
    let Some(command) = &config.ready_cmd else { return };
    let until = Instant::now() + Duration::from_secs(READY_WITHIN_S);
    while Instant::now() < until {
        let Some(run) = begin(agent, config, command, TRY_LIMIT).await else { return };
        let ready = tokio::time::timeout_at(until, ended(run)).await;
        if ready.is_ok_and(|code| code == Some(0)) {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn begin(agent: &Rc<Agent>, config: &AgentConfig, command: &str, limit: Duration) -> Option<Run> {
    let request = ExecRequest { command: command.to_owned(), ..ExecRequest::default() };
    let launching = Launch::plain(&request, SessionKind::Stream, limit).ok()?;
    launch(agent, config, launching).await.ok()
}

/// Lets a command run, its output unread by anybody, and gives its exit code.
async fn ended(mut run: Run) -> Option<i32> {
    loop {
        match run.next().await {
            Piece::Output(..) => {}
            Piece::Ended(end) => return Some(end.code),
            Piece::Failed(_) => return None,
        }
    }
}
