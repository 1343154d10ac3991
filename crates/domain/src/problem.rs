//! The one error that leaves a crate towards a caller: what happened, and the next step as data. Every surface (REST,
//! CLI, MCP) renders the same value; nobody rewords it on the way.

use std::fmt;
use std::time::Duration;

use crate::id::SandboxId;

/// Any cause, for the log only.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:literal);+ $(;)?) => {
        /// The machine-readable codes of `spec/rest-api.md` §1.7 with their HTTP status, in one table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $variant),+ }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The code as clients see it.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The HTTP status that goes with it.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status),+ }
            }
        }
    };
}

codes! {
    /// The request is malformed or out of range.
    BadRequest = "bad_request", 400;
    /// A create names a secret that does not exist.
    SecretNotFound = "secret_not_found", 400;
    /// The API key is missing, unknown or expired.
    AuthFailed = "auth_failed", 401;
    /// The key may not do this.
    Forbidden = "forbidden", 403;
    /// No such resource for this team.
    NotFound = "not_found", 404;
    /// Data plane: the sandbox is unknown here.
    RouteStale = "sandbox_route_stale", 404;
    /// The resource is in a state that does not permit the operation.
    Conflict = "conflict", 409;
    /// A pause is still running.
    SandboxPausing = "sandbox_pausing", 409;
    /// The sandbox is being saved; some changes wait until that is done.
    SnapshotInProgress = "snapshot_in_progress", 409;
    /// What this key once named was deleted.
    Gone = "gone", 410;
    /// The body is larger than accepted.
    TooLarge = "too_large", 413;
    /// Too many requests.
    RateLimited = "rate_limited", 429;
    /// The team's quota of sandboxes that hold compute is used up.
    TooManySandboxes = "too_many_sandboxes", 429;
    /// The team has as many builds under way as it may.
    TooManyBuilds = "too_many_builds", 429;
    /// The team has as many templates as it may.
    TooManyTemplates = "too_many_templates", 429;
    /// The team, or the sandbox, has as many saved snapshots as it may.
    TooManySnapshots = "too_many_snapshots", 429;
    /// The team saves as many snapshots at once as it may.
    TooManySnapshotsInFlight = "too_many_snapshots_in_flight", 429;
    /// A defect or an unexpected failure here.
    Internal = "internal_error", 500;
    /// Data plane: a file operation failed inside the guest.
    Filesystem = "sandbox_filesystem_error", 500;
    /// No capacity, or something we depend on is down.
    ServiceUnavailable = "service_unavailable", 503;
    /// The host has no room for what would be saved.
    HostCapacity = "host_capacity", 503;
    /// Data plane: the sandbox is not running.
    SandboxUnavailable = "sandbox_unavailable", 503;
    /// Data plane: the sandbox's disk is full.
    StorageFull = "sandbox_storage_full", 507;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the caller can do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Nothing changes until some time has passed.
    Retry {
        /// How long to wait.
        after: Duration,
    },
    /// Do something else first.
    Do(Action),
    /// Change one field of the request.
    Fix {
        /// The field, as the request names it.
        field: String,
        /// What is accepted, as a clause.
        accepted: String,
    },
    /// Only the operator of the platform can help, with this.
    AskOperator(String),
}

