//! Paused machines of engines that keep memory: it lies in a directory beside their disk, and nothing of them runs. That survives a restart of
//! server and host alike.
//!
//! ```text
//! frozen ─ checkpoint ─▶ <id>.saving ─ rename ─▶ <id>.mem, machine destroyed ─ restore ─▶ frozen ─ <id>.mem removed ─▶ running
//! ```
//!
//! From the rename until the removal the checkpoint is what the sandbox is: the disk is not written in between, and a machine that is
//! found beside it is a remnant. So a step that fails, or a server that ends half-way, leaves one of the two.

use std::fs::File;
use std::path::PathBuf;

use domain::SandboxId;
use driver::{Machine, Power};

use crate::error::NodeError;
use crate::place::{Place, remove_all};
use crate::{disk, problem};

/// Writes the memory of a machine; `false` when it stays frozen in memory instead.
pub(crate) async fn save(place: &Place, id: SandboxId, machine: &dyn Machine) -> Result<bool, NodeError> {
    let unfinished = unfinished(place, id);
    let written = async {
        let used = machine.usage().await?.memory_bytes / (1024 * 1024);
        disk::check_room(place, used)?;
        forget_unfinished(place, id)?;
        Ok::<_, NodeError>(machine.checkpoint(&unfinished).await?)
    };
    if let Err(error) = written.await {
        drop(remove_all(&unfinished));
        // Paused all the same, unless it is gone.
        if machine.power().await? != Power::Frozen {
            return Err(error);
        }
        let cause = problem::of(id, error).chain();
        tracing::warn!(sandbox = %id, cause, "a paused sandbox stays in memory: it cannot be written to disk");
        return Ok(false);
    }
    std::fs::rename(&unfinished, place.memory(id)).map_err(NodeError::io("keep a checkpoint"))?;
    settle(place).await?;
    Ok(true)
}

fn unfinished(place: &Place, id: SandboxId) -> PathBuf {
    place.disks().join(format!("{id}.saving"))
}

/// Removes what a server left that ended half-way.
pub(crate) fn forget_unfinished(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    remove_all(&unfinished(place, id)).map_err(NodeError::io("remove a checkpoint"))
}

/// What was renamed or removed stays so when the host loses power: a memory must not be lost, nor come back.
async fn settle(place: &Place) -> Result<(), NodeError> {
    let disks = place.disks();
    tokio::task::spawn_blocking(move || File::open(disks)?.sync_all())
        .await
        .map_err(NodeError::Worker)?
        .map_err(NodeError::io("write the list of disks"))
}

/// Whether the memory of a sandbox is on disk.
pub(crate) fn is_saved(place: &Place, id: SandboxId) -> bool {
    place.memory(id).exists()
}

/// The machine is about to run: what is on disk will be the past.
pub(crate) async fn forget(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    // Under that name it is gone as a whole.
    forget_unfinished(place, id)?;
    std::fs::rename(place.memory(id), unfinished(place, id)).map_err(NodeError::io("remove a checkpoint"))?;
    settle(place).await?;
    forget_unfinished(place, id)
}
