//! `sandbox_list` (`spec/mcp.md` §C.3).

use client::{ListFilter, SandboxListItem};
use domain::MAX_PAGE;
use serde_json::{Value, json};

use super::{Call, Hints, Tool, no_check};
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_list",
    title: "List sandboxes",
    description: "List the team's sandboxes with id, name and status. Never resumes one.",
    hints: Hints::READ,
    params: &[
        Param::optional("metadata", Kind::Map, "Only sandboxes with all of these tags."),
        Param::optional(
            "status",
            Kind::Choice { of: STATES, default: None },
            "Only sandboxes in this state.",
        ),
        Param::optional(
            "limit",
            Kind::Integer { min: 1, max: Some(MAX_PAGE as i64), default: None },
            "Page size; all are returned when left out.",
        ),
        Param::optional("offset", Kind::Integer { min: 0, max: None, default: None }, "Rows to skip."),
    ],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

/// States of the published platform; ours has no `migrating`.
const STATES: &[&str] =
    &["starting", "active", "pausing", "paused", "resuming", "migrating", "failed", "deleted"];

/// Most rows of the text; the structured result is complete.
const MAX_TEXT_ROWS: usize = 200;

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let count = |value: Option<i64>| value.map(|value| u32::try_from(value).unwrap_or(u32::MAX));
    let filter = ListFilter {
        metadata: call.args.map("metadata").unwrap_or_default(),
        status: call.args.text("status"),
        limit: count(call.args.integer("limit")),
        offset: count(call.args.integer("offset")),
        ..ListFilter::default()
    };
    let page = call
        .client
        .list_sandboxes(&filter)
        .await
        .map_err(|error| explain(&error, About { target: Target::Team, repeat: Repeat::Safe }))?;
    let seen = u64::from(filter.offset.unwrap_or(0)) + page.items.len() as u64;
    let has_more = filter.limit.is_some() && page.total.is_some_and(|total| total > seen);

    let mut lines: Vec<String> = page
        .items
        .iter()
        .take(MAX_TEXT_ROWS)
        .map(|item| format!("{}  {}\t{}", line(&item.id), line(&item.status), line(&item.name)))
        .collect();
    if lines.is_empty() {
        lines.push("(no sandboxes)".to_owned());
    }
    if page.items.len() > MAX_TEXT_ROWS {
        lines.push(format!(
            "({} more; narrow down with metadata or status, or page with limit and offset)",
            page.items.len() - MAX_TEXT_ROWS
        ));
    }
    let mut structured = json!({"sandboxes": page.items.iter().map(row).collect::<Vec<_>>()});
    if has_more {
        lines.push(format!("(more exist; continue with offset {seen})"));
        structured["has_more"] = true.into();
        structured["next_offset"] = seen.into();
    }
    Ok(Outcome::new(lines.join("\n"), structured))
}

fn row(item: &SandboxListItem) -> Value {
    json!({
        "id": item.id,
        "name": item.name,
        "status": item.status,
        "metadata": item.metadata,
        "previewAccess": item.preview_access,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_of_the_platform_can_be_asked_for() {
        for state in domain::SandboxState::ALL {
            assert!(STATES.contains(&state.as_str()), "{state}");
        }
    }
}
