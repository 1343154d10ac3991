//! `sandbox_info` (`spec/mcp.md` §C.4).

use std::fmt::Write;

use client::Sandbox;
use serde_json::{Value, json};

use super::{Call, Hints, Tool, no_check};
use crate::params::Param;
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line, normalise_time};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_info",
    title: "Get sandbox details",
    description: "Status, resources, isolation, tags, time windows, egress rules and secret bindings of one sandbox. Never resumes it.",
    hints: Hints::READ,
    params: &[Param::sandbox_id()],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let about = About { target: Target::Sandbox(&id), repeat: Repeat::Safe };
    let sandbox = call.client.get_sandbox(&id).await.map_err(|error| explain(&error, about))?;
    Ok(Outcome::new(text(&sandbox), structured(&sandbox)))
}

fn text(sandbox: &Sandbox) -> String {
    let item = &sandbox.item;
    let mut text = format!(
        "{} ({}) — {}, {} vCPU / {} MiB",
        line(&item.id),
        line(&item.name),
        line(&item.status),
        item.vcpu_count,
        item.memory_mib
    );
    let mut add = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{name}: {value}");
    };
    add("created_at", normalise_time(&item.created_at));
    for (key, value) in &item.metadata {
        add("metadata", format!("{}={}", line(key), line(value)));
    }
    if let Some(seconds) = item.timeout_seconds {
        add("timeout_seconds", seconds.to_string());
    }
    if let Some(seconds) = item.auto_delete_seconds {
        add("auto_delete_seconds", seconds.to_string());
    }
    if let Some(time) = &item.auto_delete_at {
        add("auto_delete_at", normalise_time(time));
    }
    if let Some(network) = &item.network {
        let list = |list: &Option<Vec<String>>| line(&list.as_deref().unwrap_or_default().join(", "));
        add("allow_out", list(&network.allow_out));
        add("deny_out", list(&network.deny_out));
        if network.strict == Some(true) {
            add(
                "strict",
                "on: nothing but allow_out can be reached, and other names do not resolve".to_owned(),
            );
        }
    }
    for binding in &sandbox.secrets {
        let revoked = if binding.revoked { " (revoked)" } else { "" };
        add("secret", format!("{} = {}{revoked}", line(&binding.env_key), line(&binding.secret_name)));
    }
    add("preview_access", line(&item.preview_access));
    // The hosted service does not say.
    if let Some(engine) = &item.isolation {
        add("isolation", line(engine));
    }
    text
}

fn structured(sandbox: &Sandbox) -> Value {
    let item = &sandbox.item;
    let mut structured = json!({
        "id": item.id,
        "name": item.name,
        "status": item.status,
        "vcpu_count": item.vcpu_count,
        "memory_mib": item.memory_mib,
        "created_at": normalise_time(&item.created_at),
        "metadata": item.metadata,
        "preview_access": item.preview_access,
    });
    if let Some(seconds) = item.timeout_seconds {
        structured["timeout_seconds"] = seconds.into();
    }
    if let Some(seconds) = item.auto_delete_seconds {
        structured["auto_delete_seconds"] = seconds.into();
    }
    if let Some(time) = &item.auto_delete_at {
        structured["auto_delete_at"] = normalise_time(time).into();
    }
    if let Some(network) = &item.network {
        structured["network"] = json!({
            "allow_out": network.allow_out.as_deref().unwrap_or_default(),
            "deny_out": network.deny_out.as_deref().unwrap_or_default(),
        });
        if network.strict == Some(true) {
            structured["network"]["strict"] = true.into();
        }
    }
    if let Some(engine) = &item.isolation {
        structured["isolation"] = engine.as_str().into();
    }
    if !sandbox.secrets.is_empty() {
        // Field by field: whatever else the platform may say of a binding stays here.
        structured["secrets"] = sandbox
            .secrets
            .iter()
            .map(|b| json!({"env_key": b.env_key, "secret_name": b.secret_name, "revoked": b.revoked}))
            .collect();
    }
    structured
}
