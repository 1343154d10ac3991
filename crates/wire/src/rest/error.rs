//! §1.7: `{"error": {"code", "message"}}`.

use domain::Problem;
use serde::{Deserialize, Serialize};

/// Body of every refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The one member.
    pub error: ErrorDetail,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// Stable, for programs; see `domain::Code`.
    pub code: String,
    /// Free text that ends with the next step, for people.
    pub message: String,
}

impl From<&Problem> for ErrorBody {
    fn from(problem: &Problem) -> Self {
        Self { error: ErrorDetail { code: problem.code.as_str().to_owned(), message: problem.to_string() } }
    }
}
