//! `isolation = "auto"`: the strongest engine that has proved itself here, or containers.
//!
//! A device file or a program that is there proves nothing: on some hosts `/dev/kvm` opens and no guest gets to its user space.
//! Virtual machines are chosen only where the processor runs them, since emulated ones are slow, and a user-space kernel only
//! where it is the computer that sandboxes promise: people who installed `runsc` for something else must not lose `sudo` or FUSE.

use domain::Engine;
use driver_vm::Acceleration;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Isolation};
use crate::engine::{self, VmSettings};
use crate::output::Failure;
use crate::proof::{self, Turn};
use crate::verdict::{Subject, Verdict, Verdicts};

/// What proves itself, strongest first.
pub(crate) const CANDIDATES: [Engine; 3] = [Engine::Firecracker, Engine::Qemu, Engine::Gvisor];

/// Those of them that may be chosen: what the configuration leaves out is not, nor are emulated machines.
pub(crate) fn candidates(config: &Config) -> impl Iterator<Item = Engine> + '_ {
    let emulated = config.vm.acceleration == Some(Acceleration::Emulated);
    CANDIDATES
        .into_iter()
        .filter(move |engine| engine::listed(config, *engine) && !(emulated && *engine == Engine::Qemu))
}

/// What is taken when none has proved itself: it needs no proof, but may be left out.
pub(crate) fn fallback(config: &Config) -> Option<Engine> {
    engine::listed(config, Engine::Container).then_some(Engine::Container)
}

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

    /// Whether the next start of `up` tries it.
    pub(crate) fn open(&self) -> bool {
        match self {
            Self::Absent(_) => false,
            Self::Untried => true,
            Self::Tried(verdict) => verdict.may_change(),
        }
    }
}

/// The configuration with which virtual machines prove themselves: on the processor, unless somebody says otherwise.
fn accelerated(config: &Config) -> Config {
    let acceleration = config.vm.acceleration.or(Some(Acceleration::Kvm));
    Config { vm: VmSettings { acceleration, ..config.vm.clone() }, ..config.clone() }
}

/// Whether virtual machines prove themselves on the processor.
pub(crate) fn proves_on_kvm(config: &Config) -> bool {
    accelerated(config).vm.acceleration() == Acceleration::Kvm
}

/// The configuration as the platform runs with it: virtual machines as they have proved themselves.
pub(crate) fn settled(config: &Config, verdicts: &Verdicts, layers: Option<&[String]>) -> Config {
    if config.isolation == Isolation::Auto && standing(config, verdicts, Engine::Qemu, layers).proved() {
        accelerated(config)
    } else {
        config.clone()
    }
}

/// What is known of an engine, on machines of these layers or of any; changes nothing.
pub(crate) fn standing(
    config: &Config,
    verdicts: &Verdicts,
    engine: Engine,
    layers: Option<&[String]>,
) -> Standing {
    match Subject::of(&accelerated(config), engine, layers) {
        Err(absent) => Standing::Absent(absent),
        Ok(subject) => verdicts
            .on(engine, &subject)
            .map_or(Standing::Untried, |verdict| Standing::Tried(verdict.clone())),
    }
}

/// Tries engines on machines of these layers and keeps what came of it.
///
/// # Errors
/// Nothing can be tried here, or it was stopped; says why.
pub(crate) async fn try_out(
    config: &Config,
    engines: &[Engine],
    layers: &[String],
    stop: &CancellationToken,
) -> Result<(), String> {
    let config = accelerated(config);
    let of = |engine: &Engine| Some((*engine, Subject::of(&config, *engine, Some(layers)).ok()?));
    let subjects: Vec<(Engine, Subject)> = engines.iter().filter_map(of).collect();
    let present: Vec<Engine> = subjects.iter().map(|(engine, _)| *engine).collect();
    if present.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = present.iter().map(|engine| engine.as_str()).collect();
    tracing::info!(engines = names.join(", "), "trying isolation engines, which takes up to a minute, once");
    // Held until it is written down: another process that proves must not undo it.
    let turn = tokio::select! {
        turn = Turn::wait(&config.state_dir) => turn?,
        () = stop.cancelled() => return Err("it was stopped".to_owned()),
    };
    let proofs = proof::prove(&turn, &config, &present, layers, stop).await?;
    let mut verdicts = Verdicts::load(&config.state_dir);
    for (proof, (engine, subject)) in proofs.into_iter().zip(&subjects) {
        let took_ms = proof.took.as_millis();
        match &proof.outcome {
            Ok(()) => tracing::info!(%engine, took_ms, "an isolation engine has proved itself"),
            Err(against) => {
                let why = &against.why;
                tracing::warn!(%engine, took_ms, why, "an isolation engine has not proved itself");
            }
        }
        verdicts.set(*engine, Verdict::new(subject, proof.took, proof.outcome));
    }
    verdicts.save();
    Ok(())
}

