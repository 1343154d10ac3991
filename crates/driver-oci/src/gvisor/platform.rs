//! How the sentry gets at what the guest's processes do. A device that exists says nothing, so a platform is tried: a sandbox
//! with the agent alone must run on it. What has been found is kept for as long as runtime and kernel are the same; where a better one gave
//! no answer in time, for a day.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use driver::{DriverError, process};

use super::runsc;

/// A sandbox is there and gone within half a second; one on a device that only pretends may hang.
const PROOF_LIMIT: Duration = Duration::from_secs(5);
/// What the agent answers when it is called by nobody it knows.
const USAGE: i32 = 2;
const VERDICT: &str = "platform";
/// The last line of a verdict that was reached past a platform without an answer.
const DOUBTFUL: &str = "doubtful";
/// So long such a platform is not tried again, which costs [`PROOF_LIMIT`]: it hangs, or the host was busy.
const DOUBT: Duration = Duration::from_secs(24 * 60 * 60);
const PROOF: &str = "proof";

/// In the order of preference; the last runs everywhere.
const ALL: [Platform; 3] = [Platform::Systrap, Platform::Kvm, Platform::Ptrace];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Platform {
    Kvm,
    Systrap,
    Ptrace,
}

impl Platform {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Systrap => "systrap",
            Self::Ptrace => "ptrace",
        }
    }
}

/// The best platform that works here.
pub(super) async fn proven(
    program: &Path,
    dir: &Path,
    null: &Path,
    agent: &Path,
) -> Result<Platform, DriverError> {
    let kernel = rustix::system::uname();
    let here = format!("{}\n{}\n", runsc::release(program).await?, kernel.release().to_string_lossy());
    let verdict = dir.join(VERDICT);
    let age = std::fs::metadata(&verdict).and_then(|of| of.modified()).ok().and_then(|at| at.elapsed().ok());
    let text = std::fs::read_to_string(&verdict).unwrap_or_default();
    if let Some(known) = recall(&text, &here, age) {
        return Ok(known);
    }
    let mut certain = true;
    for platform in ALL {
        match try_out(program, dir, null, agent, platform).await? {
            Trial::Works => {
                tracing::info!(platform = platform.name(), "gVisor runs");
                let last = if certain { "" } else { DOUBTFUL };
                // Without it the next start tries again.
                let _kept = std::fs::write(&verdict, format!("{here}{}\n{last}", platform.name()));
                return Ok(platform);
            }
            Trial::Fails => {}
            Trial::NoAnswer => certain = false,
        }
    }
    let detail = "no platform of this release runs a sandbox here".to_owned();
    Err(DriverError::Engine { what: "trying gVisor", detail })
}

/// What a verdict says, if it is one on this host and, being so old, still holds.
fn recall(text: &str, here: &str, age: Option<Duration>) -> Option<Platform> {
    let mut lines = text.strip_prefix(here)?.lines();
    let name = lines.next()?;
    match lines.next() {
        None => {}
        Some(DOUBTFUL) if age.is_some_and(|age| age < DOUBT) => {}
        Some(_) => return None,
    }
    ALL.into_iter().find(|platform| platform.name() == name)
}

/// How one went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    Works,
    Fails,
    /// It hangs, or the host is busy.
    NoAnswer,
}

/// Removes what trials of servers have left that were killed.
pub(super) fn sweep(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(PROOF)?.strip_prefix('-')?.parse().ok());
        if maker.is_some_and(|pid: i32| process::start_of(pid).is_none()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Ends and removes a trial.
fn remove(proof: &Path) -> std::io::Result<()> {
    process::kill_with_argument(Path::new(&runsc::root_argument(&proof.join("runsc"))))?;
    let _may_not_be_there = std::fs::remove_dir_all(proof);
    Ok(())
}

async fn try_out(
    program: &Path,
    dir: &Path,
    null: &Path,
    agent: &Path,
    platform: Platform,
) -> Result<Trial, DriverError> {
    let proof = dir.join(format!("{PROOF}-{}", std::process::id()));
    let made = prepare(&proof, agent).map_err(DriverError::io("prepare a trial of gVisor"));
    let ran = match made {
        Ok(()) => run(program, &proof, null, platform).await,
        Err(error) => Err(error),
    };
    // What a platform that hangs has left.
    remove(&proof).map_err(DriverError::io("end a trial of gVisor"))?;
    ran
}

fn prepare(proof: &Path, agent: &Path) -> std::io::Result<()> {
    let _former = std::fs::remove_dir_all(proof);
    std::fs::DirBuilder::new().mode(0o700).create(proof)?;
    std::fs::create_dir(proof.join("root"))?;
    std::fs::copy(agent, proof.join("root/agent"))?;
    let config = serde_json::json!({
        "ociVersion": "1.0.2",
        "root": { "path": proof.join("root") },
        "process": { "args": ["/agent"], "cwd": "/", "user": { "uid": 0, "gid": 0 } },
        "linux": { "namespaces": [{ "type": "pid" }, { "type": "mount" }, { "type": "network" }] },
    });
    std::fs::write(proof.join("config.json"), config.to_string())
}

/// Whether the agent ran and said so.
async fn run(program: &Path, proof: &Path, null: &Path, platform: Platform) -> Result<Trial, DriverError> {
    let mut command = tokio::process::Command::new(program);
    command
        .arg(runsc::root_argument(&proof.join("runsc")))
        .arg(format!("--platform={}", platform.name()))
        .args(["--network=none", "--ignore-cgroups", "run", "--bundle"])
        .arg(proof)
        // Names a socket that all of this host's share.
        .arg(format!("{PROOF}-{}-{}", platform.name(), std::process::id()))
        .env_clear()
        .stdin(runsc::nothing(null)?)
        .stdout(runsc::nothing(null)?)
        .stderr(runsc::nothing(null)?)
        .kill_on_drop(true);
    let status = tokio::time::timeout(PROOF_LIMIT, command.status()).await;
    Ok(match status {
        Ok(Ok(status)) if status.code() == Some(USAGE) => Trial::Works,
        Ok(_) => Trial::Fails,
        Err(_) => Trial::NoAnswer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_swept_once_its_server_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let [of_gone, of_us, other] = [
            format!("{PROOF}-{}", gone.id()),
            format!("{PROOF}-{}", std::process::id()),
            "proof-x".to_owned(),
        ]
        .map(|name| dir.path().join(name));
        for each in [&of_gone, &of_us, &other] {
            std::fs::create_dir_all(each.join("root")).unwrap();
        }
        sweep(dir.path()).unwrap();
        assert_eq!([of_gone, of_us, other].map(|path| path.exists()), [false, true, true]);
    }

    #[test]
    fn a_verdict_holds_for_one_release_on_one_kernel() {
        let here = "runsc version 1\n6.1.0\n";
        for platform in ALL {
            let said = format!("{here}{}\n", platform.name());
            assert_eq!(recall(&said, here, None), Some(platform));
            let doubtful = format!("{said}{DOUBTFUL}");
            for (age, holds) in [(None, false), (Some(Duration::ZERO), true), (Some(DOUBT), false)] {
                assert_eq!(recall(&doubtful, here, age).is_some(), holds, "{age:?}");
            }
            assert_eq!(recall(&format!("{said}sure"), here, Some(Duration::ZERO)), None);
        }
        for other in ["", "kvm\n", "runsc version 2\n6.1.0\nkvm\n", "runsc version 1\n6.1.0\nxen\n"] {
            assert_eq!(recall(other, here, None), None, "{other}");
        }
    }
}
