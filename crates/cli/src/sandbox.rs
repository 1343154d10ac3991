//! `superserve sandbox …`: one call each, then its result as text or JSON.

use client::{Client, Deletion, ListFilter, Pause, Sandbox, SandboxListItem};

use crate::args::{ListArgs, SandboxCommand, SessionAction};
use crate::error::CliError;
use crate::interrupt::unless_interrupted;
use crate::out::{self, Stop, printable};
use crate::{copy, create, desktop, exec, network, preview, shell, snapshot, table};

/// Runs the command and says what the process should exit with.
///
/// # Errors
/// [`CliError`], ready to be reported.
pub async fn run_sandbox(command: SandboxCommand, client: &Client, json: bool) -> Result<u8, CliError> {
    // Ctrl-C during a command is the command's.
    let result = match command {
        // Ctrl-C during a fork leaves no snapshot.
        SandboxCommand::Exec(_)
        | SandboxCommand::Record(_)
        | SandboxCommand::Fork(_)
        | SandboxCommand::Shell(_)
        | SandboxCommand::Sessions { action: Some(SessionAction::Attach { .. }), .. } => {
            run(command, client, json).await
        }
        _ => unless_interrupted(run(command, client, json)).await,
    };
    out::settle(result)
}

async fn run(command: SandboxCommand, client: &Client, json: bool) -> Result<u8, Stop> {
    match command {
        SandboxCommand::Create(args) => {
            let sandbox = client.create_sandbox(&create::request(args)).await.map_err(CliError::from)?;
            if json { out::json(&without_token(&sandbox))? } else { out::line(&printable(&sandbox.item.id))? }
        }
        SandboxCommand::Fork(args) => return snapshot::fork(args, client, json).await,
        SandboxCommand::List(args) => list(args, client, json).await?,
        SandboxCommand::Info { id } => {
            let sandbox = client.get_sandbox(&id).await;
            let sandbox = sandbox.map_err(|error| CliError::of_sandbox(&error, &id))?;
            if json { out::json(&without_token(&sandbox))? } else { out::line(&described(&sandbox))? }
        }
        SandboxCommand::Exec(args) => return exec::run(args, client, json).await,
        SandboxCommand::Shell(args) => return shell::shell(args, client).await,
        SandboxCommand::Sessions { id, action } => return shell::sessions(&id, action, client, json).await,
        SandboxCommand::Cp(args) => copy::run(args, client, json).await?,
        SandboxCommand::Preview(args) => preview::port(args, client, json).await?,
        SandboxCommand::Previews { id, watch } => preview::all(id, watch, client, json).await?,
        SandboxCommand::Screenshot(args) => desktop::screenshot(args, client, json).await?,
        SandboxCommand::Record(args) => return desktop::record(args, client, json).await,
        SandboxCommand::View { id, view_only } => desktop::view(&id, view_only, client, json).await?,
        SandboxCommand::Network(args) => network::log(args, client, json).await?,
        SandboxCommand::Rules(args) => network::rules(args, client, json).await?,
        SandboxCommand::Pause { ids } => {
            return each(&ids, json, async |id| {
                let done = match client.pause_sandbox(id).await? {
                    Pause::Paused => "paused",
                    Pause::AlreadyPaused => "already paused",
                    Pause::Deleted => "deleted",
                };
                Ok(done)
            })
            .await;
        }
        SandboxCommand::Resume { ids } => {
            return each(&ids, json, async |id| client.resume_sandbox(id).await.map(|()| "active")).await;
        }
        SandboxCommand::Kill { ids } => {
            return each(&ids, json, async |id| {
                let done = match client.delete_sandbox(id).await? {
                    Deletion::Deleted => "deleted",
                    Deletion::AlreadyGone => "not found",
                };
                Ok(done)
            })
            .await;
        }
    }
    Ok(0)
}

