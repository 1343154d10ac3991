//! What the rest of the platform calls. Every method may be dropped at any time; what it asked for goes on or never
//! began.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use activity::{Action as Done, Caller, Recorder};
use domain::{
    Action, Code, Engine, EnvVars, Metadata, NextStep, Offer, PreviewAccess, Problem, SandboxId,
    SandboxState, Secret, SecretId, TeamId, TemplateStatus, Timeouts,
};
use jiff::Timestamp;
use node::Host;
use secrets::{Secrets, ShownBinding};
use store::{BindingRow, Page, SandboxFilter, SandboxRow, SandboxSummary, Store, StoreError, Written};
use templates::LayerStore;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::origin::{self, Origin};
use crate::owner::{Answer, Begin, Context, Doing, Handle, Message, Owner, Request, record};
use crate::preview::Previews;
use crate::table::Operation;
use crate::tokens::TokenKey;
use crate::transition::{Change, NetworkPatch, Patch};
use crate::{problem, reconcile};

/// Clients give up after 30 s; the answer must be there before.
const ANSWER_WITHIN: Duration = Duration::from_secs(28);
/// A template is read again when it was built in between, which takes longer than a create.
const TEMPLATE_READS: u32 = 3;
/// How long an operation waits for another one in progress (`spec/rest-api.md` §15.15).
const JOIN_WITHIN: Duration = Duration::from_secs(20);
/// Opening a stream to an agent on the same host.
const AGENT: Duration = Duration::from_secs(5);
/// A stop waits this long for the owner tasks, which themselves wait at most 5 s for the host.
const STOP: Duration = Duration::from_secs(8);

/// How this server is set up.
#[derive(Clone)]
pub struct LifecycleConfig {
    /// Most sandboxes of one team that hold compute.
    pub quota: u32,
    /// How long a pause that may answer early waits nevertheless.
    pub pause_grace: Duration,
    /// How long a snapshot is waited for before it is answered as one that is still being saved.
    pub save_wait: Duration,
    /// Key of the data-plane tokens; the same after a restart, or all tokens die.
    pub token_key: [u8; 32],
    /// Key of the preview tokens; another one, so that neither kind of token is ever good for the other.
    pub preview_key: [u8; 32],
    /// Where the host's layers are.
    pub layers: LayerStore,
    /// What new sandboxes may run on.
    pub engines: Offer,
}

impl std::fmt::Debug for LifecycleConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LifecycleConfig")
            .field("quota", &self.quota)
            .field("pause_grace", &self.pause_grace)
            .finish_non_exhaustive()
    }
}

/// What a create asks for.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    /// 1 to 64 bytes.
    pub name: String,
    /// What it is made from.
    pub origin: Origin,
    /// What it is to run on, if its origin or the server is not to say.
    pub engine: Option<Engine>,
    /// The two clocks.
    pub timeouts: Timeouts,
    /// Tags.
    pub metadata: Metadata,
    /// Private variables.
    pub env: EnvVars,
    /// What it may reach, if that is not what its origin says.
    pub network: Option<NetworkPatch>,
    /// Default of ports published later.
    pub preview_access: PreviewAccess,
    /// Variables that hold stand-ins, and the names of their secrets; none of them is in `env`.
    pub secrets: BTreeMap<String, String>,
}

/// A sandbox with its newest data-plane token.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Everything known of it.
    pub row: Arc<SandboxRow>,
    /// The token.
    pub token: Secret,
    /// What is bound to it.
    pub secrets: Vec<ShownBinding>,
}

/// How far a pause came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseOutcome {
    /// It is paused (or, with auto-delete after 0 s, gone).
    Paused,
    /// It is being paused.
    Pausing,
}

/// The sandboxes of this server.
#[derive(Debug)]
pub struct Lifecycle {
    pub(crate) context: Arc<Context>,
    pub(crate) tasks: TaskTracker,
    tokens: TokenKey,
    pause_grace: Duration,
    pub(crate) save_wait: Duration,
}

