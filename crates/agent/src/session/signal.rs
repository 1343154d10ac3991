//! Names of signals as clients write them.

use rustix::process::Signal;

const NAMES: [(&str, Signal); 33] = [
    ("ABRT", Signal::ABORT),
    ("ALRM", Signal::ALARM),
    ("BUS", Signal::BUS),
    ("CHLD", Signal::CHILD),
    ("CLD", Signal::CHILD),
    ("CONT", Signal::CONT),
    ("FPE", Signal::FPE),
    ("HUP", Signal::HUP),
    ("ILL", Signal::ILL),
    ("INT", Signal::INT),
    ("IO", Signal::IO),
    ("IOT", Signal::ABORT),
    ("KILL", Signal::KILL),
    ("PIPE", Signal::PIPE),
    ("POLL", Signal::IO),
    ("PROF", Signal::PROF),
    ("PWR", Signal::POWER),
    ("QUIT", Signal::QUIT),
    ("SEGV", Signal::SEGV),
    ("STOP", Signal::STOP),
    ("SYS", Signal::SYS),
    ("TERM", Signal::TERM),
    ("TRAP", Signal::TRAP),
    ("TSTP", Signal::TSTP),
    ("TTIN", Signal::TTIN),
    ("TTOU", Signal::TTOU),
    ("URG", Signal::URG),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("VTALRM", Signal::VTALARM),
    ("WINCH", Signal::WINCH),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
];

/// The signal of this name, with or without `SIG`, in any case.
pub(super) fn named(name: &str) -> Option<Signal> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES.iter().find(|(name, _)| *name == short).map(|(_, signal)| *signal)
}

/// Whether whoever sends this wants the command to end.
pub(super) fn ends(signal: Signal) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::KILL].contains(&signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_posix_name_is_known() {
        for name in [
            "ABRT", "ALRM", "BUS", "CHLD", "CONT", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "POLL",
            "PROF", "QUIT", "SEGV", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1",
            "USR2", "VTALRM", "XCPU", "XFSZ",
        ] {
            let signal = named(name).expect(name);
            assert_eq!(named(&format!("SIG{name}")), Some(signal));
            assert_eq!(named(&format!("sig{}", name.to_lowercase())), Some(signal));
        }
        assert_eq!(named("SIGTERM").map(Signal::as_raw), Some(15));
        for unknown in ["", "SIG", "SIGSIG", "15", "TERMINATE"] {
            assert_eq!(named(unknown), None, "{unknown}");
        }
    }
}
