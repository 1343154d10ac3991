//! `secret_list` (`spec/mcp.md` §C.18). Names and where they may be used, never a value: there is none to be had.

use client::Secret;
use serde_json::{Value, json};

use super::{Call, Hints, Tool, no_check};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line, normalise_time};

pub(super) const TOOL: Tool = Tool {
    name: "secret_list",
    title: "List team secrets",
    description: "Names of the team's stored secrets and the hosts they may be used at, never values. Bind one with secrets of \
        sandbox_create or with sandbox_attach_secret. New ones are stored by people, with the CLI, the SDK or the console.",
    hints: Hints::READ,
    params: &[],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

async fn run(call: Call) -> Result<Outcome, Failure> {
    let about = About { target: Target::Team, repeat: Repeat::Safe };
    let secrets = call.client.list_secrets().await.map_err(|error| explain(&error, about))?;
    let shown = |secret: &Secret| {
        format!("{}\t{}\t{}", line(&secret.name), line(&secret.auth_type), line(&secret.hosts.join(", ")))
    };
    let mut lines: Vec<String> = secrets.iter().map(shown).collect();
    if lines.is_empty() {
        lines.push("(no secrets)".to_owned());
    }
    let structured = json!({"secrets": secrets.iter().map(row).collect::<Vec<_>>()});
    Ok(Outcome::new(lines.join("\n"), structured))
}

/// Field by field: whatever else the platform may say of a secret stays here.
fn row(secret: &Secret) -> Value {
    let mut row = json!({"name": secret.name, "authType": secret.auth_type, "hosts": secret.hosts});
    if let Some(provider) = &secret.provider_shortcut {
        row["providerShortcut"] = provider.as_str().into();
    }
    if let Some(time) = &secret.last_used_at {
        row["lastUsedAt"] = normalise_time(time).into();
    }
    row
}
