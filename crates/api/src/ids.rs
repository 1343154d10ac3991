//! Identifiers in paths: malformed ones are 400 (§1.6).

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use domain::{Problem, SandboxId, SnapshotId};
use http::request::Parts;

use crate::reply::Failure;

/// `{id}` of a sandbox, in either form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SandboxPath(pub(crate) SandboxId);

impl<S: Send + Sync> FromRequestParts<S> for SandboxPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        let Path(text) = path.map_err(|_| not_an_id("it is not valid UTF-8".to_owned()))?;
        Ok(Self(sandbox_id(&text)?))
    }
}

/// `{id}` of a saved snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnapshotPath(pub(crate) SnapshotId);

impl<S: Send + Sync> FromRequestParts<S> for SnapshotPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        let bad = |why: String| Problem::invalid("snapshot id", why);
        let Path(text) = path.map_err(|_| bad("it is not valid UTF-8".to_owned()))?;
        Ok(Self(text.parse().map_err(|error: domain::BadId| bad(error.to_string()))?))
    }
}

/// A sandbox id that stands in a path with other things.
pub(crate) fn sandbox_id(text: &str) -> Result<SandboxId, Problem> {
    text.parse().map_err(|bad: domain::BadId| Problem::invalid("sandbox id", bad.to_string()))
}

fn not_an_id(why: String) -> Failure {
    Problem::invalid("sandbox id", why).into()
}
