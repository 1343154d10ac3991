//! One task per sandbox: the only one that changes it. It asks the table, writes the intent, starts the effect, and
//! writes the outcome. While an effect runs it keeps answering: requests that must wait are kept and asked again
//! afterwards. A request whose caller has gone is dropped unless it has begun.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use activity::{Action, Caller, Entry, Recorder};
use domain::{Captured, Problem, SandboxId, SandboxState, SecretId, SnapshotId, TeamId};
use jiff::Timestamp;
use node::Host;
use secrets::{MAX_BINDINGS, Secrets};
use store::{SandboxRow, SnapshotRow, Store, StoreError, Written};
use templates::LayerStore;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::machine::{self, Outcome, Work};
use crate::preview::Previews;
use crate::snapshot::{self, SaveOutcome, Saving, Wish};
use crate::table::{self, Effect, Event, Input, Operation, Step, Verdict};
use crate::transition::{self, Change};
use crate::{problem, timers};

/// Requests that wait for the task to look at them; it looks at once except while it writes to the database.
const INBOX: usize = 32;
/// Requests that wait for what is in progress: many times what honest clients of one sandbox ask at once.
pub(crate) const MAX_WAITING: usize = 1_000;
/// An outcome must reach the database before anything else happens: the disk may be full for a while.
pub(crate) const REWRITE_EVERY: Duration = Duration::from_secs(1);
/// A host that could not remove a sandbox needs time, or an operator.
const REDESTROY_EVERY: Duration = Duration::from_secs(30);
/// A stop lets a host call come to its end this long; the next start mends what is cut off.
const FINISH: Duration = Duration::from_secs(5);

/// The sandbox as it is after the operation, or why not.
pub(crate) type Answer = Result<Arc<SandboxRow>, Problem>;

/// A caller's wish with the way back to the caller.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) by: Caller,
    /// When the caller asked.
    pub(crate) since: Instant,
    /// Which secret it is about.
    pub(crate) secret: Option<(SecretId, String)>,
    pub(crate) change: Option<Change>,
    pub(crate) reply: oneshot::Sender<Answer>,
}

/// What an owner task receives.
#[derive(Debug)]
pub(crate) enum Message {
    Ask(Box<Request>),
    /// The host says the machine ended.
    Exited,
}

/// How others reach an owner task.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(crate) team: TeamId,
    pub(crate) inbox: mpsc::Sender<Message>,
    pub(crate) view: watch::Receiver<Arc<SandboxRow>>,
}

/// What all owner tasks share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) store: Store,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) activity: Recorder,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) previews: Previews,
    pub(crate) quota: u32,
    pub(crate) layers: LayerStore,
    /// What new sandboxes may run on.
    pub(crate) engines: domain::Offer,
    pub(crate) owners: Mutex<HashMap<SandboxId, Handle>>,
    pub(crate) stop: CancellationToken,
}

impl Context {
    pub(crate) fn owner(&self, id: SandboxId) -> Option<Handle> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }
}

/// How an owner task begins.
pub(crate) enum Begin {
    /// With a machine to start, for a caller, out of what a snapshot holds if it holds memory.
    Create(Doing, Option<SnapshotId>, oneshot::Sender<Answer>),
    /// With what a restart found.
    Recovered(Verdict),
}

/// What is going on, for the activity log.
#[derive(Debug, Clone)]
pub(crate) struct Doing {
    pub(crate) action: Action,
    pub(crate) by: Caller,
    pub(crate) since: Instant,
    /// Which secret it is about.
    pub(crate) secret: Option<(SecretId, String)>,
}

/// The owner of one sandbox.
pub(crate) struct Owner {
    context: Arc<Context>,
    row: SandboxRow,
    view: watch::Sender<Arc<SandboxRow>>,
    inbox: mpsc::Receiver<Message>,
    /// The host call in progress, if any.
    work: Option<Work>,
    /// Why it is in progress.
    doing: Option<Doing>,
    /// The snapshot in progress, if any; never together with a host call.
    save: Option<Save>,
    /// Who is answered by its outcome.
    askers: Vec<Request>,
    /// Who is asked again after it.
    waiting: Vec<Request>,
    /// The machine's end was announced while a host call was in progress.
    exited: bool,
}

