//! The sandbox calls of the control plane (`spec/rest-api.md` §3 to §6).

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::time::{Instant, sleep};
use wire::rest::{
    CreateSandbox, DirectoryListing, PatchSandbox, PauseAccepted, Resumed, Sandbox, SandboxListItem,
};

use crate::control::{Call, Client};
use crate::error::ClientError;
use crate::retry::with_jitter;
use crate::sandbox_id;

/// Longest time for calls that start or thaw a machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for a pause to finish; writing memory to disk takes its time.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(300);
/// Pauses of small sandboxes end within this: look often.
const PAUSE_EAGER: Duration = Duration::from_secs(2);
/// Looks during [`PAUSE_EAGER`].
const PAUSE_EAGER_POLL: Duration = Duration::from_millis(50);
/// Looks afterwards.
const PAUSE_POLL: Duration = Duration::from_secs(1);
/// Longest wait for a transition that stands in the way of the wanted one.
pub(crate) const TRANSITION_TIMEOUT: Duration = Duration::from_secs(30);
/// Looks while a transition stands in the way, unless the platform names another time.
pub(crate) const TRANSITION_POLL: Duration = Duration::from_secs(1);
/// First look while a delete waits for a transition.
const DELETE_FIRST_POLL: Duration = Duration::from_millis(100);

/// What `GET /sandboxes` is to show; unset fields do not filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Tags that must all match exactly.
    pub metadata: BTreeMap<String, String>,
    /// Part of the name, in any case.
    pub q: Option<String>,
    /// One state, or several separated by commas.
    pub status: Option<String>,
    /// `created_at`, `name` or `status`.
    pub sort: Option<String>,
    /// `asc` or `desc`.
    pub order: Option<String>,
    /// Rows, 1 to 200.
    pub limit: Option<u32>,
    /// Rows to skip.
    pub offset: Option<u32>,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Rows of all pages together, if the platform says so.
    pub total: Option<u64>,
}

/// How a pause ended; all of them are success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// It is paused now.
    Paused,
    /// It had been paused before.
    AlreadyPaused,
    /// It deletes itself on pause and is gone.
    Deleted,
}

/// How a delete ended; both are success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// It is gone now.
    Deleted,
    /// There was none of this id.
    AlreadyGone,
}

impl Client {
    /// Creates a sandbox; it accepts commands when this returns.
    ///
    /// # Errors
    /// See [`ClientError`]; after a [`ClientError::Timeout`] it may exist, look for it by name.
    pub async fn create_sandbox(&self, body: &CreateSandbox) -> Result<Sandbox, ClientError> {
        let mut call = Call::new("the new sandbox", Method::POST, "/sandboxes").json(body)?;
        call.timeout = START_TIMEOUT;
        let sandbox: Sandbox = self.call(&call).await?.json()?;
        self.inner.tokens.store(&sandbox.item.id, &sandbox.access_token);
        Ok(sandbox)
    }

