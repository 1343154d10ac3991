//! One line for each isolation engine: whether it works here, whether it has proved itself, whether it is chosen, and if not,
//! what changes that.

use domain::Engine;
use driver_vm::Acceleration;

use super::{Check, limited, missing, ok};
use crate::auto::{self, Standing};
use crate::config::{Config, Isolation};
use crate::engine::{self, Absent};
use crate::verdict::{Verdict, Verdicts};

const PROBE: &str = "superserve doctor --probe tries it on a real machine";
const PROBE_AGAIN: &str = "superserve doctor --probe tries it again, once the cause is mended";

/// Nothing is known here of the layers of `superserve/base`: a verdict on others is told until `up` has tried again.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    let verdicts = Verdicts::load(&config.state_dir);
    let standing = |engine| auto::standing(config, &verdicts, engine, None);
    let auto = config.isolation == Isolation::Auto;
    let proved = || auto::candidates(config).find(|engine| standing(*engine).proved());
    let chosen = engine::named(config.isolation).or_else(proved).or(auto::fallback(config));
    let view = View {
        chosen,
        // Nobody knows yet what `up` comes to.
        undecided: auto && auto::candidates(config).any(|engine| standing(engine).open()),
        config: auto::settled(config, &verdicts, None),
    };
    let strongest_first = Engine::ALL.into_iter().rev();
    let mut checks: Vec<Check> =
        strongest_first.map(|engine| check(&view, engine, &standing(engine))).collect();
    if chosen.is_none() && !view.undecided {
        checks.push(missing("isolation", auto::NONE_LEFT, auto::NONE_LEFT_MEND));
    }
    checks
}

/// What is the same for all.
struct View {
    /// What sandboxes get, as things stand.
    chosen: Option<Engine>,
    undecided: bool,
    /// As the platform runs with it.
    config: Config,
}

fn check(view: &View, engine: Engine, standing: &Standing) -> Check {
    let (what, config) = (what(engine), &view.config);
    let chosen = view.chosen == Some(engine);
    if let Err(Absent { why, mend }) = engine::needs(config, engine) {
        return if chosen && !view.undecided { missing(what, why, mend) } else { limited(what, why, mend) };
    }
    let past = match standing {
        Standing::Tried(verdict) => Some(told(config, engine, verdict)),
        Standing::Absent(_) | Standing::Untried => None,
    };
    let emulated = engine == Engine::Qemu && config.vm.acceleration() == Acceleration::Emulated;
    if chosen {
        let why = match (engine::named(config.isolation), engine) {
            (Some(_), _) => "runs sandboxes, as the configuration says",
            (None, Engine::Container) => "runs sandboxes: nothing stronger has proved itself",
            (None, _) => "runs sandboxes: the strongest that has proved itself",
        };
        let found = past.map_or_else(|| why.to_owned(), |past| format!("{why}; {past}"));
        return if emulated {
            limited(
                what,
                format!("{found}; emulated, several times slower"),
                "--vm-acceleration kvm on a host where /dev/kvm runs ordinary guests",
            )
        } else {
            ok(what, found)
        };
    }
    let for_whom = if engine::offered(config, engine) {
        "for those who ask for it"
    } else {
        "offered to nobody by the configuration"
    };
    let speed = if emulated { ", emulated" } else { "" };
    match (config.isolation, past, standing.proved()) {
        (Isolation::Auto, Some(past), false) => {
            limited(what, format!("not chosen: {past}; {for_whom}{speed}"), PROBE_AGAIN)
        }
        (Isolation::Auto, None, _) if auto::candidates(config).any(|one| one == engine) => {
            let found = match standing {
                Standing::Absent(absent) => format!("not chosen: {}; {for_whom}{speed}", absent.why),
                Standing::Untried | Standing::Tried(_) => {
                    format!("not tried yet, which the next start of `up` does; {for_whom}{speed}")
                }
            };
            limited(what, found, PROBE)
        }
        (_, Some(past), _) => ok(what, format!("{for_whom}{speed}; {past}")),
        (_, None, _) => ok(what, format!("{for_whom}{speed}")),
    }
}