/// Adds a request to those that wait, unless there are too many. What waits for a snapshot may do so for minutes, long
/// after its caller gave up.
fn enqueue(line: &mut Vec<Request>, request: Request, row: &SandboxRow) {
    if line.len() >= MAX_WAITING {
        line.retain(|waiting| !waiting.reply.is_closed());
    }
    if line.len() < MAX_WAITING {
        line.push(request);
    } else {
        let _gone = request.reply.send(Err(problem::still_busy(request.operation, row)));
    }
}

/// A snapshot in progress.
struct Save {
    snapshot: SnapshotRow,
    request: Request,
    work: Saving,
}

enum Next {
    Done(Outcome),
    Saved(SaveOutcome),
    Message(Option<Message>),
    Due(Event),
    Stop,
}

impl Owner {
    /// Enters the sandbox into the directory; the task starts with [`Owner::run`].
    pub(crate) fn enter(context: Arc<Context>, row: SandboxRow) -> Self {
        let (sender, inbox) = mpsc::channel(INBOX);
        let (view, seen) = watch::channel(Arc::new(row.clone()));
        let handle = Handle { team: row.team, inbox: sender, view: seen };
        let mut owners = context.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.insert(row.summary.id, handle);
        drop(owners);
        Self {
            context,
            row,
            view,
            inbox,
            work: None,
            doing: None,
            save: None,
            askers: Vec::new(),
            waiting: Vec::new(),
            exited: false,
        }
    }

    /// Owns the sandbox until it is gone or the server stops.
    pub(crate) async fn run(mut self, begin: Begin) {
        match begin {
            Begin::Create(doing, snapshot, reply) => {
                self.askers.push(Request {
                    operation: Operation::Activate,
                    by: doing.by.clone(),
                    since: doing.since,
                    secret: None,
                    change: None,
                    reply,
                });
                self.doing = Some(doing);
                let host = self.context.host.clone();
                self.work = Some(machine::create(host, &self.context.secrets, &self.row, snapshot));
            }
            Begin::Recovered(Verdict::Go(step)) => self.recover(step).await,
            Begin::Recovered(Verdict::Join | Verdict::Refuse(_) | Verdict::Ignore) => {}
        }
        while self.row.summary.state != SandboxState::Deleted {
            match self.wait().await {
                Next::Done(outcome) => self.finished(outcome).await,
                Next::Saved(outcome) => self.saved(outcome).await,
                Next::Message(Some(Message::Ask(request))) => self.ask(*request).await,
                // The snapshot has to know what it was when it was asked for.
                Next::Message(Some(Message::Exited)) if self.save.is_some() => self.exited = true,
                Next::Message(Some(Message::Exited)) => self.tell(Event::Exited).await,
                Next::Due(event) => self.tell(event).await,
                Next::Message(None) => return,
                Next::Stop => return self.wind_down().await,
            }
        }
        self.remove().await;
    }

