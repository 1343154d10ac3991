//! Saving sandboxes. The sandbox's owner does it, one snapshot after the other: it writes the row, has the host make a layer
//! of what was written (an active machine stands still while that is read), and writes what became of it. The
//! layer is held in the store until the row refers to it. Where the engine keeps memory, the host keeps all of the sandbox
//! instead, under the snapshot's id: what no ready row names is removed at the next start.
//!
//! A snapshot belongs to nobody afterwards: it is read, renamed and deleted here, without the sandbox.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use activity::{Action as Done, Caller, Entry};
use domain::{
    Action, Captured, Code, MAX_LAYERS, NextStep, Problem, SandboxId, SandboxState, SnapshotId,
    SnapshotStatus, TeamId,
};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use node::{CapturedLayer, Extent, Host, Kept, SandboxSpec, Saved as SavedByHost};
use store::{Page, SandboxRow, SnapshotBegun, SnapshotRemoved, SnapshotRow, Store};
use templates::{Adding, LayerStore, TemplateError};
use tokio_util::sync::CancellationToken;

use crate::machine;
use crate::owner::REWRITE_EVERY;
use crate::problem;
use crate::service::Lifecycle;
use crate::table::Operation;
use crate::transition::Change;

/// A full disk of 64 GiB is read and written in less on any disk worth using.
const SAVE: Duration = Duration::from_secs(10 * 60);

/// What a snapshot is asked to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Checked by [`domain::snapshot_name`].
    pub name: Option<String>,
    /// Checked by [`domain::idempotency_key`].
    pub idempotency_key: Option<String>,
}

/// A snapshot that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    /// This call made it; it may still be being saved.
    New(SnapshotRow),
    /// An earlier call with the same key did.
    Before(SnapshotRow),
}

/// A wish on its way to the owner, who notes which snapshot came of it.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) new: NewSnapshot,
    pub(crate) begun: OnceLock<SnapshotId>,
}

impl Lifecycle {
    /// Saves a sandbox as it is, active or paused. When that takes long, what is returned is still `creating`.
    ///
    /// # Errors
    /// `not_found`; `bad_request` when the engine cannot; `conflict` in another state; `gone` for the key of a snapshot that was deleted; a quota's code, or
    /// what the host says.
    pub async fn snapshot(
        &self,
        by: impl Into<Caller>,
        id: SandboxId,
        new: NewSnapshot,
    ) -> Result<Saved, Problem> {
        let by = by.into();
        let team = by.team;
        let engine = self.find(team, id)?.view.borrow().summary.engine;
        if let Some(known) = self.replayed(id, &new).await? {
            return Ok(known);
        }
        self.context.host.can_start(id, engine)?;
        if !self.context.host.captures(engine) && !self.context.host.keeps_memory(engine) {
            return Err(problem::no_saving(engine));
        }
        let wish = Arc::new(Wish { new, begun: OnceLock::new() });
        let change = Some(Change::Save(Arc::clone(&wish)));
        let (owner, answer) = self.ask(by, id, Operation::Snapshot, change).await?;
        let answered = match tokio::time::timeout(self.save_wait, answer).await {
            Ok(Ok(answer)) => answer.map(|_| true)?,
            Ok(Err(_)) if owner.view.borrow().summary.state == SandboxState::Deleted => {
                return Err(Problem::no_such_sandbox(id));
            }
            Ok(Err(_)) => return Err(problem::stopping()),
            Err(_) => false,
        };
        match (wish.begun.get(), answered) {
            (Some(snapshot), _) => {
                let row = self.context.store.snapshot_get(team, *snapshot).await?;
                Ok(Saved::New(row.ok_or_else(|| problem::no_such_snapshot(*snapshot))?))
            }
            // Somebody else's, with the same key, began first.
            (None, true) => {
                let known = self.replayed(id, &wish.new).await?;
                known.ok_or_else(|| problem::still_busy(Operation::Snapshot, &owner.view.borrow()))
            }
            (None, false) => Err(problem::still_busy(Operation::Snapshot, &owner.view.borrow())),
        }
    }

