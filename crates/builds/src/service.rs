//! What the rest of the platform calls. A build runs in a task of its own; callers may leave at any time.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use activity::{Action as Done, Caller, Entry, Recorder};
use domain::{
    BuildId, BuildSpec, BuildStatus, Engine, Offer, Problem, RuntimeDefaults, Shape, TeamId, TemplateId,
    TemplateStatus,
};
use jiff::Timestamp;
use node::Host;
use sha2::{Digest, Sha256};
use store::{
    BUILD_LINKS, BuildQuota, BuildRow, BuildWritten, BuiltImage, Store, TemplateRemoved, TemplateRow,
};
use templates::{Access, LayerStore};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::failure::{Failure, FailureCode};
use crate::log::{Follower, Log, LogDir};
use crate::machine::Machines;
use crate::work::Work;
use crate::{curated, layers, problem, run};

/// Longest build; a step may take an hour, and few take more than minutes.
const BUILD_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);
/// A queued build says every now and then that it waits (`spec/rest-api.md` §10.4).
const QUEUE_NOTE: Duration = Duration::from_secs(2);
/// A cancelled build ends its machine, which takes a second or two; whoever cancelled may delete the template next.
const CANCEL_WAIT: Duration = Duration::from_secs(20);
/// A stop waits for machines to be removed; what is left then is removed by the next start.
const STOP: Duration = Duration::from_secs(20);
/// Writing how a build ended, when the database does not answer at once.
const REWRITE_EVERY: Duration = Duration::from_secs(1);
const REWRITES: u32 = 10;
/// What a build says that the server did not bring to its end.
const RESTARTED: &str =
    "build_failed: the server was restarted during the build; start it again: POST /templates/{id}/builds";

/// How this server is set up.
#[derive(Debug, Clone)]
pub struct BuildsConfig {
    /// Logs lie below.
    pub state_dir: PathBuf,
    /// Of each team.
    pub quota: BuildQuota,
    /// Builds that run at once; others wait.
    pub running: u32,
    /// How registries are reached.
    pub access: Access,
    /// Bytes of layers that are kept for builds to come, though nothing refers to them.
    pub cache_bytes: u64,
    /// How long `ready_cmd` may take to succeed.
    pub ready_within: Duration,
    /// Whether nobody else uses the directory of layers.
    pub owns_layers: bool,
    /// The team that may build curated templates, which are everybody's.
    pub owner: TeamId,
    /// What sandboxes of templates, and steps of builds, may run on.
    pub engines: Offer,
}

/// What a create asks for.
#[derive(Debug, Clone)]
pub struct NewTemplate {
    /// Checked by [`domain::template_name`].
    pub name: String,
    /// Within the limits.
    pub shape: Shape,
    /// What its sandboxes are to run on, if not what the server says.
    pub engine: Option<Engine>,
    /// How it is built.
    pub spec: BuildSpec,
}

/// The templates of this server that are built, and their builds.
#[derive(Debug)]
pub struct Builds {
    context: Arc<Context>,
    tasks: TaskTracker,
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) store: Store,
    pub(crate) layers: LayerStore,
    pub(crate) host: Arc<dyn Host>,
    activity: Recorder,
    pub(crate) config: BuildsConfig,
    logs: LogDir,
    turns: Arc<Semaphore>,
    links: Mutex<Vec<u32>>,
    live: Mutex<HashMap<BuildId, Live>>,
    collect: Arc<Notify>,
    stop: CancellationToken,
}

/// A build that waits or runs.
#[derive(Debug, Clone)]
struct Live {
    log: Arc<Log>,
    cancel: CancellationToken,
}

/// How a build ended.
enum End {
    Ready(BuiltImage),
    Failed(Failure),
    Cancelled,
    Stopped,
}

