//! Keeping a sandbox with its memory, and beginning with what was kept (`states`).

use std::sync::Arc;
use std::time::Duration;

use driver::{DriverError, Machine, Power};

use super::{Disk, Sandboxes, Unwanted, blocking};
use crate::error::NodeError;
use crate::host::SandboxSpec;
use crate::place::MountedBy;
use crate::states::{self, Draft, State};
use crate::{agent, paused, problem};

/// What a disk that is worth using writes each second, MiB.
const SLOW_DISK: u64 = 32;
/// Most that writing a memory may take: whoever wants a snapshot waits 10 minutes (`lifecycle`), and the disk is copied
/// afterwards.
const MOST: Duration = Duration::from_secs(4 * 60);
/// What comes besides the memory.
const LEAST: Duration = Duration::from_secs(10);

/// How long the writing of a memory may take.
fn write_limit(memory_bytes: u64) -> Duration {
    LEAST.saturating_add(Duration::from_secs(memory_bytes / (SLOW_DISK * 1024 * 1024))).min(MOST)
}

impl Sandboxes {
    /// Keeps a sandbox as it is. The second part of the answer says whether a machine that ran before runs again. What was kept
    /// is whole once it is committed.
    pub(super) async fn keep(
        &self,
        spec: &SandboxSpec,
        name: &str,
        stop: Unwanted,
    ) -> (Result<Draft, NodeError>, Result<(), NodeError>) {
        match self.machines.get(spec.id) {
            Some(machine) => match machine.power().await {
                Ok(Power::Running) => {
                    let draft = self.keep_machine(spec, name, machine.as_ref(), stop).await;
                    (draft, machine.thaw().await.map_err(NodeError::from))
                }
                Ok(Power::Frozen) => (self.keep_machine(spec, name, machine.as_ref(), stop).await, Ok(())),
                Err(error) => (Err(error.into()), Ok(())),
            },
            None => (self.keep_paused(spec, name, stop).await, Ok(())),
        }
    }

    /// Leaves it frozen.
    pub(super) async fn keep_machine(
        &self,
        spec: &SandboxSpec,
        name: &str,
        machine: &dyn Machine,
        stop: Unwanted,
    ) -> Result<Draft, NodeError> {
        let memory = machine.checkpoint_bytes().await?;
        let draft = self.draft(spec, name, memory).await?;
        machine.checkpoint_within(&draft.checkpoint(), write_limit(memory), &stop).await?;
        self.serves_others(spec, &draft)?;
        self.copy_disk(spec, draft, stop).await
    }

    /// Sandboxes that are not its source continue what is kept.
    fn serves_others(&self, spec: &SandboxSpec, draft: &Draft) -> Result<(), NodeError> {
        let driver = self.engines.get(spec.engine)?;
        driver.serves_others(&draft.checkpoint()).map_err(NodeError::NotStill)
    }

    /// The memory of a paused sandbox lies beside its disk.
    async fn keep_paused(&self, spec: &SandboxSpec, name: &str, stop: Unwanted) -> Result<Draft, NodeError> {
        if !paused::is_saved(&self.place, spec.id) {
            return Err(NodeError::NoMemory);
        }
        let draft = self.draft(spec, name, 0).await?;
        draft.link_checkpoint(&self.place.memory(spec.id))?;
        self.serves_others(spec, &draft)?;
        self.copy_disk(spec, draft, stop).await
    }

    async fn draft(&self, spec: &SandboxSpec, name: &str, memory: u64) -> Result<Draft, NodeError> {
        let (place, room, name) = (self.place.clone(), self.room.clone(), name.to_owned());
        let of = (spec.id, MountedBy::from(self.engines.promises(spec.engine)?));
        blocking(move || Draft::new(&place, &name, of, memory, &room)).await
    }

    async fn copy_disk(&self, spec: &SandboxSpec, draft: Draft, stop: Unwanted) -> Result<Draft, NodeError> {
        let (place, id) = (self.place.clone(), spec.id);
        blocking(move || draft.copy_disk(&place, id, &stop).map(|()| draft)).await
    }

