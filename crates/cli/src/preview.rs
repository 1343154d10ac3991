//! `sandbox preview` and `sandbox previews`: publishing ports, and watching what happens at them.

use std::io::IsTerminal;
use std::time::Duration;

use client::{Client, Preview, PreviewRequest};

use crate::args::PreviewArgs;
use crate::error::CliError;
use crate::out::{self, Stop, printable};
use crate::sandbox::whole_seconds;
use crate::table;

/// Between two looks of `--watch`.
const WATCH: Duration = Duration::from_secs(2);
/// Back to the top left, and nothing below it.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J\x1b[3J";

/// One port.
pub(crate) async fn port(args: PreviewArgs, client: &Client, json: bool) -> Result<(), Stop> {
    let PreviewArgs { id, port, access, expires_in, action } = args;
    let failed = |error: client::ClientError| CliError::of_sandbox(&error, &id);
    if action.log {
        let requests = client.preview_requests(&id, port).await.map_err(failed)?;
        return if json { out::json(&requests) } else { log(&requests) };
    }
    if action.unpublish {
        client.unpublish_port(&id, port).await.map_err(failed)?;
        let gone = serde_json::json!({ "sandbox_id": id, "port": port, "published": false });
        return if json { out::json(&gone) } else { out::line(&format!("unpublished {port}")) };
    }
    let published = client.publish_port(&id, port, access.as_deref()).await.map_err(failed)?;
    let token = match (published.access.as_str(), action.rotate) {
        ("private", true) => Some(client.rotate_preview_token(&id, port).await.map_err(failed)?),
        ("private", false) => Some(client.preview_token(&id, port, Some(expires_in)).await.map_err(failed)?),
        (_, true) => {
            let error = CliError::new(format!("port {port} is public: it has no links to revoke"));
            return Err(error
                .hint(format!("superserve sandbox preview {id} {port} --access private"))
                .into());
        }
        _ => None,
    };
    let url = client.preview_url(&id, port, token.as_ref()).await.map_err(failed)?;
    if !json {
        return out::line(&printable(&url));
    }
    let mut shown = serde_json::json!({
        "sandbox_id": id, "port": port, "access": published.access, "url": url,
    });
    if let Some(ends) = token.and_then(|token| token.expires_at) {
        shown["expires_at"] = ends.into();
    }
    out::json(&shown)
}

/// All of them, once or until Ctrl-C.
pub(crate) async fn all(id: Option<String>, watch: bool, client: &Client, json: bool) -> Result<(), Stop> {
    let terminal = std::io::stdout().is_terminal();
    loop {
        let mut previews = client.list_previews().await.map_err(CliError::from)?;
        if let Some(id) = &id {
            previews.retain(|preview| preview.sandbox_id.eq_ignore_ascii_case(id));
        }
        if watch && terminal && !json {
            out::raw(CLEAR)?;
        }
        if json {
            out::json(&previews)?;
        } else if previews.is_empty() {
            out::note("No published ports. Publish one: superserve sandbox preview <ID> <PORT>");
        } else {
            out::line(&listed(&previews))?;
        }
        if !watch {
            return Ok(());
        }
        tokio::time::sleep(WATCH).await;
    }
}

fn listed(previews: &[Preview]) -> String {
    let rows: Vec<_> = previews.iter().map(row).collect();
    let header = [
        "SANDBOX",
        "NAME",
        "STATUS",
        "PORT",
        "ACCESS",
        "OPEN",
        "REQUESTS",
        "REFUSED",
        "IN",
        "OUT",
        "LAST REQUEST",
    ];
    table::render(&header, &rows)
}

fn row(preview: &Preview) -> Vec<String> {
    let traffic = &preview.traffic;
    vec![
        preview.sandbox_id.clone(),
        preview.sandbox_name.clone(),
        preview.sandbox_status.clone(),
        preview.port.port.to_string(),
        preview.port.access.clone(),
        traffic.open.to_string(),
        traffic.requests.to_string(),
        traffic.refused.to_string(),
        bytes(traffic.bytes_in),
        bytes(traffic.bytes_out),
        traffic.last_request_at.as_deref().map_or_else(|| "never".to_owned(), whole_seconds),
    ]
}

fn log(requests: &[PreviewRequest]) -> Result<(), Stop> {
    if requests.is_empty() {
        out::note("No requests since the server started.");
        return Ok(());
    }
    // Oldest first, as logs are read.
    let rows: Vec<_> = requests
        .iter()
        .rev()
        .map(|request| {
            let status = if request.status == 0 { "-".to_owned() } else { request.status.to_string() };
            vec![
                whole_seconds(&request.ended_at),
                request.client.clone(),
                status,
                request.outcome.clone(),
                format!("{} ms", request.duration_ms),
                bytes(request.bytes_in),
                bytes(request.bytes_out),
                format!("{} {}", request.method, request.path),
            ]
        })
        .collect();
    out::line(&table::render(
        &["ENDED", "CLIENT", "STATUS", "OUTCOME", "TOOK", "IN", "OUT", "REQUEST"],
        &rows,
    ))
}

/// For people: the largest unit with a whole number before the point.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use client::{PreviewPort, PreviewTraffic};

    use super::*;

    #[test]
    fn a_table_of_ports() {
        let preview = Preview {
            sandbox_id: "0b8e".into(),
            sandbox_name: "we\u{1b}b".into(),
            sandbox_status: "active".into(),
            port: PreviewPort { port: 3000, access: "private".into(), token_version: 1 },
            traffic: PreviewTraffic {
                requests: 12,
                refused: 1,
                open: 2,
                bytes_in: 900,
                bytes_out: 5 * 1024 * 1024 + 512 * 1024,
                last_request_at: Some("2026-01-02T03:04:05.123456Z".into()),
            },
        };
        expect_test::expect![[r#"
            SANDBOX  NAME  STATUS  PORT  ACCESS   OPEN  REQUESTS  REFUSED  IN     OUT      LAST REQUEST
            0b8e     we�b  active  3000  private  2     12        1        900 B  5.5 MiB  2026-01-02T03:04:05Z"#]]
        .assert_eq(&listed(&[preview]));
    }
}