    async fn replayed(&self, id: SandboxId, new: &NewSnapshot) -> Result<Option<Saved>, Problem> {
        let Some(key) = &new.idempotency_key else { return Ok(None) };
        match self.context.store.snapshot_replay(id, key).await? {
            Some(SnapshotBegun::Known(row)) => Ok(Some(Saved::Before(*row))),
            Some(_) => Err(problem::snapshot_gone()),
            None => Ok(None),
        }
    }

    /// One snapshot.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn snapshot_get(&self, team: TeamId, id: SnapshotId) -> Result<SnapshotRow, Problem> {
        let row = self.context.store.snapshot_get(team, id).await?;
        row.ok_or_else(|| problem::no_such_snapshot(id))
    }

    /// Snapshots of a sandbox, which may be gone, newest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_list(
        &self,
        team: TeamId,
        sandbox: SandboxId,
        limit: Option<u32>,
        offset: u64,
    ) -> Result<Page<SnapshotRow>, Problem> {
        Ok(self.context.store.snapshot_list(team, sandbox, limit, offset).await?)
    }

    /// Gives a snapshot another name.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn snapshot_rename(
        &self,
        by: impl Into<Caller>,
        id: SnapshotId,
        name: &str,
    ) -> Result<SnapshotRow, Problem> {
        let by = by.into();
        let row = self.context.store.snapshot_rename(by.team, id, name).await?;
        let row = row.ok_or_else(|| problem::no_such_snapshot(id))?;
        self.note_snapshot(Done::SnapshotRenamed, by, &row);
        Ok(row)
    }

    /// Removes a snapshot. Sandboxes made from it are not concerned.
    ///
    /// # Errors
    /// `not_found`; `conflict` while it is being saved.
    pub async fn snapshot_delete(&self, by: impl Into<Caller>, id: SnapshotId) -> Result<(), Problem> {
        let by = by.into();
        match self.context.store.snapshot_remove(by.team, id).await? {
            SnapshotRemoved::Removed(row) => {
                self.note_snapshot(Done::SnapshotDeleted, by, &row);
                forget(&*self.context.host, &row).await;
                Ok(())
            }
            SnapshotRemoved::Creating => Err(problem::still_saving(id)),
            SnapshotRemoved::Absent => Err(problem::no_such_snapshot(id)),
        }
    }

    fn note_snapshot(&self, action: Done, by: Caller, row: &SnapshotRow) {
        let name = self.row(row.sandbox).map(|row| row.summary.name.clone()).unwrap_or_default();
        let sandbox = Some((row.sandbox, name));
        let entry = Entry { sandbox, template: row.template, ..Entry::new(action, by) };
        self.context.activity.record(with_facts(row, entry));
    }
}

/// What the activity log has of a snapshot.
pub(crate) fn with_facts(row: &SnapshotRow, entry: Entry) -> Entry {
    let mut facts = vec![("snapshot_id", row.id.to_string().into())];
    facts.extend(row.name.as_ref().map(|name| ("snapshot_name", name.as_str().into())));
    Entry { facts, ..entry }
}

/// Removes what the host has kept of a snapshot that is gone, or that came to nothing.
pub(crate) async fn forget(host: &dyn Host, row: &SnapshotRow) {
    if row.captured == Captured::MemoryAndDisk
        && let Err(left) = host.forget(row.id).await
    {
        tracing::error!(snapshot = %row.id, cause = left.chain(), "cannot remove a snapshot's memory; the next start does");
    }
}

/// What can be saved of a sandbox; `None` when its memory is lost and its disk is for its engine alone.
pub(crate) fn captured(host: &dyn Host, row: &SandboxRow) -> Option<Captured> {
    let has_memory = row.summary.state == SandboxState::Active || row.memory_kept;
    let engine = row.summary.engine;
    if has_memory && host.keeps_memory(engine) {
        return Some(Captured::MemoryAndDisk);
    }
    host.captures(engine).then_some(Captured::Disk)
}