impl Builds {
    /// Ends what an earlier server left, and begins. Machines of builds must be gone: `Host::adopt` removes them.
    ///
    /// # Errors
    /// When the database or the state directory cannot be used.
    pub async fn start(
        store: Store,
        host: Arc<dyn Host>,
        layers: LayerStore,
        activity: Recorder,
        config: BuildsConfig,
    ) -> Result<Arc<Self>, Problem> {
        let unusable = |error| Problem::internal("the logs of builds cannot be kept", error);
        let logs = LogDir::open(&config.state_dir).map_err(unusable)?;
        logs.retain(&store.build_ids().await?).map_err(unusable)?;
        for build in store.build_in_flight().await? {
            tracing::warn!(build = %build.id, "a build was cut off by the end of the server");
            store.build_fail(build.id, BuildStatus::Failed, RESTARTED, Timestamp::now()).await?;
        }
        let running = config.running.clamp(1, u32::try_from(BUILD_LINKS.len()).unwrap_or(1));
        let context = Arc::new(Context {
            store,
            layers,
            host,
            activity,
            logs,
            turns: Arc::new(Semaphore::new(running as usize)),
            links: Mutex::new(BUILD_LINKS.take(running as usize).collect()),
            live: Mutex::default(),
            collect: Arc::default(),
            stop: CancellationToken::new(),
            config,
        });
        let tasks = TaskTracker::new();
        if context.config.owns_layers {
            let (wanted, stop) = (Arc::clone(&context.collect), context.stop.clone());
            tasks.spawn(layers::collect(Arc::clone(&context), wanted, stop));
        }
        Ok(Arc::new(Self { context, tasks }))
    }

