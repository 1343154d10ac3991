//! What a new sandbox begins with: a template, or what a snapshot holds. A fork gets what `spec/semantics.md` §10 lists,
//! and nothing else.

use std::collections::BTreeMap;

use domain::{
    Action, Captured, Code, EgressRules, Engine, EnvVars, NextStep, Offer, Problem, RuntimeDefaults,
    SandboxId, SandboxState, SecretId, Shape, SnapshotId, SnapshotStatus, TeamId, TemplateId, TemplateStatus,
};
use jiff::Timestamp;
use secrets::MAX_BINDINGS;
use store::{BindingRow, SandboxRow, SandboxSummary, SnapshotRow, Store, TemplateRow, TokenNumbers};

use crate::owner::Context;
use crate::problem;
use crate::service::NewSandbox;

/// What a sandbox is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A template, by name or id.
    Template(String),
    /// A saved snapshot.
    Snapshot(SnapshotId),
}

/// What comes with it.
pub(crate) struct Inheritance {
    template: Option<TemplateId>,
    snapshot: Option<SnapshotId>,
    /// The same, if it holds memory that the sandbox continues.
    pub(crate) memory: Option<SnapshotId>,
    shape: Shape,
    runs_on: RunsOn,
    layers: Vec<String>,
    defaults: RuntimeDefaults,
    network: EgressRules,
    timeout_seconds: Option<u32>,
    env: EnvVars,
    bindings: BTreeMap<String, SecretId>,
}

/// What is known of the engine that it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunsOn {
    /// Any.
    Any,
    /// A template's wish.
    Wanted(Engine),
    /// That of the sandbox that was saved. What was kept are layers, which any engine takes.
    Portable(Engine),
    /// The same, but memory is for the very engine.
    Only(Engine),
}

impl RunsOn {
    fn choose(self, asked: Option<Engine>, offer: &Offer) -> Result<Engine, Problem> {
        match (self, asked) {
            (Self::Only(engine), Some(asked)) if asked != engine => Err(problem::memory_of_another(engine)),
            (Self::Only(engine), _) => offer.for_memory(engine),
            (Self::Any | Self::Wanted(_) | Self::Portable(_), Some(asked)) => offer.choose(Some(asked)),
            (Self::Any, None) => offer.choose(None),
            (Self::Wanted(engine), None) => offer.for_template(engine),
            (Self::Portable(engine), None) => offer.at_least(engine),
        }
    }
}

impl From<TemplateRow> for Inheritance {
    fn from(row: TemplateRow) -> Self {
        Self {
            template: Some(row.id),
            snapshot: None,
            memory: None,
            shape: row.shape,
            runs_on: row.engine.map_or(RunsOn::Any, RunsOn::Wanted),
            layers: row.layers,
            defaults: row.defaults,
            network: EgressRules::default(),
            timeout_seconds: None,
            env: EnvVars::default(),
            bindings: BTreeMap::new(),
        }
    }
}

impl From<SnapshotRow> for Inheritance {
    fn from(row: SnapshotRow) -> Self {
        Self {
            template: row.template,
            snapshot: Some(row.id),
            memory: (row.captured == Captured::MemoryAndDisk).then_some(row.id),
            shape: row.shape,
            runs_on: match row.captured {
                Captured::Disk => RunsOn::Portable(row.engine),
                Captured::MemoryAndDisk => RunsOn::Only(row.engine),
            },
            layers: row.layers,
            defaults: row.defaults,
            network: row.network,
            timeout_seconds: row.timeout_seconds,
            env: row.env,
            bindings: row.bindings,
        }
    }
}

/// Finds what a sandbox is to be made from.
pub(crate) async fn find(store: &Store, team: TeamId, origin: &Origin) -> Result<Inheritance, Problem> {
    match origin {
        Origin::Template(name) => {
            let template = store.template_find(team, name).await?;
            let template = template.ok_or_else(|| no_such_template(name))?;
            if template.status != TemplateStatus::Ready {
                let message = match template.status {
                    TemplateStatus::Pending => format!(
                        "template `{0}` has not been built on this server; build it with `superserve template build {0}`",
                        template.name
                    ),
                    status => format!("template `{}` is {status}, not ready", template.name),
                };
                return Err(Problem::new(Code::Conflict, message, NextStep::Do(Action::ListTemplates)));
            }
            Ok(template.into())
        }
        Origin::Snapshot(id) => {
            let snapshot = store.snapshot_get(team, *id).await?;
            let snapshot = snapshot.ok_or_else(|| problem::no_such_snapshot(*id))?;
            match snapshot.status {
                SnapshotStatus::Ready => Ok(snapshot.into()),
                SnapshotStatus::Creating | SnapshotStatus::Failed => {
                    Err(problem::snapshot_not_ready(&snapshot))
                }
            }
        }
    }
}

/// What to say when it is not there any more.
pub(crate) fn absent(origin: &Origin) -> Problem {
    match origin {
        Origin::Template(name) => no_such_template(name),
        Origin::Snapshot(id) => problem::no_such_snapshot(*id),
    }
}

fn no_such_template(name: &str) -> Problem {
    let shown: String = name.chars().take(128).collect();
    Problem::new(Code::NotFound, format!("template `{shown}` not found"), NextStep::Do(Action::ListTemplates))
}

/// The row of a new sandbox with its bindings: what was asked for on top of what it inherits.
pub(crate) fn first_row(
    team: TeamId,
    new: NewSandbox,
    from: Inheritance,
    context: &Context,
) -> Result<(SandboxRow, Vec<BindingRow>), Problem> {
    let (id, secrets) = (SandboxId::new(), &context.secrets);
    let engine = from.runs_on.choose(new.engine, &context.engines)?;
    let mut env = from.env.as_map().clone();
    env.retain(|key, _| !new.secrets.contains_key(key));
    let mut inherited = from.bindings;
    inherited.retain(|key, _| !new.secrets.contains_key(key) && !new.env.as_map().contains_key(key));
    env.extend(new.env.as_map().clone());
    let mut bindings = secrets.prepare(team, id, &new.secrets)?;
    bindings.extend(secrets.inherit(id, inherited)?);
    if bindings.len() > MAX_BINDINGS {
        return Err(problem::too_many_bound());
    }
    let mut timeouts = new.timeouts;
    timeouts.timeout_seconds = timeouts.timeout_seconds.or(from.timeout_seconds);
    let network = new.network.map_or_else(|| from.network.clone(), |network| network.over(&from.network));
    let row = SandboxRow {
        summary: SandboxSummary {
            id,
            name: new.name,
            state: SandboxState::Starting,
            shape: from.shape,
            engine,
            created_at: Timestamp::now(),
            metadata: new.metadata,
            timeouts,
            auto_delete_at: None,
            preview_access: new.preview_access,
            network,
            checkpoint: None,
            source_snapshot: from.snapshot,
        },
        team,
        generation: 0,
        template: from.template,
        layers: from.layers,
        defaults: from.defaults,
        env: EnvVars::new(env)?,
        active_since: None,
        link: 0,
        memory_kept: false,
        token: TokenNumbers { epoch: 0, issued_ms: 0 },
    };
    Ok((row, bindings))
}
