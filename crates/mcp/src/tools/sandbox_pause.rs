//! `sandbox_pause` (`spec/mcp.md` §C.10).

use client::{ClientError, Pause};
use serde_json::json;

use super::{Call, Hints, Tool, no_check};
use crate::params::Param;
use crate::text::{About, Failure, Outcome, Repeat, Target, explain};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_pause",
    title: "Pause a sandbox",
    description: "Pause a sandbox: memory, processes and files are kept at low cost. The next sandbox_exec or file call wakes it. \
        Repeating is harmless.",
    hints: Hints::WRITE_ONCE,
    params: &[Param::sandbox_id()],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    match call.client.pause_sandbox(&id).await {
        Ok(Pause::Paused | Pause::AlreadyPaused) => {
            Ok(Outcome::new(format!("paused {id}"), json!({"id": id, "status": "paused"})))
        }
        Ok(Pause::Deleted) => Ok(Outcome::new(
            format!("paused {id}; its auto-delete window is 0, so it is deleted now"),
            json!({"id": id, "status": "deleted"}),
        )),
        Err(ClientError::Timeout { after, may_have_taken_effect: true, .. }) => Err(Failure {
            text: format!(
                "The pause of {id} timed out after {} s here. It continues in the background; check it with sandbox_info.",
                after.as_secs()
            ),
            class: "timeout".to_owned(),
        }),
        Err(error) => Err(explain(&error, About { target: Target::Sandbox(&id), repeat: Repeat::Safe })),
    }
}