    /// Lists the curated templates, so that they can be built; what was built stays as it is.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn offer_curated(&self) -> Result<(), Problem> {
        let team = store::system_team();
        for curated in curated::all()? {
            let known = self.context.store.template_find(team, &curated.name).await?;
            let row = match known {
                Some(row) if row.spec.as_ref() == Some(&curated.spec) && row.shape == curated.shape => {
                    continue;
                }
                Some(row) => TemplateRow { spec: Some(curated.spec), ..row },
                None => TemplateRow {
                    id: TemplateId::new(),
                    team,
                    name: curated.name,
                    status: TemplateStatus::Pending,
                    shape: curated.shape,
                    engine: None,
                    defaults: RuntimeDefaults::default(),
                    layers: Vec::new(),
                    size_bytes: None,
                    created_at: Timestamp::now(),
                    built_at: None,
                    error: None,
                    spec: Some(curated.spec),
                },
            };
            self.context.store.template_put(&row).await?;
        }
        Ok(())
    }

    /// Makes a template and begins its first build.
    ///
    /// # Errors
    /// `conflict` when the name is taken, `too_many_templates`, `too_many_builds`.
    pub async fn create(
        self: &Arc<Self>,
        by: Caller,
        new: NewTemplate,
    ) -> Result<(TemplateRow, BuildRow), Problem> {
        let this = Arc::clone(self);
        to_its_end(self.tasks.spawn(async move { this.create_now(by, new).await })).await
    }

    async fn create_now(&self, by: Caller, new: NewTemplate) -> Result<(TemplateRow, BuildRow), Problem> {
        self.check_running()?;
        self.context.config.engines.choose(new.engine)?;
        let now = Timestamp::now();
        let template = TemplateRow {
            id: TemplateId::new(),
            team: by.team,
            name: new.name,
            status: TemplateStatus::Building,
            shape: new.shape,
            engine: new.engine,
            defaults: RuntimeDefaults::default(),
            layers: Vec::new(),
            size_bytes: None,
            created_at: now,
            built_at: None,
            error: None,
            spec: Some(new.spec.clone()),
        };
        let build = new_build(&template, &new.spec);
        let quota = self.context.config.quota;
        let written = self.context.store.template_create(&template, &build, quota).await;
        let refusal: Option<Problem> = match written {
            Ok(BuildWritten::Applied) => None,
            Ok(BuildWritten::TooManyTemplates) => Some(problem::too_many_templates(quota)),
            Ok(BuildWritten::TooManyBuilds) => Some(problem::too_many_builds(quota)),
            Ok(BuildWritten::Same(_) | BuildWritten::NoTemplate) => {
                Some(problem::no_such_template(&template.name))
            }
            Err(error) => Some(error.into()),
        };
        self.context.record(
            Done::TemplateCreated,
            &by,
            &template,
            refusal.as_ref().map(|p| p.code.as_str()),
            None,
        );
        match refusal {
            Some(refusal) => Err(refusal),
            None => {
                self.begin(by, template.clone(), build.clone(), new.spec);
                Ok((template, build))
            }
        }
    }

    /// Builds a template again; `false` beside the build when the same one is under way already.
    ///
    /// # Errors
    /// `not_found`, `forbidden` for a curated one, `conflict` for an imported one, `too_many_builds`.
    pub async fn rebuild(
        self: &Arc<Self>,
        by: Caller,
        name_or_id: &str,
    ) -> Result<(BuildRow, bool), Problem> {
        let (this, name) = (Arc::clone(self), name_or_id.to_owned());
        to_its_end(self.tasks.spawn(async move { this.rebuild_now(by, &name).await })).await
    }

    async fn rebuild_now(&self, by: Caller, name_or_id: &str) -> Result<(BuildRow, bool), Problem> {
        self.check_running()?;
        let template = self.buildable(by.team, name_or_id).await?;
        self.context.config.engines.choose(template.engine)?;
        let spec = template.spec.clone().ok_or_else(|| problem::imported(&template.name))?;
        let build = new_build(&template, &spec);
        let quota = self.context.config.quota;
        match self.context.store.build_create(&build, quota).await? {
            BuildWritten::Applied => {
                self.begin(by, template, build.clone(), spec);
                Ok((build, true))
            }
            BuildWritten::Same(same) => Ok((*same, false)),
            BuildWritten::TooManyBuilds | BuildWritten::TooManyTemplates => {
                Err(problem::too_many_builds(quota))
            }
            BuildWritten::NoTemplate => Err(problem::no_such_template(name_or_id)),
        }
    }

    /// Builds of a template, newest first.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn list(&self, team: TeamId, name_or_id: &str, limit: u32) -> Result<Vec<BuildRow>, Problem> {
        let template = self.visible(team, name_or_id).await?;
        Ok(self.context.store.build_list(template.id, limit).await?)
    }

    /// One build.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn get(&self, team: TeamId, name_or_id: &str, id: BuildId) -> Result<BuildRow, Problem> {
        let template = self.visible(team, name_or_id).await?;
        let build = self.context.store.build_get(template.id, id).await?;
        build.ok_or_else(|| problem::no_such_build(&template.name, id))
    }

    /// Stops a build; one that has ended stays as it is. Returns when its machine is gone, or after a while.
    ///
    /// # Errors
    /// `not_found`, `forbidden`.
    pub async fn cancel(&self, by: Caller, name_or_id: &str, id: BuildId) -> Result<(), Problem> {
        let template = self.buildable(by.team, name_or_id).await?;
        let build = self.context.store.build_get(template.id, id).await?;
        build.ok_or_else(|| problem::no_such_build(&template.name, id))?;
        let live = self.context.live().get(&id).cloned();
        if let Some(live) = live {
            live.cancel.cancel();
            self.context.record(Done::BuildCancelled, &by, &template, None, None);
            let _still_ending = tokio::time::timeout(CANCEL_WAIT, live.log.finished()).await;
        }
        Ok(())
    }

    /// What a build says, from its beginning.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn logs(&self, team: TeamId, name_or_id: &str, id: BuildId) -> Result<Follower, Problem> {
        // In this order: a build that ends in between is found in its file.
        let live = self.context.live().get(&id).map(|live| Arc::clone(&live.log));
        let build = self.get(team, name_or_id, id).await?;
        if let Some(log) = live {
            return Ok(Follower::new(log));
        }
        let logs = self.context.logs.clone();
        let read = move || logs.ended(id, build.status, build.error.as_deref());
        let log = tokio::task::spawn_blocking(read).await;
        Ok(Follower::new(log.map_err(|error| Problem::internal("reading a log ended early", error))?))
    }

    /// Removes a template.
    ///
    /// # Errors
    /// `not_found`, `forbidden`; `conflict` while sandboxes or builds refer to it.
    pub async fn delete(&self, by: Caller, name_or_id: &str) -> Result<(), Problem> {
        let template = self.own(by.team, name_or_id).await?;
        let removed = self.context.store.template_remove(by.team, template.id).await?;
        let refusal = match removed {
            TemplateRemoved::Removed(builds) => {
                builds.into_iter().for_each(|build| self.context.logs.remove(build));
                self.context.collect.notify_one();
                None
            }
            TemplateRemoved::InUse => Some(problem::in_use(&template.name)),
            TemplateRemoved::Building => Some(problem::building(&template.name)),
            TemplateRemoved::Absent => return Err(problem::no_such_template(name_or_id)),
        };
        let code = refusal.as_ref().map(|problem| problem.code.as_str());
        self.context.record(Done::TemplateDeleted, &by, &template, code, None);
        refusal.map_or(Ok(()), Err)
    }

    /// Somebody else removed what referred to layers: those that nothing refers to go soon.
    pub fn layers_freed(&self) {
        self.context.collect.notify_one();
    }

    /// Ends all builds and their machines. `false` when some had to be cut off; the next start removes what they left.
    pub async fn shutdown(&self) -> bool {
        self.context.stop.cancel();
        self.tasks.close();
        tokio::time::timeout(STOP, self.tasks.wait()).await.is_ok()
    }

    fn check_running(&self) -> Result<(), Problem> {
        if self.context.stop.is_cancelled() { Err(problem::stopping()) } else { Ok(()) }
    }

    async fn visible(&self, team: TeamId, name_or_id: &str) -> Result<TemplateRow, Problem> {
        let found = self.context.store.template_find(team, name_or_id).await?;
        found.ok_or_else(|| problem::no_such_template(name_or_id))
    }

    /// A template the team may change.
    async fn own(&self, team: TeamId, name_or_id: &str) -> Result<TemplateRow, Problem> {
        let template = self.visible(team, name_or_id).await?;
        if template.team == team { Ok(template) } else { Err(problem::not_yours(&template.name)) }
    }

    /// A template the team may build.
    async fn buildable(&self, team: TeamId, name_or_id: &str) -> Result<TemplateRow, Problem> {
        let template = self.visible(team, name_or_id).await?;
        let curated = template.team == store::system_team() && team == self.context.config.owner;
        if curated || template.team == team { Ok(template) } else { Err(problem::not_yours(&template.name)) }
    }

    fn begin(&self, by: Caller, template: TemplateRow, build: BuildRow, spec: BuildSpec) {
        let live = Live { log: self.context.logs.begin(build.id), cancel: CancellationToken::new() };
        self.context.live().insert(build.id, live.clone());
        self.context.record(Done::BuildStarted, &by, &template, None, None);
        self.tasks.spawn(Arc::clone(&self.context).run(by, template, build.id, spec, live));
    }
}

