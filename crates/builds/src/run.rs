//! One build, from its image to what the template will use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{BuildSpec, BuildStep, FROM_TEMPLATE, RuntimeDefaults, TemplateStatus};
use jiff::Timestamp;
use store::{BuiltImage, CachedStep};
use templates::{Image, Layer, Phase};
use tokio::time::Instant;
use wire::agent::AgentConfig;
use wire::data_plane::ExecRequest;
use wire::rest::LogSource;

use crate::curated::Instead;
use crate::failure::{Failure, FailureCode};
use crate::log::Log;
use crate::machine::{ExecError, Machine};
use crate::state::{Group, StepState, groups};
use crate::work::Work;

/// One command of a build: compilers take their time, and a command that waits for an answer never ends.
const STEP_LIMIT_S: i64 = 3_600;
/// Making a user or a directory.
const SETUP_LIMIT_S: i64 = 60;
/// Layers of one template: the kernel takes mount options of one page.
const MAX_LAYERS: usize = 180;
/// Between two tries of `ready_cmd` (`spec/semantics.md` §9.1).
const READY_EVERY: Duration = Duration::from_secs(2);
/// A try that hangs is ended.
const READY_TRY_S: i64 = 30;
/// Without a `ready_cmd`, a `start_cmd` has this long to fail.
const START_GRACE: Duration = Duration::from_secs(2);
/// Longest time limit an agent takes, seconds; a `start_cmd` ends with its machine.
const START_LIMIT_S: i64 = 604_800;
/// What is quoted of the end of a failed command's output.
const TAIL_BYTES: usize = 400;

/// Makes the user, with whatever the image has for it, and lets it become root.
const MAKE_USER: &str = r#"set -e
if ! id -u "$U" >/dev/null 2>&1; then
  S=/bin/sh; if [ -x /bin/bash ]; then S=/bin/bash; fi
  if command -v useradd >/dev/null 2>&1; then useradd --create-home --user-group --shell "$S" "$U"
  elif command -v adduser >/dev/null 2>&1; then adduser -D -s "$S" "$U"
  else
    N=1000; while cut -d: -f3 /etc/passwd /etc/group 2>/dev/null | grep -qx "$N"; do N=$((N+1)); done
    mkdir -p "/home/$U"
    echo "$U:x:$N:$N::/home/$U:$S" >>/etc/passwd; echo "$U:x:$N:" >>/etc/group
    chown "$N:$N" "/home/$U"
  fi
fi
if [ -n "$SUDO" ]; then
  mkdir -p /etc/sudoers.d
  echo "$U ALL=(ALL) NOPASSWD:ALL" >"/etc/sudoers.d/90-$U"; chmod 0440 "/etc/sudoers.d/90-$U"
  command -v sudo >/dev/null 2>&1 || echo "sudo is not installed in this image; install it in a step" >&2
fi
"#;
/// Makes the directory for the user of later commands.
const MAKE_DIRECTORY: &str = r#"set -e
if [ ! -d "$D" ]; then
  mkdir -p -- "$D"
  if [ -n "$U" ]; then
    chown -- "$U" "$D"
    case "$U" in *:*) ;; *) G=$(id -g "$U" 2>/dev/null) && chgrp -- "$G" "$D";; esac
  fi
fi
"#;

/// Pulls the image and runs the steps.
pub(crate) async fn build(work: &Work, spec: &BuildSpec) -> Result<BuiltImage, Failure> {
    let (image, steps) = base(work, spec).await?;
    let image_cmd = image.command.clone().filter(|_| spec.image_cmd());
    if spec.image_cmd() && spec.start_cmd().is_none() && image_cmd.is_none() {
        let detail = "image_cmd is set, and the image has no ENTRYPOINT or CMD; give a start_cmd";
        return Err(Failure::new(FailureCode::StartCmdFailed, detail));
    }
    let mut size_bytes = image.size_bytes();
    let mut layers: Vec<String> = image.layers.into_iter().map(|layer| layer.digest).collect();
    let mut state = StepState { defaults: image.defaults };
    let total = steps.len();
    for group in groups(steps) {
        if let Some(step) = run_group(work, &layers, &mut state, group, total).await? {
            size_bytes += step.size_bytes;
            layers.extend(step.layer);
        }
        if size_bytes > work.max_bytes() {
            let detail = format!(
                "image and steps have {} MiB; the disk of the template has {} MiB",
                size_bytes.div_ceil(1024 * 1024),
                work.shape.disk_mib
            );
            return Err(Failure::new(FailureCode::ImageTooLarge, detail));
        }
        if layers.len() > MAX_LAYERS {
            let detail = format!("image and steps make more than {MAX_LAYERS} layers; join some steps");
            return Err(Failure::new(FailureCode::BuildFailed, detail));
        }
    }
    let set = |command: Option<&str>| command.map(str::to_owned);
    let defaults = RuntimeDefaults {
        start_cmd: set(spec.start_cmd()).or(image_cmd),
        ready_cmd: set(spec.ready_cmd()),
        ..state.defaults
    };
    Ok(BuiltImage { layers, size_bytes, defaults })
}