fn told(config: &Config, engine: Engine, verdict: &Verdict) -> String {
    let on_kvm = engine == Engine::Firecracker || engine == Engine::Qemu && auto::proves_on_kvm(config);
    let on = if on_kvm { " on /dev/kvm" } else { "" };
    let day = verdict.at().strftime("%Y-%m-%d").to_string();
    let seconds = std::time::Duration::from_millis(verdict.took_ms).as_secs_f64();
    match &verdict.against {
        None => format!("proved itself{on} on {day} in {seconds:.1} s"),
        Some(why) => {
            let again = if verdict.may_change() { "; the next start of `up` tries it again" } else { "" };
            format!("did not prove itself{on} on {day} ({seconds:.1} s): {why}{again}")
        }
    }
}

fn what(engine: Engine) -> &'static str {
    match engine {
        Engine::Container => "engine container",
        Engine::Gvisor => "engine gvisor",
        Engine::Qemu => "engine qemu",
        Engine::Firecracker => "engine firecracker",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Settings;
    use crate::doctor::Outcome;
    use crate::verdict::{Against, Subject};

    fn config(dir: &std::path::Path, toml: &str) -> Config {
        let file: Settings = toml::from_str(toml).unwrap();
        Settings::default().over(file, dir.to_owned()).unwrap()
    }

    fn verdict(config: &Config, engine: Engine, outcome: Result<(), Against>) -> bool {
        let Ok(subject) = Subject::of(config, engine, Some(&[])) else {
            eprintln!("SKIPPED: {engine} is not here");
            return false;
        };
        let mut verdicts = Verdicts::load(&config.state_dir);
        verdicts.set(engine, Verdict::new(&subject, Duration::from_secs(1), outcome));
        verdicts.save();
        true
    }

    fn outcome(config: &Config, line: &str) -> Option<(Outcome, String)> {
        checks(config).into_iter().find(|check| check.what == line).map(|check| (check.outcome, check.found))
    }

    #[test]
    fn no_choice_is_told_before_the_start() {
        let dir = tempfile::tempdir().unwrap();
        // Not installed in this directory, and nothing else is listed.
        let none = config(dir.path(), "engines = [\"firecracker\"]");
        assert_eq!(outcome(&none, "isolation").unwrap().0, Outcome::Missing);
        assert_eq!(outcome(&none, "engine firecracker").unwrap().0, Outcome::Limited);
        let some = config(dir.path(), "engines = [\"firecracker\", \"container\"]");
        assert!(outcome(&some, "isolation").is_none());
    }

    #[test]
    fn what_proved_itself_on_kvm_is_not_called_emulated() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("kernel"), "").unwrap();
        std::fs::create_dir(dir.path().join("modules")).unwrap();
        let at = dir.path().display();
        let kernel = format!("vm_kernel = \"{at}/kernel\"\nvm_modules = \"{at}/modules\"\n");
        let given = config(dir.path(), &format!("{kernel}vm_acceleration = \"kvm\""));
        if !verdict(&given, Engine::Qemu, Ok(())) {
            return;
        }
        let left_open = config(dir.path(), &kernel);
        let (mark, found) = outcome(&left_open, "engine qemu").unwrap();
        assert!(
            mark == Outcome::Ok && found.contains("on /dev/kvm") && !found.contains("emulated"),
            "{found}"
        );
        let emulated = config(dir.path(), &format!("{kernel}vm_acceleration = \"emulated\""));
        let (_, found) = outcome(&emulated, "engine qemu").unwrap();
        assert!(found.contains("for those who ask for it, emulated") && !found.contains("kvm"), "{found}");
        let named = config(dir.path(), &format!("{kernel}isolation = \"qemu\""));
        assert_eq!(outcome(&named, "engine qemu").unwrap().0, Outcome::Limited, "emulated unless one says");
    }
}