/// What `auto` comes to.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) engine: Engine,
    /// Says how virtual machines are run.
    pub(crate) config: Config,
    /// What was chosen before, if that is stronger.
    pub(crate) weaker_than: Option<Engine>,
}

/// Decides, and tries first what nobody has tried, or what had too little time.
///
/// # Errors
/// Nothing that the configuration permits has proved itself, or it was stopped.
pub(crate) async fn choose(
    config: &Config,
    layers: &[String],
    stop: &CancellationToken,
) -> Result<Choice, Failure> {
    let look = || -> Vec<(Engine, Standing)> {
        let verdicts = Verdicts::load(&config.state_dir);
        let of = |engine| (engine, standing(config, &verdicts, engine, Some(layers)));
        candidates(config).map(of).collect()
    };
    let mut known = look();
    let open = known.iter().filter(|(_, standing)| standing.open());
    let open: Vec<Engine> = open.map(|(engine, _)| *engine).collect();
    if !open.is_empty() {
        if let Err(why) = try_out(config, &open, layers, stop).await {
            tracing::warn!(
                why,
                "isolation engines cannot be tried; those that nobody has tried are not chosen"
            );
        }
        known = look();
    }
    if stop.is_cancelled() {
        return Err(Failure::new("stopped while isolation engines were tried"));
    }
    let proved = known.iter().find(|(_, standing)| standing.proved()).map(|(engine, _)| *engine);
    let engine = proved.or(fallback(config)).ok_or_else(none_left)?;
    let weaker_than = note(config, engine).await;
    if let Some(former) = weaker_than {
        tracing::error!(
            former = %former, now = %engine,
            "sandboxes get weaker isolation than before: what was chosen has not proved itself any more; `superserve doctor` \
             says why, and naming `isolation` settles it"
        );
    }
    let config = settled(config, &Verdicts::load(&config.state_dir), Some(layers));
    Ok(Choice { engine, config, weaker_than })
}

fn none_left() -> Failure {
    Failure::new(NONE_LEFT).hint(NONE_LEFT_MEND)
}

/// Why there is no choice, and what changes that.
pub(crate) const NONE_LEFT: &str =
    "isolation = \"auto\" has no choice: none of the engines that `engines` lists has proved itself here";
pub(crate) const NONE_LEFT_MEND: &str =
    "`superserve doctor` says why not; add another to `engines`, or name one with `isolation`";

