//! `superserve activity`: the activity log over the public API, oldest first, as lines for people or as JSON lines.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use client::{Activity, ActivityFilter, Client, ClientError};
use jiff::{SignedDuration, Timestamp};

use crate::commands::connect;
use crate::commands::sandbox::block_on;
use crate::config::StateDirArg;
use crate::output::{Failure, Outcome, try_print};

/// Rows of one request, the most there is.
const PAGE: u32 = 200;
/// How often `--follow` looks; a person sees no difference.
const POLL: Duration = Duration::from_secs(1);
/// A failed look is repeated after this: the server may be restarting.
const RETRY: Duration = Duration::from_secs(3);
/// Rows are written in the order of their times, give or take a moment.
const OVERLAP: SignedDuration = SignedDuration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct ActivityArgs {
    /// Go on showing what happens
    #[arg(long, short)]
    follow: bool,
    /// Only this sandbox
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Only this category: sandbox, template, exec, file, session, token, key
    #[arg(long, value_name = "NAME")]
    category: Option<String>,
    /// Only failures
    #[arg(long)]
    errors: bool,
    /// Only names, actions and errors that contain this
    #[arg(long, short, value_name = "TEXT")]
    query: Option<String>,
    /// Only from this time on (RFC 3339)
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,
}

pub(crate) fn run(state: &StateDirArg, args: ActivityArgs, json: bool) -> Outcome {
    let client = Client::new(connect::config(&state.state_dir)?)?;
    block_on(show(&client, args, json))?
}

async fn show(client: &Client, args: ActivityArgs, json: bool) -> Outcome {
    let mut reader = Reader {
        client,
        filter: ActivityFilter {
            category: args.category,
            status: args.errors.then(|| "error".to_owned()),
            q: args.query,
            sandbox_id: args.sandbox,
            ascending: true,
            limit: Some(PAGE),
            ..ActivityFilter::default()
        },
        from: args.since.unwrap_or(Timestamp::UNIX_EPOCH),
        seen: BTreeMap::new(),
    };
    let mut shown_before = false;
    loop {
        let mut reading = true;
        match reader.new_rows(|row| reading = try_print(if json { json_line(row) } else { line(row) })).await
        {
            Ok(()) => shown_before = true,
            Err(error) if args.follow && shown_before && error.may_pass() => {
                tokio::time::sleep(RETRY).await;
                continue;
            }
            Err(error) => return Err(Failure::from(error)),
        }
        // Whoever read the lines has gone.
        if !args.follow || !reading {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Reads forward from a time, and gives each row once.
struct Reader<'a> {
    client: &'a Client,
    filter: ActivityFilter,
    from: Timestamp,
    /// Rows given that will be met again.
    seen: BTreeMap<String, Timestamp>,
}

impl Reader<'_> {
    async fn new_rows(&mut self, mut give: impl FnMut(&Activity)) -> Result<(), ClientError> {
        let mut newest = self.from;
        self.filter.start = Some(self.from.to_string());
        self.filter.offset = 0;
        loop {
            let page = self.client.list_activity(&self.filter).await?.items;
            let full = page.len() >= PAGE as usize;
            let begin = self.filter.start.clone();
            for row in page {
                newest = domain::parse_timestamp(&row.created_at).unwrap_or(newest).max(newest);
                if self.seen.insert(row.id.clone(), newest).is_none() {
                    give(&row);
                }
                self.filter.start = Some(row.created_at);
            }
            if !full {
                break;
            }
            // By time, because rows may be removed from the old end meanwhile; by number among rows of one moment.
            self.filter.offset =
                if self.filter.start == begin { self.filter.offset + u64::from(PAGE) } else { 0 };
            let from = newest.saturating_sub(OVERLAP).unwrap_or(newest);
            self.seen.retain(|_, time| *time >= from);
        }
        self.from = newest.saturating_sub(OVERLAP).unwrap_or(newest).max(self.from);
        let from = self.from;
        self.seen.retain(|_, time| *time >= from);
        Ok(())
    }
}

fn json_line(row: &Activity) -> String {
    serde_json::to_string(row).unwrap_or_default()
}

fn line(row: &Activity) -> String {
    let fact = |name: &str| row.metadata.get(name).and_then(|value| value.as_str());
    let who = fact("actor_name").or_else(|| fact("actor_type")).unwrap_or("-");
    let mut text = format!("{}  {}.{}", row.created_at, row.category, row.action);
    if let Some(id) = &row.sandbox_id {
        text.push_str(&format!("  {id}"));
    }
    if let Some(name) = &row.sandbox_name {
        text.push_str(&format!(" ({name})"));
    }
    text.push_str(&format!("  by {who}"));
    if let Some(ms) = row.duration_ms {
        text.push_str(&format!("  {ms} ms"));
    }
    if let Some(error) = &row.error {
        text.push_str(&format!("  error: {error}"));
    }
    // Names are free text: they must not move the cursor of whoever reads them.
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
