//! Preview ports: publishing, taking back, tokens and their generations (`spec/rest-api.md` §7, `spec/semantics.md` §11).
//!
//! What is published is kept in memory beside the database, because the edge asks for it with every request. One writer
//! at a time changes the database first and the memory right after it, in a task of its own, so that a caller who leaves
//! cannot part the two. None of this ever wakes a sandbox or depends on its state.

mod token;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use activity::{Action as Done, Caller, Entry};
use domain::{
    Code, MAX_PREVIEW_PORTS, NextStep, PreviewAccess, PreviewPort, Problem, Published, SandboxId,
    SandboxState, Secret, TeamId,
};
use jiff::{SignedDuration, Timestamp};
use store::{PreviewRow, SandboxRow};
use tokio::sync::watch;

use crate::owner::Context;
use crate::problem;
use crate::service::Lifecycle;

pub use token::PreviewAdmission;
pub(crate) use token::PreviewKey;

/// Opening a stream to a port on the same host.
const DIAL: Duration = Duration::from_secs(5);

type Ports = BTreeMap<PreviewPort, watch::Sender<PreviewRow>>;

/// What is published, and the key of the tokens.
#[derive(Debug)]
pub(crate) struct Previews {
    key: PreviewKey,
    known: Mutex<HashMap<SandboxId, Ports>>,
    /// Held by whoever changes a port, from reading what it is to remembering what it became.
    writing: tokio::sync::Mutex<()>,
}

/// A token, and what there is to say of it.
#[derive(Debug, Clone)]
pub struct PreviewToken {
    /// The token.
    pub token: Secret,
    /// How its port is published.
    pub published: Published,
    /// When it ends by itself.
    pub ends: Option<Timestamp>,
    /// The sandbox's default for ports published later.
    pub default: PreviewAccess,
}

/// A published port among those of all sandboxes of a team.
#[derive(Debug, Clone)]
pub struct PreviewOf {
    /// Everything known of the sandbox.
    pub row: Arc<SandboxRow>,
    /// Which port.
    pub port: PreviewPort,
    /// How it is published.
    pub published: Published,
}

