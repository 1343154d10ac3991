//! The network log of a sandbox (§9), whatever its state, with `kinds` as a filter of our own.

use std::net::IpAddr;
use std::time::Duration;

use activity::Caller;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use domain::{Attempt, NetworkKind, Problem, UnknownName, format_timestamp, parse_timestamp};
use store::{NetworkBefore, NetworkFilter, NetworkRow};
use wire::rest::{NetworkEvent, NetworkPage};

use crate::ApiState;
use crate::ids::SandboxPath;
use crate::query::Query;
use crate::reply::Reply;

/// Rows of a page when nobody says how many.
const DEFAULT_ROWS: u32 = 50;
/// A cursor begins with this, so that nobody takes it for a number or a time.
const CURSOR: &str = "row-";

pub(crate) async fn list(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    SandboxPath(id): SandboxPath,
    RawQuery(query): RawQuery,
) -> Reply<Json<NetworkPage>> {
    let filter = filter(&Query::parse(query.as_deref())?)?;
    state.lifecycle.get(caller.team, id)?;
    // Whoever has seen an answer finds the connection it came over.
    state.network.flush().await;
    let (rows, has_more) = state.store.network_log_list(id, &filter).await?;
    let next_cursor = rows.last().filter(|_| has_more).map(|row| format!("{CURSOR}{}", row.id));
    Ok(Json(NetworkPage { data: rows.into_iter().map(shown).collect(), next_cursor, has_more }))
}

fn filter(query: &Query) -> Result<NetworkFilter, Problem> {
    let unknown =
        |name: &'static str| move |unknown: UnknownName| Problem::invalid(name, unknown.to_string());
    Ok(NetworkFilter {
        kinds: query.get("kinds").map_or_else(|| Ok(NetworkKind::PUBLISHED.to_vec()), kinds)?,
        verdict: query.get("verdict").map(str::parse).transpose().map_err(unknown("verdict"))?,
        before: query.get("before").map(before).transpose()?,
        since: query.time("since")?,
        limit: query.limit()?.unwrap_or(DEFAULT_ROWS),
    })
}

/// A comma-separated list, or `all`.
fn kinds(text: &str) -> Result<Vec<NetworkKind>, Problem> {
    if text == "all" {
        return Ok(NetworkKind::ALL.to_vec());
    }
    let kinds: Result<_, UnknownName> = text.split(',').map(|kind| kind.trim().parse()).collect();
    kinds.map_err(|unknown| Problem::invalid("kinds", format!("{unknown}, or `all`")))
}

fn before(text: &str) -> Result<NetworkBefore, Problem> {
    let row = text.strip_prefix(CURSOR).and_then(|row| row.parse().ok()).map(NetworkBefore::Row);
    let bad = || Problem::invalid("before", "the next_cursor of a page, or an RFC 3339 time, is accepted");
    row.or_else(|| parse_timestamp(text).map(NetworkBefore::Time)).ok_or_else(bad)
}

fn shown(row: NetworkRow) -> NetworkEvent {
    let event = row.event;
    let (kind, ts) = (event.what.kind().to_string(), format_timestamp(event.at));
    let base = NetworkEvent { kind, id: row.id, ts, ..NetworkEvent::default() };
    let counted = |bytes: u64| (bytes > 0).then_some(bytes);
    match event.what {
        Attempt::Connection(c) => NetworkEvent {
            host: c.host,
            dst_ip: Some(c.to.ip().to_string()),
            dst_port: Some(c.to.port()),
            verdict: Some(c.verdict.to_string()),
            match_rule: Some(c.rule.to_string()),
            bytes_sent: counted(c.sent),
            bytes_recv: counted(c.received),
            duration_ms: Some(millis(c.took)),
            error_code: c.error,
            ..base
        },
        Attempt::Request(r) => NetworkEvent {
            host: Some(r.host),
            method: Some(r.method),
            path: Some(r.path),
            status: Some(r.status),
            upstream_status: r.upstream_status,
            latency_ms: Some(millis(r.latency)),
            secret_id: r.secret.map(|id| id.to_string()),
            error_code: r.error,
            ..base
        },
        Attempt::Dns(d) => NetworkEvent {
            host: Some(d.name),
            dst_ip: Some(d.to.ip().to_string()),
            dst_port: Some(d.to.port()),
            verdict: Some(d.verdict.to_string()),
            match_rule: Some(d.rule.to_string()),
            protocol: Some(d.record),
            error_code: d.error,
            ..base
        },
        Attempt::Packet(p) => NetworkEvent {
            dst_ip: p.to.as_ref().map(IpAddr::to_string),
            dst_port: p.port,
            verdict: Some(domain::NetworkVerdict::Blocked.to_string()),
            match_rule: Some(p.rule.to_string()),
            protocol: Some(p.protocol),
            packets: Some(p.count),
            ..base
        },
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
