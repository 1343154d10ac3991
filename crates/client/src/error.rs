//! What can go wrong, one variant per remedy. No message contains a key, a token or a URL query.

use std::time::Duration;

/// Which of the two APIs answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// REST, with the API key.
    Control,
    /// Exec and files, with the sandbox's token.
    Data,
}

/// A refusal by the platform, with what it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// Who refused.
    pub plane: Plane,
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// Machine-readable code (`domain::Code` by name), empty when the answer had none.
    pub code: String,
    /// The platform's text, scrubbed and cut to [`crate::MAX_QUOTE_CHARS`]; empty when the answer had none.
    pub message: String,
    /// How long the platform asks to wait.
    pub retry_after: Option<Duration>,
    /// The platform's name for this request, if it sent one.
    pub request_id: Option<String>,
    /// The request was not a read, and a status like this does not prove that nothing happened.
    pub may_have_taken_effect: bool,
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.message.is_empty() {
            write!(f, "the platform answered with status {}", self.status)
        } else {
            f.write_str(&self.message)
        }
    }
}

/// The call did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// The platform refused; see [`ApiError`].
    #[error("{0}")]
    Api(ApiError),
    /// No complete answer in time.
    #[error("{what} timed out after {} s", after.as_secs_f32())]
    Timeout {
        /// What was waited for, as a noun phrase.
        what: &'static str,
        /// The limit that passed.
        after: Duration,
        /// Whether the platform may nevertheless have done it.
        may_have_taken_effect: bool,
    },
    /// No connection: refused, unknown name, or TLS failed. Nothing was sent.
    #[error("cannot reach {host}: {reason}")]
    Connect {
        /// Host and port, without path or query.
        host: String,
        /// Why, as the operating system or TLS says.
        reason: String,
    },
    /// The connection broke after the request had been sent.
    #[error("the connection broke during {what}")]
    Interrupted {
        /// What was under way, as a noun phrase.
        what: &'static str,
        /// Whether the platform may nevertheless have done it.
        may_have_taken_effect: bool,
    },
    /// The answer is larger than the caller's limit; none of the rest was read.
    #[error("{what} is larger than {limit} bytes")]
    TooLarge {
        /// What was read, as a noun phrase.
        what: &'static str,
        /// The limit, bytes.
        limit: u64,
    },
    /// An argument cannot be accepted; nothing was sent.
    #[error("{field}: {accepted}")]
    Invalid {
        /// The argument.
        field: &'static str,
        /// What is accepted, as a clause.
        accepted: String,
    },
    /// The other side does not speak the protocol.
    #[error("unexpected answer to {what}: {detail}")]
    Protocol {
        /// What was asked, as a noun phrase.
        what: &'static str,
        /// What is wrong with the answer.
        detail: String,
        /// Whether the platform may nevertheless have done it.
        may_have_taken_effect: bool,
    },
    /// This side cannot work: certificates, or a local source of data.
    #[error("{0}")]
    Local(String),
}

impl ClientError {
    /// Whether the platform may have done what was asked although the call failed. Only when this is false may a
    /// caller repeat a call that is not idempotent.
    #[must_use]
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::Api(error) => error.may_have_taken_effect,
            Self::Timeout { may_have_taken_effect, .. }
            | Self::Interrupted { may_have_taken_effect, .. }
            | Self::Protocol { may_have_taken_effect, .. } => *may_have_taken_effect,
            Self::Connect { .. } | Self::TooLarge { .. } | Self::Invalid { .. } | Self::Local(_) => false,
        }
    }

    /// Whether the same question may be answered later: a server that restarts or is busy comes back.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } | Self::Interrupted { .. } => true,
            Self::Api(refusal) => refusal.status >= 500 || refusal.status == 429,
            Self::TooLarge { .. } | Self::Invalid { .. } | Self::Protocol { .. } | Self::Local(_) => false,
        }
    }

    /// The refusal, if it is one.
    #[must_use]
    pub fn api(&self) -> Option<&ApiError> {
        match self {
            Self::Api(error) => Some(error),
            _ => None,
        }
    }

    /// The HTTP status of a refusal.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.api().map(|error| error.status)
    }
}