/// Something a caller can do, which each surface renders in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Activate the sandbox.
    Resume(SandboxId),
    /// Look at the sandbox's current state.
    Inspect(SandboxId),
    /// Delete files in the sandbox.
    FreeDisk(SandboxId),
    /// See which sandboxes exist.
    ListSandboxes,
    /// See which templates exist.
    ListTemplates,
    /// See which secrets exist.
    ListSecrets,
    /// Wait until a build ends, or cancel one.
    WaitForBuild,
    /// Delete templates to free the quota.
    DeleteTemplates,
    /// Wait until a snapshot is saved.
    WaitForSnapshot,
    /// Delete snapshots to free the quota.
    DeleteSnapshots,
    /// See which snapshots of sandboxes exist.
    ListSnapshots,
    /// Pause or delete sandboxes to free the quota.
    FreeQuota,
    /// Use a valid API key.
    CheckKey,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resume(id) => write!(f, "resume it first: POST /sandboxes/{id}/activate"),
            Self::Inspect(id) => write!(f, "look at its state: GET /sandboxes/{id}"),
            Self::FreeDisk(_) => {
                f.write_str("delete files in the sandbox, or use a template with a larger disk")
            }
            Self::ListSandboxes => f.write_str("list the existing ones: GET /sandboxes"),
            Self::ListTemplates => f.write_str("list the existing ones: GET /templates"),
            Self::ListSecrets => f.write_str("list the existing ones: GET /secrets"),
            Self::WaitForBuild => f.write_str("wait until a build ends, or cancel one"),
            Self::DeleteTemplates => {
                f.write_str("delete a template that is not needed: DELETE /templates/{name_or_id}")
            }
            Self::WaitForSnapshot => f.write_str("wait until another snapshot is saved"),
            Self::DeleteSnapshots => {
                f.write_str("delete a snapshot that is not needed: DELETE /snapshots/{snapshot_id}")
            }
            Self::ListSnapshots => f.write_str("list those of a sandbox: GET /sandboxes/{id}/snapshots"),
            Self::FreeQuota => f.write_str("pause or delete a sandbox, or retry later"),
            Self::CheckKey => {
                f.write_str("send a valid key in the X-API-Key header; `superserve key create` makes one")
            }
        }
    }
}

impl fmt::Display for NextStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry { after } => write!(f, "retry in {} s", after.as_secs().max(1)),
            Self::Do(action) => action.fmt(f),
            Self::Fix { field, accepted } => write!(f, "{field}: {accepted}"),
            Self::AskOperator(what) => write!(f, "ask the operator of this platform: {what}"),
        }
    }
}

/// A failure as the caller sees it. `Display` is the published message: what happened, then the next step.
#[derive(Debug)]
pub struct Problem {
    /// The machine-readable code, which also decides the status.
    pub code: Code,
    /// What happened, one clause without a full stop.
    pub message: String,
    /// What to do next.
    pub next: NextStep,
    /// The cause, for the log only; never shown to a caller.
    pub source: Option<BoxError>,
}

impl Problem {
    /// A problem without a recorded cause.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>, next: NextStep) -> Self {
        Self { code, message: message.into(), next, source: None }
    }

    /// A field of the request has a value that is not accepted.
    #[must_use]
    pub fn invalid(field: impl Into<String>, accepted: impl Into<String>) -> Self {
        let next = NextStep::Fix { field: field.into(), accepted: accepted.into() };
        Self::new(Code::BadRequest, "invalid request", next)
    }

    /// Something failed that should not; the cause goes to the log.
    #[must_use]
    pub fn internal(message: impl Into<String>, source: impl Into<BoxError>) -> Self {
        let next = NextStep::AskOperator("the server log has the cause".to_owned());
        Self { code: Code::Internal, message: message.into(), next, source: Some(source.into()) }
    }

    /// No such sandbox for this team.
    #[must_use]
    pub fn no_such_sandbox(id: SandboxId) -> Self {
        Self::new(Code::NotFound, format!("sandbox {id} not found"), NextStep::Do(Action::ListSandboxes))
    }

    /// Records the cause for the log.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The cause and its causes, joined for one log line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source.as_deref().map(|s| s as &(dyn std::error::Error + 'static));
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.next)
    }
}

impl std::error::Error for Problem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_for_the_log_only() {
        let problem = Problem::internal("cannot start the sandbox", std::io::Error::other("disk on fire"));
        assert!(!problem.to_string().contains("fire"));
        assert!(problem.chain().contains("disk on fire"));
    }
}
