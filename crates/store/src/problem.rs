//! What a failure of the database means to a caller.

use domain::{Action, Code, NextStep, Problem};

use crate::StoreError;

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NameTaken { what, ref name } => {
                let accepted = format!("choose a name that no other {what} has");
                let message = format!("a {what} named `{name}` exists already");
                Problem::new(Code::Conflict, message, NextStep::Fix { field: "name".to_owned(), accepted })
                    .caused_by(error)
            }
            StoreError::NoLink { .. } => Problem::new(
                Code::ServiceUnavailable,
                "this host holds as many sandboxes as it can",
                NextStep::Do(Action::FreeQuota),
            )
            .caused_by(error),
            StoreError::Open { .. }
            | StoreError::Migrate(_)
            | StoreError::OtherRelease { .. }
            | StoreError::Query(_)
            | StoreError::Corrupt { .. }
            | StoreError::Random(_) => Problem::internal("the database failed", error),
        }
    }
}