fn new_build(template: &TemplateRow, spec: &BuildSpec) -> BuildRow {
    let hash = Sha256::digest(store::canonical_spec(spec));
    BuildRow {
        id: BuildId::new(),
        template: template.id,
        team: template.team,
        status: BuildStatus::Pending,
        spec_hash: hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        error: None,
        created_at: Timestamp::now(),
        started_at: None,
        finalized_at: None,
    }
}

/// A caller who leaves between a row and its build would leave a build that nobody runs.
async fn to_its_end<T>(work: tokio::task::JoinHandle<Result<T, Problem>>) -> Result<T, Problem> {
    work.await.unwrap_or_else(|error| Err(Problem::internal("starting a build ended early", error)))
}

impl Context {
    fn live(&self) -> MutexGuard<'_, HashMap<BuildId, Live>> {
        // The map is whole after each statement that changes it.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, Vec<u32>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A build, from the queue to its last word.
    async fn run(
        self: Arc<Self>,
        by: Caller,
        template: TemplateRow,
        id: BuildId,
        spec: BuildSpec,
        live: Live,
    ) {
        let since = Instant::now();
        let turn = self.turn(&live).await;
        // Until the template refers to what the build adds.
        let mut adding = None;
        let end = match turn {
            Ok(turn) => {
                // It waits for whoever removes layers, who waits for the database: never on a thread of the runtime.
                let layers = self.layers.clone();
                let end = match tokio::task::spawn_blocking(move || layers.adding()).await {
                    Ok(Ok(lock)) => {
                        let layers = self.layers.clone().used_by(&lock);
                        adding = Some(lock);
                        self.in_turn(&template, id, &spec, &live, layers).await
                    }
                    Ok(Err(error)) => End::Failed(error.into()),
                    Err(error) => End::Failed(Failure::of(
                        FailureCode::BuildFailed,
                        &Problem::internal("waiting for the layers ended early", error),
                    )),
                };
                drop(turn);
                end
            }
            Err(end) => end,
        };
        let (status, error) = match &end {
            End::Ready(_) => (BuildStatus::Ready, None),
            End::Failed(failure) => (BuildStatus::Failed, Some(failure.to_string())),
            End::Cancelled => (BuildStatus::Cancelled, Some("cancelled: the build was cancelled".to_owned())),
            End::Stopped => (BuildStatus::Failed, Some(RESTARTED.to_owned())),
        };
        self.write_end(id, &end, status, error.as_deref()).await;
        drop(adding);
        // After the database: whoever has read the last word asks for the status next.
        live.log.finish(status, error.as_deref());
        let code = match &end {
            End::Failed(failure) => Some(failure.code.as_str()),
            End::Stopped => Some(FailureCode::BuildFailed.as_str()),
            End::Ready(_) | End::Cancelled => None,
        };
        if !matches!(end, End::Cancelled) {
            self.record(Done::BuildFinished, &by, &template, code, Some(since.elapsed()));
        }
        self.live().remove(&id);
        match self.store.build_prune(template.id).await {
            Ok(forgotten) => forgotten.into_iter().for_each(|build| self.logs.remove(build)),
            Err(error) => tracing::warn!(%error, "old builds are not forgotten"),
        }
        self.collect.notify_one();
    }