    /// Makes a sandbox that begins with what was kept. On an error nothing of it is left, and the state is as it was.
    pub(super) async fn fork(&self, spec: &SandboxSpec, name: &str) -> Result<(), domain::Problem> {
        let id = spec.id;
        self.engines.get(spec.engine).map_err(|error| problem::of(id, error))?;
        if self.place.has_any(id) {
            self.remove(id).await.map_err(|error| problem::of(id, error))?;
        }
        match self.begin_with(spec, name).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.undo(id, error, true).await),
        }
    }

    pub(super) async fn begin_with(&self, spec: &SandboxSpec, name: &str) -> Result<(), NodeError> {
        let (pair, driver) = (self.check(spec)?, self.engines.get(spec.engine)?);
        let promises = driver.promises();
        let state = State::find(&self.place, name)?;
        if state.mounted_by() != MountedBy::from(promises) {
            let what = "continuing what another isolation engine has kept";
            return Err(NodeError::CannotContinue(DriverError::Unsupported { what }));
        }
        let checkpoint = state.checkpoint();
        let restored = async {
            self.furnish(spec, pair, promises, Disk::Of(state)).await?;
            let machine_spec = self.machine_spec(spec, pair, promises);
            driver.restore(&machine_spec, &checkpoint).await.map_err(cannot_continue)
        };
        let restored = restored.await;
        // Deleted meanwhile: half of it was there no more, which may have looked like anything.
        let restored = restored.map_err(|error| State::find(&self.place, name).err().unwrap_or(error));
        let machine = restored?;
        // From here on it is this sandbox's.
        machine.thaw().await.map_err(cannot_continue)?;
        agent::configure(machine.as_ref(), &spec.guest).await?;
        Ok(self.machines.insert(spec.id, Arc::clone(&machine), promises, pair.guest)?)
    }

    pub(super) async fn forget(&self, name: &str) -> Result<(), NodeError> {
        let (place, name) = (self.place.clone(), name.to_owned());
        blocking(move || states::remove(&place, &name)).await
    }
}

/// What the host lacks, or is too busy for, is told as ever.
fn cannot_continue(error: DriverError) -> NodeError {
    match error {
        DriverError::Missing { .. } | DriverError::Timeout { .. } | DriverError::OtherSetting { .. } => {
            error.into()
        }
        DriverError::Engine { .. }
        | DriverError::Gone
        | DriverError::Unsupported { .. }
        | DriverError::Io { .. } => NodeError::CannotContinue(error),
    }
}

#[cfg(test)]
mod tests {
    use domain::{Code, NextStep, SandboxId};

    use super::*;

    #[test]
    fn what_takes_long_may_as_long_as_its_caller_waits() {
        let gib = |n: u64| n * 1024 * 1024 * 1024;
        assert_eq!(write_limit(0), LEAST);
        assert_eq!(write_limit(gib(4)), LEAST + Duration::from_secs(128));
        assert_eq!((write_limit(gib(64)), write_limit(u64::MAX)), (MOST, MOST));
    }

    #[test]
    fn a_fork_that_fails_says_why() {
        let told = |error| problem::of(SandboxId::new(), error);
        let gone = told(NodeError::NoState);
        assert_eq!(gone.code, Code::NotFound);
        let slow = told(cannot_continue(DriverError::Timeout { what: "loading", limit_ms: 1 }));
        assert_eq!(slow.code, Code::ServiceUnavailable);
        assert!(matches!(slow.next, NextStep::Retry { .. }), "{:?}", slow.next);
        let damaged = told(cannot_continue(DriverError::Gone));
        assert_eq!(damaged.code, Code::Internal);
        let setting = DriverError::OtherSetting { needs: "vm_acceleration = \"kvm\"".to_owned() };
        let setting = told(cannot_continue(setting));
        assert_eq!(setting.code, Code::ServiceUnavailable);
        let NextStep::AskOperator(what) = setting.next else { panic!("{:?}", setting.next) };
        assert!(what.contains("vm_acceleration = \"kvm\"") && what.contains("kept"), "{what}");
    }
}
