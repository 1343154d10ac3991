//! `superserve snapshot …`, and `sandbox fork`: a snapshot, sandboxes made from it, and an end of the snapshot.

use std::collections::BTreeMap;

use client::{Client, ClientError, CreateSandbox, CreateSnapshot, Snapshot};
use futures_util::StreamExt;

use crate::args::{ForkArgs, SnapshotCommand};
use crate::error::{CliError, INTERRUPTED};
use crate::interrupt::{interrupts, unless_interrupted};
use crate::out::{self, Stop, printable};
use crate::sandbox::whole_seconds;
use crate::table;

/// Forks that are made at once: they share the host's processors and disk, and the platform answers each within 30 s.
const AT_ONCE: usize = 4;

/// Runs the command and says what the process should exit with.
///
/// # Errors
/// [`CliError`], ready to be reported.
pub async fn run_snapshot(command: SnapshotCommand, client: &Client, json: bool) -> Result<u8, CliError> {
    out::settle(unless_interrupted(run(command, client, json)).await)
}

async fn run(command: SnapshotCommand, client: &Client, json: bool) -> Result<u8, Stop> {
    match command {
        SnapshotCommand::Create { id, name } => {
            let body = CreateSnapshot { name, ..CreateSnapshot::default() };
            let snapshot = client.snapshot_sandbox(&id, &body).await;
            let snapshot = snapshot.map_err(|error| of_save(&error, &id))?;
            if json { out::json(&snapshot)? } else { out::line(&printable(&snapshot.id))? }
        }
        SnapshotCommand::List { id, limit } => list(&id, limit, client, json).await?,
        SnapshotCommand::Get { snapshot } => {
            let found = client.get_snapshot(&snapshot).await;
            let found = found.map_err(|error| of_snapshot(&error, &snapshot))?;
            if json { out::json(&found)? } else { out::line(&described(&found))? }
        }
        SnapshotCommand::Rename { snapshot, name } => {
            let renamed = client.rename_snapshot(&snapshot, &name).await;
            let renamed = renamed.map_err(|error| of_snapshot(&error, &snapshot))?;
            if json {
                out::json(&renamed)?
            } else {
                out::line(&format!("renamed {}", printable(&renamed.id)))?
            }
        }
        SnapshotCommand::Delete { snapshots } => {
            let mut code = 0;
            for id in &snapshots {
                match client.delete_snapshot(id).await {
                    Ok(()) if json => out::json(&serde_json::json!({ "id": id, "status": "deleted" }))?,
                    Ok(()) => out::line(&format!("deleted {}", printable(id)))?,
                    Err(error) => {
                        let failed = of_snapshot(&error, id);
                        failed.report(json);
                        code = failed.exit_code;
                    }
                }
            }
            return Ok(code);
        }
    }
    Ok(0)
}

async fn list(id: &str, limit: Option<u32>, client: &Client, json: bool) -> Result<(), Stop> {
    let page = client.list_snapshots(id, limit).await.map_err(CliError::from)?;
    if json {
        return out::json(&page.items);
    }
    if page.items.is_empty() {
        out::note("No snapshots of this sandbox. Save it: superserve snapshot create ID");
        return Ok(());
    }
    let rows = page.items.iter().map(|snapshot| {
        vec![
            snapshot.id.clone(),
            snapshot.name.clone().unwrap_or_else(|| "-".to_owned()),
            snapshot.status.clone(),
            held(snapshot).to_owned(),
            mib(snapshot.size_bytes),
            whole_seconds(&snapshot.created_at),
        ]
    });
    let rows = rows.collect::<Vec<_>>();
    out::line(&table::render(&["ID", "NAME", "STATUS", "HOLDS", "SIZE", "CREATED"], &rows))
}

/// What it really holds; other platforms do not say, and hold what the kind says.
fn held(snapshot: &Snapshot) -> &str {
    snapshot.captured.as_deref().unwrap_or(&snapshot.kind)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1024 * 1024))
}

fn described(snapshot: &Snapshot) -> String {
    let resources = &snapshot.resources;
    let holds = match held(snapshot) {
        "disk" => "disk; processes are not kept, forks boot and start start_cmd again",
        other => other,
    };
    let shape = format!(
        "{} vCPU, {} MiB, {} MiB disk",
        resources.vcpu_count, resources.memory_mib, resources.disk_mib
    );
    let lines = [
        ("id", Some(snapshot.id.clone())),
        ("name", snapshot.name.clone()),
        ("status", Some(snapshot.status.clone())),
        ("holds", Some(holds.to_owned())),
        ("bytes", Some(snapshot.size_bytes.to_string())),
        ("of sandbox", Some(snapshot.sandbox_id.clone())),
        ("of snapshot", snapshot.source_snapshot_id.clone()),
        ("template", snapshot.template_id.clone()),
        ("forks get", Some(shape)),
        ("created", Some(whole_seconds(&snapshot.created_at))),
        ("ready", snapshot.ready_at.as_deref().map(whole_seconds)),
    ];
    let shown = lines.into_iter().filter_map(|(key, value)| {
        value.map(|value| format!("{:<18} {}", format!("{key}:"), printable(&value)))
    });
    shown.collect::<Vec<_>>().join("\n")
}