    /// Waits for a turn.
    async fn turn(&self, live: &Live) -> Result<OwnedSemaphorePermit, End> {
        let mut turn = std::pin::pin!(Arc::clone(&self.turns).acquire_owned());
        loop {
            tokio::select! {
                turn = &mut turn => return turn.map_err(|_| End::Stopped),
                () = live.cancel.cancelled() => return Err(End::Cancelled),
                () = self.stop.cancelled() => return Err(End::Stopped),
                () = tokio::time::sleep(QUEUE_NOTE) => live.log.system("waiting for other builds to end"),
            }
        }
    }

    async fn in_turn(
        &self,
        template: &TemplateRow,
        id: BuildId,
        spec: &BuildSpec,
        live: &Live,
        layers: LayerStore,
    ) -> End {
        let failed = |detail: &str| End::Failed(Failure::new(FailureCode::BuildFailed, detail));
        // Others may be there than when it was asked for.
        let engine = match self.config.engines.choose(template.engine) {
            Ok(engine) => engine,
            Err(problem) => return End::Failed(Failure::of(FailureCode::BuildFailed, &problem)),
        };
        // As many links as turns.
        let Some(link) = self.links().pop() else { return failed("no link is free") };
        let work = Work {
            store: self.store.clone(),
            host: Arc::clone(&self.host),
            layers,
            access: self.config.access.clone(),
            log: Arc::clone(&live.log),
            machines: Machines::default(),
            team: template.team,
            ready_within: self.config.ready_within,
            instead: curated::instead(&template.name).filter(|_| template.team == store::system_team()),
            shape: template.shape,
            engine,
            link,
        };
        let building = tokio::time::timeout(BUILD_LIMIT, self.build(&work, id, spec));
        let end = tokio::select! {
            built = building => match built {
                Ok(Ok(image)) => End::Ready(image),
                Ok(Err(failure)) => End::Failed(failure),
                Err(_) => failed(&format!("the build took more than {} s", BUILD_LIMIT.as_secs())),
            },
            () = live.cancel.cancelled() => End::Cancelled,
            () = self.stop.cancelled() => End::Stopped,
        };
        work.machines.end_all(&*self.host).await;
        self.links().push(link);
        end
    }

    async fn build(&self, work: &Work, id: BuildId, spec: &BuildSpec) -> Result<BuiltImage, Failure> {
        let unwritten = |error: store::StoreError| Failure::of(FailureCode::BuildFailed, &error.into());
        let store = &self.store;
        store.build_advance(id, BuildStatus::Building, Timestamp::now()).await.map_err(unwritten)?;
        let image = run::build(work, spec).await?;
        store.build_advance(id, BuildStatus::Snapshotting, Timestamp::now()).await.map_err(unwritten)?;
        run::try_out(work, &image).await?;
        Ok(image)
    }

    async fn write_end(&self, id: BuildId, end: &End, status: BuildStatus, error: Option<&str>) {
        for _ in 0..REWRITES {
            let now = Timestamp::now();
            let written = match end {
                End::Ready(image) => self.store.build_succeed(id, image, now).await,
                End::Failed(_) | End::Cancelled | End::Stopped => {
                    self.store.build_fail(id, status, error.unwrap_or_default(), now).await
                }
            };
            match written {
                Ok(_) => return,
                Err(error) => tracing::error!(build = %id, %error, "cannot write how a build ended"),
            }
            tokio::time::sleep(REWRITE_EVERY).await;
        }
    }

    fn record(
        &self,
        action: Done,
        by: &Caller,
        template: &TemplateRow,
        error: Option<&'static str>,
        took: Option<Duration>,
    ) {
        self.activity.record(Entry {
            template: Some(template.id),
            error,
            took,
            facts: vec![("template_name", template.name.as_str().into())],
            ..Entry::new(action, by.clone())
        });
    }
}
