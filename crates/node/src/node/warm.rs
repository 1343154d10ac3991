//! Templates with their memory: a machine that has booted from a template and started what the template starts is kept as a state
//! (`states`), and the next sandboxes of this template begin with it instead of booting. Made behind the first sandbox of a
//! template, by a machine of its own that has nothing of anybody's: no variables, no secrets, no rules.
//!
//! It is a cache. What it holds follows from its name (layers, shape, what the template says of processes, engine, kernel, agent), so
//! it can be removed at any time, and a create that cannot use it boots.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use domain::{EgressRules, Engine, SandboxId};
use driver::DriverError;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::agent::AgentConfig;

use super::{Disk, Sandboxes, blocking};
use crate::engines::Engines;
use crate::error::NodeError;
use crate::host::SandboxSpec;
use crate::place::Place;
use crate::states::{self, State};
use crate::{agent, problem};

/// What names of such states begin with; those of snapshots are ids.
const PREFIX: &str = "template-";
/// Named with each: another one when they are made differently.
const FORMAT: &str = "superserve template state 1";
/// Which no sandbox, no build and no engine's proof has: those that prove themselves have the four after it.
const LINK: u32 = 32_763;

/// One is not made again within this, whatever became of it: where more templates take turns than are kept, or one cannot be
/// kept, each create would have a machine booted and hundreds of MiB written behind it.
const AGAIN: Duration = Duration::from_secs(60 * 60);