/// What a build begins with: an image, or another template; and the steps that are left to do.
async fn base<'a>(work: &Work, spec: &'a BuildSpec) -> Result<(Image, &'a [BuildStep]), Failure> {
    let Some(name) = spec.from().strip_prefix(FROM_TEMPLATE) else {
        if let Some(Instead::Debian { recipe, defaults }) = &work.instead
            && let Some(layer) = templates::bootstrapped(work.layers.dir(), recipe)
            && work.keep(vec![layer.digest.clone()]).await?
        {
            work.log.system("made of Debian packages before");
            return Ok((of_packages(layer, defaults), &[]));
        }
        let pulled = pull(work, spec.from()).await;
        return match (pulled, &work.instead) {
            (Err(failure), Some(instead)) if failure.code == FailureCode::ImagePullFailed => {
                work.log.system(&format!("{failure}"));
                match instead {
                    Instead::Template(name) => {
                        work.log.system(&format!("beginning with the template {name} instead"));
                        Ok((of_template(work, name).await?, spec.steps()))
                    }
                    Instead::Debian { recipe, defaults } => {
                        work.log.system("making it of Debian packages instead");
                        let progress = told(&work.log);
                        let layer = templates::bootstrap(&work.layers, recipe, progress).await?;
                        Ok((of_packages(layer, defaults), &[]))
                    }
                }
            }
            (pulled, _) => Ok((pulled?, spec.steps())),
        };
    };
    Ok((of_template(work, name).await?, spec.steps()))
}

fn of_packages(layer: Layer, defaults: &RuntimeDefaults) -> Image {
    Image { layers: vec![layer], defaults: defaults.clone(), command: None }
}

async fn of_template(work: &Work, name: &str) -> Result<Image, Failure> {
    let found = work.store.template_find(work.team, name).await;
    let found = found.map_err(|error| Failure::of(FailureCode::BuildFailed, &error.into()))?;
    let bad = |why: &str| Failure::new(FailureCode::BadReference, format!("the template `{name}` {why}"));
    let row = found.ok_or_else(|| bad("does not exist"))?;
    if row.status != TemplateStatus::Ready {
        return Err(bad("is not ready"));
    }
    if !work.keep(row.layers.clone()).await? {
        return Err(bad("was deleted, or built again; build this one again"));
    }
    let digests = row.layers.into_iter();
    // Only the sum of the sizes is kept with a template; it is counted once.
    let mut left = row.size_bytes.unwrap_or_default();
    let layers = digests.map(|digest| Layer { digest, size_bytes: std::mem::take(&mut left) }).collect();
    // Its commands are its own; a template above may have others.
    let command = row.defaults.start_cmd.clone();
    let defaults = RuntimeDefaults { start_cmd: None, ready_cmd: None, ..row.defaults };
    Ok(Image { layers, defaults, command })
}

async fn pull(work: &Work, reference: &str) -> Result<Image, Failure> {
    work.log.system(&format!("pulling {reference}"));
    let progress = told(&work.log);
    let image =
        templates::pull_image(&work.layers, reference, &work.access, work.max_bytes(), progress).await?;
    // A build that fails is tried again.
    for layer in &image.layers {
        let brought = CachedStep { layer: Some(layer.digest.clone()), size_bytes: layer.size_bytes };
        remember(work, &format!("image layer {}", layer.digest), &brought).await;
    }
    Ok(image)
}

