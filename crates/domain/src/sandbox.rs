//! The states and settings of a sandbox. Which state may follow which is decided in `lifecycle`, nowhere else.

use std::fmt;
use std::str::FromStr;

/// A name that is none of the known ones, with the accepted list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not known; accepted: {accepted}")]
pub struct UnknownName {
    /// What was given, shortened.
    pub name: String,
    /// The accepted names, separated by commas.
    pub accepted: String,
}

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every variant, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name on the wire and in the database.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                Self::ALL.iter().copied().find(|v| v.as_str() == text).ok_or_else(|| UnknownName {
                    name: text.chars().take(64).collect(),
                    accepted: [$($text),+].join(", "),
                })
            }
        }
    };
}

pub(crate) use names;

names!(
    /// Where a sandbox is in its life (`spec/rest-api.md` §4.1). `migrating` exists only as a list filter.
    SandboxState {
        /// A create is in flight.
        Starting = "starting",
        /// Commands run.
        Active = "active",
        /// A pause is in flight.
        Pausing = "pausing",
        /// No compute is used; the state is kept.
        Paused = "paused",
        /// A resume is in flight.
        Resuming = "resuming",
        /// Could not boot or resume; stays until it is deleted.
        Failed = "failed",
        /// Gone; never shown, kept only as long as clean-up needs the row.
        Deleted = "deleted",
    }
);

names!(
    /// The default access mode of ports published later.
    PreviewAccess {
        /// Anyone with the link.
        Public = "public",
        /// Only with a token of that port.
        Private = "private",
    }
);

names!(
    /// Whether sandboxes can be created from a template.
    TemplateStatus {
        /// Nothing has been done yet.
        Pending = "pending",
        /// The first build is running.
        Building = "building",
        /// Usable.
        Ready = "ready",
        /// No build has succeeded.
        Failed = "failed",
    }
);

names!(
    /// How far a build is (`spec/semantics.md` §9.2).
    BuildStatus {
        /// It waits for its turn.
        Pending = "pending",
        /// The image is fetched, or a step runs.
        Building = "building",
        /// The result is written and tried.
        Snapshotting = "snapshotting",
        /// The template uses it, or used it before a later one.
        Ready = "ready",
        /// It came to nothing.
        Failed = "failed",
        /// Somebody stopped it.
        Cancelled = "cancelled",
    }
);

impl BuildStatus {
    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Building | Self::Snapshotting => false,
            Self::Ready | Self::Failed | Self::Cancelled => true,
        }
    }
}

/// The two clocks of a sandbox, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Longest active time of one session before the sandbox is paused; never when unset.
    pub timeout_seconds: Option<u32>,
    /// How long it may stay paused before it is deleted; forever when unset, at once when 0.
    pub auto_delete_seconds: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for state in SandboxState::ALL {
            assert_eq!(state.as_str().parse::<SandboxState>().unwrap(), *state);
        }
        let error = "Active".parse::<SandboxState>().unwrap_err();
        assert!(error.to_string().contains("starting, active"), "{error}");
    }
}
