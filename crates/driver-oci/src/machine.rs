//! One running container, and its directory on the host.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::SandboxId;
use driver::{BoxStream, DriverError, Machine, Power, Usage, process};
use rustix::fs::{Mode, OFlags};
use tokio::net::UnixStream;

use crate::cgroup::Cgroups;

/// A killed container has been seen to take 100 ms under load; past this something holds it that we cannot break.
pub(crate) const EXIT_LIMIT: Duration = Duration::from_secs(10);
const SOCKET: &str = "agent.sock";

/// `<run_dir>/host`: what the host keeps about one machine, closed to everyone else.
#[derive(Debug)]
pub(crate) struct HostDir {
    path: PathBuf,
    /// Socket paths are limited to 107 bytes; through this descriptor they are short wherever the directory lies.
    fd: OwnedFd,
}

impl HostDir {
    fn path_in(run_dir: &Path) -> PathBuf {
        run_dir.join("host")
    }

    pub(crate) fn create(run_dir: &Path) -> Result<Self, DriverError> {
        let path = Self::path_in(run_dir);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(DriverError::io("make the machine's directory"))?;
        Self::open(path).map_err(DriverError::io("open the machine's directory"))
    }

    fn open(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok(Self { path, fd })
    }

    fn socket(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", self.fd.as_raw_fd()))
    }

    /// Binds the agent's socket; connections queue up from here on.
    pub(crate) fn listen(&self) -> io::Result<UnixListener> {
        let listener = UnixListener::bind(self.socket())?;
        std::fs::set_permissions(self.socket(), PermissionsExt::from_mode(0o600))?;
        Ok(listener)
    }

    pub(crate) fn bundle(&self) -> PathBuf {
        self.path.join("bundle")
    }

    pub(crate) fn runtime_root(&self) -> PathBuf {
        self.path.join("runc")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("runc.log")
    }

    /// The directory of a machine that may not be there.
    pub(crate) fn find(run_dir: &Path) -> Result<Option<Self>, DriverError> {
        match Self::open(Self::path_in(run_dir)) {
            Ok(host) => Ok(Some(host)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DriverError::io("open the machine's directory")(error)),
        }
    }

    /// The directory itself, by a short name that holds as long as this value lives.
    pub(crate) fn by_descriptor(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// A file of one engine's own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn write_bundle(&self, spec: &oci_spec::runtime::Spec) -> Result<(), DriverError> {
        let text = serde_json::to_vec(spec)
            .map_err(|error| DriverError::Io { what: "write the bundle", source: error.into() })?;
        std::fs::create_dir(self.bundle())
            .and_then(|()| std::fs::write(self.bundle().join("config.json"), text))
            .map_err(DriverError::io("write the bundle"))
    }
}

/// A container whose first process was alive when it was looked at.
#[derive(Debug)]
pub(crate) struct OciMachine {
    id: SandboxId,
    run_dir: PathBuf,
    host: HostDir,
    pidfd: OwnedFd,
    cgroups: Arc<Cgroups>,
}

impl OciMachine {
    /// Finds the container that the runtime recorded, if its first process still lives.
    pub(crate) fn find(
        id: SandboxId,
        run_dir: &Path,
        cgroups: Arc<Cgroups>,
    ) -> Result<Option<Self>, DriverError> {
        let Some(host) = HostDir::find(run_dir)? else { return Ok(None) };
        let state = host.runtime_root().join(id.to_string()).join("state.json");
        let Some((pid, start)) = recorded(&state) else { return Ok(None) };
        let pidfd = process::open(pid, start).map_err(DriverError::io("look for the machine's process"))?;
        Ok(pidfd.map(|pidfd| Self { id, run_dir: run_dir.to_owned(), host, pidfd, cgroups }))
    }
}

/// Reads process id and start time from the runtime's record; `None` when there is none (yet).
fn recorded(state: &Path) -> Option<(i32, u64)> {
    let text = std::fs::read(state).ok()?;
    let value: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let pid = value.get("init_process_pid")?.as_i64()?;
    Some((i32::try_from(pid).ok()?, value.get("init_process_start")?.as_u64()?))
}

#[async_trait]
impl Machine for OciMachine {
    async fn freeze(&self) -> Result<(), DriverError> {
        self.cgroups.set_frozen(self.id, true).await
    }

    async fn thaw(&self) -> Result<(), DriverError> {
        self.cgroups.set_frozen(self.id, false).await
    }

    async fn power(&self) -> Result<Power, DriverError> {
        self.cgroups.power(self.id)
    }

    async fn agent(&self) -> Result<BoxStream, DriverError> {
        match UnixStream::connect(self.host.socket()).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Err(DriverError::Gone)
            }
            Err(error) => Err(DriverError::io("connect to the agent")(error)),
        }
    }

    async fn usage(&self) -> Result<Usage, DriverError> {
        self.cgroups.usage(self.id)
    }

    fn exit_fd(&self) -> Result<OwnedFd, DriverError> {
        self.pidfd.try_clone().map_err(DriverError::io("copy the process descriptor"))
    }

    async fn destroy(&self) -> Result<(), DriverError> {
        process::kill(&self.pidfd).map_err(DriverError::io("kill the machine"))?;
        // Where the freezer holds back signals (cgroup v1), the kill takes effect only now.
        self.cgroups.release(self.id).map_err(DriverError::io("thaw the machine"))?;
        let ended = self.cgroups.kill_until(self.id, driver::exited(self.exit_fd()?));
        match tokio::time::timeout(EXIT_LIMIT, ended).await {
            Ok(ended) => ended.map_err(DriverError::io("wait for the machine's end"))?,
            Err(_) => {
                let limit_ms = u64::try_from(EXIT_LIMIT.as_millis()).unwrap_or(u64::MAX);
                return Err(DriverError::Timeout { what: "killing the machine", limit_ms });
            }
        }
        sweep(self.id, &self.run_dir, &self.cgroups).await
    }
}

/// Ends runtimes that an earlier server started for this machine and that still run.
pub(crate) fn end_starters(run_dir: &Path) -> Result<(), DriverError> {
    match HostDir::find(run_dir)? {
        Some(host) => process::kill_with_argument(&host.runtime_root())
            .map(drop)
            .map_err(DriverError::io("end a start that was under way")),
        None => Ok(()),
    }
}

/// Removes what is left of a machine whose recorded process is gone: strays that a half-done start left in its cgroups,
/// the cgroups, the directory.
pub(crate) async fn sweep(id: SandboxId, run_dir: &Path, cgroups: &Cgroups) -> Result<(), DriverError> {
    cgroups.clear(id).await?;
    match std::fs::remove_dir_all(HostDir::path_in(run_dir)) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(DriverError::io("remove the machine's directory")(error)),
    }
}
