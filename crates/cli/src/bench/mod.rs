//! `superserve bench`: what a user waits for, measured from where a user sits. Every number is a measurement of this
//! run; what could not be measured is `null` with its reason. Whatever happens, also Ctrl-C, its sandboxes are deleted.

mod desktop;
mod files;
mod fleet;
mod loopback;
mod mcp;
mod memory;
mod paths;
mod preview;
mod report;

use std::path::PathBuf;

use client::{Client, ClientConfig, ClientError};

use crate::args::BenchArgs;
use crate::error::CliError;
use crate::interrupt::unless_interrupted;
use crate::out;
use fleet::Fleet;
use report::{Report, Row};

/// What is measured.
#[derive(Debug, Clone)]
pub struct BenchTarget {
    /// The platform; also given to the MCP server that is measured.
    pub config: ClientConfig,
    /// The `superserve` binary, whose `mcp` command is measured.
    pub superserve: PathBuf,
}

/// Runs the measurements and says what the process should exit with.
///
/// # Errors
/// [`CliError`] when nothing could be measured, or on Ctrl-C. The sandboxes are deleted in either case.
pub async fn run_bench(args: BenchArgs, target: &BenchTarget, json: bool) -> Result<u8, CliError> {
    let client = Client::new(target.config.clone())?;
    let fleet = Fleet::new(client.clone(), args.template.clone());
    let measuring = async { Ok(measure(&args, target, &client, &fleet).await?) };
    let measured = unless_interrupted(measuring).await;
    let cleaned = fleet.delete_all().await;
    let shown =
        measured.and_then(|report| if json { out::json(&report) } else { out::line(&report.table()) });
    out::settle(shown.map(|()| 0))?;
    cleaned.map_err(|error| {
        CliError::from(error).hint(format!("superserve sandbox list --metadata {}", fleet.tag()))
    })?;
    Ok(0)
}

async fn measure(
    args: &BenchArgs,
    target: &BenchTarget,
    client: &Client,
    fleet: &Fleet,
) -> Result<Report, CliError> {
    // Also settles whether anything answers at all, before a dozen rows say that nothing does.
    client.list_sandboxes(&client::ListFilter { limit: Some(1), ..Default::default() }).await?;
    let mut report = Report::new(client).await;
    report.say("creating sandboxes, one after the other");
    report
        .rows
        .push(Row::times("create → first exec", paths::creates(fleet, args.creates).await).budget("≤ 60"));
    if args.burst > 0 {
        report.say("creating sandboxes at once");
        report.rows.extend(paths::burst(fleet, args.burst).await);
    }
    report.say("one sandbox: commands, pauses, memory, files, previews, desktop, MCP");
    match fleet.create().await {
        Ok(id) => one_sandbox(args, target, client, &id, &mut report).await,
        Err(error) => report.rows.push(Row::absent("everything below needs a sandbox", "", reason(&error))),
    }
    Ok(report)
}

async fn one_sandbox(args: &BenchArgs, target: &BenchTarget, client: &Client, id: &str, report: &mut Report) {
    report.rows.push(
        Row::times("exec true, kept-alive REST", paths::execs(client, id, args.execs).await).budget("≤ 5"),
    );
    let in_session = paths::in_session(client, id, args.execs).await;
    report.rows.push(Row::times("true in an open session", in_session).budget("≤ 1"));
    report.rows.push(memory::row(client, id).await.budget("≤ 5"));
    report.rows.extend(paths::pauses(client, id, args.pauses).await);
    report.rows.extend(files::rows(client, id, args.file_mib).await);
    report.rows.extend(preview::rows(client, id, args.execs, args.file_mib).await);
    report.rows.extend(desktop::rows(client, id, args.execs).await);
    report.rows.extend(mcp::rows(target, client, id, args.execs).await);
}

fn reason(error: &ClientError) -> String {
    crate::out::printable(&error.to_string())
}