/// The row of a snapshot that is to be saved now: everything its forks will get, but for what is being written.
pub(crate) fn begun(
    row: &SandboxRow,
    new: &NewSnapshot,
    captured: Captured,
    bindings: Bindings,
) -> SnapshotRow {
    SnapshotRow {
        id: SnapshotId::new(),
        team: row.team,
        sandbox: row.summary.id,
        template: row.template,
        parent: row.summary.source_snapshot,
        name: new.name.clone(),
        status: SnapshotStatus::Creating,
        captured,
        idempotency_key: new.idempotency_key.clone(),
        shape: row.summary.shape,
        engine: row.summary.engine,
        layers: row.layers.clone(),
        defaults: row.defaults.clone(),
        network: row.summary.network.clone(),
        timeout_seconds: row.summary.timeouts.timeout_seconds,
        env: row.env.clone(),
        bindings,
        size_bytes: 0,
        created_at: Timestamp::now(),
        ready_at: None,
    }
}

pub(crate) type Bindings = std::collections::BTreeMap<String, domain::SecretId>;

/// Refuses what the quotas do not permit.
pub(crate) fn permitted(begun: SnapshotBegun) -> Result<Option<SnapshotRow>, Problem> {
    match begun {
        SnapshotBegun::Applied(row) => Ok(Some(*row)),
        SnapshotBegun::Known(_) => Ok(None),
        SnapshotBegun::Gone => Err(problem::snapshot_gone()),
        SnapshotBegun::TooMany => Err(problem::too_many_snapshots("your team", domain::MAX_SNAPSHOTS)),
        SnapshotBegun::TooManyOfSandbox => {
            Err(problem::too_many_snapshots("this sandbox", domain::MAX_SNAPSHOTS_OF_SANDBOX))
        }
        SnapshotBegun::TooManyInFlight => {
            let most = domain::MAX_SNAPSHOTS_IN_FLIGHT;
            let message = format!("your team saves as many snapshots at once as it may ({most})");
            let next = NextStep::Do(Action::WaitForSnapshot);
            Err(Problem::new(Code::TooManySnapshotsInFlight, message, next))
        }
    }
}

/// What a fork stands on.
#[derive(Debug)]
pub(crate) struct Layers {
    pub(crate) digests: Vec<String>,
    pub(crate) size_bytes: u64,
}

/// How a save ended.
#[derive(Debug)]
pub(crate) struct SaveOutcome {
    pub(crate) layers: Result<Layers, Problem>,
    /// The machine could not be made to run again.
    pub(crate) stuck: Option<Problem>,
    /// Held until a row refers to the layers.
    pub(crate) adding: Option<Adding>,
}

pub(crate) type Saving = BoxFuture<'static, SaveOutcome>;

/// Has the host keep all of it.
pub(crate) fn keep(
    host: Arc<dyn Host>,
    spec: SandboxSpec,
    snapshot: SnapshotId,
    state: SandboxState,
    stop: CancellationToken,
) -> Saving {
    Box::pin(async move {
        let given_up = tokio::select! {
            kept = tokio::time::timeout(SAVE, host.keep(&spec, snapshot)) => match kept {
                Ok(Kept { size_bytes, stuck }) => {
                    let layers = size_bytes.map(|size_bytes| Layers { digests: spec.layers, size_bytes });
                    return SaveOutcome { layers, stuck, adding: None };
                }
                Err(_) => problem::too_slow("saving the sandbox", SAVE),
            },
            () = stop.cancelled() => problem::stopping(),
        };
        let runs = state == SandboxState::Active;
        let stuck = if runs { machine::run_again(&*host, &spec).await.err() } else { None };
        SaveOutcome { layers: Err(given_up), stuck, adding: None }
    })
}

