//! How failures of this crate look to a caller.

use domain::{Action, Code, NextStep, Problem};

use crate::error::TemplateError;

impl From<TemplateError> for Problem {
    fn from(error: TemplateError) -> Self {
        match error {
            TemplateError::Refused { .. } | TemplateError::TooLarge { .. } | TemplateError::BadArchive(_) => {
                let next = NextStep::Fix {
                    field: "archive".to_owned(),
                    accepted:
                        "a tar, tar.gz or tar.zst of one root file system, names relative and without `..`"
                            .to_owned(),
                };
                Self::new(Code::BadRequest, error.to_string(), next)
            }
            TemplateError::NoSuchLayer(_) => {
                Self::new(Code::NotFound, error.to_string(), NextStep::Do(Action::ListTemplates))
            }
            TemplateError::BadReference { .. }
            | TemplateError::ImageUnsafe { .. }
            | TemplateError::Image { .. }
            | TemplateError::UnsupportedPlatform { .. } => {
                let accepted = "a linux image for this machine's processor in a registry that can be reached";
                let next = NextStep::Fix { field: "image".to_owned(), accepted: accepted.to_owned() };
                Self::new(Code::BadRequest, error.to_string(), next)
            }
            TemplateError::ImageTooLarge { .. } => {
                let next =
                    NextStep::Fix { field: "disk_mib".to_owned(), accepted: "a larger disk".to_owned() };
                Self::new(Code::BadRequest, error.to_string(), next)
            }
            TemplateError::Registry { .. } | TemplateError::Credentials { .. } => {
                let next = NextStep::AskOperator("check that this machine reaches the registry".to_owned());
                Self::new(Code::ServiceUnavailable, "the image could not be fetched", next).caused_by(error)
            }
            TemplateError::Unsupported { .. }
            | TemplateError::Bootstrap { .. }
            | TemplateError::Timeout(_)
            | TemplateError::Stopped => {
                let next = NextStep::AskOperator("superserve doctor says what is missing".to_owned());
                Self::new(Code::ServiceUnavailable, "the template is not there", next).caused_by(error)
            }
            TemplateError::DiskFull => {
                let next =
                    NextStep::AskOperator("free disk space on the host, or delete templates".to_owned());
                Self::new(Code::ServiceUnavailable, "the host's disk has no room for another layer", next)
            }
            TemplateError::Io { .. } => Self::internal("the layer store failed", error),
        }
    }
}