impl Previews {
    pub(crate) fn new(key: [u8; 32], rows: Vec<PreviewRow>) -> Self {
        let mut known: HashMap<_, Ports> = HashMap::new();
        for row in rows {
            known.entry(row.sandbox).or_default().insert(row.port, watch::Sender::new(row));
        }
        Self { key: PreviewKey::new(key), known: Mutex::new(known), writing: tokio::sync::Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SandboxId, Ports>> {
        // The map is whole after each statement that changes it.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn row(&self, id: SandboxId, port: PreviewPort) -> Option<PreviewRow> {
        Some(*self.known().get(&id)?.get(&port)?.borrow())
    }

    fn published(&self, id: SandboxId) -> Vec<(PreviewPort, Published)> {
        let known = self.known();
        let ports = known.get(&id).into_iter().flatten();
        ports.filter_map(|(port, row)| Some((*port, row.borrow().published()?))).collect()
    }

    /// Forgets a sandbox whose row is gone; whoever waits for a change of its ports is told.
    pub(crate) fn forget(&self, id: SandboxId) {
        self.known().remove(&id);
    }
}

impl Context {
    /// Remembers what the database says now, unless the sandbox has gone in the meantime: its owner leaves the
    /// directory before it calls [`Previews::forget`].
    fn learn(&self, row: PreviewRow) {
        let mut known = self.previews.known();
        if self.owner(row.sandbox).is_none() {
            return;
        }
        let ports = known.entry(row.sandbox).or_default();
        match ports.get(&row.port) {
            Some(port) => drop(port.send_replace(row)),
            None => drop(ports.insert(row.port, watch::Sender::new(row))),
        }
    }
}

impl Lifecycle {
    /// The default of ports published later, and the published ports in their order.
    ///
    /// # Errors
    /// `not_found` for the sandbox.
    pub fn preview_ports(
        &self,
        team: TeamId,
        id: SandboxId,
    ) -> Result<(PreviewAccess, Vec<(PreviewPort, Published)>), Problem> {
        let default = self.find(team, id)?.view.borrow().summary.preview_access;
        Ok((default, self.context.previews.published(id)))
    }

    /// Every published port of a team's sandboxes, oldest sandbox first.
    #[must_use]
    pub fn previews(&self, team: TeamId) -> Vec<PreviewOf> {
        let owners = self.context.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let own = owners.values().filter(|owner| owner.team == team);
        let mut rows: Vec<_> = own.map(|owner| owner.view.borrow().clone()).collect();
        drop(owners);
        rows.retain(|row| row.summary.state != SandboxState::Deleted);
        rows.sort_by_key(|row| (row.summary.created_at, row.summary.id));
        let ports = rows.into_iter().flat_map(|row| {
            let ports = self.context.previews.published(row.summary.id);
            ports.into_iter().map(move |(port, published)| PreviewOf { row: row.clone(), port, published })
        });
        ports.collect()
    }

    /// Publishes a port, or changes its mode, which ends all its tokens. Without a mode a new port takes the sandbox's
    /// default and a published one stays as it is.
    ///
    /// # Errors
    /// `not_found` for the sandbox; `conflict` when it has too many published ports.
    pub async fn preview_publish(
        &self,
        by: impl Into<Caller>,
        id: SandboxId,
        port: PreviewPort,
        access: Option<PreviewAccess>,
    ) -> Result<Published, Problem> {
        let by = by.into();
        let default = self.find(by.team, id)?.view.borrow().summary.preview_access;
        let row = self.change(by, Done::PreviewPublished, id, port, move |context, row| {
            if row.is_none_or(|row| row.access.is_none())
                && context.previews.published(id).len() >= MAX_PREVIEW_PORTS
            {
                return Err(too_many());
            }
            Ok(published(row, access, default))
        });
        row.await.map(|(access, generation)| Published { access: access.unwrap_or(default), generation })
    }

    /// Takes a port back: it answers 404, and its tokens, links and cookies end. One that is not published is fine.
    ///
    /// # Errors
    /// `not_found` for the sandbox.
    pub async fn preview_unpublish(
        &self,
        by: impl Into<Caller>,
        id: SandboxId,
        port: PreviewPort,
    ) -> Result<(), Problem> {
        let by = by.into();
        self.find(by.team, id)?;
        if self.preview(id, port).is_none() {
            return Ok(());
        }
        let taken_back =
            |_: &Context, row: Option<PreviewRow>| Ok((None, row.map_or(0, |row| row.generation)));
        self.change(by, Done::PreviewUnpublished, id, port, taken_back).await.map(drop)
    }

    /// A new token of a private port; earlier ones stay good. It ends after so many seconds, or never.
    ///
    /// # Errors
    /// `not_found` for the sandbox or a port that is not published, `conflict` for a public one.
    pub fn preview_token(
        &self,
        by: impl Into<Caller>,
        id: SandboxId,
        port: PreviewPort,
        seconds: Option<u32>,
    ) -> Result<PreviewToken, Problem> {
        let (by, since) = (by.into(), Instant::now());
        let sandbox = self.find(by.team, id)?.view.borrow().clone();
        let published = private(id, port, self.preview(id, port))?;
        let ends = seconds.and_then(|seconds| {
            let end = Timestamp::now().checked_add(SignedDuration::from_secs(i64::from(seconds))).ok()?;
            Timestamp::from_second(end.as_second()).ok()
        });
        self.note(by, Done::PreviewTokenIssued, &sandbox, port, since, None);
        let token = self.context.previews.key.token(id, port, published.generation, ends);
        Ok(PreviewToken { token, published, ends, default: sandbox.summary.preview_access })
    }

    /// Ends all tokens, links and cookies of a private port and gives a new token without an end.
    ///
    /// # Errors
    /// As for [`Lifecycle::preview_token`].
    pub async fn preview_rotate(
        &self,
        by: impl Into<Caller>,
        id: SandboxId,
        port: PreviewPort,
    ) -> Result<PreviewToken, Problem> {
        let by = by.into();
        let default = self.find(by.team, id)?.view.borrow().summary.preview_access;
        let rotated = move |_: &Context, row: Option<PreviewRow>| {
            let published = private(id, port, row.and_then(|row| row.published()))?;
            Ok((Some(published.access), published.generation + 1))
        };
        let (access, generation) = self.change(by, Done::PreviewRotated, id, port, rotated).await?;
        let published = Published { access: access.unwrap_or(PreviewAccess::Private), generation };
        let token = self.context.previews.key.token(id, port, generation, None);
        Ok(PreviewToken { token, published, ends: None, default })
    }

    /// How a port is published, if it is. Who may know is the caller's business.
    #[must_use]
    pub fn preview(&self, id: SandboxId, port: PreviewPort) -> Option<Published> {
        self.context.previews.row(id, port)?.published()
    }

    /// What a token is worth at a port that is published like this.
    #[must_use]
    pub fn preview_admit(
        &self,
        id: SandboxId,
        port: PreviewPort,
        published: Published,
        token: &str,
    ) -> PreviewAdmission {
        self.context.previews.key.admits(id, port, published, token, Timestamp::now())
    }

    /// Returns as soon as a port is not published like this any more.
    pub async fn preview_changed(&self, id: SandboxId, port: PreviewPort, published: Published) {
        let row =
            self.context.previews.known().get(&id).and_then(|ports| Some(ports.get(&port)?.subscribe()));
        if let Some(mut row) = row {
            // An error means that the sandbox is gone.
            let _gone = row.wait_for(|row| row.published() != Some(published)).await;
        }
    }

    /// Opens a stream to a port of an active sandbox. Whether it is published is the caller's business.
    ///
    /// # Errors
    /// `sandbox_unavailable` when the sandbox is not active, `not_found` when nothing listens, or what the host says.
    pub async fn dial(&self, id: SandboxId, port: PreviewPort) -> Result<driver::BoxStream, Problem> {
        self.must_be_active(id)?;
        let opening = tokio::time::timeout(DIAL, self.context.host.dial(id, port)).await;
        opening.unwrap_or_else(|_| Err(problem::too_slow("reaching the port", DIAL)))
    }

    /// Writes what a port is to be, remembers it, and puts it into the activity log. `next` sees the port as it is and
    /// says mode and generation; what does not change is not written.
    async fn change(
        &self,
        by: Caller,
        action: Done,
        id: SandboxId,
        port: PreviewPort,
        next: impl FnOnce(&Context, Option<PreviewRow>) -> Result<Next, Problem> + Send + 'static,
    ) -> Result<Next, Problem> {
        let since = Instant::now();
        let sandbox = self.find(by.team, id)?.view.borrow().clone();
        if self.context.stop.is_cancelled() {
            return Err(problem::stopping());
        }
        let context = self.context.clone();
        let work = self.tasks.spawn(async move {
            let _turn = context.previews.writing.lock().await;
            let before = context.previews.row(id, port);
            let (access, generation) = next(&context, before)?;
            let row = PreviewRow { sandbox: id, port, access, generation };
            let changed = before != Some(row);
            if changed {
                if !context.store.preview_put(&row).await? {
                    return Err(Problem::no_such_sandbox(id));
                }
                context.learn(row);
            }
            Ok(((access, generation), changed))
        });
        let done = work.await.unwrap_or_else(|error| Err(Problem::internal("publishing ended early", error)));
        // Clients ask for an address by publishing: again is no news.
        if !matches!(done, Ok((_, false))) {
            self.note(by, action, &sandbox, port, since, done.as_ref().err().map(|why| why.code.as_str()));
        }
        done.map(|(next, _)| next)
    }

    fn note(
        &self,
        by: Caller,
        action: Done,
        sandbox: &SandboxRow,
        port: PreviewPort,
        since: Instant,
        error: Option<&'static str>,
    ) {
        self.context.activity.record(Entry {
            sandbox: Some((sandbox.summary.id, sandbox.summary.name.clone())),
            template: sandbox.template,
            error,
            took: Some(since.elapsed()),
            facts: vec![("port", port.get().into())],
            ..Entry::new(action, by)
        });
    }
}

/// Mode and generation of a port.
type Next = (Option<PreviewAccess>, u64);

/// A port after a wish to publish it.
fn published(row: Option<PreviewRow>, wish: Option<PreviewAccess>, default: PreviewAccess) -> Next {
    match row {
        None => (Some(wish.unwrap_or(default)), 1),
        Some(PreviewRow { access: None, generation, .. }) => (Some(wish.unwrap_or(default)), generation + 1),
        Some(PreviewRow { access: Some(access), generation, .. }) => match wish {
            Some(wish) if wish != access => (Some(wish), generation + 1),
            _ => (Some(access), generation),
        },
    }
}

/// Tokens are for private ports.
fn private(id: SandboxId, port: PreviewPort, published: Option<Published>) -> Result<Published, Problem> {
    let fix = |accepted: &str| NextStep::Fix { field: "port".to_owned(), accepted: accepted.to_owned() };
    match published {
        None => Err(Problem::new(
            Code::NotFound,
            format!("port {port} of sandbox {id} is not published"),
            fix("publish it first with POST /sandboxes/{id}/preview-ports"),
        )),
        Some(Published { access: PreviewAccess::Public, .. }) => Err(Problem::new(
            Code::Conflict,
            format!("port {port} is public and needs no token"),
            fix("publish it with \"access\": \"private\" to protect it"),
        )),
        Some(published) => Ok(published),
    }
}

fn too_many() -> Problem {
    let message = format!("{MAX_PREVIEW_PORTS} ports of this sandbox are published, which is the most");
    let accepted = "unpublish one first with DELETE /sandboxes/{id}/preview-ports/{port}".to_owned();
    Problem::new(Code::Conflict, message, NextStep::Fix { field: "port".to_owned(), accepted })
}
