//! What every engine must do, whatever it is made of. An engine's own tests prepare a root file system and a link, and
//! call [`run`]; a broken promise panics with the promise in words.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Driver, DriverError, Machine, MachineSpec, Power, exited};

/// An agent answers within milliseconds where nothing is emulated, within this where everything is.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Long enough for a machine that ran to answer, had it run.
const SILENCE: Duration = Duration::from_millis(200);
/// A machine that ended is noticed at once; the margin is for a busy host.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// Runs all cases, one after the other, on machines of one description, which must not exist yet.
///
/// # Panics
/// The engine does not do what [`Driver`] and [`Machine`] promise.
pub async fn run(driver: &dyn Driver, spec: &MachineSpec) {
    nothing_is_there(driver, spec).await;
    a_life(driver, spec).await;
    a_freeze(driver, spec).await;
    a_restart_of_the_server(driver, spec).await;
    an_end_of_its_own(driver, spec).await;
    a_purge(driver, spec).await;
    a_failed_start(driver, spec).await;
    nothing_is_there(driver, spec).await;
}

async fn nothing_is_there(driver: &dyn Driver, spec: &MachineSpec) {
    let found = driver.recover(spec).await;
    assert!(found.is_ok_and(|found| found.is_none()), "recover finds nothing where nothing is");
    for _ in 0..2 {
        let purged = driver.purge(spec.id, &spec.run_dir).await;
        assert!(purged.is_ok(), "purge of nothing does nothing: {purged:?}");
    }
    assert!(entries(&spec.run_dir).is_empty(), "the run directory is empty: {:?}", entries(&spec.run_dir));
}

async fn a_life(driver: &dyn Driver, spec: &MachineSpec) {
    let machine = create(driver, spec).await;
    answers(machine.as_ref()).await;
    assert_eq!(machine.power().await.ok(), Some(Power::Running), "a new machine runs");
    let usage = machine.usage().await.unwrap_or_default();
    assert!(usage.pids >= 1 && usage.memory_bytes > 0, "a running machine uses something: {usage:?}");
    let exit = machine.exit_fd().ok();
    for _ in 0..2 {
        let destroyed = machine.destroy().await;
        assert!(destroyed.is_ok(), "destroy, and again: {destroyed:?}");
    }
    let Some(exit) = exit else { panic!("a machine has an exit descriptor") };
    let ended = tokio::time::timeout(EXIT_LIMIT, exited(exit)).await;
    assert!(matches!(ended, Ok(Ok(()))), "the exit descriptor tells of a destroy");
    assert!(matches!(machine.agent().await, Err(DriverError::Gone)), "no stream into what is gone");
    assert!(matches!(machine.usage().await, Err(DriverError::Gone)), "no use of what is gone");
    assert!(matches!(machine.freeze().await, Err(DriverError::Gone)), "no freezing of what is gone");
}

async fn a_freeze(driver: &dyn Driver, spec: &MachineSpec) {
    let machine = create(driver, spec).await;
    for _ in 0..2 {
        for _ in 0..2 {
            assert!(machine.freeze().await.is_ok(), "freeze, and again");
        }
        assert_eq!(machine.power().await.ok(), Some(Power::Frozen), "a frozen machine says so");
        let answer = tokio::time::timeout(SILENCE, ask(machine.as_ref())).await;
        assert!(!matches!(answer, Ok(Ok(()))), "a frozen machine does not answer");
        for _ in 0..2 {
            assert!(machine.thaw().await.is_ok(), "thaw, and again");
        }
        assert_eq!(machine.power().await.ok(), Some(Power::Running), "a thawed machine runs");
        answers(machine.as_ref()).await;
    }
    assert!(machine.freeze().await.is_ok(), "freeze");
    assert!(machine.destroy().await.is_ok(), "a frozen machine can be destroyed");
}

async fn a_restart_of_the_server(driver: &dyn Driver, spec: &MachineSpec) {
    drop(create(driver, spec).await);
    let Ok(Some(machine)) = driver.recover(spec).await else { panic!("a machine outlives its handle") };
    answers(machine.as_ref()).await;
    assert!(machine.freeze().await.is_ok(), "freeze");
    let Ok(Some(again)) = driver.recover(spec).await else { panic!("a frozen machine is found too") };
    assert_eq!(again.power().await.ok(), Some(Power::Frozen), "recover changes nothing");
    assert!(again.thaw().await.is_ok(), "a recovered machine can be thawed");
    answers(again.as_ref()).await;
    assert!(again.destroy().await.is_ok(), "a recovered machine can be destroyed");
    assert!(machine.destroy().await.is_ok(), "through both handles");
}

async fn an_end_of_its_own(driver: &dyn Driver, spec: &MachineSpec) {
    let machine = create(driver, spec).await;
    let Ok(exit) = machine.exit_fd() else { panic!("a machine has an exit descriptor") };
    let waiting = tokio::time::timeout(SILENCE, exited(exit)).await;
    assert!(waiting.is_err(), "the exit descriptor is silent while the machine runs");
    let Ok(exit) = machine.exit_fd() else { panic!("more than once") };
    let (ended, destroyed) = tokio::join!(tokio::time::timeout(EXIT_LIMIT, exited(exit)), machine.destroy());
    assert!(matches!(ended, Ok(Ok(()))) && destroyed.is_ok(), "whoever waits is told");
}

async fn a_purge(driver: &dyn Driver, spec: &MachineSpec) {
    let machine = create(driver, spec).await;
    for _ in 0..2 {
        assert!(driver.purge(spec.id, &spec.run_dir).await.is_ok(), "purge of a running machine, and again");
    }
    assert!(matches!(machine.agent().await, Err(DriverError::Gone)), "a purged machine is gone");
}

async fn a_failed_start(driver: &dyn Driver, spec: &MachineSpec) {
    let broken = MachineSpec { agent: PathBuf::from("/nonexistent/agent"), ..spec.clone() };
    assert!(driver.create(&broken).await.is_err(), "no machine without an agent");
    assert!(entries(&spec.run_dir).is_empty(), "a failed start leaves nothing: {:?}", entries(&spec.run_dir));
}

async fn create(driver: &dyn Driver, spec: &MachineSpec) -> std::sync::Arc<dyn Machine> {
    match driver.create(spec).await {
        Ok(machine) => machine,
        Err(error) => panic!("a machine can be made, as often as one was removed: {error}"),
    }
}

async fn answers(machine: &dyn Machine) {
    let answer = tokio::time::timeout(ANSWER_LIMIT, ask(machine)).await;
    assert!(matches!(answer, Ok(Ok(()))), "the agent answers: {answer:?}");
}

/// One exchange with the agent, over a stream of its own.
async fn ask(machine: &dyn Machine) -> std::io::Result<()> {
    let mut stream = machine.agent().await.map_err(std::io::Error::other)?;
    stream.write_all(b"GET /_agent/health HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n").await?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await?;
    if &answer == b"HTTP/1.1 200" {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&answer).into_owned()))
}

fn entries(dir: &std::path::Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The agent as guests need it, statically linked: from `SUPERSERVE_AGENT`, or built here.
///
/// # Panics
/// It cannot be built.
#[must_use]
pub fn agent() -> PathBuf {
    if let Some(path) = std::env::var_os("SUPERSERVE_AGENT") {
        return path.into();
    }
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .current_dir(workspace)
        .args(["build", "--quiet", "-p", "agent", "--target", &target])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let target_dir =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    target_dir.join(target).join("debug/superserve-agent")
}