    async fn wait(&mut self) -> Next {
        let busy = self.work.is_some() || self.save.is_some();
        let deadline = if busy { None } else { timers::deadline(&self.row) };
        let work = async {
            match &mut self.work {
                Some(work) => work.await,
                None => std::future::pending().await,
            }
        };
        let save = async {
            match &mut self.save {
                Some(save) => (&mut save.work).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // An outcome first: everything else depends on the state it leads to. Deadlines before requests, so that
            // what is due is not put off by a caller who never stops asking.
            biased;
            outcome = work => Next::Done(outcome),
            outcome = save => Next::Saved(outcome),
            () = self.context.stop.cancelled() => Next::Stop,
            event = timers::due(deadline) => Next::Due(event),
            message = self.inbox.recv() => Next::Message(message),
        }
    }

    async fn ask(&mut self, request: Request) {
        // Whoever has gone away before it began does not want it any more.
        if request.reply.is_closed() {
            return;
        }
        let state = self.row.summary.state;
        let verdict = if self.save.is_some() {
            table::while_saved(state, request.operation)
        } else {
            table::next(state, Input::Ask(request.operation))
        };
        match verdict {
            Verdict::Refuse(code) => {
                let refusal = problem::refused(code, request.operation, &self.row);
                if self.row.summary.state != SandboxState::Deleted {
                    self.record(&request.doing(), Some(&refusal));
                }
                let _gone = request.reply.send(Err(refusal));
            }
            Verdict::Join if request.operation == Operation::Pause && self.save.is_none() => {
                enqueue(&mut self.askers, request, &self.row);
            }
            Verdict::Join | Verdict::Ignore => enqueue(&mut self.waiting, request, &self.row),
            Verdict::Go(step) => match request.change.clone() {
                Some(Change::Save(wish)) => self.begin_save(&wish, request).await,
                _ => self.begin(step, request).await,
            },
        }
    }

    /// Writes the snapshot's row and starts saving.
    async fn begin_save(&mut self, wish: &Wish, request: Request) {
        let context = &self.context;
        let bindings = context.secrets.bindings(self.row.summary.id);
        let Some(captured) = snapshot::captured(&*context.host, &self.row) else {
            let refusal = problem::no_memory(self.row.summary.id);
            self.record(&request.doing(), Some(&refusal));
            let _gone = request.reply.send(Err(refusal));
            return;
        };
        let row = snapshot::begun(&self.row, &wish.new, captured, bindings);
        let begun = context.store.snapshot_begin(row).await.map_err(Problem::from);
        match begun.and_then(snapshot::permitted) {
            Ok(Some(snapshot)) => {
                let _once = wish.begun.set(snapshot.id);
                let spec = machine::spec(&context.secrets, &self.row);
                let (host, layers, stop) =
                    (Arc::clone(&context.host), context.layers.clone(), context.stop.clone());
                let state = self.row.summary.state;
                let work = match snapshot.captured {
                    Captured::MemoryAndDisk => snapshot::keep(host, spec, snapshot.id, state, stop),
                    Captured::Disk => snapshot::save(host, layers, spec, state, stop),
                };
                self.save = Some(Save { snapshot, request, work });
            }
            // The key has one.
            Ok(None) => {
                let _gone = request.reply.send(Ok(self.view.borrow().clone()));
            }
            Err(refusal) => {
                self.record(&request.doing(), Some(&refusal));
                let _gone = request.reply.send(Err(refusal));
            }
        }
    }

    /// A snapshot came to its end: what became of it is written, its asker answered, whoever waited asked again.
    async fn saved(&mut self, outcome: SaveOutcome) {
        let Some(Save { snapshot, request, .. }) = self.save.take() else { return };
        let context = Arc::clone(&self.context);
        let ended = snapshot::write_end(&context.store, &context.stop, snapshot.id, outcome.layers).await;
        // From here on the row holds the layers.
        drop(outcome.adding);
        if ended.is_err() {
            snapshot::forget(&*context.host, &snapshot).await;
        }
        let doing = request.doing();
        record_save(&self.context.activity, &self.row, &snapshot, &doing, ended.as_ref().err());
        if let Err(why) = &ended {
            tracing::warn!(sandbox = %self.row.summary.id, snapshot = %snapshot.id, cause = why.chain(), "a snapshot failed");
        }
        let _gone = request.reply.send(ended.map(|()| self.view.borrow().clone()));
        if let Some(stuck) = outcome.stuck {
            tracing::error!(sandbox = %self.row.summary.id, cause = stuck.chain(), "the sandbox does not continue after a snapshot; pausing it");
            if !self.exited {
                self.tell(Event::OutOfHand).await;
            }
        }
        // A pause that has just begun hears of the end by itself.
        if self.work.is_none() {
            self.go_on(false).await;
        }
    }

    /// Writes the intent and starts the effect. What cannot be written is not begun.
    async fn begin(&mut self, step: Step, request: Request) {
        if let Err(refusal) = self.check(request.change.as_ref()) {
            self.record(&request.doing(), Some(&refusal));
            let _gone = request.reply.send(Err(refusal));
            return;
        }
        let now = Timestamp::now();
        let row = transition::after(&self.row, step, request.change.as_ref(), now);
        let needs_place = !holds_compute(self.row.summary.state) && holds_compute(step.to);
        let store = &self.context.store;
        let written = match (&request.change, step.effect) {
            (Some(Change::Settings(_)), _) => store.sandbox_patch(row).await,
            (Some(Change::Attach(binding)), _) => store.binding_attach(row, binding).await,
            (Some(Change::Detach(key)), _) => match self.binding(key) {
                Some(binding) => store.binding_detach(row, binding, now).await,
                None => Ok(Written::Stale),
            },
            (Some(Change::Save(_)) | None, _) => {
                let quota = needs_place.then_some(self.context.quota);
                self.context.store.sandbox_transition(row, quota).await
            }
        };
        let refusal = match written {
            Ok(Written::Applied(row)) => {
                let before = self.row.clone();
                self.publish(*row);
                if let Err(why) = self.put_in_force(step.effect, request.change.as_ref(), before, now).await {
                    self.record(&request.doing(), Some(&why));
                    let _gone = request.reply.send(Err(why));
                    return;
                }
                self.start(step.effect);
                self.note(step.effect, &request);
                // What takes time answers when it is done; the rest is done.
                if matches!(step.effect, Effect::Freeze | Effect::Continue | Effect::Destroy) {
                    self.askers.push(request);
                } else {
                    let _gone = request.reply.send(Ok(self.view.borrow().clone()));
                }
                return;
            }
            Ok(Written::OverQuota) => problem::over_quota(self.context.quota),
            Ok(Written::Stale) => {
                self.reload().await;
                Problem::internal("the sandbox was changed by somebody else", "stale generation")
            }
            Err(error) => error.into(),
        };
        self.record(&request.doing(), Some(&refusal));
        let _gone = request.reply.send(Err(refusal));
    }

    fn binding(&self, env_key: &str) -> Option<Uuid> {
        self.context.secrets.binding(self.row.summary.id, env_key).map(|binding| binding.id)
    }

    /// What only the sandbox's owner can say of a change.
    fn check(&self, change: Option<&Change>) -> Result<(), Problem> {
        let id = self.row.summary.id;
        match change {
            Some(Change::Attach(new)) if self.row.env.as_map().contains_key(&new.env_key) => {
                Err(problem::plain_variable(&new.env_key))
            }
            Some(Change::Attach(new)) if self.binding(&new.env_key).is_some() => {
                Err(problem::already_bound(&new.env_key))
            }
            Some(Change::Attach(_)) if self.context.secrets.count(id) >= MAX_BINDINGS => {
                Err(problem::too_many_bound())
            }
            Some(Change::Detach(key)) if self.binding(key).is_none() => Err(problem::not_bound(key, id)),
            Some(Change::Attach(_) | Change::Detach(_) | Change::Settings(_) | Change::Save(_)) | None => {
                Ok(())
            }
        }
    }

    /// What has been written is to hold when it is answered.
    async fn put_in_force(
        &mut self,
        effect: Effect,
        change: Option<&Change>,
        before: SandboxRow,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let (host, secrets, id) =
            (self.context.host.clone(), self.context.secrets.clone(), self.row.summary.id);
        match change {
            Some(Change::Settings(_)) if effect == Effect::Apply => self.apply(before).await,
            Some(Change::Attach(binding)) => {
                secrets.bound_now(vec![binding.clone()]);
                if effect != Effect::Apply {
                    return Ok(());
                }
                let Err(why) = machine::configure(&*host, &secrets, &self.row).await else { return Ok(()) };
                // A variable that no process gets is no binding.
                secrets.unbound_now(id, binding.id);
                if let Err(error) = self.context.store.binding_forget(binding.id).await {
                    self.log("cannot take back a binding", &error);
                }
                Err(why)
            }
            Some(Change::Detach(key)) => {
                if let Some(binding) = self.binding(key) {
                    secrets.detached_now(id, binding, now);
                }
                // The stand-in is refused already; that new processes may still get it does no harm.
                if effect == Effect::Apply
                    && let Err(why) = machine::configure(&*host, &secrets, &self.row).await
                {
                    tracing::warn!(sandbox = %id, cause = why.chain(), "a detached variable stays until the next resume");
                }
                Ok(())
            }
            Some(Change::Settings(_) | Change::Save(_)) | None => Ok(()),
        }
    }

    /// Has the host enforce what has been written. When it cannot, what was written is taken back; when even that does not
    /// work, what is shown may be stricter than what is in force, and the machine is stopped until a resume sets it right.
    async fn apply(&mut self, before: SandboxRow) -> Result<(), Problem> {
        let host = self.context.host.clone();
        let Err(why) = machine::apply(&*host, &self.row).await else { return Ok(()) };
        tracing::warn!(sandbox = %self.row.summary.id, cause = why.chain(), "cannot change the rules");
        let before = SandboxRow { generation: self.row.generation, ..before };
        let restored = machine::apply(&*host, &before).await;
        if restored.is_ok()
            && let Ok(Written::Applied(row)) = self.context.store.sandbox_patch(before).await
        {
            self.publish(*row);
            return Err(why);
        }
        tracing::error!(sandbox = %self.row.summary.id, "it is not known which rules are in force; pausing the sandbox");
        self.tell(Event::OutOfHand).await;
        Err(why)
    }

    /// What takes time is recorded when it is done; what is written is done, and a delete is one for everybody.
    fn note(&mut self, effect: Effect, request: &Request) {
        match effect {
            Effect::Freeze | Effect::Continue => self.doing = Some(request.doing()),
            Effect::IssueToken => {
                self.record(&Doing { action: Action::TokenRotated, ..request.doing() }, None);
            }
            Effect::Destroy | Effect::Save | Effect::Apply => self.record(&request.doing(), None),
            Effect::OpenSession
            | Effect::RestartClock
            | Effect::EnterPaused
            | Effect::StepBack
            | Effect::LoseMemory
            | Effect::Capture
            | Effect::Nothing => {}
        }
    }

    fn record(&self, doing: &Doing, failure: Option<&Problem>) {
        record(&self.context.activity, &self.row, doing, failure.map(|problem| problem.code.as_str()));
    }

    /// What the platform does by itself.
    fn by_itself(&self, action: Action) -> Doing {
        Doing { action, by: self.row.team.into(), since: Instant::now(), secret: None }
    }

    /// Goes on where the last server was cut off, or takes note of what the restart of the host took.
    async fn recover(&mut self, step: Step) {
        let before = self.row.summary.state;
        // A disk that was left by a machine that ended earlier is no news.
        let lost =
            step.effect == Effect::LoseMemory && (before != SandboxState::Paused || self.row.memory_kept);
        self.settle(step).await;
        match step.effect {
            Effect::Freeze => self.doing = Some(self.by_itself(Action::SandboxPaused)),
            Effect::Continue => self.doing = Some(self.by_itself(Action::SandboxResumed)),
            Effect::Destroy if before == SandboxState::Starting => {
                self.record(&self.by_itself(Action::SandboxCreated), Some(&problem::stopping()));
            }
            Effect::LoseMemory if lost => self.record(&self.by_itself(Action::MachineDied), None),
            Effect::Nothing if step.to == SandboxState::Failed => {
                tracing::error!(sandbox = %self.row.summary.id, "the sandbox cannot be used any more; it can be deleted");
                self.record(&self.by_itself(Action::SandboxFailed), None);
            }
            _ => {}
        }
    }

    fn start(&mut self, effect: Effect) {
        let (host, secrets) = (self.context.host.clone(), &self.context.secrets);
        match effect {
            Effect::Freeze => self.work = Some(machine::freeze(host, secrets, &self.row)),
            Effect::Continue => self.work = Some(machine::carry_on(host, secrets, &self.row)),
            // The task ends with it: see `remove`.
            Effect::Destroy => {}
            Effect::OpenSession
            | Effect::RestartClock
            | Effect::EnterPaused
            | Effect::StepBack
            | Effect::LoseMemory
            | Effect::IssueToken
            | Effect::Save
            | Effect::Apply
            | Effect::Capture
            | Effect::Nothing => {}
        }
    }

    async fn tell(&mut self, event: Event) {
        match table::next(self.row.summary.state, Input::Told(event)) {
            Verdict::Go(step) => {
                if event == Event::Exited {
                    let (sandbox, engine) = (self.row.summary.id, self.row.summary.engine);
                    tracing::warn!(%sandbox, %engine, "the machine ended by itself; its disk is kept");
                }
                self.settle(step).await;
                match (event, step.effect) {
                    (Event::SessionOver | Event::OutOfHand, _) => {
                        self.doing = Some(self.by_itself(Action::SandboxAutoPaused))
                    }
                    (Event::RetentionOver, _) => {
                        self.record(&self.by_itself(Action::SandboxAutoDeleted), None)
                    }
                    (_, Effect::LoseMemory) => self.record(&self.by_itself(Action::MachineDied), None),
                    _ => {}
                }
            }
            Verdict::Join => self.exited = true,
            Verdict::Refuse(_) | Verdict::Ignore => {}
        }
    }

    /// A host call came to its end: the outcome is written, whoever asked is answered, whoever waited is asked again.
    async fn finished(&mut self, (event, failure): Outcome) {
        self.work = None;
        let before = self.row.summary.state;
        let booted = before == SandboxState::Resuming && !self.row.memory_kept;
        if let Some(failure) = &failure {
            tracing::warn!(sandbox = %self.row.summary.id, ?event, cause = failure.chain(), "a host call failed");
        }
        self.tell(event).await;
        // Every outcome leads to another state, unless a stop came before it could be written.
        let unwritten = self.row.summary.state == before;
        let mut failure = failure.or_else(|| unwritten.then(problem::stopping));
        if let Some(doing) = self.doing.take() {
            self.record(&doing, failure.as_ref());
        }
        for asker in std::mem::take(&mut self.askers) {
            let answer = match &mut failure {
                None => Ok(self.view.borrow().clone()),
                Some(why) => {
                    let copy = problem::again(why);
                    Err(std::mem::replace(why, copy))
                }
            };
            let _gone = asker.reply.send(answer);
        }
        self.go_on(booted).await;
    }

    /// What was put off while something was in progress.
    async fn go_on(&mut self, booted: bool) {
        // An end that was announced while a machine booted was the end of the one before it.
        if std::mem::take(&mut self.exited) && !booted {
            self.tell(Event::Exited).await;
        }
        // What is due now (auto-delete after 0 s) comes before what waited.
        if let Some((end, event)) = timers::deadline(&self.row)
            && end <= Timestamp::now()
        {
            self.tell(event).await;
        }
        for request in std::mem::take(&mut self.waiting) {
            self.ask(request).await;
        }
    }

    /// Writes a step that facts demand, however long that takes, and starts its effect.
    async fn settle(&mut self, step: Step) {
        loop {
            let row = transition::after(&self.row, step, None, Timestamp::now());
            match self.context.store.sandbox_transition(row, None).await {
                Ok(Written::Applied(row)) => {
                    self.publish(*row);
                    return self.start(step.effect);
                }
                Ok(Written::Stale | Written::OverQuota) => return self.reload().await,
                Err(error) => self.log("cannot write the state", &error),
            }
            tokio::select! {
                () = self.context.stop.cancelled() => return,
                () = tokio::time::sleep(REWRITE_EVERY) => {}
            }
        }
    }

    /// There is one writer per sandbox, so this is a second server on the same database: what it wrote counts.
    async fn reload(&mut self) {
        match self.context.store.sandbox_get(self.row.summary.id).await {
            Ok(Some(row)) => {
                tracing::error!(sandbox = %row.summary.id, "another server writes to this database");
                self.publish(row);
            }
            Ok(None) => {
                let mut row = self.row.clone();
                row.summary.state = SandboxState::Deleted;
                self.publish(row);
            }
            Err(error) => self.log("cannot read the state", &error),
        }
    }

    fn publish(&mut self, row: SandboxRow) {
        if row.summary.state != self.row.summary.state {
            tracing::info!(sandbox = %row.summary.id, from = %self.row.summary.state, to = %row.summary.state, "state");
        }
        self.row = row;
        self.view.send_replace(Arc::new(self.row.clone()));
    }

    fn log(&self, what: &str, error: &StoreError) {
        tracing::error!(sandbox = %self.row.summary.id, cause = error as &dyn std::error::Error, "{what}");
    }

    /// The sandbox is deleted for everybody already; here its remains go.
    async fn remove(mut self) {
        self.context.secrets.forget(self.row.summary.id);
        self.inbox.close();
        while let Ok(message) = self.inbox.try_recv() {
            if let Message::Ask(request) = message {
                self.waiting.push(*request);
            }
        }
        for request in std::mem::take(&mut self.waiting) {
            self.ask(request).await;
        }
        loop {
            let call = machine::destroy(&*self.context.host, &self.row);
            let result = tokio::select! {
                result = call => result,
                // The row stays: the next start removes the rest.
                () = self.context.stop.cancelled() => return,
            };
            let result = match result {
                Ok(()) => self.context.store.sandbox_remove(self.row.summary.id).await.map_err(Problem::from),
                Err(why) => Err(why),
            };
            for asker in std::mem::take(&mut self.askers) {
                let _gone = asker.reply.send(Ok(self.view.borrow().clone()));
            }
            match result {
                Ok(()) => break,
                Err(why) => {
                    tracing::error!(sandbox = %self.row.summary.id, cause = why.chain(), "cannot remove the sandbox");
                }
            }
            tokio::select! {
                () = self.context.stop.cancelled() => return,
                () = tokio::time::sleep(REDESTROY_EVERY) => {}
            }
        }
        self.context.owners.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.row.summary.id);
        self.context.previews.forget(self.row.summary.id);
    }