/// Writes the choice down. What was stronger and may still be chosen stays written, so that every start tells of it.
async fn note(config: &Config, engine: Engine) -> Option<Engine> {
    let former = |verdicts: &Verdicts| {
        verdicts.chosen().filter(|former| *former > engine && candidates(config).any(|one| one == *former))
    };
    let verdicts = Verdicts::load(&config.state_dir);
    if let Some(former) = former(&verdicts) {
        return Some(former);
    }
    if verdicts.chosen() != Some(engine) {
        match Turn::wait(&config.state_dir).await {
            Ok(_turn) => {
                let mut verdicts = Verdicts::load(&config.state_dir);
                verdicts.choose(engine);
                verdicts.save();
            }
            Err(why) => tracing::warn!(why, "the choice of an isolation engine is not kept"),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Settings;
    use crate::verdict::Against;

    /// On an empty directory, with no candidate that could be here: the proof of one needs a host.
    fn config(dir: &std::path::Path, toml: &str) -> Config {
        let file: Settings = toml::from_str(toml).unwrap();
        Settings::default().over(file, dir.to_owned()).unwrap()
    }

    #[test]
    fn only_what_is_listed_is_a_candidate() {
        let dir = tempfile::tempdir().unwrap();
        let of = |toml: &str| {
            let config = config(dir.path(), toml);
            (candidates(&config).collect::<Vec<_>>(), fallback(&config))
        };
        assert_eq!(of(""), (CANDIDATES.to_vec(), Some(Engine::Container)));
        assert_eq!(of("engines = [\"gvisor\", \"qemu\"]"), (vec![Engine::Qemu, Engine::Gvisor], None));
        assert_eq!(of("engines = [\"container\"]"), (vec![], Some(Engine::Container)));
        let emulated = of("vm_acceleration = \"emulated\"");
        assert_eq!(emulated, (vec![Engine::Firecracker, Engine::Gvisor], Some(Engine::Container)));
        assert!(of("vm_acceleration = \"kvm\"").0.contains(&Engine::Qemu));
    }

    #[test]
    fn what_somebody_says_of_acceleration_holds() {
        let dir = tempfile::tempdir().unwrap();
        for (toml, kvm) in
            [("", true), ("vm_acceleration = \"emulated\"", false), ("vm_acceleration = \"kvm\"", true)]
        {
            assert_eq!(proves_on_kvm(&config(dir.path(), toml)), kvm, "{toml}");
        }
    }

    #[tokio::test]
    async fn a_weaker_choice_is_told_until_it_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        // Not installed in this directory, so that nothing is tried.
        let only = config(dir.path(), "engines = [\"container\", \"firecracker\"]");
        let stop = CancellationToken::new();
        let choose = async |config: &Config| choose(config, &[], &stop).await;
        let first = choose(&only).await.unwrap();
        assert_eq!((first.engine, first.weaker_than), (Engine::Container, None));
        let mut verdicts = Verdicts::load(dir.path());
        assert_eq!(verdicts.chosen(), Some(Engine::Container));
        verdicts.choose(Engine::Firecracker);
        verdicts.save();
        for _each_start in 0..2 {
            let now = choose(&only).await.unwrap();
            assert_eq!((now.engine, now.weaker_than), (Engine::Container, Some(Engine::Firecracker)));
        }
        let wanted = choose(&config(dir.path(), "engines = [\"container\"]")).await.unwrap();
        assert_eq!((wanted.engine, wanted.weaker_than), (Engine::Container, None));
        assert_eq!(Verdicts::load(dir.path()).chosen(), Some(Engine::Container));

        let none = choose(&config(dir.path(), "engines = [\"firecracker\"]")).await.unwrap_err();
        assert!(none.message().contains("`engines`") && none.message().contains("isolation"), "{none:?}");
        stop.cancel();
        assert!(choose(&only).await.unwrap_err().message().contains("stopped"));
    }

    #[test]
    fn what_had_too_little_time_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), "");
        // Consists of files that are here, whatever this host has.
        let Ok(subject) = Subject::of(&config, Engine::Container, Some(&[])) else {
            eprintln!("SKIPPED: runc is not installed");
            return;
        };
        let standing = |against: Option<(&str, bool)>| {
            let outcome = match against {
                None => Ok(()),
                Some((why, late)) => Err(Against { why: why.to_owned(), late }),
            };
            let mut verdicts = Verdicts::load(dir.path());
            verdicts.set(Engine::Container, Verdict::new(&subject, Duration::ZERO, outcome));
            verdicts.save();
            super::standing(&config, &Verdicts::load(dir.path()), Engine::Container, Some(&[]))
        };
        assert!(!standing(None).open());
        assert!(!standing(Some(("broken", false))).open());
        // A host that is always too slow does not wait for it at every start.
        let open = [(); 4].map(|()| standing(Some(("late", true))).open());
        assert_eq!(open, [true, true, false, false]);
        let layers = ["other".to_owned()];
        let other = super::standing(&config, &Verdicts::load(dir.path()), Engine::Container, Some(&layers));
        assert_eq!(other, Standing::Untried, "it is about other layers");
    }
}