/// Has the host make a layer. A machine that ran runs again afterwards, whatever happened in between.
pub(crate) fn save(
    host: Arc<dyn Host>,
    store: LayerStore,
    spec: SandboxSpec,
    state: SandboxState,
    stop: CancellationToken,
) -> Saving {
    Box::pin(async move {
        let failed = |why: Problem| SaveOutcome { layers: Err(why), stuck: None, adding: None };
        // It waits for whoever removes layers, who waits for the database: never on a thread of the runtime.
        let layers = store.clone();
        let adding = match blocking(move || layers.adding()).await {
            Ok(adding) => adding,
            Err(why) => return failed(why),
        };
        // One layer more; or one instead of all, when there would be too many.
        let extent = if spec.layers.len() < MAX_LAYERS { Extent::Written } else { Extent::Everything };
        let given_up = tokio::select! {
            saved = tokio::time::timeout(SAVE, host.save(&spec, extent)) => match saved {
                Ok(SavedByHost { layer, stuck }) => {
                    let layers = match layer {
                        Ok(layer) => kept(store, &adding, layer).await,
                        Err(why) => Err(why),
                    };
                    let layers = layers.map(|layer| stacked(&spec.layers, extent, layer));
                    return SaveOutcome { layers, stuck, adding: Some(adding) };
                }
                Err(_) => problem::too_slow("saving the sandbox", SAVE),
            },
            () = stop.cancelled() => problem::stopping(),
        };
        let runs = state == SandboxState::Active;
        let stuck = if runs { machine::run_again(&*host, &spec).await.err() } else { None };
        SaveOutcome { stuck, ..failed(given_up) }
    })
}

/// Notes for whom the host has made the layer: until now that was known to nobody.
async fn kept(
    store: LayerStore,
    adding: &Adding,
    layer: Option<CapturedLayer>,
) -> Result<Option<CapturedLayer>, Problem> {
    let Some(layer) = layer else { return Ok(None) };
    let (store, digest) = (store.used_by(adding), layer.digest.clone());
    if blocking(move || store.keep(&digest)).await? {
        Ok(Some(layer))
    } else {
        Err(Problem::internal("the saved layer was removed before it could be used", "no such layer"))
    }
}

/// For what waits for locks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TemplateError> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(Problem::from),
        Err(error) => Err(Problem::internal("waiting for the layers ended early", error)),
    }
}

/// What a fork stands on, lowest first.
fn stacked(below: &[String], extent: Extent, layer: Option<CapturedLayer>) -> Layers {
    let size_bytes = layer.as_ref().map_or(0, |layer| layer.size_bytes);
    let below = match extent {
        Extent::Written => below,
        Extent::Everything => &[],
    };
    let digests = below.iter().cloned().chain(layer.map(|layer| layer.digest)).collect();
    Layers { digests, size_bytes }
}

/// Writes what became of a snapshot, however long that takes.
pub(crate) async fn write_end(
    store: &Store,
    stop: &CancellationToken,
    id: SnapshotId,
    layers: Result<Layers, Problem>,
) -> Result<(), Problem> {
    loop {
        let written = match &layers {
            Ok(layers) => {
                store.snapshot_ready(id, &layers.digests, layers.size_bytes, Timestamp::now()).await
            }
            Err(_) => store.snapshot_fail(id).await.map(|()| true),
        };
        match written {
            Ok(true) => return layers.map(drop),
            Ok(false) => return Err(Problem::internal("the snapshot was ended by somebody else", "no row")),
            Err(error) => {
                tracing::error!(snapshot = %id, cause = &error as &dyn std::error::Error, "cannot write a snapshot");
            }
        }
        tokio::select! {
            // The next start ends it.
            () = stop.cancelled() => return Err(problem::stopping()),
            () = tokio::time::sleep(REWRITE_EVERY) => {}
        }
    }
}
