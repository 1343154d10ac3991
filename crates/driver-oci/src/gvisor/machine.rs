//! One sandbox of gVisor.
//!
//! A freeze stops sentry and gofer by their cgroup. A checkpoint needs the sentry to run and the guest not to: it *holds* all
//! tasks first, the host looks whether it can be written at all, and only then is it written. This release ends the sandbox when
//! it cannot, so whatever may stand in the way is looked for before, and the machine then stays frozen as it is.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::SandboxId;
use driver::{BoxStream, DriverError, Machine, Power, Usage, process};
use driver_port::{Mark, Pipes, Port, limited};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;
use tokio::sync::Mutex;
use wire::agent::SETTLE_PATH;

use super::gofer;
use super::runsc::{self, Runsc};
use crate::cgroup::Cgroups;
use crate::machine::{EXIT_LIMIT, HostDir, sweep};

/// A flush of what the guest wrote, and a look at two tables; whoever waits longer has a machine that stays in memory.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// The agent of a guest that runs answers within this, asked twice as its port does.
const HEALTH_LIMIT: Duration = Duration::from_secs(12);
/// A machine that uses more stays in memory, bytes: whoever pauses waits some ten seconds, and a slow disk writes this much in them.
/// Once it has begun it is written to the end, however long that takes.
const WRITABLE: u64 = 1024 * 1024 * 1024;
/// In a checkpoint: which release wrote it.
const RELEASE: &str = "release";
/// In a checkpoint: what the runtime writes.
const IMAGE: &str = "checkpoint.img";
const PROCESS: &str = "process.json";
const HELD: &str = "held";

impl HostDir {
    pub(super) fn sentry_root(&self) -> PathBuf {
        self.file("runsc")
    }

    pub(super) fn pid_file(&self) -> PathBuf {
        self.file("pid")
    }

    pub(super) fn proc(&self) -> PathBuf {
        self.file("proc")
    }
}

/// Names the sentry, so that it is found again, and the release that runs it.
pub(super) fn record(host: &HostDir, pid: i32, release: &str) -> Result<(), DriverError> {
    let start = process::start_of(pid).ok_or(DriverError::Gone)?;
    let unfinished = host.file("process.new");
    let record = serde_json::json!({ "pid": pid, "start": start, "release": release });
    std::fs::write(&unfinished, record.to_string())
        .and_then(|()| std::fs::rename(&unfinished, host.file(PROCESS)))
        .map_err(DriverError::io("record the machine's process"))
}

fn read_record(host: &HostDir) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(host.file(PROCESS)).ok()?).ok()
}

fn recorded(host: &HostDir) -> Option<(i32, u64)> {
    let record = read_record(host)?;
    Some((i32::try_from(record.get("pid")?.as_i64()?).ok()?, record.get("start")?.as_u64()?))
}

/// Which release runs the machine, if that is known.
fn recorded_release(host: &HostDir) -> Option<String> {
    Some(read_record(host)?.get("release")?.as_str()?.to_owned())
}

/// Refuses a checkpoint of another release before anything is started.
pub(super) fn check_release(checkpoint: &Path, installed: &str) -> Result<(), DriverError> {
    let wrote =
        std::fs::read_to_string(checkpoint.join(RELEASE)).map_err(DriverError::io("read the checkpoint"))?;
    if wrote == installed {
        return Ok(());
    }
    let detail =
        format!("it was written by {wrote:?}, installed is {installed:?}: install that release to resume it");
    Err(DriverError::Engine { what: "reading the checkpoint", detail })
}

/// A sandbox whose sentry was alive when it was looked at.
#[derive(Debug)]
pub(crate) struct SentryMachine {
    id: SandboxId,
    run_dir: PathBuf,
    host: HostDir,
    process: (i32, u64),
    pidfd: OwnedFd,
    runsc: Runsc,
    program: PathBuf,
    port: Port,
    cgroups: Arc<Cgroups>,
    /// Held while it is being stopped or started: several steps that belong together.
    power: Mutex<()>,
}

impl SentryMachine {
    /// Finds the sentry that was recorded, if it still lives.
    pub(super) fn find(
        id: SandboxId,
        run_dir: &Path,
        program: PathBuf,
        mark: Mark,
        cgroups: Arc<Cgroups>,
    ) -> Result<Option<Self>, DriverError> {
        let Some(host) = HostDir::find(run_dir)? else { return Ok(None) };
        let Some(process) = recorded(&host) else { return Ok(None) };
        let pidfd =
            process::open(process.0, process.1).map_err(DriverError::io("look for the machine's process"))?;
        Ok(pidfd.map(|pidfd| {
            let port = Port::over(Pipes::below(host.by_descriptor()), mark);
            let runsc = Runsc::new(&program, &host.sentry_root());
            let (run_dir, power) = (run_dir.to_owned(), Mutex::default());
            Self { id, run_dir, host, process, pidfd, runsc, program, port, cgroups, power }
        }))
    }