/// What is known of them.
#[derive(Debug)]
pub(super) struct Warm {
    /// Most that are kept; 0 where none are.
    most: usize,
    /// What memories depend on, for each engine whose memories others can continue.
    vintages: BTreeMap<Engine, String>,
    /// When which was begun last.
    tried: Mutex<BTreeMap<String, Instant>>,
    /// One at a time: it is work for later, beside work for now.
    turn: Semaphore,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Warm {
    pub(super) fn new(most: usize, vintages: BTreeMap<Engine, String>) -> Self {
        Self {
            most,
            vintages,
            tried: Mutex::default(),
            turn: Semaphore::new(1),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Whether to make one now, which is thereby begun.
    fn begins(&self, name: &str, now: Instant) -> bool {
        // The map is whole after each statement that changes it.
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        tried.retain(|_, begun| now.duration_since(*begun) < AGAIN);
        let begins = !tried.contains_key(name);
        if begins {
            tried.insert(name.to_owned(), now);
        }
        begins
    }

    /// The name of the state that a sandbox could begin with.
    fn name(&self, spec: &SandboxSpec) -> Option<String> {
        let vintage = self.vintages.get(&spec.engine).filter(|_| self.most > 0)?;
        let AgentConfig { template_env, env, workdir, user, start_cmd, ready_cmd, trust } = &spec.guest;
        // What the template starts is given the sandbox's variables, which that of the state has not; and may reach what the
        // sandbox may, which that of the state could not, or could.
        let as_in_state = env.is_empty() && trust.is_none() && spec.network == EgressRules::default();
        if start_cmd.is_some() && !as_in_state {
            return None;
        }
        let said = (template_env, workdir, user, start_cmd, ready_cmd);
        let shape = (spec.shape.vcpu, spec.shape.memory_mib, spec.shape.disk_mib);
        // Quoted, so that no two are written alike.
        let all = format!("{:?}", (FORMAT, vintage, &spec.layers, shape, said));
        let digest = Sha256::digest(all.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("{PREFIX}{hex}"))
    }

    /// What a state says of itself, for [`sweep`].
    fn note(&self, spec: &SandboxSpec) -> String {
        let vintage = self.vintages.get(&spec.engine).map_or("", String::as_str);
        format!("{vintage}\n{}\n", spec.layers.join("\n"))
    }

    /// Makes no more; returns when nothing of it is under way.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Whether a name is that of a template's state.
pub(super) fn is_template(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Removes those that nobody can begin with any more, and of the others the ones not used for longest.
pub(super) fn sweep(place: &Place, warm: &Warm) -> Result<(), NodeError> {
    let mut kept: Vec<(SystemTime, String)> = Vec::new();
    for name in states::names(place)?.into_iter().filter(|name| is_template(name)) {
        let Ok(state) = State::find(place, &name) else { continue };
        if is_current(place, warm, &state.note()) {
            kept.push((state.used(), name));
        } else {
            states::remove(place, &name)?;
        }
    }
    kept.sort();
    let surplus = kept.len().saturating_sub(warm.most);
    kept.iter().take(surplus).try_for_each(|(_, name)| states::remove(place, name))
}

fn is_current(place: &Place, warm: &Warm, note: &str) -> bool {
    let mut lines = note.lines();
    let vintage = lines.next().unwrap_or_default();
    warm.vintages.values().any(|known| known == vintage) && lines.all(|digest| place.layer(digest).is_dir())
}

impl Sandboxes {
    /// Begins with what is kept of the template; `false` when there is nothing, or it is of no use, and nothing is left then.
    pub(super) async fn begin_warm(&self, spec: &SandboxSpec) -> Result<bool, NodeError> {
        let Some(name) = self.warm.name(spec) else { return Ok(false) };
        let Ok(state) = State::find(&self.place, &name) else { return Ok(false) };
        match self.begin_with(spec, &name).await {
            Ok(()) => {
                state.touch();
                Ok(true)
            }
            Err(error) => {
                let useless = is_of_no_use(&error);
                let cause = problem::of(spec.id, error).chain();
                if useless {
                    tracing::warn!(sandbox = %spec.id, cause, "a template's memory is of no use; booting instead");
                    self.forget(&name).await?;
                } else {
                    tracing::warn!(sandbox = %spec.id, cause, "cannot begin with a template's memory now; booting instead");
                }
                self.remove(spec.id).await?;
                Ok(false)
            }
        }
    }

    /// Removes those that are of no use any more.
    pub(super) async fn sweep_templates(&self) -> Result<(), NodeError> {
        // Not beside one that is being made, which does the same at its end.
        let Ok(_turn) = self.warm.turn.acquire().await else { return Ok(()) };
        let (place, warm) = (self.place.clone(), Arc::clone(&self.warm));
        blocking(move || sweep(&place, &warm)).await
    }

    /// Keeps the template of a sandbox that has just booted, in a while.
    pub(super) fn warm(self: &Arc<Self>, spec: &SandboxSpec) {
        let Some(name) = self.warm.name(spec) else { return };
        if State::find(&self.place, &name).is_ok() || !self.warm.begins(&name, Instant::now()) {
            return;
        }
        let maker = SandboxSpec {
            id: SandboxId::new(),
            link: LINK,
            network: EgressRules::default(),
            guest: AgentConfig { env: Default::default(), trust: None, ..spec.guest.clone() },
            ..spec.clone()
        };
        let host = Arc::clone(self);
        self.warm.tasks.spawn(async move {
            let Ok(_turn) = host.warm.turn.acquire().await else { return };
            if host.warm.stop.is_cancelled() {
                return;
            }
            match host.make(&maker, &name).await {
                Ok(bytes) => tracing::info!(state = name, bytes, "a template is kept with its memory"),
                Err(error) => {
                    let cause = problem::of(maker.id, error).chain();
                    tracing::warn!(
                        state = name,
                        cause,
                        "a template cannot be kept with its memory; its sandboxes boot"
                    );
                }
            }
        });
    }

    async fn make(&self, maker: &SandboxSpec, name: &str) -> Result<u64, NodeError> {
        let making = self.boot_and_keep(maker, name);
        tokio::pin!(making);
        let made = tokio::select! {
            made = &mut making => made,
            () = self.warm.stop.cancelled() => {
                // Without its machine it fails soon. Side by side: it may hold what the end waits for.
                let (made, ended) = tokio::join!(making, self.end(maker.id));
                made.and_then(|bytes| ended.map(|()| bytes))
            }
        };
        self.remove(maker.id).await?;
        let bytes = made?;
        let (place, warm) = (self.place.clone(), Arc::clone(&self.warm));
        blocking(move || sweep(&place, &warm)).await?;
        Ok(bytes)
    }

    async fn boot_and_keep(&self, maker: &SandboxSpec, name: &str) -> Result<u64, NodeError> {
        let (pair, driver) = (self.check(maker)?, self.engines.get(maker.engine)?);
        let promises = driver.promises();
        self.furnish(maker, pair, promises, Disk::New).await?;
        // Not among the machines of sandboxes: nobody asks for it, and its end is nobody's news.
        let machine = driver.create(&self.machine_spec(maker, pair, promises)).await?;
        let kept = async {
            agent::configure(machine.as_ref(), &maker.guest).await?;
            let never = Arc::new(AtomicBool::new(false));
            let draft = self.keep_machine(maker, name, machine.as_ref(), never).await?;
            draft.write_note(&self.warm.note(maker))?;
            blocking(move || draft.commit()).await
        };
        let kept = kept.await;
        machine.destroy().await?;
        kept
    }
}

/// Whether a failure says something about the memory that was to be continued; others have it still.
fn is_of_no_use(error: &NodeError) -> bool {
    match error {
        NodeError::CannotContinue(_)
        | NodeError::Driver(DriverError::Timeout { .. })
        | NodeError::AgentSilent { .. }
        | NodeError::AgentRefused { .. }
        | NodeError::Agent(_) => true,
        // Whatever the sandbox lacked besides, or a program that is not there at the moment.
        _ => false,
    }
}

/// Removes all of them.
pub(super) fn remove_all(place: &Place) -> Result<(), NodeError> {
    let names = states::names(place)?;
    names.iter().filter(|name| is_template(name)).try_for_each(|name| states::remove(place, name))
}

/// What memories depend on, for all engines that can keep templates.
pub(super) fn vintages(most: usize, engines: &Engines, agent: &Path) -> BTreeMap<Engine, String> {
    let working = engines.working().filter(|_| most > 0);
    working.filter_map(|engine| Some((engine, engines.get(engine).ok()?.vintage(agent)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use std::collections::BTreeSet;

    use domain::Shape;

    use super::*;

    fn spec() -> SandboxSpec {
        SandboxSpec {
            id: SandboxId::new(),
            engine: Engine::Qemu,
            shape: Shape { vcpu: 1, memory_mib: 512, disk_mib: 1_024 },
            layers: vec!["a".repeat(64)],
            link: 3,
            network: EgressRules::default(),
            guest: AgentConfig::default(),
        }
    }

    #[test]
    fn a_name_is_all_that_a_boot_depends_on_and_nothing_of_a_tenants() {
        let warm =
            |most, vintage: &str| Warm::new(most, BTreeMap::from([(Engine::Qemu, vintage.to_owned())]));
        let one = warm(1, "v");
        let name = |of: &dyn Fn(&mut SandboxSpec)| {
            let mut spec = spec();
            of(&mut spec);
            one.name(&spec)
        };
        let first = name(&|_| {});
        assert!(first.as_deref().is_some_and(is_template));
        for same in [
            name(&|spec| spec.link = 4),
            name(&|spec| drop(spec.guest.env.insert("KEY".into(), "value".into()))),
            name(&|spec| spec.network = EgressRules::parse(&[], &["0.0.0.0/0".to_owned()]).unwrap()),
        ] {
            assert_eq!(same, first);
        }
        let others = [
            name(&|spec| spec.layers.push("b".repeat(64))),
            name(&|spec| spec.layers = vec!["a".repeat(63), "a".to_owned()]),
            name(&|spec| spec.shape.memory_mib = 513),
            name(&|spec| spec.guest.user = Some("a".into())),
            name(&|spec| spec.guest.workdir = Some("a".into())),
            name(&|spec| spec.guest.start_cmd = Some("a".into())),
            name(&|spec| drop(spec.guest.template_env.insert("a".into(), "b".into()))),
            warm(1, "w").name(&spec()),
        ];
        let all: BTreeSet<_> = others.iter().chain([&first]).collect();
        assert_eq!(all.len(), others.len() + 1);
        // What the template starts is to see them.
        let variables = name(&|spec| {
            spec.guest.start_cmd = Some("a".into());
            spec.guest.env.insert("KEY".into(), "value".into());
        });
        // Nor has it run under other rules.
        let rules = name(&|spec| {
            spec.guest.start_cmd = Some("a".into());
            spec.network = EgressRules::parse(&[], &["0.0.0.0/0".to_owned()]).unwrap();
        });
        assert_eq!(rules, None);
        let other_engine = name(&|spec| spec.engine = Engine::Container);
        assert_eq!((variables, other_engine, warm(0, "v").name(&spec())), (None, None, None));
    }

    #[test]
    fn none_is_made_twice_within_a_while() {
        let warm = Warm::new(1, BTreeMap::new());
        let begun = Instant::now();
        assert!(warm.begins("a", begun) && warm.begins("b", begun));
        let soon = begun + AGAIN / 2;
        assert!(!warm.begins("a", soon) && !warm.begins("b", soon) && warm.begins("c", soon));
        let later = begun + AGAIN;
        assert!(warm.begins("a", later) && !warm.begins("a", later) && !warm.begins("c", later));
        assert_eq!(warm.tried.lock().unwrap().len(), 2, "what is long past is forgotten");
    }

    #[test]
    fn only_what_is_wrong_with_a_memory_costs_it() {
        let timeout = DriverError::Timeout { what: "loading", limit_ms: 1 };
        for error in [NodeError::CannotContinue(DriverError::Gone), timeout.into()] {
            assert!(is_of_no_use(&error), "{error}");
        }
        let missing = DriverError::Missing { program: "qemu".to_owned() };
        for error in [NodeError::HostDiskFull, NodeError::NoState, missing.into()] {
            assert!(!is_of_no_use(&error), "{error}");
        }
    }

    #[test]
    fn what_nobody_can_use_goes_and_the_newest_stay() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let at = |name: &str| dir.path().join(name);
        let place = Place::prepare(&at("state"), &at("layers"), &at("run")).unwrap();
        let warm = Warm::new(2, BTreeMap::from([(Engine::Qemu, "v".to_owned())]));
        std::fs::create_dir(at("layers/a")).unwrap();
        let put = |name: &str, note: &str, age: u64| {
            let path = place.state(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("note"), note).unwrap();
            let time = SystemTime::now() - std::time::Duration::from_secs(age);
            std::fs::File::open(&path).unwrap().set_modified(time).unwrap();
        };
        let snapshot = domain::SnapshotId::new().to_string();
        put(&snapshot, "", 900);
        put("template-old", "v\na\n", 100);
        put("template-older", "v\na\n", 200);
        put("template-oldest", "v\na\n", 300);
        put("template-layer", "v\na\ngone\n", 0);
        put("template-vintage", "w\na\n", 0);
        put("template-damaged", "", 0);
        State::find(&place, "template-oldest").unwrap().touch();
        sweep(&place, &warm).unwrap();
        let left = BTreeSet::from([snapshot.clone(), "template-old".into(), "template-oldest".into()]);
        assert_eq!(states::names(&place).unwrap(), left);
        remove_all(&place).unwrap();
        assert_eq!(states::names(&place).unwrap(), BTreeSet::from([snapshot]));
    }
}
