//! What a failure means to a caller.

use domain::{Action, Code, NextStep, Problem};

use crate::SecretsError;

impl From<SecretsError> for Problem {
    fn from(error: SecretsError) -> Self {
        match error {
            SecretsError::Store(error) => error.into(),
            SecretsError::NoKey { .. }
            | SecretsError::Damaged
            | SecretsError::Empty
            | SecretsError::Random(_) => Problem::internal("the secret store failed", error),
        }
    }
}

/// A path names a secret that is not there.
pub(crate) fn no_such_secret(name: &str) -> Problem {
    Problem::new(Code::NotFound, not_found(name), NextStep::Do(Action::ListSecrets))
}

/// A body names a secret that is not there.
pub(crate) fn unknown_secret(name: &str) -> Problem {
    Problem::new(Code::SecretNotFound, not_found(name), NextStep::Do(Action::ListSecrets))
}

fn not_found(name: &str) -> String {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
    format!("secret `{shown}` not found")
}