/// Does the same to every sandbox, also when one of them fails, and fails if one did.
async fn each(
    ids: &[String],
    json: bool,
    act: impl AsyncFn(&str) -> Result<&'static str, client::ClientError>,
) -> Result<u8, Stop> {
    let mut code = 0;
    for id in ids {
        let failed = match act(id).await {
            Ok("not found") => {
                CliError::new(format!("sandbox {} not found", printable(id))).hint("superserve sandbox list")
            }
            Ok(done) if json => {
                out::json(&serde_json::json!({ "id": id, "status": done }))?;
                continue;
            }
            Ok(done) => {
                out::line(&format!("{done} {}", printable(id)))?;
                continue;
            }
            Err(error) => CliError::of_sandbox(&error, id),
        };
        failed.report(json);
        code = failed.exit_code;
    }
    Ok(code)
}

async fn list(args: ListArgs, client: &Client, json: bool) -> Result<(), Stop> {
    let filter = ListFilter {
        metadata: args.metadata.into_iter().collect(),
        q: args.name,
        status: args.status,
        limit: args.limit,
        ..ListFilter::default()
    };
    let page = client.list_sandboxes(&filter).await.map_err(CliError::from)?;
    if json {
        return out::json(&page.items);
    }
    if page.items.is_empty() {
        out::note("No sandboxes. Create one: superserve sandbox create");
        return Ok(());
    }
    let rows: Vec<_> = page.items.iter().map(row).collect();
    out::line(&table::render(&["ID", "NAME", "STATUS", "VCPU", "MEMORY", "CREATED", "METADATA"], &rows))?;
    let shown = page.items.len() as u64;
    if let Some(total) = page.total.filter(|total| *total > shown) {
        out::note(&format!("{shown} of {total} shown"));
    }
    Ok(())
}

fn row(item: &SandboxListItem) -> Vec<String> {
    vec![
        item.id.clone(),
        item.name.clone(),
        item.status.clone(),
        item.vcpu_count.to_string(),
        format!("{} MiB", item.memory_mib),
        whole_seconds(&item.created_at),
        pairs(item),
    ]
}

fn pairs(item: &SandboxListItem) -> String {
    item.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

pub(crate) fn whole_seconds(time: &str) -> String {
    match (time.split_once('.'), time.strip_suffix('Z')) {
        (Some((whole, _)), Some(_)) => format!("{whole}Z"),
        _ => time.to_owned(),
    }
}

fn described(sandbox: &Sandbox) -> String {
    let item = &sandbox.item;
    let list = |list: &Option<Vec<String>>| list.as_ref().filter(|l| !l.is_empty()).map(|l| l.join(", "));
    let seconds = |value: Option<u32>| value.map(|s| format!("{s} s"));
    let lines = [
        ("id", Some(item.id.clone())),
        ("name", Some(item.name.clone())),
        ("status", Some(item.status.clone())),
        ("size", Some(format!("{} vCPU, {} MiB", item.vcpu_count, item.memory_mib))),
        ("isolation", item.isolation.clone()),
        ("created", Some(whole_seconds(&item.created_at))),
        ("from snapshot", item.source_snapshot_id.clone()),
        ("metadata", Some(pairs(item)).filter(|text| !text.is_empty())),
        ("pauses after", seconds(item.timeout_seconds)),
        ("auto-delete after", seconds(item.auto_delete_seconds)),
        ("auto-delete at", item.auto_delete_at.as_deref().map(whole_seconds)),
        ("allowed out", item.network.as_ref().and_then(|network| list(&network.allow_out))),
        ("denied out", item.network.as_ref().and_then(|network| list(&network.deny_out))),
        ("strict", item.network.as_ref().and_then(|network| network.strict).map(|strict| strict.to_string())),
        ("previews", Some(item.preview_access.clone())),
    ];
    let secrets = sandbox.secrets.iter().map(|binding| {
        let revoked = if binding.revoked { " (revoked)" } else { "" };
        ("secret", Some(format!("{} = {}{revoked}", binding.env_key, binding.secret_name)))
    });
    let shown = lines.into_iter().chain(secrets).filter_map(|(key, value)| {
        value.map(|value| format!("{:<18} {}", format!("{key}:"), printable(&value)))
    });
    shown.collect::<Vec<_>>().join("\n")
}

/// The object as the platform shows it, less the one part that is a credential.
fn without_token(sandbox: &Sandbox) -> serde_json::Value {
    let mut value = serde_json::to_value(sandbox).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("access_token");
    }
    value
}
