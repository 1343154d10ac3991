//! `sandbox_network_log` (`spec/mcp.md` §C.14).

use client::{NetworkEvent, NetworkFilter};
use domain::{MAX_PAGE, parse_timestamp};
use serde_json::{Map, Value, json};

use super::{Call, Hints, Tool};
use crate::args::Args;
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line, normalise_time};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_network_log",
    title: "Audit a sandbox's egress",
    description: "Outbound connections of a sandbox, newest first, with verdict and rule, and requests made with a bound secret. \
        Look here when something cannot be reached. Never resumes the sandbox.",
    hints: Hints::READ,
    params: &[
        Param::sandbox_id(),
        Param::optional(
            "limit",
            Kind::Integer { min: 1, max: None, default: Some(DEFAULT_ROWS) },
            "Rows, at most 200.",
        ),
        Param::optional(
            "verdict",
            Kind::Choice { of: VERDICTS, default: None },
            "Only connections with this verdict.",
        ),
        Param::optional(
            "before",
            Kind::Text { min: 1 },
            "next_cursor of the previous page, or an RFC 3339 time: older rows only.",
        ),
        Param::optional("since", Kind::Text { min: 1 }, "RFC 3339 time: no older rows."),
    ],
    check,
    run: |call| Box::pin(run(call)),
};

const DEFAULT_ROWS: i64 = 50;
const VERDICTS: &[&str] = &["allowed", "blocked", "failed"];
/// Longest cursor that is passed on (`spec/mcp.md` §J.15).
const MAX_CURSOR: usize = 512;

fn check(args: &Args, problems: &mut Vec<String>) {
    if args.peek_text("before").is_some_and(|before| before.len() > MAX_CURSOR) {
        problems.push(format!("`before` must have at most {MAX_CURSOR} bytes"));
    }
    if args.peek_text("since").is_some_and(|since| parse_timestamp(since).is_none()) {
        problems.push("`since` must be an RFC 3339 time such as 2026-01-02T03:04:05Z".to_owned());
    }
}

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let limit = call.args.integer("limit").unwrap_or(DEFAULT_ROWS).min(i64::from(MAX_PAGE));
    let filter = NetworkFilter {
        limit: u32::try_from(limit).ok(),
        verdict: call.args.text("verdict"),
        before: call.args.text("before"),
        since: call.args.text("since"),
        kinds: None,
    };
    let about = About { target: Target::Sandbox(&id), repeat: Repeat::Safe };
    let page = call.client.network_log(&id, &filter).await.map_err(|error| explain(&error, about))?;
    let mut lines: Vec<String> = page.data.iter().map(shown).collect();
    if lines.is_empty() {
        lines.push("(no network activity)".to_owned());
    }
    let mut structured = json!({
        "events": page.data.iter().map(event).collect::<Vec<_>>(),
        "has_more": page.has_more,
    });
    if let Some(cursor) = &page.next_cursor {
        lines.push(format!("(more exist; continue with before {})", line(cursor)));
        structured["next_cursor"] = cursor.as_str().into();
    }
    Ok(Outcome::new(lines.join("\n"), structured))
}

fn shown(row: &NetworkEvent) -> String {
    let or = |text: &Option<String>, other: &str| line(text.as_deref().unwrap_or(other));
    let host = or(&row.host, row.dst_ip.as_deref().unwrap_or("-"));
    let time = normalise_time(&row.ts);
    if row.kind == "request" {
        let status = row.status.map_or_else(|| "-".to_owned(), |status| status.to_string());
        let error = row.error_code.as_deref().map_or_else(String::new, |code| format!(" ({})", line(code)));
        return format!(
            "{time}\treq {} {host}{} → {status}{error}",
            or(&row.method, "-"),
            or(&row.path, "/")
        );
    }
    let mut text = format!("{time}\t{} {host}", or(&row.verdict, "conn"));
    // The usual ports go without saying.
    if let Some(port) = row.dst_port.filter(|port| !matches!(port, 80 | 443)) {
        text.push_str(&format!(":{port}"));
    }
    if let Some(rule) = row.match_rule.as_deref().filter(|_| row.verdict.as_deref() == Some("blocked")) {
        text.push_str(&format!(" (rule: {})", line(rule)));
    }
    if let Some(code) = &row.error_code {
        text.push_str(&format!(" ({})", line(code)));
    }
    if row.bytes_sent.is_some() || row.bytes_recv.is_some() {
        let (sent, received) = (row.bytes_sent.unwrap_or(0), row.bytes_recv.unwrap_or(0));
        text.push_str(&format!(", {sent} B out, {received} B in"));
    }
    text
}

/// Field by field, under the published names; what is unset is left out.
fn event(row: &NetworkEvent) -> Value {
    let mut event = Map::new();
    event.insert("kind".to_owned(), row.kind.as_str().into());
    event.insert("id".to_owned(), row.id.into());
    event.insert("ts".to_owned(), normalise_time(&row.ts).into());
    let texts = [
        ("host", &row.host),
        ("dstIp", &row.dst_ip),
        ("verdict", &row.verdict),
        ("matchRule", &row.match_rule),
        ("method", &row.method),
        ("path", &row.path),
        ("secretId", &row.secret_id),
        ("errorCode", &row.error_code),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            event.insert(name.to_owned(), text.as_str().into());
        }
    }
    let numbers = [
        ("dstPort", row.dst_port.map(u64::from)),
        ("bytesSent", row.bytes_sent),
        ("bytesRecv", row.bytes_recv),
        ("status", row.status.map(u64::from)),
        ("upstreamStatus", row.upstream_status.map(u64::from)),
        ("latencyMs", row.latency_ms),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            event.insert(name.to_owned(), number.into());
        }
    }
    Value::Object(event)
}
