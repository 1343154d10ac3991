//! `isolation = "auto"`: the strongest engine that has proved itself here, or containers.
//!
//! A device file or a program that is there proves nothing: on some hosts `/dev/kvm` opens and no guest gets to its user space.
//! Virtual machines are chosen only where the processor runs them, since emulated ones are slow, and a user-space kernel only
//! where it is the computer that sandboxes promise: people who installed `runsc` for something else must not lose `sudo` or FUSE.

use domain::Engine;
use driver_vm::Acceleration;

use crate::config::Config;
use crate::engine::{self, VmSettings};
use crate::proof;
use crate::verdict::{Subject, Verdict, Verdicts};

/// What is tried, strongest first. What is left when none has proved itself needs no proof.
pub(crate) const CANDIDATES: [Engine; 3] = [Engine::Firecracker, Engine::Qemu, Engine::Gvisor];

/// What is known of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It cannot start anything here.
    Absent(engine::Absent),
    /// Nobody has tried.
    Untried,
    /// It was tried.
    Tried(Verdict),
}

impl Standing {
    /// Whether `auto` takes it.
    pub(crate) fn proved(&self) -> bool {
        matches!(self, Self::Tried(verdict) if verdict.against.is_none())
    }
}

/// The configuration with which virtual machines prove themselves.
fn accelerated(config: &Config) -> Config {
    Config { vm: VmSettings { acceleration: Acceleration::Kvm, ..config.vm.clone() }, ..config.clone() }
}

/// What is known of an engine; changes nothing.
pub(crate) fn standing(config: &Config, verdicts: &Verdicts, engine: Engine) -> Standing {
    match Subject::of(&accelerated(config), engine) {
        Err(absent) => Standing::Absent(absent),
        Ok(subject) => verdicts
            .on(engine, &subject)
            .map_or(Standing::Untried, |verdict| Standing::Tried(verdict.clone())),
    }
}

/// Tries engines on machines of these layers and keeps what came of it.
///
/// # Errors
/// Nothing can be tried here; says why.
pub(crate) async fn try_out(config: &Config, engines: &[Engine], layers: &[String]) -> Result<(), String> {
    let config = accelerated(config);
    let subjects = engines.iter().filter_map(|engine| Some((*engine, Subject::of(&config, *engine).ok()?)));
    let subjects: Vec<(Engine, Subject)> = subjects.collect();
    let present: Vec<Engine> = subjects.iter().map(|(engine, _)| *engine).collect();
    if present.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = present.iter().map(|engine| engine.as_str()).collect();
    tracing::info!(engines = names.join(", "), "trying isolation engines, which takes up to a minute, once");
    let proofs = proof::prove(&config, &present, layers).await?;
    let mut verdicts = Verdicts::load(&config.state_dir);
    for (proof, (engine, subject)) in proofs.into_iter().zip(&subjects) {
        let took_ms = proof.took.as_millis();
        match &proof.outcome {
            Ok(()) => tracing::info!(%engine, took_ms, "an isolation engine has proved itself"),
            Err(why) => tracing::warn!(%engine, took_ms, why, "an isolation engine has not proved itself"),
        }
        verdicts.set(*engine, Verdict::new(subject, proof.took, proof.outcome));
    }
    verdicts.save();
    Ok(())
}

/// Decides, and tries first what nobody has tried. The configuration that comes back says how virtual machines are run.
pub(crate) async fn choose(config: &Config, layers: &[String]) -> (Engine, Config) {
    let look = || {
        let verdicts = Verdicts::load(&config.state_dir);
        CANDIDATES.map(|engine| (engine, standing(config, &verdicts, engine)))
    };
    let mut known = look();
    let untried = known.iter().filter(|(_, standing)| *standing == Standing::Untried);
    let untried: Vec<Engine> = untried.map(|(engine, _)| *engine).collect();
    if !untried.is_empty() {
        if let Err(why) = try_out(config, &untried, layers).await {
            tracing::warn!(
                why,
                "isolation engines cannot be tried; those that nobody has tried are not chosen"
            );
        }
        known = look();
    }
    let proved = |wanted| known.iter().any(|(engine, standing)| *engine == wanted && standing.proved());
    let chosen = CANDIDATES.into_iter().find(|engine| proved(*engine)).unwrap_or(Engine::Container);
    let config = if proved(Engine::Qemu) { accelerated(config) } else { config.clone() };
    (chosen, config)
}