/// Writes phases to the log: tenths of a download, and each other phase once.
fn told(log: &Arc<Log>) -> impl Fn(Phase) + Send + Sync + 'static {
    let last = Mutex::new((String::new(), u64::MAX));
    let log = Arc::clone(log);
    move |phase: Phase| {
        let Ok(mut last) = last.lock() else { return };
        let tenth = match phase {
            Phase::Pulling { done, total } => done.saturating_mul(10) / total.max(1),
            _ => 0,
        };
        let now = (phase.label().to_owned(), tenth);
        if *last != now && phase != Phase::Done {
            match phase {
                Phase::Pulling { total, .. } => {
                    log.system(&format!(
                        "{} ({} % of {} MiB)",
                        now.0,
                        tenth * 10,
                        total.div_ceil(1024 * 1024)
                    ));
                }
                _ => log.system(&now.0),
            }
            *last = now;
        }
    }
}

async fn remember(work: &Work, key: &str, made: &CachedStep) {
    // A build that runs again does without.
    if let Err(error) = work.store.cache_put(key, made, Timestamp::now()).await {
        tracing::warn!(%error, "a layer is not remembered");
    }
}

/// Runs a group of steps, or finds what they made before; `None` when they write nothing by their nature.
async fn run_group(
    work: &Work,
    layers: &[String],
    state: &mut StepState,
    group: Group<'_>,
    total: usize,
) -> Result<Option<CachedStep>, Failure> {
    let key = group.key(layers, state);
    let known = if group.writes() { cached(work, &key).await } else { None };
    let before = state.clone();
    for (number, step) in group.steps.iter().enumerate() {
        if known.is_some() || !group.writes() {
            let note = if known.is_some() { " (made before)" } else { "" };
            work.log.system(&format!("step {} of {total}: {}{note}", group.first + number + 1, shown(step)));
        }
        state.apply(step);
    }
    if known.is_some() || !group.writes() {
        return Ok(known);
    }
    let blueprint = work.blueprint(layers);
    let start = Machine::start(&work.host, &work.machines, &blueprint, before.config());
    let machine = start.await.map_err(|problem| Failure::of(FailureCode::BootFailed, &problem))?;
    let (machine, made) = in_machine(work, machine, before, group, total).await;
    machine.end().await;
    let made = made?;
    if !work.keep(made.layer.iter().cloned().collect()).await? {
        let detail = "what the step made was removed by another build; build again";
        return Err(Failure::new(FailureCode::SnapshotFailed, detail));
    }
    remember(work, &key, &made).await;
    Ok(Some(made))
}

async fn cached(work: &Work, key: &str) -> Option<CachedStep> {
    let found = work.store.cache_get(key, Timestamp::now()).await;
    let found = found.inspect_err(|error| tracing::warn!(%error, "cannot look a step up")).ok()??;
    let kept = work.keep(found.layer.iter().cloned().collect()).await;
    let there = kept.inspect_err(|error| tracing::warn!(%error, "cannot keep a layer")).ok()?;
    there.then_some(found)
}

/// Runs the steps in a machine, which the caller ends.
async fn in_machine(
    work: &Work,
    mut machine: Machine,
    mut state: StepState,
    group: Group<'_>,
    total: usize,
) -> (Machine, Result<CachedStep, Failure>) {
    for (number, step) in group.steps.iter().enumerate() {
        work.log.system(&format!("step {} of {total}: {}", group.first + number + 1, shown(step)));
        if let Err(failure) = run_step(work, &mut machine, &mut state, step, group.first + number + 1).await {
            return (machine, Err(failure));
        }
    }
    let captured = machine.capture().await;
    let made = captured.map_err(|problem| Failure::of(FailureCode::SnapshotFailed, &problem));
    let made = made.map(|layer| match layer {
        Some(layer) => CachedStep { layer: Some(layer.digest), size_bytes: layer.size_bytes },
        None => CachedStep { layer: None, size_bytes: 0 },
    });
    (machine, made)
}