impl Lifecycle {
    /// Compares database and host, mends what differs, and takes over every sandbox.
    ///
    /// # Errors
    /// When the database or the host does not answer.
    pub async fn start(
        store: Store,
        host: Arc<dyn Host>,
        activity: Recorder,
        secrets: Arc<Secrets>,
        config: LifecycleConfig,
    ) -> Result<Arc<Self>, Problem> {
        let cut_off = store.snapshot_fail_all().await?;
        if cut_off > 0 {
            tracing::warn!(snapshots = cut_off, "snapshots were cut off by the end of the server");
        }
        // What an earlier server has kept for rows that never came to be, or are gone.
        let known = store.snapshot_ready_ids().await?.into_iter().collect();
        if let Err(left) = host.forget_others(known).await {
            tracing::error!(cause = left.chain(), "cannot remove what is left of snapshots");
        }
        let previews = Previews::new(config.preview_key, store.preview_all().await?);
        let context = Arc::new(Context {
            store,
            previews,
            host,
            activity,
            secrets,
            quota: config.quota,
            layers: config.layers,
            engines: config.engines,
            owners: Mutex::new(HashMap::new()),
            stop: CancellationToken::new(),
        });
        let tasks = TaskTracker::new();
        reconcile::adopt_all(&context, &tasks).await?;
        tasks.spawn(reconcile::watch_exits(context.clone()));
        Ok(Arc::new(Self {
            context,
            tasks,
            tokens: TokenKey::new(config.token_key),
            pause_grace: config.pause_grace,
            save_wait: config.save_wait,
        }))
    }

    /// Makes a sandbox; it accepts commands when this returns.
    ///
    /// # Errors
    /// `not_found`, `conflict` (template or snapshot), `too_many_sandboxes`, or what the host says; nothing is left then.
    pub async fn create(&self, by: impl Into<Caller>, new: NewSandbox) -> Result<Opened, Problem> {
        let doing =
            Doing { action: Done::SandboxCreated, by: by.into(), since: Instant::now(), secret: None };
        let team = doing.by.team;
        if self.context.stop.is_cancelled() {
            return Err(problem::stopping());
        }
        let from = origin::find(&self.context.store, team, &new.origin).await?;
        let (made_from, memory) = (new.origin.clone(), from.memory);
        let (row, bindings) = origin::first_row(team, new, from, &self.context)?;
        let (reply, answer) = oneshot::channel();
        let context = self.context.clone();
        let quota = self.context.quota;
        // In a task of its own: a caller who leaves between the row and the machine would leave half a sandbox.
        self.tasks.spawn(async move {
            let refusal = match first_write(&context.store, &row, &bindings, quota).await {
                Ok(Written::Applied(row)) => {
                    context.secrets.bound_now(bindings);
                    return Owner::enter(context, *row).run(Begin::Create(doing, memory, reply)).await;
                }
                Ok(Written::OverQuota) => problem::over_quota(quota),
                Ok(Written::Stale) => origin::absent(&made_from),
                Err(error) => error.into(),
            };
            record(&context.activity, &row, &doing, Some(refusal.code.as_str()));
            let _gone = reply.send(Err(refusal));
        });
        let answer = tokio::time::timeout(ANSWER_WITHIN, answer).await;
        let answer = answer.map_err(|_| problem::too_slow("starting the sandbox", ANSWER_WITHIN))?;
        self.opened(answer)
    }

    /// One sandbox with its newest token; never changes anything.
    ///
    /// # Errors
    /// `not_found`.
    pub fn get(&self, team: TeamId, id: SandboxId) -> Result<Opened, Problem> {
        let row = self.find(team, id)?.view.borrow().clone();
        Ok(Opened { token: self.tokens.token(id, row.token), secrets: self.context.secrets.shown(id), row })
    }