    /// Whether this is the sentry that the record names now.
    pub(super) fn is_recorded(&self) -> bool {
        recorded(&self.host) == Some(self.process) && self.alive().is_ok()
    }

    /// Returns when the agent answers.
    pub(super) async fn wait_ready(&self, limit: Duration) -> Result<(), DriverError> {
        let ended = driver::exited(self.exit_fd()?);
        tokio::select! {
            ready = self.port.ready(limit) => ready.map_err(|error| self.or_gone(error)),
            _ = ended => Err(DriverError::Gone),
        }
    }

    fn alive(&self) -> Result<(), DriverError> {
        process::start_of(self.process.0)
            .filter(|start| *start == self.process.1)
            .map(drop)
            .ok_or(DriverError::Gone)
    }

    /// What failed because the machine has ended is that.
    fn or_gone(&self, error: DriverError) -> DriverError {
        if self.alive().is_err() { DriverError::Gone } else { error }
    }

    /// Has the agent write out what the kernel still keeps, and say whether anything is known to stand in the way.
    async fn settle(&self) -> Result<(), DriverError> {
        let asking = async {
            let failed = || DriverError::io("ask the agent");
            let mut stream = self.port.open().await?;
            let head = format!("PUT {SETTLE_PATH} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.map_err(failed())?;
            let mut answer = [0; b"HTTP/1.1 204".len()];
            stream.read_exact(&mut answer).await.map_err(failed())?;
            match &answer {
                b"HTTP/1.1 204" => Ok(()),
                b"HTTP/1.1 409" => Err(DriverError::Unsupported {
                    what: "writing out a guest with a session, a connection to the outside or a FUSE file system",
                }),
                _ => Err(DriverError::Unsupported { what: "writing out a guest that does not settle" }),
            }
        };
        limited("settling the guest", SETTLE_LIMIT, asking).await
    }

    /// Stops the guest while its kernel runs.
    async fn hold(&self) -> Result<(), DriverError> {
        // Noted first: whoever lets it go on undoes this, also a later server.
        File::create(self.host.file(HELD)).map_err(DriverError::io("note that the machine is held"))?;
        self.runsc.pause(self.id, &self.host.log(), self.exit_fd()?).await
    }

    async fn let_go(&self) -> Result<(), DriverError> {
        let held = self.host.file(HELD);
        if !held.exists() {
            return Ok(());
        }
        let resumed = self.runsc.resume(self.id, &self.host.log(), self.exit_fd()?).await;
        match resumed {
            // It was noted and did not come about: so says a record, which a client that was ended has not written. The guest knows.
            Err(DriverError::Engine { detail, .. }) if detail.contains("in state running") => {
                if limited("asking the agent", HEALTH_LIMIT, self.port.open()).await.is_err() {
                    self.end().await?;
                    return Err(DriverError::Gone);
                }
            }
            other => other?,
        }
        std::fs::remove_file(held).map_err(DriverError::io("note that the machine is not held"))
    }

    /// Whether the host can see anything that cannot be written. To be called while the machine is frozen.
    fn check_files(&self) -> Result<(), DriverError> {
        let looked = self.cgroups.processes(self.id).and_then(|processes| {
            let gofer = gofer::of(&processes).ok_or(io::ErrorKind::NotFound)?;
            gofer::holds_deleted(gofer)
        });
        if looked.map_err(DriverError::io("look at the machine's files"))? {
            return Err(DriverError::Unsupported { what: "writing out a guest that has deleted files open" });
        }
        Ok(())
    }

    /// Makes the machine ready to be written and begins that; an error says why it stays as it is. What can be known before is.
    async fn begin_save(&self, to: &Path) -> Result<(Child, String), DriverError> {
        let release = runsc::release(&self.program).await?;
        check_writable(recorded_release(&self.host).as_deref(), &release, self.usage().await?)?;
        self.cgroups.set_frozen(self.id, false).await?;
        self.let_go().await?;
        self.settle().await?;
        self.hold().await?;
        self.cgroups.set_frozen(self.id, true).await?;
        self.check_files()?;
        DirBuilder::new().mode(0o700).create(to).map_err(DriverError::io("make the checkpoint"))?;
        self.cgroups.set_frozen(self.id, false).await?;
        Ok((self.runsc.begin_checkpoint(self.id, &self.host.log(), self.exit_fd()?, to)?, release))
    }

    /// Without a limit: the sentry ends when it has written, and what it has written is all there is.
    async fn finish_save(&self, mut writing: Child, release: String, to: &Path) -> Result<(), DriverError> {
        let written = writing.wait().await.map_err(DriverError::io("wait for gVisor's runtime"))?;
        if !written.success() {
            // Its words quote what the guest has open.
            let detail = "this release cannot write out something that the guest has".to_owned();
            return Err(DriverError::Engine { what: "writing the sandbox out", detail });
        }
        let to = to.to_owned();
        let synced = tokio::task::spawn_blocking(move || {
            std::fs::write(to.join(RELEASE), release)?;
            // Whoever removes the machine next relies on it.
            for name in [RELEASE, IMAGE] {
                File::open(to.join(name))?.sync_all()?;
            }
            File::open(to)?.sync_all()
        });
        synced.await.map_err(io::Error::other).flatten().map_err(DriverError::io("write the checkpoint"))
    }

    /// Kills the sentry, and returns when it has ended.
    async fn end(&self) -> Result<(), DriverError> {
        process::kill(&self.pidfd).map_err(DriverError::io("kill the machine"))?;
        self.cgroups.release(self.id).map_err(DriverError::io("thaw the machine"))?;
        limited("killing the machine", EXIT_LIMIT, async {
            driver::exited(self.exit_fd()?).await.map_err(DriverError::io("wait for the machine's end"))
        })
        .await
    }
}

/// Refuses a machine before anything is done to it: one that another release would have to read, or one that is too large.
fn check_writable(running: Option<&str>, installed: &str, usage: Usage) -> Result<(), DriverError> {
    if running != Some(installed) {
        return Err(DriverError::Unsupported {
            what: "writing out a guest that another release runs than the one that is installed",
        });
    }
    if usage.memory_bytes > WRITABLE {
        return Err(DriverError::Unsupported {
            what: "writing out a guest with more memory in use than a pause has time for",
        });
    }
    Ok(())
}

#[async_trait]
impl Machine for SentryMachine {
    async fn freeze(&self) -> Result<(), DriverError> {
        let _turn = self.power.lock().await;
        self.alive()?;
        self.cgroups.set_frozen(self.id, true).await.map_err(|error| self.or_gone(error))
    }

