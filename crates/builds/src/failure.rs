//! Why a build came to nothing, in the published codes (`spec/rest-api.md` §10.4).

use std::fmt;

use domain::Problem;
use templates::TemplateError;

/// What a build's `error_message` begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureCode {
    BadReference,
    UnsupportedPlatform,
    ImagePullFailed,
    ImageUnsafe,
    ImageTooLarge,
    StepFailed,
    BootFailed,
    SnapshotFailed,
    StartCmdFailed,
    ReadyCmdFailed,
    /// Anything else.
    BuildFailed,
}

impl FailureCode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::BadReference => "bad_reference",
            Self::UnsupportedPlatform => "unsupported_platform",
            Self::ImagePullFailed => "image_pull_failed",
            Self::ImageUnsafe => "image_unsafe",
            Self::ImageTooLarge => "image_too_large",
            Self::StepFailed => "step_failed",
            Self::BootFailed => "boot_failed",
            Self::SnapshotFailed => "snapshot_failed",
            Self::StartCmdFailed => "start_cmd_failed",
            Self::ReadyCmdFailed => "ready_cmd_failed",
            Self::BuildFailed => "build_failed",
        }
    }
}

/// A failed build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: FailureCode,
    /// One line.
    pub(crate) detail: String,
}

/// Longest detail; it may quote what a command has written.
const MAX_DETAIL: usize = 1_000;

impl Failure {
    pub(crate) fn new(code: FailureCode, detail: impl Into<String>) -> Self {
        let detail: String = detail.into();
        let one_line = detail.chars().map(|c| if c.is_control() { ' ' } else { c });
        Self { code, detail: one_line.take(MAX_DETAIL).collect() }
    }

    /// The host or the platform is at fault; the log of the server has the cause.
    pub(crate) fn of(code: FailureCode, problem: &Problem) -> Self {
        tracing::warn!(code = code.as_str(), cause = problem.chain(), "a build failed");
        Self::new(code, problem.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.detail)
    }
}

/// Of a pull.
impl From<TemplateError> for Failure {
    fn from(error: TemplateError) -> Self {
        let code = match &error {
            TemplateError::BadReference { .. } => FailureCode::BadReference,
            TemplateError::UnsupportedPlatform { .. } => FailureCode::UnsupportedPlatform,
            TemplateError::ImageTooLarge { .. } | TemplateError::TooLarge { .. } => {
                FailureCode::ImageTooLarge
            }
            TemplateError::ImageUnsafe { .. } | TemplateError::Refused { .. } => FailureCode::ImageUnsafe,
            TemplateError::Registry { .. } | TemplateError::Image { .. } | TemplateError::BadArchive(_) => {
                FailureCode::ImagePullFailed
            }
            TemplateError::Credentials { .. } => {
                tracing::error!(%error, "a build cannot use the registry credentials");
                let detail = "the platform's registry credentials cannot be read; ask its operator";
                return Self::new(FailureCode::ImagePullFailed, detail);
            }
            TemplateError::DiskFull => FailureCode::BuildFailed,
            TemplateError::NoSuchLayer(_)
            | TemplateError::Unsupported { .. }
            | TemplateError::Bootstrap { .. }
            | TemplateError::Timeout(_)
            | TemplateError::Stopped
            | TemplateError::Io { .. } => {
                tracing::error!(%error, "a build failed on this host");
                return Self::new(
                    FailureCode::BuildFailed,
                    "the layer store failed; the server log has the cause",
                );
            }
        };
        Self::new(code, error.to_string())
    }
}
