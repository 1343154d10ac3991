//! `sandbox_resume` (`spec/mcp.md` §C.11).

use serde_json::json;

use super::{Call, Hints, Tool, no_check};
use crate::params::Param;
use crate::text::{About, Failure, Outcome, Repeat, Target, explain};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_resume",
    title: "Resume a sandbox",
    description: "Resume a paused sandbox ahead of time. Rarely needed: sandbox_exec and the file tools resume by themselves.",
    hints: Hints::WRITE_ONCE,
    params: &[Param::sandbox_id()],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let about = About { target: Target::Sandbox(&id), repeat: Repeat::Safe };
    call.client.activate_sandbox(&id).await.map_err(|error| explain(&error, about))?;
    Ok(Outcome::new(format!("resumed {id}"), json!({"id": id, "status": "active"})))
}