    /// The server stops; the machine does not.
    async fn wind_down(mut self) {
        if let Some(work) = self.work.take()
            && let Ok((event, failure)) = tokio::time::timeout(FINISH, work).await
            && let Verdict::Go(step) = table::next(self.row.summary.state, Input::Told(event))
        {
            let row = transition::after(&self.row, step, None, Timestamp::now());
            match self.context.store.sandbox_transition(row, None).await {
                Ok(Written::Applied(row)) => self.publish(*row),
                Ok(Written::Stale | Written::OverQuota) => {}
                Err(error) => self.log("cannot write the state", &error),
            }
            if let Some(doing) = self.doing.take() {
                self.record(&doing, failure.as_ref());
            }
            for asker in std::mem::take(&mut self.askers) {
                let answer = failure
                    .as_ref()
                    .map_or_else(|| Ok(self.view.borrow().clone()), |why| Err(problem::again(why)));
                let _gone = asker.reply.send(answer);
            }
        }
        if let Some(doing) = self.doing.take() {
            self.record(&doing, Some(&problem::stopping()));
        }
        // It has been told to stop, and lets the machine run again.
        if let Some(mut save) = self.save.take() {
            let (context, id) = (&self.context, save.snapshot.id);
            let outcome = tokio::time::timeout(FINISH, &mut save.work).await;
            let cut_off = |_| SaveOutcome { layers: Err(problem::stopping()), stuck: None, adding: None };
            let SaveOutcome { layers, adding, .. } = outcome.unwrap_or_else(cut_off);
            let ended = snapshot::write_end(&context.store, &context.stop, id, layers).await;
            drop(adding);
            let doing = save.request.doing();
            record_save(&context.activity, &self.row, &save.snapshot, &doing, ended.as_ref().err());
            let _gone = save.request.reply.send(ended.map(|()| self.view.borrow().clone()));
        }
        for request in self.askers.into_iter().chain(self.waiting) {
            let _gone = request.reply.send(Err(problem::stopping()));
        }
    }
}

