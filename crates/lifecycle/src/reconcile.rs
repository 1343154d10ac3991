//! The beginning: what the database says against what is on the host. Runs once, before anything is answered; the same
//! table then takes care of machines that end while the server runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::{Problem, SandboxId, SandboxState};
use node::Found;
use store::SandboxRow;
use tokio_util::task::TaskTracker;

use crate::owner::{Begin, Context, Message, Owner};
use crate::{machine, problem, table};

/// A thousand sandboxes take seconds; a host that needs longer is broken, and a start that hangs helps nobody.
const ADOPT: Duration = Duration::from_secs(120);

/// Compares every recorded sandbox with the host and starts its owner.
pub(crate) async fn adopt_all(context: &Arc<Context>, tasks: &TaskTracker) -> Result<(), Problem> {
    let rows = context.store.sandbox_all().await?;
    // Half-made and deleted ones are not taken over but removed: by the host, which is not told of them, and by their
    // owners, so that nothing depends on the order.
    let spec = |row| machine::spec(&context.secrets, row);
    let known = rows.iter().filter(|row| is_kept(row.summary.state)).map(spec).collect();
    // Nobody knows what a damaged row stood for, so nothing of it is touched until somebody has looked.
    let mut damaged: BTreeSet<SandboxId> = context.store.sandbox_ids().await?.into_iter().collect();
    for row in &rows {
        damaged.remove(&row.summary.id);
    }
    let adopting = tokio::time::timeout(ADOPT, context.host.adopt(known, damaged));
    let found =
        adopting.await.unwrap_or_else(|_| Err(problem::too_slow("taking over the sandboxes", ADOPT)))?;
    for row in rows {
        let (row, found) = with_memory(row, &found);
        let verdict = table::recover(row.summary.state, found);
        let owner = Owner::enter(context.clone(), row);
        tasks.spawn(owner.run(Begin::Recovered(verdict)));
    }
    Ok(())
}

fn is_kept(state: SandboxState) -> bool {
    match state {
        SandboxState::Active
        | SandboxState::Pausing
        | SandboxState::Paused
        | SandboxState::Resuming
        | SandboxState::Failed => true,
        SandboxState::Starting | SandboxState::Deleted => false,
    }
}

/// A machine that is there has its memory, also when it had just been booted.
fn with_memory(mut row: SandboxRow, found: &BTreeMap<SandboxId, Found>) -> (SandboxRow, Found) {
    let found = found.get(&row.summary.id).copied().unwrap_or(Found::Nothing);
    if matches!(found, Found::Running | Found::Frozen) {
        row.memory_kept = true;
    }
    (row, found)
}

/// Passes on what the host says of machines that ended.
pub(crate) async fn watch_exits(context: Arc<Context>) {
    let mut exits = context.host.exits();
    loop {
        let id = tokio::select! {
            () = context.stop.cancelled() => return,
            id = exits.recv() => id,
        };
        let Some(id) = id else { return };
        if let Some(owner) = context.owner(id) {
            // An owner that has just ended has nothing left to lose.
            let _gone = owner.inbox.send(Message::Exited).await;
        }
    }
}
