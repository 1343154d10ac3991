//! The runtime's command line, one function per call.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use domain::SandboxId;
use driver::DriverError;

use crate::machine::HostDir;
use crate::sys;

/// Starting takes some 20 ms; under a burst on a small host it has been seen to take seconds, never half a minute.
const RUN_LIMIT: Duration = Duration::from_secs(30);
/// What is kept of the runtime's own words on a failure, bytes.
const DETAIL_BYTES: usize = 2_048;

/// Creates and starts a container, and returns once its first process runs.
pub(crate) async fn run(
    runtime: &Path,
    id: SandboxId,
    host: &HostDir,
    inherited: &[BorrowedFd<'_>],
) -> Result<(), DriverError> {
    let mut command = tokio::process::Command::new(runtime);
    command
        .arg("--root")
        .arg(host.runtime_root())
        .arg("--log")
        .arg(host.log())
        .args(["--log-format", "json", "run", "--detach", "--bundle"])
        .arg(host.bundle())
        .args(["--preserve-fds", &inherited.len().to_string()])
        .arg(id.to_string())
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        // The container's first process keeps these: nothing of ours may be behind them.
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    sys::inherit(&mut command, inherited).map_err(DriverError::io("hand over descriptors"))?;
    let mut child = command.spawn().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => DriverError::Missing { program: runtime.display().to_string() },
        _ => DriverError::Io { what: "start the container runtime", source },
    })?;
    let status = match tokio::time::timeout(RUN_LIMIT, child.wait()).await {
        Ok(status) => status.map_err(DriverError::io("wait for the container runtime"))?,
        Err(_) => {
            let limit_ms = u64::try_from(RUN_LIMIT.as_millis()).unwrap_or(u64::MAX);
            return Err(DriverError::Timeout { what: "the container runtime", limit_ms });
        }
    };
    if status.success() {
        return Ok(());
    }
    let log = std::fs::read(host.log()).unwrap_or_default();
    let tail = &log[log.len().saturating_sub(DETAIL_BYTES)..];
    let detail = format!("{status}: {}", String::from_utf8_lossy(tail).trim());
    Err(DriverError::Engine { what: "starting the container", detail })
}
