//! `sandbox_update` (`spec/mcp.md` §C.2). Only what is passed changes; the API replaces both egress lists at once, so the
//! one that was not passed is read first and sent along (§J.5; a parallel update in between is overwritten).

use client::{NetworkLists, PatchSandbox};
use domain::{MAX_AUTO_DELETE_SECONDS, MAX_TIMEOUT_SECONDS};
use serde_json::json;

use super::{Call, Hints, Tool};
use crate::args::Args;
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line, said};

/// Destructive, because a window of 0 deletes a paused sandbox; not idempotent, because setting a window again moves its
/// deadline.
pub(super) const TOOL: Tool = Tool {
    name: "sandbox_update",
    title: "Update a sandbox",
    description: "Change tags, egress rules, time windows or default port access of a sandbox, without resuming it. Only the \
        fields you pass change.",
    hints: Hints::DESTROY,
    params: &[
        Param::sandbox_id(),
        Param::optional("metadata", Kind::Map, "Replaces all tags."),
        Param::optional("allow_out", Kind::List, ALLOW_OUT),
        Param::optional("deny_out", Kind::List, DENY_OUT),
        Param::optional(
            "auto_delete_seconds",
            Kind::NullableInteger { min: 0, max: MAX_AUTO_DELETE_SECONDS as i64 },
            "Delete after being paused this long (0 = at once; counts from now if already paused); null = never.",
        ),
        Param::optional(
            "timeout_seconds",
            Kind::NullableInteger { min: 1, max: MAX_TIMEOUT_SECONDS as i64 },
            "Auto-pause after this many seconds of running time; null = never.",
        ),
        Param::optional(
            "preview_access",
            Kind::Choice { of: ACCESS, default: None },
            "Default access of ports published later; existing ports keep theirs.",
        ),
    ],
    check,
    run: |call| Box::pin(run(call)),
};

/// Access modes of preview ports.
pub(super) const ACCESS: &[&str] = &["public", "private"];
/// `allow_out` of create and update.
pub(super) const ALLOW_OUT: &str = "Destinations to allow: domains (api.github.com, *.github.com), IPv4 addresses or CIDRs. \
    Alone it locks nothing down; for a strict allowlist also set deny_out to [\"0.0.0.0/0\"], and with domain rules or name \
    resolution add the DNS resolvers 1.1.1.1/32 and 8.8.8.8/32 here.";
/// `deny_out` of create and update.
pub(super) const DENY_OUT: &str =
    "Destinations to block: IPv4 addresses or CIDRs, no domains. 0.0.0.0/0 blocks all, DNS included.";

/// The fields besides the id.
const FIELDS: [&str; 6] =
    ["metadata", "allow_out", "deny_out", "auto_delete_seconds", "timeout_seconds", "preview_access"];

fn check(args: &Args, problems: &mut Vec<String>) {
    if !FIELDS.iter().any(|field| args.has(field)) && problems.is_empty() {
        problems.push(format!("nothing to update; pass at least one of {}", FIELDS.join(", ")));
    }
}

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let changed: Vec<&str> = FIELDS.into_iter().filter(|field| call.args.has(field)).collect();
    let about = About {
        target: Target::Sandbox(&id),
        repeat: Repeat::LookFirst("check the sandbox with sandbox_info"),
    };
    let network = network(&mut call, &id, about).await?;
    let patch = PatchSandbox {
        network: network.clone(),
        metadata: call.args.map("metadata"),
        auto_delete_seconds: call.args.nullable_integer("auto_delete_seconds"),
        timeout_seconds: call.args.nullable_integer("timeout_seconds"),
        preview_access: call.args.text("preview_access"),
    };
    call.client.patch_sandbox(&id, &patch).await.map_err(|error| match error.api() {
        Some(api) if api.status == 409 && network.is_some() => Failure {
            text: format!(
                "The egress rules cannot change now: {}. Resume the sandbox with sandbox_resume (sandbox_info shows its \
                 state), then repeat.",
                said(api)
            ),
            class: "conflict".to_owned(),
        },
        _ => explain(&error, about),
    })?;
    let mut text = format!("updated {id}: {}", changed.join(", "));
    if let Some(network) = &network {
        for (name, list) in [("allow_out", &network.allow_out), ("deny_out", &network.deny_out)] {
            let list = list.as_deref().unwrap_or_default();
            let list = if list.is_empty() { "(none)".to_owned() } else { list.join(", ") };
            text.push_str(&format!("\n{name} is now: {}", line(&list)));
        }
    }
    Ok(Outcome::new(text, json!({"id": id})))
}

/// Both lists as they are to be: the given ones, and the present one for a list that was not given.
async fn network(call: &mut Call, id: &str, about: About<'_>) -> Result<Option<NetworkLists>, Failure> {
    let (allow_out, deny_out) = match (call.args.list("allow_out"), call.args.list("deny_out")) {
        (None, None) => return Ok(None),
        (Some(allow_out), Some(deny_out)) => (allow_out, deny_out),
        (allow_out, deny_out) => {
            let read = About { repeat: Repeat::Safe, ..about };
            let sandbox = call.client.get_sandbox(id).await.map_err(|error| explain(&error, read))?;
            let present = sandbox.item.network.unwrap_or_default();
            (
                allow_out.or(present.allow_out).unwrap_or_default(),
                deny_out.or(present.deny_out).unwrap_or_default(),
            )
        }
    };
    // What is not said about strict mode leaves it as it is.
    Ok(Some(NetworkLists { allow_out: Some(allow_out), deny_out: Some(deny_out), strict: None }))
}
