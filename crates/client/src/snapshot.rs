//! The snapshot calls of the control plane (`spec/rest-api.md` §5).

use std::time::Duration;

use http::Method;
use tokio::time::{Instant, sleep};
use wire::rest::{CreateSnapshot, RenameSnapshot, Snapshot};

use crate::control::{Call, Client};
use crate::error::ClientError;
use crate::retry::with_jitter;
use crate::sandbox::{Page, path};
use crate::sandbox_id;

/// The platform answers sooner when saving takes long.
const SAVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for a snapshot, as in the official clients.
const READY_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Looks meanwhile.
const READY_POLL: Duration = Duration::from_secs(1);

impl Client {
    /// Saves a sandbox as it is; waits until that is done, at most 15 minutes. Whatever happens on the way, one call makes
    /// one snapshot.
    ///
    /// # Errors
    /// See [`ClientError`]; 409 in a state that cannot be saved, 429 at a quota.
    pub async fn snapshot_sandbox(&self, id: &str, body: &CreateSnapshot) -> Result<Snapshot, ClientError> {
        let mut body = body.clone();
        body.idempotency_key.get_or_insert_with(new_key);
        let mut call = Call::new("the snapshot", Method::POST, path(id, "/snapshot")?).json(&body)?;
        call.timeout = SAVE_TIMEOUT;
        let answer = match self.call(&call).await {
            // Its key makes it safe to ask again.
            Err(error) if error.api().is_none() && error.may_have_taken_effect() => self.call(&call).await?,
            answer => answer?,
        };
        self.await_snapshot(answer.json()?).await
    }

    /// Watches a snapshot that is being saved.
    async fn await_snapshot(&self, snapshot: Snapshot) -> Result<Snapshot, ClientError> {
        let started = Instant::now();
        let mut snapshot = snapshot;
        while snapshot.status == "creating" {
            if started.elapsed() >= READY_TIMEOUT {
                let (what, after) = ("the snapshot", READY_TIMEOUT);
                return Err(ClientError::Timeout { what, after, may_have_taken_effect: true });
            }
            sleep(with_jitter(READY_POLL)).await;
            snapshot = self.get_snapshot(&snapshot.id).await?;
        }
        if snapshot.status == "ready" {
            return Ok(snapshot);
        }
        Err(ClientError::Protocol {
            what: "the snapshot",
            detail: format!("snapshot {} is {}", crate::quote(&snapshot.id), crate::quote(&snapshot.status)),
            may_have_taken_effect: false,
        })
    }

    /// Snapshots of a sandbox, which may be gone, newest first.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_snapshots(&self, id: &str, limit: Option<u32>) -> Result<Page<Snapshot>, ClientError> {
        let mut call = Call::new("the list of snapshots", Method::GET, path(id, "/snapshots")?);
        call.query.extend(limit.map(|limit| ("limit".to_owned(), limit.to_string())));
        self.page(&call).await
    }

    /// One snapshot.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is none.
    pub async fn get_snapshot(&self, id: &str) -> Result<Snapshot, ClientError> {
        self.call(&Call::new("the snapshot", Method::GET, snapshot_path(id)?)).await?.json()
    }

    /// Gives a snapshot a name.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn rename_snapshot(&self, id: &str, name: &str) -> Result<Snapshot, ClientError> {
        let body = RenameSnapshot { name: name.to_owned() };
        let call = Call::new("the new name", Method::PATCH, snapshot_path(id)?).json(&body)?;
        self.call(&call).await?.json()
    }

    /// Deletes a snapshot. Sandboxes made from it are not concerned.
    ///
    /// # Errors
    /// See [`ClientError`]; 409 while it is being saved.
    pub async fn delete_snapshot(&self, id: &str) -> Result<(), ClientError> {
        self.call(&Call::new("deleting the snapshot", Method::DELETE, snapshot_path(id)?)).await.map(drop)
    }
}

fn snapshot_path(id: &str) -> Result<String, ClientError> {
    let accepted = "an id is expected".to_owned();
    let id = sandbox_id::check(id).map_err(|_| ClientError::Invalid { field: "snapshot id", accepted })?;
    Ok(format!("/snapshots/{id}"))
}

/// Unlike any other. Without random bytes the time must do: it need only differ within one sandbox.
fn new_key() -> String {
    let now = jiff::Timestamp::now().as_nanosecond();
    format!("{now:x}-{:016x}", getrandom::u64().unwrap_or_default())
}