    async fn thaw(&self) -> Result<(), DriverError> {
        let _turn = self.power.lock().await;
        self.alive()?;
        self.cgroups.set_frozen(self.id, false).await.map_err(|error| self.or_gone(error))?;
        self.let_go().await.map_err(|error| self.or_gone(error))
    }

    async fn checkpoint(&self, to: &Path) -> Result<(), DriverError> {
        let _turn = self.power.lock().await;
        self.alive()?;
        let (writing, release) = match self.begin_save(to).await {
            Ok(begun) => begun,
            Err(error) => {
                let _not_there = std::fs::remove_dir_all(to);
                let frozen = self.cgroups.set_frozen(self.id, true).await;
                return Err(self.or_gone(frozen.err().unwrap_or(error)));
            }
        };
        let saved = self.finish_save(writing, release, to).await;
        // It has written all or will not: nothing of it may go on beside that.
        let ended = self.end().await;
        let Err(error) = saved else { return Ok(()) };
        tracing::error!(sandbox = %self.id, %error, "a sandbox's memory is lost: it could not be written to disk");
        let _no_checkpoint = std::fs::remove_dir_all(to);
        ended.and(Err(DriverError::Gone))
    }

    async fn power(&self) -> Result<Power, DriverError> {
        self.alive()?;
        self.cgroups.power(self.id)
    }

    async fn agent(&self) -> Result<BoxStream, DriverError> {
        self.alive()?;
        self.port.open().await.map_err(|error| self.or_gone(error))
    }

    async fn usage(&self) -> Result<Usage, DriverError> {
        self.alive()?;
        self.cgroups.usage(self.id)
    }

    fn exit_fd(&self) -> Result<OwnedFd, DriverError> {
        self.pidfd.try_clone().map_err(DriverError::io("copy the process descriptor"))
    }

    async fn destroy(&self) -> Result<(), DriverError> {
        self.end().await?;
        self.port.hang_up().await;
        // A machine of the same sandbox may have been started since.
        if recorded(&self.host).is_none_or(|recorded| recorded == self.process) {
            sweep(self.id, &self.run_dir, &self.cgroups).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_or_read_again_is_refused_before() {
        let using = |memory_bytes| Usage { memory_bytes, ..Usage::default() };
        assert!(check_writable(Some("one"), "one", using(WRITABLE)).is_ok());
        for refused in [
            check_writable(Some("one"), "two", using(1)),
            check_writable(None, "one", using(1)),
            check_writable(Some("one"), "one", using(WRITABLE + 1)),
        ] {
            assert!(matches!(refused, Err(DriverError::Unsupported { .. })), "{refused:?}");
        }
    }
}
