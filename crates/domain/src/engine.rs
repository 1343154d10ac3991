//! Isolation engines: what stands between a sandbox and the machine it runs on.

use std::fmt;
use std::str::FromStr;

use crate::{Code, NextStep, Problem};

/// An isolation engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// Namespaces, user namespace, seccomp, capabilities, cgroups, by an OCI runtime.
    Container,
    /// A kernel in user space, by gVisor.
    Gvisor,
    /// A virtual machine by QEMU, with hardware support or without.
    Qemu,
    /// A hardware virtual machine by Firecracker.
    Firecracker,
}

impl Engine {
    /// All there are, weakest first.
    pub const ALL: [Self; 4] = [Self::Container, Self::Gvisor, Self::Qemu, Self::Firecracker];

    /// Its name in the configuration and the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Gvisor => "gvisor",
            Self::Qemu => "qemu",
            Self::Firecracker => "firecracker",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Engine {
    type Err = NoSuchEngine;

    fn from_str(name: &str) -> Result<Self, NoSuchEngine> {
        Self::ALL.into_iter().find(|engine| engine.as_str() == name).ok_or(NoSuchEngine)
    }
}

/// The engines that a server runs new sandboxes with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// What a sandbox gets that asks for none.
    default: Engine,
    /// What it may ask for, weakest first.
    all: Vec<Engine>,
}

impl Offer {
    /// The default is always among them.
    #[must_use]
    pub fn new(default: Engine, others: impl IntoIterator<Item = Engine>) -> Self {
        let mut all: Vec<Engine> = others.into_iter().chain([default]).collect();
        all.sort_unstable();
        all.dedup();
        Self { default, all }
    }

    /// What a sandbox gets that asks for none.
    #[must_use]
    pub fn default_engine(&self) -> Engine {
        self.default
    }

    /// All of them, weakest first.
    #[must_use]
    pub fn all(&self) -> &[Engine] {
        &self.all
    }

    /// Whether a new sandbox may have it.
    #[must_use]
    pub fn has(&self, engine: Engine) -> bool {
        self.all.contains(&engine)
    }

    /// The engine asked for, or the default.
    ///
    /// # Errors
    /// `bad_request` that names what there is.
    pub fn choose(&self, wanted: Option<Engine>) -> Result<Engine, Problem> {
        match wanted {
            None => Ok(self.default),
            Some(engine) if self.has(engine) => Ok(engine),
            Some(engine) => {
                let accepted = format!("{}; left out: {}", self.names(), self.default);
                let message = format!("this server does not run sandboxes with `{engine}` isolation");
                Err(not_accepted(message, accepted))
            }
        }
    }

    /// The engine that a template wants, of whom nothing was asked for.
    ///
    /// # Errors
    /// `bad_request` that says how to have another one: leaving it out is what led here.
    pub fn for_template(&self, wanted: Engine) -> Result<Engine, Problem> {
        if self.has(wanted) {
            return Ok(wanted);
        }
        let message =
            format!("the template wants `{wanted}` isolation, which this server does not run sandboxes with");
        Err(not_accepted(message, format!("ask for another one: {}", self.names())))
    }

    /// The engine that a saved memory needs.
    ///
    /// # Errors
    /// `service_unavailable`: another one is of no use to it.
    pub fn for_memory(&self, of: Engine) -> Result<Engine, Problem> {
        if self.has(of) {
            return Ok(of);
        }
        let next = format!(
            "have the server run `{of}` isolation (`superserve doctor` says what it needs); the snapshot is kept"
        );
        Err(Problem::new(
            Code::ServiceUnavailable,
            format!(
                "the snapshot holds memory that runs only with `{of}` isolation, which this server does not run now"
            ),
            NextStep::AskOperator(next),
        ))
    }

    /// The engine for what was made on another one and can move: that one, or the default if it is no weaker.
    ///
    /// # Errors
    /// `bad_request` when there would be less between it and the host than before.
    pub fn at_least(&self, former: Engine) -> Result<Engine, Problem> {
        if self.has(former) {
            Ok(former)
        } else if self.default > former {
            Ok(self.default)
        } else {
            let message = format!(
                "the snapshot is of a sandbox with `{former}` isolation, which this server does not run, and what it runs if not asked is weaker"
            );
            Err(not_accepted(message, format!("ask for the one you want: {}", self.names())))
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.all.iter().map(|engine| engine.as_str()).collect();
        names.join(", ")
    }
}

fn not_accepted(message: String, accepted: String) -> Problem {
    Problem::new(Code::BadRequest, message, NextStep::Fix { field: "isolation".to_owned(), accepted })
}

/// A name that is no engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine must be container, gvisor, qemu or firecracker")]
pub struct NoSuchEngine;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for engine in Engine::ALL {
            assert_eq!(engine.to_string().parse(), Ok(engine));
        }
        assert_eq!("auto".parse::<Engine>(), Err(NoSuchEngine));
    }

    #[test]
    fn what_is_not_offered_is_refused_and_nothing_gets_weaker() {
        use Engine::{Container, Firecracker, Gvisor, Qemu};
        let offer = Offer::new(Gvisor, [Qemu]);
        assert_eq!(offer.all(), [Gvisor, Qemu]);
        assert_eq!(offer.choose(None).unwrap(), Gvisor);
        assert_eq!(offer.choose(Some(Qemu)).unwrap(), Qemu);
        let refused = offer.choose(Some(Container)).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest);
        let NextStep::Fix { field, accepted } = refused.next else { panic!("{:?}", refused.next) };
        assert_eq!((field.as_str(), accepted.as_str()), ("isolation", "gvisor, qemu; left out: gvisor"));
        for (former, now) in
            [(Container, Some(Gvisor)), (Gvisor, Some(Gvisor)), (Qemu, Some(Qemu)), (Firecracker, None)]
        {
            assert_eq!(offer.at_least(former).ok(), now, "{former}");
        }
    }

    #[test]
    fn who_left_it_out_is_not_told_to_leave_it_out() {
        use Engine::{Firecracker, Gvisor, Qemu};
        let offer = Offer::new(Gvisor, [Qemu]);
        assert_eq!((offer.for_template(Qemu).unwrap(), offer.for_memory(Qemu).unwrap()), (Qemu, Qemu));
        for (refused, of) in
            [(offer.for_template(Firecracker), "template"), (offer.at_least(Firecracker), "snapshot")]
        {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code, Code::BadRequest);
            assert!(refused.message.contains(of) && refused.message.contains("firecracker"), "{refused:?}");
            let NextStep::Fix { field, accepted } = refused.next else { panic!("{:?}", refused.next) };
            assert_eq!(field, "isolation");
            assert!(accepted.contains("gvisor, qemu") && !accepted.contains("left out"), "{accepted}");
        }
        // Nothing that could be asked for helps.
        let refused = offer.for_memory(Firecracker).unwrap_err();
        assert_eq!(refused.code, Code::ServiceUnavailable);
        let NextStep::AskOperator(what) = refused.next else { panic!("{:?}", refused.next) };
        assert!(what.contains("firecracker") && what.contains("kept"), "{what}");
    }
}