    /// Lists sandboxes; never resumes one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_sandboxes(&self, filter: &ListFilter) -> Result<Page<SandboxListItem>, ClientError> {
        let mut call = Call::new("the list of sandboxes", Method::GET, "/sandboxes");
        for (key, value) in &filter.metadata {
            call.query.push((format!("metadata.{key}"), value.clone()));
        }
        let texts =
            [("q", &filter.q), ("status", &filter.status), ("sort", &filter.sort), ("order", &filter.order)];
        for (name, value) in texts {
            call.query.extend(value.as_ref().map(|value| (name.to_owned(), value.clone())));
        }
        for (name, value) in [("limit", filter.limit), ("offset", filter.offset)] {
            call.query.extend(value.map(|value| (name.to_owned(), value.to_string())));
        }
        self.page(&call).await
    }

    /// One sandbox; never resumes it.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is none.
    pub async fn get_sandbox(&self, id: &str) -> Result<Sandbox, ClientError> {
        let call = Call::new("the sandbox", Method::GET, path(id, "")?);
        self.call(&call).await?.json()
    }

    /// Changes the fields that are set.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn patch_sandbox(&self, id: &str, body: &PatchSandbox) -> Result<(), ClientError> {
        let call = Call::new("the update", Method::PATCH, path(id, "")?).json(body)?;
        self.call(&call).await.map(drop)
    }

    /// Pauses a sandbox and waits until it is, at most 300 s.
    ///
    /// # Errors
    /// See [`ClientError`]; after a timeout the pause goes on by itself.
    pub async fn pause_sandbox(&self, id: &str) -> Result<Pause, ClientError> {
        let mut call = Call::new("the pause", Method::POST, path(id, "/pause")?);
        call.respond_async = true;
        self.inner.tokens.forget(id);
        match self.call(&call).await {
            Ok(answer) if answer.status == StatusCode::ACCEPTED => {
                answer.json::<PauseAccepted>()?;
                self.await_pause(id).await
            }
            Ok(_) => Ok(Pause::Paused),
            Err(error) if error.status() == Some(409) => {
                match self.get_sandbox(id).await?.item.status.as_str() {
                    "paused" => Ok(Pause::AlreadyPaused),
                    "pausing" => self.await_pause(id).await,
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Watches a pause that is under way.
    async fn await_pause(&self, id: &str) -> Result<Pause, ClientError> {
        let started = Instant::now();
        loop {
            match self.get_sandbox(id).await {
                Ok(sandbox) if sandbox.item.status == "paused" => return Ok(Pause::Paused),
                Ok(sandbox) if sandbox.item.status == "pausing" => {}
                Ok(sandbox) => {
                    return Err(ClientError::Protocol {
                        what: "the pause",
                        detail: format!("the sandbox is now {}", crate::quote(&sandbox.item.status)),
                        may_have_taken_effect: true,
                    });
                }
                Err(error) if error.status() == Some(404) => return Ok(Pause::Deleted),
                Err(error) => return Err(error),
            }
            let waited = started.elapsed();
            if waited >= PAUSE_TIMEOUT {
                return Err(ClientError::Timeout {
                    what: "the pause",
                    after: PAUSE_TIMEOUT,
                    may_have_taken_effect: true,
                });
            }
            sleep(if waited < PAUSE_EAGER { PAUSE_EAGER_POLL } else { PAUSE_POLL }).await;
        }
    }

    /// Resumes a paused sandbox. One that is still pausing is waited for, at most 30 s; one that runs already is a
    /// conflict (409), for [`Client::activate_sandbox`] does not care.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn resume_sandbox(&self, id: &str) -> Result<(), ClientError> {
        let mut call = Call::new("the resume", Method::POST, path(id, "/resume")?);
        call.timeout = START_TIMEOUT;
        let started = Instant::now();
        loop {
            let error = match self.call(&call).await {
                Ok(answer) => {
                    let resumed: Resumed = answer.json()?;
                    self.inner.tokens.store(id, &resumed.access_token);
                    return Ok(());
                }
                Err(error) => error,
            };
            let in_the_way = error.status() == Some(409)
                && started.elapsed() < TRANSITION_TIMEOUT
                && matches!(self.get_sandbox(id).await?.item.status.as_str(), "pausing" | "paused");
            if !in_the_way {
                return Err(error);
            }
            sleep(with_jitter(TRANSITION_POLL)).await;
        }
    }

    /// Makes sure that a sandbox runs, resuming it if necessary, and takes a fresh token for it. Safe to repeat. A
    /// pause in progress is waited for, at most 30 s.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn activate_sandbox(&self, id: &str) -> Result<Sandbox, ClientError> {
        let mut call = Call::new("the activation", Method::POST, path(id, "/activate")?);
        call.timeout = START_TIMEOUT;
        let started = Instant::now();
        loop {
            let error = match self.call(&call).await {
                Ok(answer) => {
                    let sandbox: Sandbox = answer.json()?;
                    self.inner.tokens.store(id, &sandbox.access_token);
                    return Ok(sandbox);
                }
                Err(error) => error,
            };
            let pausing = error.api().filter(|api| api.status == 409 && api.code == "sandbox_pausing");
            let Some(wait) = pausing.map(|api| api.retry_after.unwrap_or(TRANSITION_POLL)) else {
                return Err(error);
            };
            if started.elapsed() + wait > TRANSITION_TIMEOUT {
                return Err(error);
            }
            sleep(wait.max(DELETE_FIRST_POLL)).await;
        }
    }

    /// Deletes a sandbox. A transition in progress is waited for, at most 30 s.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_sandbox(&self, id: &str) -> Result<Deletion, ClientError> {
        let call = Call::new("the delete", Method::DELETE, path(id, "")?);
        self.inner.tokens.forget(id);
        let started = Instant::now();
        let mut wait = DELETE_FIRST_POLL;
        let mut sent_before = false;
        loop {
            let (answer, attempts) = self.call_counted(&call).await;
            let Err(error) = answer else { return Ok(Deletion::Deleted) };
            sent_before |= attempts > 1;
            match error.status() {
                // An earlier attempt may have done it although its answer was lost or was a conflict.
                Some(404) if sent_before => return Ok(Deletion::Deleted),
                Some(404) => return Ok(Deletion::AlreadyGone),
                Some(409) if started.elapsed() + wait <= TRANSITION_TIMEOUT => {}
                _ => return Err(error),
            }
            sent_before = true;
            sleep(with_jitter(wait)).await;
            wait = (wait * 2).min(TRANSITION_POLL * 4);
        }
    }

    /// One level of a directory, through the control plane; resumes a paused sandbox.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_directory(&self, id: &str, dir: &str) -> Result<DirectoryListing, ClientError> {
        let mut call = Call::new("the directory listing", Method::GET, path(id, "/files")?);
        call.query.push(("path".to_owned(), dir.to_owned()));
        call.timeout = START_TIMEOUT;
        self.call(&call).await?.json()
    }
}

pub(crate) fn path(id: &str, rest: &str) -> Result<String, ClientError> {
    Ok(format!("/sandboxes/{}{rest}", sandbox_id::check(id)?))
}
