//! The machine's part of a step, each call with a limit, and each failure turned into the fact the table knows. Whoever
//! asked for it answers within 30 s, because clients give up then (`spec/rest-api.md` §1.8).

use std::sync::Arc;
use std::time::Duration;

use domain::{Problem, SnapshotId};
use futures_util::future::BoxFuture;
use node::{Host, SandboxSpec};
use secrets::Secrets;
use store::SandboxRow;

use crate::problem;
use crate::table::Event;

/// A start includes making the disk and waiting for the agent.
const CREATE: Duration = Duration::from_secs(25);
/// A boot is a start on a disk that is there.
const BOOT: Duration = Duration::from_secs(25);
/// Freezing waits for processes inside system calls.
const FREEZE: Duration = Duration::from_secs(15);
/// Thawing ends with the agent answering.
const THAW: Duration = Duration::from_secs(15);
/// Undoing half a freeze or thaw: what is left of the 30 s, with some air.
const UNDO: Duration = Duration::from_secs(8);
/// A change of rules or variables is one of memory, and of nothing on the disk.
const APPLY: Duration = Duration::from_secs(5);
/// Killing, unmounting and removing the files of a full disk.
const DESTROY: Duration = Duration::from_secs(25);

/// What became of it, and the reason when it did not work.
pub(crate) type Outcome = (Event, Option<Problem>);
/// A host call in progress.
pub(crate) type Work = BoxFuture<'static, Outcome>;

/// What the host is told about a sandbox. Variables and stand-ins have different names, which creates and attaches check.
pub(crate) fn spec(secrets: &Secrets, row: &SandboxRow) -> SandboxSpec {
    let mut env = row.env.as_map().clone();
    env.extend(secrets.variables(row.summary.id));
    SandboxSpec {
        id: row.summary.id,
        engine: row.summary.engine,
        shape: row.summary.shape,
        layers: row.layers.clone(),
        link: row.link,
        network: row.summary.network.clone(),
        guest: wire::agent::AgentConfig {
            template_env: row.defaults.env.clone(),
            env,
            workdir: row.defaults.workdir.clone(),
            user: row.defaults.user.clone(),
            trust: secrets.trusted(row.summary.id),
            start_cmd: row.defaults.start_cmd.clone(),
            ready_cmd: row.defaults.ready_cmd.clone(),
        },
    }
}

async fn within(
    limit: Duration,
    what: &str,
    call: impl Future<Output = Result<(), Problem>>,
) -> Result<(), Problem> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(problem::too_slow(what, limit)))
}

pub(crate) fn create(
    host: Arc<dyn Host>,
    secrets: &Secrets,
    row: &SandboxRow,
    snapshot: Option<SnapshotId>,
) -> Work {
    let spec = spec(secrets, row);
    let of_template = row.summary.source_snapshot.is_none();
    Box::pin(async move {
        let making = async {
            match snapshot {
                Some(snapshot) => host.fork(&spec, snapshot).await,
                None => host.create(&spec).await,
            }
        };
        match within(CREATE, "starting the sandbox", making).await {
            Ok(()) => {
                if of_template {
                    host.prepare(&spec);
                }
                (Event::Ready, None)
            }
            Err(why) => (Event::NotReady, Some(why)),
        }
    })
}

pub(crate) fn freeze(host: Arc<dyn Host>, secrets: &Secrets, row: &SandboxRow) -> Work {
    let spec = spec(secrets, row);
    Box::pin(async move {
        let Err(why) = within(FREEZE, "pausing the sandbox", host.freeze(spec.id)).await else {
            return (Event::Frozen, None);
        };
        // Half of its processes may stand still: let them go on.
        match within(UNDO, "undoing the pause", host.thaw(&spec)).await {
            Ok(()) => (Event::NotFrozen, Some(why)),
            Err(_) => (Event::Lost, Some(why)),
        }
    })
}

pub(crate) fn carry_on(host: Arc<dyn Host>, secrets: &Secrets, row: &SandboxRow) -> Work {
    let spec = spec(secrets, row);
    if !row.memory_kept {
        return Box::pin(async move {
            match within(BOOT, "booting the sandbox", host.boot(&spec)).await {
                Ok(()) => (Event::Continued, None),
                Err(why) => (Event::NotContinued, Some(why)),
            }
        });
    }
    Box::pin(async move {
        let Err(why) = within(THAW, "resuming the sandbox", host.thaw(&spec)).await else {
            return (Event::Continued, None);
        };
        match within(UNDO, "undoing the resume", host.freeze(spec.id)).await {
            Ok(()) => (Event::NotContinued, Some(why)),
            Err(_) => (Event::Lost, Some(why)),
        }
    })
}

/// Lets a machine run that stood still for a save that was given up.
pub(crate) async fn run_again(host: &dyn Host, spec: &SandboxSpec) -> Result<(), Problem> {
    within(THAW, "continuing the sandbox", host.thaw(spec)).await
}

/// Puts the rules in force; the machine runs.
pub(crate) async fn apply(host: &dyn Host, row: &SandboxRow) -> Result<(), Problem> {
    let id = row.summary.id;
    within(APPLY, "changing the network rules", host.set_network(id, &row.summary.network)).await
}

/// Hands new processes their variables; the machine runs.
pub(crate) async fn configure(host: &dyn Host, secrets: &Secrets, row: &SandboxRow) -> Result<(), Problem> {
    let spec = spec(secrets, row);
    within(APPLY, "changing the variables", host.configure(&spec)).await
}

/// Removes everything of it from the host.
pub(crate) async fn destroy(host: &dyn Host, row: &SandboxRow) -> Result<(), Problem> {
    within(DESTROY, "removing the sandbox", host.destroy(row.summary.id)).await
}
