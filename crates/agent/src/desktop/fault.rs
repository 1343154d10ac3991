//! Failed calls, as Connect tells them: a flat object with a code of its list.

use http::StatusCode;
use wire::desktop::DesktopError;
use x11rb::errors::{ConnectError, ConnectionError, ReplyError, ReplyOrIdError};

use crate::reply::{Response, json};

/// Why a call was not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) message: String,
}

/// The codes in use. `unavailable` is not among them: clients take its 503 for a paused sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    InvalidArgument,
    /// There is no display.
    FailedPrecondition,
    ResourceExhausted,
    Internal,
}

impl Fault {
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self { kind: Kind::InvalidArgument, message: message.into() }
    }

    pub(super) fn no_display(message: impl Into<String>) -> Self {
        Self { kind: Kind::FailedPrecondition, message: message.into() }
    }

    pub(super) fn exhausted(message: impl Into<String>) -> Self {
        Self { kind: Kind::ResourceExhausted, message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self { kind: Kind::Internal, message: message.into() }
    }

    /// As in Connect's list.
    pub(super) fn code(&self) -> &'static str {
        match self.kind {
            Kind::InvalidArgument => "invalid_argument",
            Kind::FailedPrecondition => "failed_precondition",
            Kind::ResourceExhausted => "resource_exhausted",
            Kind::Internal => "internal",
        }
    }

    /// The X server failed or went away in the middle of a call.
    pub(super) fn x(what: &str, error: impl std::fmt::Display) -> Self {
        Self::internal(format!(
            "{what}: the X server failed ({error}); the next call connects to it again, take a screenshot first"
        ))
    }
}

impl From<Fault> for Response {
    fn from(fault: Fault) -> Self {
        let status = match fault.kind {
            Kind::InvalidArgument | Kind::FailedPrecondition => StatusCode::BAD_REQUEST,
            Kind::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        json(status, &DesktopError { code: fault.code().to_owned(), message: fault.message })
    }
}

/// What went wrong between this program and the X server.
#[derive(Debug)]
pub(super) enum XError {
    /// The connection is of no more use.
    Lost(String),
    /// The server refused a request; the connection goes on.
    Refused(String),
}

impl std::fmt::Display for XError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Lost(why) | Self::Refused(why)) = self;
        f.write_str(why)
    }
}

impl From<ConnectionError> for XError {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::UnsupportedExtension => Self::Refused("it lacks an extension".to_owned()),
            ConnectionError::IoError(error) => Self::Lost(error.to_string()),
            error => Self::Lost(error.to_string()),
        }
    }
}

impl From<ReplyError> for XError {
    fn from(error: ReplyError) -> Self {
        match error {
            ReplyError::ConnectionError(error) => error.into(),
            ReplyError::X11Error(error) => Self::Refused(format!(
                "{:?} for {}",
                error.error_kind,
                error.request_name.unwrap_or("a request")
            )),
        }
    }
}

impl From<ReplyOrIdError> for XError {
    fn from(error: ReplyOrIdError) -> Self {
        match error {
            ReplyOrIdError::IdsExhausted => Self::Lost("it gave too few names".to_owned()),
            ReplyOrIdError::ConnectionError(error) => error.into(),
            ReplyOrIdError::X11Error(error) => ReplyError::X11Error(error).into(),
        }
    }
}

impl From<ConnectError> for XError {
    fn from(error: ConnectError) -> Self {
        Self::Lost(error.to_string())
    }
}

impl From<std::io::Error> for XError {
    fn from(error: std::io::Error) -> Self {
        Self::Lost(error.to_string())
    }
}