async fn run_step(
    work: &Work,
    machine: &mut Machine,
    state: &mut StepState,
    step: &BuildStep,
    number: usize,
) -> Result<(), Failure> {
    let before = state.clone();
    state.apply(step);
    let variables = |pairs: &[(&str, &str)]| -> Option<BTreeMap<String, String>> {
        Some(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    };
    let (config, request) = match step {
        BuildStep::Env { .. } => return Ok(()),
        BuildStep::Run(command) => {
            let request = ExecRequest {
                command: command.clone(),
                timeout_s: Some(STEP_LIMIT_S),
                ..ExecRequest::default()
            };
            (before.config(), request)
        }
        BuildStep::User { name, sudo } => {
            let sudo = if *sudo { "1" } else { "" };
            (as_root(), setup(MAKE_USER, variables(&[("U", name), ("SUDO", sudo)])))
        }
        BuildStep::Workdir(_) => {
            let user = before.defaults.user.as_deref().unwrap_or_default();
            (as_root(), setup(MAKE_DIRECTORY, variables(&[("D", state.workdir()), ("U", user)])))
        }
    };
    machine.configure(config).await.map_err(|problem| Failure::of(FailureCode::BuildFailed, &problem))?;
    let what = format!("step {number} (`{}`)", shown(step));
    let mut tail = Tail::default();
    let code = machine
        .exec(&request, &mut |stream, text| {
            tail.push(&text);
            work.log.push(stream, text);
        })
        .await;
    match code {
        Ok(0) => Ok(()),
        Ok(wire::data_plane::TIMEOUT_EXIT_CODE) => {
            let limit = request.timeout_s.unwrap_or_default();
            let detail =
                format!("{what} ended with exit code 124; a step may take {limit} s{}", tail.quoted());
            Err(Failure::new(FailureCode::StepFailed, detail))
        }
        Ok(code) => {
            let detail = format!("{what} ended with exit code {code}{}", tail.quoted());
            Err(Failure::new(FailureCode::StepFailed, detail))
        }
        Err(ExecError::Refused(why)) => {
            Err(Failure::new(FailureCode::StepFailed, format!("{what} could not run: {why}")))
        }
        Err(ExecError::Machine(problem)) => Err(Failure::of(FailureCode::BuildFailed, &problem)),
    }
}

/// The platform's own commands; they use nothing of the image but its shell.
fn as_root() -> AgentConfig {
    AgentConfig { workdir: Some("/".to_owned()), ..AgentConfig::default() }
}

fn setup(script: &str, env: Option<BTreeMap<String, String>>) -> ExecRequest {
    ExecRequest { command: script.to_owned(), env, timeout_s: Some(SETUP_LIMIT_S), ..ExecRequest::default() }
}

/// A step in a line of the log. Values of variables may be private.
fn shown(step: &BuildStep) -> String {
    let text = match step {
        BuildStep::Run(command) => format!("run {command}"),
        BuildStep::Env { key, .. } => format!("env {key}"),
        BuildStep::Workdir(path) => format!("workdir {path}"),
        BuildStep::User { name, sudo } => format!("user {name}{}", if *sudo { " with sudo" } else { "" }),
    };
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(120).collect();
    if short.len() < text.len() { format!("{short} …") } else { short }
}

/// The end of what a command has printed.
#[derive(Debug, Default)]
struct Tail(String);

impl Tail {
    fn push(&mut self, text: &str) {
        self.0.push_str(text);
        let mut cut = self.0.len().saturating_sub(TAIL_BYTES);
        while !self.0.is_char_boundary(cut) {
            cut += 1;
        }
        self.0.drain(..cut);
    }

    fn quoted(&self) -> String {
        let text = self.0.trim();
        if text.is_empty() { String::new() } else { format!(": {text}") }
    }
}

/// Makes a sandbox of what was built, as a create will, and sees that it serves.
pub(crate) async fn try_out(work: &Work, image: &BuiltImage) -> Result<(), Failure> {
    let defaults = &image.defaults;
    let guest = AgentConfig {
        template_env: defaults.env.clone(),
        workdir: defaults.workdir.clone(),
        user: defaults.user.clone(),
        ..AgentConfig::default()
    };
    work.log.system("trying the result");
    let blueprint = work.blueprint(&image.layers);
    let start = Machine::start(&work.host, &work.machines, &blueprint, guest);
    let machine = start.await.map_err(|problem| Failure::of(FailureCode::BootFailed, &problem))?;
    let tried = serves(work, &machine, defaults).await;
    machine.end().await;
    tried
}

async fn serves(work: &Work, machine: &Machine, defaults: &RuntimeDefaults) -> Result<(), Failure> {
    let command = |text: &str, limit: i64| ExecRequest {
        command: text.to_owned(),
        timeout_s: Some(limit),
        ..ExecRequest::default()
    };
    match machine.exec(&command("true", SETUP_LIMIT_S), &mut |_, _| {}).await {
        Ok(0) => {}
        Ok(code) => {
            let detail = format!("the image has no working /bin/sh (exit code {code})");
            return Err(Failure::new(FailureCode::BootFailed, detail));
        }
        Err(ExecError::Refused(why)) => return Err(Failure::new(FailureCode::BootFailed, why)),
        Err(ExecError::Machine(problem)) => return Err(Failure::of(FailureCode::BootFailed, &problem)),
    }
    let ready = async {
        match &defaults.ready_cmd {
            Some(ready) => wait_ready(work, machine, &command(ready, READY_TRY_S)).await,
            None => {
                if defaults.start_cmd.is_some() {
                    tokio::time::sleep(START_GRACE).await;
                }
                Ok(())
            }
        }
    };
    let Some(start_cmd) = &defaults.start_cmd else { return ready.await };
    work.log.system(&format!("start_cmd: {}", shown(&BuildStep::Run(start_cmd.clone()))));
    let mut tail = Tail::default();
    let start_cmd = command(start_cmd, START_LIMIT_S);
    let mut heard = |stream: LogSource, text: String| {
        tail.push(&text);
        work.log.push(stream, text);
    };
    let ended = {
        let mut running = std::pin::pin!(machine.exec(&start_cmd, &mut heard));
        let mut ready = std::pin::pin!(ready);
        tokio::select! {
            ready = &mut ready => return ready,
            ended = &mut running => match ended {
                // It went into the background, or did all it had to.
                Ok(0) => return ready.await,
                other => other,
            },
        }
    };
    Err(match ended {
        Ok(code) => {
            let detail = format!("start_cmd ended with exit code {code}{}", tail.quoted());
            Failure::new(FailureCode::StartCmdFailed, detail)
        }
        Err(ExecError::Refused(why)) => Failure::new(FailureCode::StartCmdFailed, why),
        Err(ExecError::Machine(problem)) => Failure::of(FailureCode::StartCmdFailed, &problem),
    })
}

async fn wait_ready(work: &Work, machine: &Machine, ready: &ExecRequest) -> Result<(), Failure> {
    let until = Instant::now() + work.ready_within;
    let mut last = String::new();
    while Instant::now() < until {
        let mut tail = Tail::default();
        let tried = machine.exec(ready, &mut |_, text| tail.push(&text)).await;
        last = match tried {
            Ok(0) => {
                work.log.system("ready_cmd succeeded");
                return Ok(());
            }
            Ok(code) => format!("exit code {code}{}", tail.quoted()),
            Err(ExecError::Refused(why)) => why,
            Err(ExecError::Machine(problem)) => {
                return Err(Failure::of(FailureCode::ReadyCmdFailed, &problem));
            }
        };
        tokio::time::sleep(READY_EVERY).await;
    }
    let detail = format!("ready_cmd did not succeed within {} s; last: {last}", work.ready_within.as_secs());
    Err(Failure::new(FailureCode::ReadyCmdFailed, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_shown_in_a_line_without_values() {
        let env = BuildStep::Env { key: "TOKEN".into(), value: "hunter2".into() };
        assert_eq!(shown(&env), "env TOKEN");
        assert_eq!(shown(&BuildStep::Run("a\nb".into())), "run a …");
        assert!(shown(&BuildStep::Run("é".repeat(500))).len() < 300);
    }

    #[test]
    fn the_tail_keeps_whole_characters() {
        let mut tail = Tail::default();
        tail.push(&"é".repeat(1000));
        tail.push("x");
        assert!(tail.0.len() <= TAIL_BYTES && tail.0.ends_with("éx"));
    }
}
