//! What a refusal or a failed wait means to a caller.

use std::time::Duration;

use domain::{Action, Code, Engine, NextStep, Problem, SandboxId, SandboxState, SnapshotId, SnapshotStatus};
use secrets::MAX_BINDINGS;
use store::{SandboxRow, SnapshotRow};

use crate::table::Operation;

/// Most snapshots are saved within this.
const SAVING_RETRY: Duration = Duration::from_secs(2);

/// The table said no.
pub(crate) fn refused(code: Code, operation: Operation, row: &SandboxRow) -> Problem {
    let summary = &row.summary;
    if code == Code::NotFound {
        return Problem::no_such_sandbox(summary.id);
    }
    let wish = match operation {
        Operation::Pause => "paused",
        Operation::Resume => "resumed",
        Operation::Activate => "activated",
        Operation::Delete => "deleted",
        Operation::PatchSettings => "changed",
        Operation::PatchNetwork => "given other network rules",
        Operation::Bind => "given other secrets",
        Operation::Snapshot => "saved",
    };
    if code == Code::SnapshotInProgress {
        let next = NextStep::Retry { after: SAVING_RETRY };
        return Problem::new(code, format!("a sandbox that is being saved cannot be {wish}"), next);
    }
    let message = format!("a sandbox that is {} cannot be {wish}", summary.state);
    let next = match (summary.state, operation) {
        (SandboxState::Paused, Operation::PatchNetwork) => NextStep::Do(Action::Resume(summary.id)),
        (SandboxState::Starting | SandboxState::Pausing | SandboxState::Resuming, _) => {
            NextStep::Retry { after: Duration::from_secs(1) }
        }
        _ => NextStep::Do(Action::Inspect(summary.id)),
    };
    Problem::new(code, message, next)
}

/// The variable has a secret already.
pub(crate) fn already_bound(env_key: &str) -> Problem {
    let accepted = "detach the present one first, or choose another variable".to_owned();
    let next = NextStep::Fix { field: "env_key".to_owned(), accepted };
    Problem::new(Code::Conflict, format!("`{env_key}` is bound to a secret already"), next)
}

/// The variable is one of the sandbox's plain ones.
pub(crate) fn plain_variable(env_key: &str) -> Problem {
    Problem::invalid("env_key", format!("`{env_key}` is also in env_vars; use it once"))
}

/// As many secrets as there may be.
pub(crate) fn too_many_bound() -> Problem {
    Problem::invalid("secrets", format!("at most {MAX_BINDINGS} are accepted for one sandbox"))
}

/// There is no such binding.
pub(crate) fn not_bound(env_key: &str, id: SandboxId) -> Problem {
    let shown: String = env_key.chars().filter(|c| !c.is_control()).take(80).collect();
    let message = format!("no secret is bound to `{shown}`: binding not found");
    Problem::new(Code::NotFound, message, NextStep::Do(Action::Inspect(id)))
}

/// The wait for something in progress took too long.
pub(crate) fn still_busy(operation: Operation, row: &SandboxRow) -> Problem {
    let state = row.summary.state;
    let code = match (operation, state) {
        (Operation::Activate, SandboxState::Pausing) => Code::SandboxPausing,
        _ => Code::Conflict,
    };
    let next = NextStep::Retry { after: Duration::from_secs(1) };
    let busy = match state {
        // In these, nothing but a snapshot keeps anybody waiting.
        SandboxState::Active | SandboxState::Paused => "being saved".to_owned(),
        _ => state.to_string(),
    };
    Problem::new(code, format!("the sandbox is still {busy}"), next)
}

/// The engine makes no layers of what sandboxes write.
pub(crate) fn no_saving(engine: Engine) -> Problem {
    let next = NextStep::Fix {
        field: "isolation".to_owned(),
        accepted: "create the sandbox with another one, such as container".to_owned(),
    };
    Problem::new(Code::BadRequest, format!("sandboxes with `{engine}` isolation cannot be saved"), next)
}

/// A memory that was saved goes on where it was.
pub(crate) fn memory_of_another(engine: Engine) -> Problem {
    let next =
        NextStep::Fix { field: "isolation".to_owned(), accepted: format!("{engine}, or leave it out") };
    Problem::new(
        Code::BadRequest,
        format!("the snapshot holds memory of a sandbox with `{engine}` isolation"),
        next,
    )
}

/// What is left of the sandbox cannot be saved.
pub(crate) fn no_memory(id: SandboxId) -> Problem {
    let message = "the sandbox has lost its memory, and its disk cannot be saved without it";
    Problem::new(Code::Conflict, message, NextStep::Do(Action::Resume(id)))
}

/// There is no such snapshot.
pub(crate) fn no_such_snapshot(id: SnapshotId) -> Problem {
    Problem::new(Code::NotFound, format!("snapshot {id} not found"), NextStep::Do(Action::ListSnapshots))
}

/// Nothing can be made from it yet, or ever.
pub(crate) fn snapshot_not_ready(row: &SnapshotRow) -> Problem {
    let next = match row.status {
        SnapshotStatus::Creating => NextStep::Retry { after: SAVING_RETRY },
        SnapshotStatus::Failed | SnapshotStatus::Ready => NextStep::Do(Action::ListSnapshots),
    };
    Problem::new(Code::Conflict, format!("snapshot {} is {}, not ready", row.id, row.status), next)
}

/// It cannot be deleted yet.
pub(crate) fn still_saving(id: SnapshotId) -> Problem {
    let next = NextStep::Retry { after: SAVING_RETRY };
    Problem::new(Code::Conflict, format!("snapshot {id} is still being saved"), next)
}

/// The key of a snapshot that was deleted.
pub(crate) fn snapshot_gone() -> Problem {
    let accepted = "use another key for another snapshot".to_owned();
    let next = NextStep::Fix { field: "idempotency_key".to_owned(), accepted };
    Problem::new(Code::Gone, "the snapshot with this idempotency_key was deleted", next)
}

/// There are as many snapshots as there may be.
pub(crate) fn too_many_snapshots(who: &str, most: u32) -> Problem {
    let message = format!("{who} has as many saved snapshots as it may ({most})");
    Problem::new(Code::TooManySnapshots, message, NextStep::Do(Action::DeleteSnapshots))
}

/// The team's compute is used up.
pub(crate) fn over_quota(quota: u32) -> Problem {
    let message = format!("your team runs as many sandboxes as it may ({quota})");
    Problem::new(Code::TooManySandboxes, message, NextStep::Do(Action::FreeQuota))
}

/// The host did not do its part in time.
pub(crate) fn too_slow(what: &str, limit: Duration) -> Problem {
    let message = format!("{what} did not finish within {} s", limit.as_secs());
    Problem::new(Code::ServiceUnavailable, message, NextStep::Retry { after: Duration::from_secs(2) })
}

/// The server is going down, or the task of this sandbox is gone.
pub(crate) fn stopping() -> Problem {
    let next = NextStep::Retry { after: Duration::from_secs(2) };
    Problem::new(Code::ServiceUnavailable, "the server is stopping", next)
}

/// The same problem for a second caller; the cause goes to the log once.
pub(crate) fn again(problem: &Problem) -> Problem {
    Problem::new(problem.code, problem.message.clone(), problem.next.clone())
}