/// `sandbox fork`. The snapshot goes when the forks are there, also when some are not, and after Ctrl-C.
pub(crate) async fn fork(args: ForkArgs, client: &Client, json: bool) -> Result<u8, Stop> {
    let mut interrupts = interrupts()?;
    let body = CreateSnapshot { name: args.keep.clone().flatten(), ..CreateSnapshot::default() };
    let saving = client.snapshot_sandbox(&args.id, &body);
    let snapshot = tokio::select! {
        snapshot = saving => snapshot.map_err(|error| of_save(&error, &args.id))?,
        _ = interrupts.recv() => {
            out::note(&format!("the snapshot may still be made; see superserve snapshot list {}", printable(&args.id)));
            return Err(CliError::new("interrupted").exit_code(INTERRUPTED).into());
        }
    };
    let mut made = Made::default();
    let interrupted = tokio::select! {
        () = make(&args, &snapshot, client, &mut made) => false,
        _ = interrupts.recv() => true,
    };
    let kept = args.keep.is_some() || !remove(&snapshot, client).await;
    report(&snapshot, kept, &made, json)?;
    if interrupted {
        let hint = "forks that were being made may exist all the same: superserve sandbox list";
        return Err(CliError::new("interrupted").hint(hint).exit_code(INTERRUPTED).into());
    }
    Ok(u8::from(!made.failed.is_empty()))
}

/// What became of the forks.
#[derive(Default)]
struct Made {
    forks: Vec<(u32, String)>,
    failed: Vec<(u32, CliError)>,
}

async fn make(args: &ForkArgs, snapshot: &Snapshot, client: &Client, made: &mut Made) {
    let metadata: BTreeMap<_, _> = args.metadata.iter().cloned().collect();
    let prefix = args.name.clone().unwrap_or_else(|| "fork".to_owned());
    let one = |number: u32| {
        let body = CreateSandbox {
            name: if args.count == 1 { prefix.clone() } else { format!("{prefix}-{number}") },
            from_snapshot: Some(snapshot.id.clone()),
            auto_delete_seconds: args.auto_delete,
            metadata: (!metadata.is_empty()).then(|| metadata.clone()),
            ..CreateSandbox::default()
        };
        async move { (number, client.create_sandbox(&body).await) }
    };
    let mut making = futures_util::stream::iter((1..=args.count).map(one)).buffer_unordered(AT_ONCE);
    while let Some((number, fork)) = making.next().await {
        match fork {
            Ok(fork) => made.forks.push((number, fork.item.id)),
            Err(error) => made.failed.push((number, error.into())),
        }
    }
}

async fn remove(snapshot: &Snapshot, client: &Client) -> bool {
    match client.delete_snapshot(&snapshot.id).await {
        Ok(()) => true,
        Err(error) => {
            let id = printable(&snapshot.id);
            out::note(&format!("the snapshot stays ({error}); superserve snapshot delete {id}"));
            false
        }
    }
}

fn report(snapshot: &Snapshot, kept: bool, made: &Made, json: bool) -> Result<(), Stop> {
    let mut forks: Vec<_> = made.forks.iter().collect();
    forks.sort();
    if json {
        let ids: Vec<_> = forks.iter().map(|(_, id)| id).collect();
        let failed = made.failed.iter().map(|(number, error)| {
            serde_json::json!({ "number": number, "error": error.message, "code": error.code })
        });
        let (failed, id) = (failed.collect::<Vec<_>>(), kept.then_some(&snapshot.id));
        return out::json(&serde_json::json!({ "forks": ids, "failed": failed, "snapshot_id": id }));
    }
    for (_, id) in forks {
        out::line(&printable(id))?;
    }
    if kept {
        out::note(&format!("kept snapshot {}", printable(&snapshot.id)));
    }
    let all = made.forks.len() + made.failed.len();
    if !made.failed.is_empty() {
        out::note(&format!("{} of {all} forks were not made:", made.failed.len()));
        made.failed.iter().for_each(|(_, error)| error.report(false));
    }
    Ok(())
}

fn of_save(error: &ClientError, id: &str) -> CliError {
    match error.api().map(|api| api.code.as_str()) {
        Some("too_many_snapshots") => {
            CliError::from(error.clone()).hint(format!("superserve snapshot list {}", printable(id)))
        }
        _ => CliError::of_sandbox(error, id),
    }
}

fn of_snapshot(error: &ClientError, id: &str) -> CliError {
    let shown = CliError::from(error.clone());
    if error.status() != Some(404) {
        return shown;
    }
    CliError { message: format!("snapshot {} not found", printable(id)), ..shown }
        .hint("superserve snapshot list <SANDBOX ID>")
}
