//! `sandbox_template_list` (`spec/mcp.md` §C.16).

use client::Template;
use serde_json::{Value, json};

use super::{Call, Hints, Tool, no_check};
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_template_list",
    title: "List templates",
    description: "List the templates a sandbox can be made from: call it before from_template of sandbox_create. Names that \
        begin with superserve/ are official and there for everybody, others belong to the team. Only `ready` ones can be \
        used; each fixes CPU, memory and disk.",
    hints: Hints::READ,
    params: &[Param::optional(
        "name_prefix",
        Kind::Text { min: 0 },
        "Only names that begin with this, such as superserve/ for the official ones.",
    )],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

/// Longest reason of a failed build that is shown; it may quote a command's output.
const MAX_REASON: usize = 300;

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let prefix = call.args.text("name_prefix").filter(|prefix| !prefix.is_empty());
    let listed = match &prefix {
        Some(prefix) => call.client.list_templates_below(prefix).await,
        None => call.client.list_templates().await,
    };
    let about = About { target: Target::Team, repeat: Repeat::Safe };
    let templates = listed.map_err(|error| explain(&error, about))?.items;
    let mut text: Vec<String> = templates.iter().map(row_text).collect();
    if text.is_empty() {
        text.push("(no templates)".to_owned());
    }
    let structured = json!({"templates": templates.iter().map(row).collect::<Vec<_>>()});
    Ok(Outcome::new(text.join("\n"), structured))
}

fn row_text(template: &Template) -> String {
    let mut text = format!(
        "{}\t{}\t{} vCPU / {} MiB",
        line(&template.name),
        line(&template.status),
        template.vcpu,
        template.memory_mib
    );
    if let Some(reason) = &template.error_message {
        let short: String = line(reason).chars().take(MAX_REASON).collect();
        text.push_str(&format!("\t{short}"));
    }
    text
}

/// A template as both tools show it.
pub(super) fn row(template: &Template) -> Value {
    json!({
        "id": template.id,
        "name": template.name,
        "status": template.status,
        "vcpu": template.vcpu,
        "memoryMib": template.memory_mib,
        "diskMib": template.disk_mib,
    })
}