    /// Some of a team's sandboxes.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn list(&self, team: TeamId, filter: &SandboxFilter) -> Result<Page<SandboxSummary>, Problem> {
        Ok(self.context.store.sandbox_list(team, filter).await?)
    }

    /// Changes settings; all of them or, when one may not change now, none.
    ///
    /// # Errors
    /// `not_found`; `conflict` for network rules of a sandbox that is not active.
    pub async fn patch(&self, by: impl Into<Caller>, id: SandboxId, patch: Patch) -> Result<(), Problem> {
        let operation =
            if patch.network.is_some() { Operation::PatchNetwork } else { Operation::PatchSettings };
        let change = Some(Change::Settings(patch));
        let (owner, answer) = self.ask(by.into(), id, operation, change).await?;
        settled(operation, &owner, answer).await.map(drop)
    }

    /// Pauses a sandbox, or joins the pause in progress. With `may_answer_early` the wait is short.
    ///
    /// # Errors
    /// `not_found`, `conflict`, or what the host says; the sandbox runs on then.
    pub async fn pause(
        &self,
        by: impl Into<Caller>,
        id: SandboxId,
        may_answer_early: bool,
    ) -> Result<PauseOutcome, Problem> {
        let (owner, mut answer) = self.ask(by.into(), id, Operation::Pause, None).await?;
        let grace = if may_answer_early { self.pause_grace.min(ANSWER_WITHIN) } else { ANSWER_WITHIN };
        for limit in [grace, ANSWER_WITHIN - grace] {
            if let Ok(answer) = tokio::time::timeout(limit, &mut answer).await {
                return answer.unwrap_or_else(|_| Err(problem::stopping())).map(|_| PauseOutcome::Paused);
            }
            // Only a pause that is on disk may be announced; one that still waits its turn ends with this call.
            if owner.view.borrow().summary.state == SandboxState::Pausing {
                return Ok(PauseOutcome::Pausing);
            }
        }
        Err(still_busy(Operation::Pause, &owner))
    }

    /// Continues a paused sandbox.
    ///
    /// # Errors
    /// `not_found`, `conflict` when it is not paused, `too_many_sandboxes`, or what the host says.
    pub async fn resume(&self, by: impl Into<Caller>, id: SandboxId) -> Result<Opened, Problem> {
        let (owner, answer) = self.ask(by.into(), id, Operation::Resume, None).await?;
        self.opened(Ok(settled(Operation::Resume, &owner, answer).await))
    }

    /// Makes a sandbox active, whatever it takes, and issues a fresh token. Any number may ask at once.
    ///
    /// # Errors
    /// `not_found`, `conflict`, `sandbox_pausing`, `too_many_sandboxes`, or what the host says.
    pub async fn activate(&self, by: impl Into<Caller>, id: SandboxId) -> Result<Opened, Problem> {
        let (owner, answer) = self.ask(by.into(), id, Operation::Activate, None).await?;
        self.opened(Ok(settled(Operation::Activate, &owner, answer).await))
    }

    /// Like [`Lifecycle::activate`], without a new token for a sandbox that is active already.
    ///
    /// # Errors
    /// As for [`Lifecycle::activate`].
    pub async fn ensure_active(&self, by: impl Into<Caller>, id: SandboxId) -> Result<(), Problem> {
        let by = by.into();
        if self.find(by.team, id)?.view.borrow().summary.state == SandboxState::Active {
            return Ok(());
        }
        self.activate(by, id).await.map(drop)
    }

    /// Removes a sandbox for good; waits for an operation in progress.
    ///
    /// # Errors
    /// `not_found`; `conflict` when the operation in progress does not end.
    pub async fn delete(&self, by: impl Into<Caller>, id: SandboxId) -> Result<(), Problem> {
        let (owner, answer) = self.ask(by.into(), id, Operation::Delete, None).await?;
        settled(Operation::Delete, &owner, answer).await.map(drop)
    }

    /// Everything known of a sandbox, also of one whose remains are being removed. Who may see it is the caller's
    /// business.
    #[must_use]
    pub fn row(&self, id: SandboxId) -> Option<Arc<SandboxRow>> {
        Some(self.context.owner(id)?.view.borrow().clone())
    }

    /// How many sandboxes there are in each state.
    #[must_use]
    pub fn count(&self) -> BTreeMap<&'static str, u64> {
        let mut counts: BTreeMap<_, _> = SandboxState::ALL.iter().map(|state| (state.as_str(), 0)).collect();
        let owners = self.context.owners.lock().unwrap_or_else(PoisonError::into_inner);
        for owner in owners.values() {
            *counts.entry(owner.view.borrow().summary.state.as_str()).or_default() += 1;
        }
        counts
    }

    /// Requests that wait for the owners of their sandboxes.
    #[must_use]
    pub fn queued(&self) -> usize {
        let owners = self.context.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.values().map(|owner| owner.inbox.max_capacity() - owner.inbox.capacity()).sum()
    }

    /// The state of a sandbox that exists.
    #[must_use]
    pub fn state(&self, id: SandboxId) -> Option<SandboxState> {
        let state = self.context.owner(id)?.view.borrow().summary.state;
        (state != SandboxState::Deleted).then_some(state)
    }

    /// Returns as soon as the sandbox is not active (any more).
    pub async fn inactive(&self, id: SandboxId) {
        let Some(mut owner) = self.context.owner(id) else { return };
        // An error means that its task ended: it is gone, or the server is about to be.
        let _gone = owner.view.wait_for(|row| row.summary.state != SandboxState::Active).await;
    }

    /// Whether a data-plane token opens this sandbox.
    #[must_use]
    pub fn admit(&self, id: SandboxId, token: &str) -> bool {
        let Some(owner) = self.context.owner(id) else { return false };
        let (state, numbers) = {
            let row = owner.view.borrow();
            (row.summary.state, row.token)
        };
        state != SandboxState::Deleted && self.tokens.admits(id, numbers, token, Timestamp::now())
    }

    /// Opens a stream to the agent of an active sandbox. Who may have it is the caller's business.
    ///
    /// # Errors
    /// `sandbox_unavailable` when it is not active, or what the host says.
    pub async fn agent(&self, id: SandboxId) -> Result<driver::BoxStream, Problem> {
        self.must_be_active(id)?;
        let opening = tokio::time::timeout(AGENT, self.context.host.agent(id)).await;
        opening.unwrap_or_else(|_| Err(problem::too_slow("reaching the sandbox", AGENT)))
    }

    pub(crate) fn must_be_active(&self, id: SandboxId) -> Result<(), Problem> {
        match self.state(id) {
            None => Err(Problem::no_such_sandbox(id)),
            Some(SandboxState::Active) => Ok(()),
            Some(state) => {
                let next = NextStep::Do(Action::Resume(id));
                Err(Problem::new(Code::SandboxUnavailable, format!("sandbox is {state}"), next))
            }
        }
    }

    /// Stops the tasks and leaves the sandboxes running. `false` when some had to be cut off; the next start mends what
    /// they left.
    pub async fn shutdown(&self) -> bool {
        self.context.stop.cancel();
        self.tasks.close();
        tokio::time::timeout(STOP, self.tasks.wait()).await.is_ok()
    }

    /// Binds a secret under a variable that new processes get.
    ///
    /// # Errors
    /// `not_found`; `bad_request` for an unknown secret, a plain variable or one binding too many; `conflict` when the
    /// variable is bound, or in a state that has no say.
    pub async fn attach_secret(
        &self,
        by: impl Into<Caller>,
        id: SandboxId,
        env_key: &str,
        secret_name: &str,
    ) -> Result<(), Problem> {
        let by = by.into();
        self.find(by.team, id)?;
        let wanted = [(env_key.to_owned(), secret_name.to_owned())];
        let wanted = wanted.iter().map(|(key, name)| (key, name));
        let mut bindings = self.context.secrets.prepare(by.team, id, wanted)?;
        let change = bindings.pop().map(Change::Attach);
        let (owner, answer) = self.ask(by, id, Operation::Bind, change).await?;
        settled(Operation::Bind, &owner, answer).await.map(drop)
    }

    /// Ends the binding under a variable: its stand-in is refused from now on, also to processes that have it.
    ///
    /// # Errors
    /// `not_found`, also for a variable that is not bound; `conflict` in a state that has no say.
    pub async fn detach_secret(
        &self,
        by: impl Into<Caller>,
        id: SandboxId,
        env_key: &str,
    ) -> Result<(), Problem> {
        let change = Some(Change::Detach(env_key.to_owned()));
        let (owner, answer) = self.ask(by.into(), id, Operation::Bind, change).await?;
        settled(Operation::Bind, &owner, answer).await.map(drop)
    }

    fn secret_of(&self, id: SandboxId, change: Option<&Change>) -> Option<(SecretId, String)> {
        let secrets = &self.context.secrets;
        let secret = match change? {
            Change::Attach(binding) => binding.secret,
            Change::Detach(key) => secrets.binding(id, key)?.secret,
            Change::Settings(_) | Change::Save(_) => return None,
        };
        Some((secret, secrets.name(secret)?))
    }

    pub(crate) fn find(&self, team: TeamId, id: SandboxId) -> Result<Handle, Problem> {
        let owner = self.context.owner(id).filter(|owner| owner.team == team);
        let owner = owner.filter(|owner| owner.view.borrow().summary.state != SandboxState::Deleted);
        owner.ok_or_else(|| Problem::no_such_sandbox(id))
    }

    pub(crate) async fn ask(
        &self,
        by: Caller,
        id: SandboxId,
        operation: Operation,
        change: Option<Change>,
    ) -> Result<(Handle, oneshot::Receiver<Answer>), Problem> {
        let owner = self.find(by.team, id)?;
        let (reply, answer) = oneshot::channel();
        let secret = self.secret_of(id, change.as_ref());
        let request = Box::new(Request { operation, by, since: Instant::now(), secret, change, reply });
        let sending = owner.inbox.send(Message::Ask(request));
        match tokio::time::timeout(ANSWER_WITHIN, sending).await {
            Ok(Ok(())) => Ok((owner, answer)),
            // Its task ended: the sandbox is gone, or the server is about to be.
            Ok(Err(_)) if self.context.stop.is_cancelled() => Err(problem::stopping()),
            Ok(Err(_)) => Err(Problem::no_such_sandbox(id)),
            Err(_) => Err(still_busy(operation, &owner)),
        }
    }

    fn opened(&self, answer: Result<Answer, oneshot::error::RecvError>) -> Result<Opened, Problem> {
        let row = answer.unwrap_or_else(|_| Err(problem::stopping()))?;
        let id = row.summary.id;
        Ok(Opened { token: self.tokens.token(id, row.token), secrets: self.context.secrets.shown(id), row })
    }
}

