//! Handing the agent its configuration, over a stream of its own.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use driver::Machine;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use wire::agent::{AgentConfig, CONFIG_PATH};

use crate::error::NodeError;

/// The agent answers some 10 ms after it was started; a burst of starts on a small host takes seconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Sends the configuration; returns when the agent has taken it, so that commands can run.
pub(crate) async fn configure(machine: &dyn Machine, config: &AgentConfig) -> Result<(), NodeError> {
    match tokio::time::timeout(ANSWER_LIMIT, put(machine, config)).await {
        Ok(result) => result,
        Err(_) => {
            let limit_ms = u64::try_from(ANSWER_LIMIT.as_millis()).unwrap_or(u64::MAX);
            Err(NodeError::AgentSilent { limit_ms })
        }
    }
}

async fn put(machine: &dyn Machine, config: &AgentConfig) -> Result<(), NodeError> {
    let failed = |error: hyper::Error| NodeError::Agent(error.into());
    let body = serde_json::to_vec(config).map_err(|error| NodeError::Agent(error.into()))?;
    let stream = machine.agent().await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let request = Request::builder()
        .method(Method::PUT)
        .uri(CONFIG_PATH)
        .header(HOST, "agent")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| NodeError::Agent(error.into()))?;
    // The body of the answer is not waited for, and the connection ends here: the guest decides what it sends.
    let mut answer = pin!(sender.send_request(request));
    let mut connection = pin!(connection);
    let answer = tokio::select! {
        answer = &mut answer => answer,
        // The end of the connection settles the answer, one way or the other.
        _ = &mut connection => answer.await,
    };
    match answer.map_err(failed)?.status() {
        StatusCode::NO_CONTENT => Ok(()),
        other => Err(NodeError::AgentRefused { status: other.as_u16() }),
    }
}
