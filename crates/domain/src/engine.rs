//! Isolation engines: what stands between a sandbox and the machine it runs on.

use std::fmt;
use std::str::FromStr;

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
}
