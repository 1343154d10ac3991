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
            Some(engine) => Err(self.refused(engine)),
        }
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
            Err(self.refused(former))
        }
    }

    fn refused(&self, engine: Engine) -> Problem {
        let names: Vec<&str> = self.all.iter().map(|engine| engine.as_str()).collect();
        let accepted = format!("{}; left out: {}", names.join(", "), self.default);
        Problem::new(
            Code::BadRequest,
            format!("this server does not run sandboxes with `{engine}` isolation"),
            NextStep::Fix { field: "isolation".to_owned(), accepted },
        )
    }
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
}
