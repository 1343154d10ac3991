//! The runtime's command line, one function per call.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use domain::SandboxId;
use driver::DriverError;
use driver_port::Side;
use tokio::process::Child;

use super::platform::Platform;
use crate::machine::HostDir;
use crate::sys::{self, Namespaces};

/// Starting takes some 200 ms, on a busy host seconds; a restore reads the guest's memory besides.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The sentry's control answers at once; its tasks stop when they next enter the kernel.
const CONTROL_LIMIT: Duration = Duration::from_secs(10);
/// What is kept of the runtime's own words on a failure, bytes.
const DETAIL_BYTES: usize = 1_024;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The runtime for one machine.
#[derive(Debug)]
pub(super) struct Runsc {
    program: PathBuf,
    root: PathBuf,
}

/// On the command line of everything that belongs to one machine.
pub(super) fn root_argument(root: &Path) -> String {
    format!("--root={}", root.display())
}

/// Which release is installed: a checkpoint can be read by the one that wrote it.
pub(super) async fn release(program: &Path) -> Result<String, DriverError> {
    let mut command = tokio::process::Command::new(program);
    command.arg("--version").env_clear().stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = driver_port::limited("asking gVisor for its release", CONTROL_LIMIT, async {
        command.output().await.map_err(DriverError::io("start gVisor's runtime"))
    });
    let text = String::from_utf8_lossy(&output.await?.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).ok_or_else(|| {
        DriverError::Engine { what: "asking gVisor for its release", detail: "it says nothing".to_owned() }
    })
}

/// Nowhere, for a sandbox's standard descriptors: the runtime gives them to the sentry's user, the device behind them included, so it must
/// not be the host's.
pub(super) fn nothing(null: &Path) -> Result<Stdio, DriverError> {
    let opened = std::fs::File::options().read(true).write(true).open(null);
    opened.map(Stdio::from).map_err(DriverError::io("open gVisor's null device"))
}

impl Runsc {
    pub(super) fn new(program: &Path, root: &Path) -> Self {
        Self { program: program.to_owned(), root: root.to_owned() }
    }

    fn command(&self, log: &Path) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        command
            .arg(root_argument(&self.root))
            .arg(format!("--log={}", log.display()))
            .arg("--log-format=json")
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Creates a sandbox and starts its first process, or continues it from a checkpoint; the sentry's process id.
    pub(super) async fn start(
        &self,
        id: SandboxId,
        host: &HostDir,
        platform: Platform,
        from: Option<&Path>,
        (side, messages): (Side, Stdio),
        namespaces: Namespaces,
    ) -> Result<i32, DriverError> {
        let mut command = self.command(&host.log());
        command
            .arg(format!("--platform={}", platform.name()))
            // Its own network stack on the link's device; files from the gofer, none in memory, no sockets of the host's.
            .args(["--network=sandbox", "--net-raw=false", "--overlay2=none", "--host-uds=none"])
            .args(["--file-access=exclusive", "--cpu-num-from-quota"]);
        match from {
            None => command.arg("run"),
            Some(checkpoint) => command.arg("restore").arg(format!("--image-path={}", checkpoint.display())),
        };
        command
            .args(["--detach", "--bundle"])
            .arg(host.bundle())
            .arg("--pid-file")
            .arg(host.pid_file())
            .arg(id.to_string())
            // The agent's; its messages go nowhere.
            .stdin(side.input)
            .stdout(side.output)
            .stderr(messages);
        sys::enter(&mut command, namespaces);
        self.finish("starting the sandbox", command, &host.log(), START_LIMIT).await?;
        let pid = std::fs::read_to_string(host.pid_file());
        pid.ok().and_then(|text| text.trim().parse().ok()).ok_or(DriverError::Gone)
    }

    /// Has the sentry hold all tasks of the guest. It listens for orders in its own network namespace. Nobody ends such an order: what
    /// the sentry has heard it does, and only a client that lives records it. Without a sentry it ends by itself.
    pub(super) async fn pause(&self, id: SandboxId, log: &Path, sentry: OwnedFd) -> Result<(), DriverError> {
        let mut command = self.inside(log, sentry);
        command.kill_on_drop(false);
        command.args(["pause", &id.to_string()]);
        self.finish("holding the sandbox", command, log, CONTROL_LIMIT).await
    }

    /// Lets them go on; the same.
    pub(super) async fn resume(&self, id: SandboxId, log: &Path, sentry: OwnedFd) -> Result<(), DriverError> {
        let mut command = self.inside(log, sentry);
        command.kill_on_drop(false);
        command.args(["resume", &id.to_string()]);
        self.finish("letting the sandbox go on", command, log, CONTROL_LIMIT).await
    }

    /// Begins to write memory and state. The sandbox is of no use afterwards, whether that works or not, and nobody ends it half-way.
    pub(super) fn begin_checkpoint(
        &self,
        id: SandboxId,
        log: &Path,
        sentry: OwnedFd,
        to: &Path,
    ) -> Result<Child, DriverError> {
        let mut command = self.inside(log, sentry);
        command.kill_on_drop(false);
        command.arg("checkpoint").arg(format!("--image-path={}", to.display())).arg(id.to_string());
        self.spawn(command)
    }

    fn inside(&self, log: &Path, sentry: OwnedFd) -> tokio::process::Command {
        let mut command = self.command(log);
        sys::enter(&mut command, Namespaces::of_control(sentry));
        command
    }

    async fn finish(
        &self,
        what: &'static str,
        command: tokio::process::Command,
        log: &Path,
        limit: Duration,
    ) -> Result<(), DriverError> {
        // What is there already others have said.
        let said = std::fs::metadata(log).map_or(0, |log| log.len());
        let mut child = self.spawn(command)?;
        let status = driver_port::limited(what, limit, async {
            child.wait().await.map_err(DriverError::io("wait for gVisor's runtime"))
        })
        .await?;
        if status.success() {
            return Ok(());
        }
        let log = std::fs::read(log).unwrap_or_default();
        let log = usize::try_from(said).ok().and_then(|said| log.get(said..)).unwrap_or_default();
        let tail = String::from_utf8_lossy(&log[log.len().saturating_sub(DETAIL_BYTES)..]).into_owned();
        Err(DriverError::Engine { what, detail: format!("{status}: {}", tail.trim()) })
    }

    /// When it returns nobody here holds the guest's ends of the pipes any more.
    fn spawn(&self, mut command: tokio::process::Command) -> Result<Child, DriverError> {
        command.spawn().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                DriverError::Missing { program: self.program.display().to_string() }
            }
            _ => DriverError::Io { what: "start gVisor's runtime", source },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_is_judged_by_its_own_words() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::write(&log, "in state running\n").unwrap();
        let runsc = Runsc::new(Path::new("sh"), dir.path());
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", "echo another word >> \"$0\"; exit 1"]).arg(&log);
        let error = runsc.finish("trying", command, &log, CONTROL_LIMIT).await.unwrap_err().to_string();
        assert!(error.contains("another word") && !error.contains("in state running"), "{error}");
    }

    #[tokio::test]
    async fn an_order_that_takes_too_long_is_not_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (log, done) = (dir.path().join("log"), dir.path().join("done"));
        let runsc = Runsc::new(Path::new("sh"), dir.path());
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", "sleep 0.3; touch \"$0\""]).arg(&done).kill_on_drop(false);
        let late = runsc.finish("trying", command, &log, Duration::from_millis(50)).await;
        assert!(matches!(late, Err(DriverError::Timeout { .. })), "{late:?}");
        for _ in 0..500 {
            if done.exists() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("it was ended");
    }
}
