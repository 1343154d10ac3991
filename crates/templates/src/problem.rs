//! How failures of this crate look to a caller.

use domain::{Action, Code, NextStep, Problem};

use crate::error::TemplateError;

impl From<TemplateError> for Problem {
    fn from(error: TemplateError) -> Self {
        match error {
            TemplateError::Refused { .. } | TemplateError::TooLarge { .. } | TemplateError::BadArchive(_) => {
                let next = NextStep::Fix {
                    field: "archive".to_owned(),
                    accepted: "a tar or tar.gz of one root file system, names relative and without `..`"
                        .to_owned(),
                };
                Self::new(Code::BadRequest, error.to_string(), next)
            }
            TemplateError::NoSuchLayer(_) => {
                Self::new(Code::NotFound, error.to_string(), NextStep::Do(Action::ListTemplates))
            }
            TemplateError::Unsupported { .. }
            | TemplateError::Bootstrap { .. }
            | TemplateError::Timeout(_)
            | TemplateError::Stopped => {
                let next = NextStep::AskOperator("superserve doctor says what is missing".to_owned());
                Self::new(Code::ServiceUnavailable, "the template is not there", next).caused_by(error)
            }
            TemplateError::Io { .. } => Self::internal("the layer store failed", error),
        }
    }
}
