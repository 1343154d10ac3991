//! One line for each isolation engine: whether it works here, whether it has proved itself, whether it is chosen, and if not,
//! what changes that.

use domain::Engine;
use driver_vm::Acceleration;

use super::{Check, limited, missing, ok};
use crate::auto::{self, CANDIDATES, Standing};
use crate::config::{Config, Isolation};
use crate::engine::{self, Absent};
use crate::verdict::{Verdict, Verdicts};

const PROBE: &str = "superserve doctor --probe tries it on a real machine";
const PROBE_AGAIN: &str = "superserve doctor --probe tries it again, once the cause is mended";

pub(super) fn checks(config: &Config) -> Vec<Check> {
    let verdicts = Verdicts::load(&config.state_dir);
    let standing = |engine| auto::standing(config, &verdicts, engine);
    let proved = CANDIDATES.into_iter().find(|engine| standing(*engine).proved());
    let chosen = engine::named(config.isolation).or(proved).unwrap_or(Engine::Container);
    let strongest_first = Engine::ALL.into_iter().rev();
    strongest_first.map(|engine| check(config, engine, chosen, &standing(engine))).collect()
}

fn check(config: &Config, engine: Engine, chosen: Engine, standing: &Standing) -> Check {
    let what = what(engine);
    if let Err(Absent { why, mend }) = engine::needs(config, engine) {
        return if engine == chosen { missing(what, why, mend) } else { limited(what, why, mend) };
    }
    let past = match standing {
        Standing::Tried(verdict) => Some(told(engine, verdict)),
        Standing::Absent(_) | Standing::Untried => None,
    };
    if engine == chosen {
        let why = match (engine::named(config.isolation), engine) {
            (Some(_), _) => "runs sandboxes, as the configuration says",
            (None, Engine::Container) => "runs sandboxes: nothing stronger has proved itself",
            (None, _) => "runs sandboxes: the strongest that has proved itself",
        };
        let found = past.map_or_else(|| why.to_owned(), |past| format!("{why}; {past}"));
        return if emulated(config, engine) {
            limited(
                what,
                format!("{found}; emulated, several times slower"),
                "--vm-acceleration kvm on a host where /dev/kvm runs ordinary guests",
            )
        } else {
            ok(what, found)
        };
    }
    let offered = match &config.engines {
        Some(listed) => listed.contains(&engine),
        None => engine >= engine::named(config.isolation).unwrap_or(Engine::Container),
    };
    let for_whom =
        if offered { "for those who ask for it" } else { "offered to nobody by the configuration" };
    let speed = if emulated(config, engine) && !standing.proved() { ", emulated" } else { "" };
    match (config.isolation, past, standing.proved()) {
        (Isolation::Auto, Some(past), false) => {
            limited(what, format!("not chosen: {past}; {for_whom}{speed}"), PROBE_AGAIN)
        }
        (Isolation::Auto, None, _) if CANDIDATES.contains(&engine) => {
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

/// Whether virtual machines are run without the processor's help.
fn emulated(config: &Config, engine: Engine) -> bool {
    engine == Engine::Qemu && config.vm.acceleration == Acceleration::Emulated
}

fn told(engine: Engine, verdict: &Verdict) -> String {
    // Virtual machines prove themselves on the processor, never emulated.
    let on = if engine == Engine::Container || engine == Engine::Gvisor { "" } else { " on /dev/kvm" };
    let day = verdict.at().strftime("%Y-%m-%d").to_string();
    let seconds = std::time::Duration::from_millis(verdict.took_ms).as_secs_f64();
    match &verdict.against {
        None => format!("proved itself{on} on {day} in {seconds:.1} s"),
        Some(why) => format!("did not prove itself{on} on {day} ({seconds:.1} s): {why}"),
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
