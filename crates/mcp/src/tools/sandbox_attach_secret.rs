//! `sandbox_attach_secret` (`spec/mcp.md` §C.19). The same binding again is success; never resumes a sandbox that need not
//! run (§J.7).

use client::{ClientError, Sandbox};
use serde_json::json;

use super::{Call, Hints, Tool};
use crate::args::Args;
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_attach_secret",
    title: "Bind a secret to a sandbox",
    description: "Give a sandbox a stored secret under an environment variable. The sandbox gets a stand-in; the real value is put \
        in on outbound requests to the secret's hosts only. Processes started after the call see the variable.",
    hints: Hints::WRITE_ONCE,
    params: &[
        Param::sandbox_id(),
        Param::required("env_key", Kind::Text { min: 1 }, ENV_KEY),
        Param::required("secret_name", Kind::Text { min: 1 }, "Name from secret_list."),
    ],
    check,
    run: |call| Box::pin(run(call)),
};

/// `env_key` of attach and detach.
pub(super) const ENV_KEY: &str = "Environment variable: letters, digits and _, not beginning with a digit.";

pub(super) fn check(args: &Args, problems: &mut Vec<String>) {
    let Some(key) = args.peek_text("env_key") else { return };
    let mut bytes = key.bytes();
    let first_ok = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !first_ok || !bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        problems.push("`env_key` must be a variable name such as API_KEY".to_owned());
    }
}

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let key = call.args.required_text("env_key");
    let secret = call.args.required_text("secret_name");
    let about = About { target: Target::Sandbox(&id), repeat: Repeat::Safe };
    match call.client.attach_secret(&id, &key, &secret).await {
        Err(error) if error.status() == Some(409) => conflict(&call, &id, &key, &secret, error).await?,
        done => done.map_err(|error| explain(&error, about))?,
    }
    Ok(Outcome::new(
        format!("bound secret {} to {key} on {id}; processes started from now on see it", line(&secret)),
        json!({"sandbox_id": id, "env_key": key, "secret_name": secret}),
    ))
}

/// The variable is bound already, perhaps to this very secret; or the platform wants the sandbox to run.
async fn conflict(call: &Call, id: &str, key: &str, secret: &str, error: ClientError) -> Result<(), Failure> {
    let about = About { target: Target::Sandbox(id), repeat: Repeat::Safe };
    let sandbox = call.client.get_sandbox(id).await.map_err(|error| explain(&error, about))?;
    match bound(&sandbox, key) {
        Some((name, false)) if name == secret => return Ok(()),
        Some((name, _)) => {
            return Err(Failure {
                text: format!(
                    "{key} is bound to secret {} already. Unbind it with sandbox_detach_secret first, or use another variable.",
                    line(name)
                ),
                class: "conflict".to_owned(),
            });
        }
        None => {}
    }
    if sandbox.item.status != "paused" {
        return Err(explain(&error, about));
    }
    call.client.activate_sandbox(id).await.map_err(|error| explain(&error, about))?;
    call.client.attach_secret(id, key, secret).await.map_err(|error| explain(&error, about))
}

fn bound<'a>(sandbox: &'a Sandbox, key: &str) -> Option<(&'a str, bool)> {
    let binding = sandbox.secrets.iter().find(|binding| binding.env_key == key)?;
    Some((&binding.secret_name, binding.revoked))
}
