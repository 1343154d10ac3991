//! `sandbox_detach_secret` (`spec/mcp.md` §C.20). A binding that is not there is success, an unknown sandbox is not.

use serde_json::json;

use super::sandbox_attach_secret::{ENV_KEY, check};
use super::{Call, Hints, Tool};
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_detach_secret",
    title: "Unbind a secret from a sandbox",
    description: "Take a secret from a sandbox. Its stand-in is refused from now on, also in processes that run.",
    hints: Hints::WRITE_ONCE,
    params: &[Param::sandbox_id(), Param::required("env_key", Kind::Text { min: 1 }, ENV_KEY)],
    check,
    run: |call| Box::pin(run(call)),
};

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let key = call.args.required_text("env_key");
    let about = About { target: Target::Sandbox(&id), repeat: Repeat::Safe };
    match call.client.detach_secret(&id, &key).await {
        // Which of the two is missing?
        Err(error) if error.status() == Some(404) => {
            call.client.get_sandbox(&id).await.map(drop).map_err(|error| explain(&error, about))?;
        }
        done => done.map_err(|error| explain(&error, about))?,
    }
    Ok(Outcome::new(format!("unbound {key} from {id}"), json!({"sandbox_id": id, "env_key": key})))
}