#[cfg(test)]
impl Lifecycle {
    /// No sandbox has an owner task any more.
    pub(crate) fn context_is_empty(&self) -> bool {
        self.context.owners.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Drop for Lifecycle {
    fn drop(&mut self) {
        self.context.stop.cancel();
    }
}

/// Waits for an answer: first as long as one operation waits for another, then as long as a client waits at all.
async fn settled(operation: Operation, owner: &Handle, mut answer: oneshot::Receiver<Answer>) -> Answer {
    let state = || owner.view.borrow().summary.state;
    for limit in [JOIN_WITHIN, ANSWER_WITHIN - JOIN_WITHIN] {
        match tokio::time::timeout(limit, &mut answer).await {
            Ok(Ok(answer)) => return answer,
            // The task ended without a word: a delete that has been written is a delete.
            Ok(Err(_)) if operation == Operation::Delete && state() == SandboxState::Deleted => break,
            Ok(Err(_)) if state() == SandboxState::Deleted => {
                return Err(Problem::no_such_sandbox(owner.view.borrow().summary.id));
            }
            Ok(Err(_)) => return Err(problem::stopping()),
            Err(_) if operation == Operation::Delete && state() == SandboxState::Deleted => break,
            Err(_) if operation == Operation::Delete || state() == SandboxState::Pausing => {
                return Err(still_busy(operation, owner));
            }
            Err(_) => {}
        }
    }
    if operation == Operation::Delete {
        Ok(owner.view.borrow().clone())
    } else {
        Err(still_busy(operation, owner))
    }
}

fn still_busy(operation: Operation, owner: &Handle) -> Problem {
    problem::still_busy(operation, &owner.view.borrow())
}

/// Writes a new sandbox. A template that was built again since it was read is read again: only layers that are referred to
/// when the row is written are still there afterwards.
async fn first_write(
    store: &Store,
    row: &SandboxRow,
    bindings: &[BindingRow],
    quota: u32,
) -> Result<Written, StoreError> {
    let mut row = row.clone();
    for _ in 0..TEMPLATE_READS {
        match store.sandbox_create(row.clone(), bindings, quota).await? {
            Written::Stale => {}
            written => return Ok(written),
        }
        // What a snapshot holds does not change: it is gone.
        let (Some(template), None) = (row.template, row.summary.source_snapshot) else { break };
        let template = store.template_get(template).await?;
        let Some(template) = template.filter(|template| template.status == TemplateStatus::Ready) else {
            break;
        };
        row.summary.shape = template.shape;
        row.layers = template.layers;
        row.defaults = template.defaults;
    }
    Ok(Written::Stale)
}
