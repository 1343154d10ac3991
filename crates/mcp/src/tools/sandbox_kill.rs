//! `sandbox_kill` (`spec/mcp.md` §C.12).

use serde_json::json;

use super::{Call, Hints, Tool, no_check};
use crate::params::Param;
use crate::text::{About, Failure, Outcome, Repeat, Target, explain};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_kill",
    title: "Delete a sandbox",
    description: "Delete a sandbox for good: all its files and processes are lost. Repeating is harmless. To keep the state, use \
        sandbox_pause.",
    hints: Hints::DESTROY_ONCE,
    params: &[Param::sandbox_id()],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let about = About { target: Target::Sandbox(&id), repeat: Repeat::Safe };
    // One that is already gone is as deleted as one deleted now.
    call.client.delete_sandbox(&id).await.map_err(|error| explain(&error, about))?;
    Ok(Outcome::new(format!("deleted {id}"), json!({"id": id, "deleted": true})))
}
