//! How each failure reads to a caller, and what the caller can do.

use std::time::Duration;

use domain::{Action, Code, NextStep, Problem, SandboxId};
use driver::DriverError;

use crate::error::NodeError;

/// Long enough for a busy host to catch up, short enough not to be noticed as an outage.
const BUSY_RETRY: Duration = Duration::from_secs(5);

/// The failure of one sandbox, told to its caller.
pub(crate) fn of(id: SandboxId, error: NodeError) -> Problem {
    let error = match error {
        NodeError::Layer(error) => return of_layer(error),
        other => other,
    };
    let problem = match &error {
        NodeError::Missing { program } | NodeError::Driver(DriverError::Missing { program }) => {
            missing(program)
        }
        NodeError::LayerMissing { .. } => Problem::new(
            Code::ServiceUnavailable,
            "the template's files are not on this host",
            NextStep::AskOperator("import the template again".to_owned()),
        ),
        NodeError::HostDiskFull => Problem::new(
            Code::ServiceUnavailable,
            "the host has no disk space for another sandbox",
            NextStep::AskOperator("free disk space on the host".to_owned()),
        ),
        NodeError::NoRoomToSave => Problem::new(
            Code::HostCapacity,
            "the host has no disk space for what the sandbox has written",
            NextStep::AskOperator("free disk space on the host".to_owned()),
        ),
        NodeError::NotRunning | NodeError::NoDisk | NodeError::Driver(DriverError::Gone) => Problem::new(
            Code::SandboxUnavailable,
            format!("sandbox {id} is not running"),
            NextStep::Do(Action::Inspect(id)),
        ),
        NodeError::NoMemory => Problem::new(
            Code::Conflict,
            format!("sandbox {id} has lost its memory: there is nothing but its disk to save"),
            NextStep::Do(Action::Resume(id)),
        ),
        NodeError::NotStill(_) => Problem::new(
            Code::Conflict,
            format!("what runs in sandbox {id} could not be stopped where it was, as a snapshot with memory needs it"),
            NextStep::Do(Action::Resume(id)),
        ),
        // It is deleted before its files are.
        NodeError::NoState => Problem::new(
            Code::NotFound,
            "the snapshot was deleted: what it holds is not on this host any more",
            NextStep::Do(Action::ListSnapshots),
        ),
        NodeError::Driver(DriverError::OtherSetting { needs }) => Problem::new(
            Code::ServiceUnavailable,
            format!("this memory was saved by a server with `{needs}` and cannot go on without it"),
            NextStep::AskOperator(format!("run the server with `{needs}` again; the memory is kept")),
        ),
        NodeError::CannotContinue(_) => Problem::new(
            Code::Internal,
            "the snapshot's memory could not be continued on this host; the snapshot is as it was",
            NextStep::AskOperator(
                "the server log has the cause; memory saved by another version of the isolation engine needs that version"
                    .to_owned(),
            ),
        ),
        NodeError::NotListening { port } => Problem::new(
            Code::NotFound,
            format!("nothing listens on port {port} of sandbox {id}"),
            NextStep::Fix {
                field: "port".to_owned(),
                accepted: "one that a server in the sandbox listens on".to_owned(),
            },
        ),
        NodeError::EngineAbsent { engine, why } => Problem::new(
            Code::ServiceUnavailable,
            format!("sandbox {id} runs with `{engine}` isolation, which this server has not: {why}"),
            NextStep::AskOperator(
                "`superserve doctor` says what it needs; the sandbox and its disk are kept".to_owned(),
            ),
        ),
        NodeError::Driver(DriverError::Unsupported { what }) => Problem::new(
            Code::BadRequest,
            format!("this server's isolation engine has no way of {what}"),
            NextStep::AskOperator("run the server with another `isolation`".to_owned()),
        ),
        NodeError::OwnKernel => Problem::new(
            Code::Conflict,
            "the disk of a virtual machine cannot be read without it",
            NextStep::Do(Action::Resume(id)),
        ),
        NodeError::DiskDamaged => Problem::new(
            Code::Internal,
            format!("the disk of sandbox {id} is damaged"),
            NextStep::AskOperator("restore the disk, or delete the sandbox".to_owned()),
        ),
        NodeError::DiskBusy
        | NodeError::Unwanted
        | NodeError::AgentSilent { .. }
        | NodeError::PortSilent { .. }
        | NodeError::Driver(DriverError::Timeout { .. }) => Problem::new(
            Code::ServiceUnavailable,
            format!("sandbox {id} did not answer in time"),
            NextStep::Retry { after: BUSY_RETRY },
        ),
        NodeError::Command { .. }
        | NodeError::BadDigest { .. }
        | NodeError::NoSuchLink { .. }
        | NodeError::AgentRefused { .. }
        | NodeError::Agent(_)
        | NodeError::Io { .. }
        | NodeError::Layer(_)
        | NodeError::OtherKind
        | NodeError::NoBase
        | NodeError::Worker(_)
        | NodeError::Egress(_)
        | NodeError::Driver(DriverError::Engine { .. } | DriverError::Io { .. }) => Problem::new(
            Code::Internal,
            format!("sandbox {id} could not be set up"),
            NextStep::AskOperator("the server log has the cause".to_owned()),
        ),
    };
    problem.caused_by(error)
}

/// What was written cannot become a layer, or the host failed.
fn of_layer(error: templates::TemplateError) -> Problem {
    use templates::TemplateError::{Refused, TooLarge};
    let why = match &error {
        Refused { entry, reason } => format!("`{entry}` {reason}"),
        TooLarge { limit, unit } => format!("it has more than {limit} {unit}"),
        _ => return error.into(),
    };
    let next = NextStep::Fix { field: "disk".to_owned(), accepted: "remove it in the sandbox".to_owned() };
    Problem::new(Code::BadRequest, format!("what the sandbox has written cannot be kept: {why}"), next)
        .caused_by(error)
}

fn missing(program: &str) -> Problem {
    Problem::new(
        Code::ServiceUnavailable,
        format!("the host lacks {program}"),
        NextStep::AskOperator(format!("install {program}; `superserve doctor` names the package")),
    )
}

/// A failure at start-up, told to the operator.
pub(crate) fn at_start(error: NodeError) -> Problem {
    let problem = match &error {
        NodeError::Missing { program } => missing(program),
        other => Problem::new(
            Code::ServiceUnavailable,
            format!("this host cannot run sandboxes: {}", chain(other)),
            NextStep::AskOperator("`superserve doctor` says what is missing".to_owned()),
        ),
    };
    problem.caused_by(error)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