impl Request {
    /// How the activity log calls it.
    fn doing(&self) -> Doing {
        let action = match self.operation {
            Operation::Pause => Action::SandboxPaused,
            Operation::Resume | Operation::Activate => Action::SandboxResumed,
            Operation::Delete => Action::SandboxDeleted,
            Operation::PatchSettings | Operation::PatchNetwork => Action::SandboxUpdated,
            Operation::Bind if matches!(self.change, Some(Change::Detach(_))) => Action::SecretDetached,
            Operation::Bind => Action::SecretAttached,
            Operation::Snapshot => Action::SnapshotCreated,
        };
        Doing { action, by: self.by.clone(), since: self.since, secret: self.secret.clone() }
    }
}

/// Puts one operation on a sandbox into the activity log.
pub(crate) fn record(activity: &Recorder, row: &SandboxRow, doing: &Doing, error: Option<&'static str>) {
    // Whoever looks for the cause begins with what it ran on.
    let on = matches!(doing.action, Action::MachineDied | Action::SandboxFailed);
    activity.record(Entry {
        sandbox: Some((row.summary.id, row.summary.name.clone())),
        template: row.template,
        secret: doing.secret.clone(),
        error,
        took: Some(doing.since.elapsed()),
        facts: on.then(|| ("isolation", row.summary.engine.as_str().into())).into_iter().collect(),
        ..Entry::new(doing.action, doing.by.clone())
    });
}

/// The same for a snapshot of it.
fn record_save(
    activity: &Recorder,
    row: &SandboxRow,
    snapshot: &SnapshotRow,
    doing: &Doing,
    failure: Option<&Problem>,
) {
    let entry = Entry {
        sandbox: Some((row.summary.id, row.summary.name.clone())),
        template: row.template,
        error: failure.map(|problem| problem.code.as_str()),
        took: Some(doing.since.elapsed()),
        ..Entry::new(doing.action, doing.by.clone())
    };
    activity.record(snapshot::with_facts(snapshot, entry));
}

fn holds_compute(state: SandboxState) -> bool {
    match state {
        SandboxState::Starting | SandboxState::Active | SandboxState::Pausing | SandboxState::Resuming => {
            true
        }
        SandboxState::Paused | SandboxState::Failed | SandboxState::Deleted => false,
    }
}
