//! One typed identifier per kind of thing. Sandboxes are also accepted in the region-tagged form
//! `sb-<region>-<uuid>` (`spec/rest-api.md` §1.6) and always written as lowercase bare UUIDs.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// The text is not an identifier of the kind asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a valid {1} id: a UUID is expected")]
pub struct BadId(pub String, pub &'static str);

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            /// A new random identifier.
            #[must_use]
            #[expect(clippy::new_without_default, reason = "a default identifier would be a trap")]
            pub fn new() -> Self {
                Self(Uuid::new_v4())
            }
        }

        impl From<Uuid> for $name {
            fn from(value: Uuid) -> Self {
                Self(value)
            }
        }

        impl From<$name> for Uuid {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0.hyphenated(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// Identifies one sandbox for its whole life.
    SandboxId, "sandbox"
);
id!(
    /// Identifies a template; the name may be reused after a delete, the id never is.
    TemplateId, "template"
);
id!(
    /// Identifies one build of a template.
    BuildId, "build"
);
id!(
    /// Identifies one saved snapshot.
    SnapshotId, "snapshot"
);
id!(
    /// Identifies the team that owns sandboxes and templates.
    TeamId, "team"
);
id!(
    /// Identifies a secret; its name may be reused after a delete, the id never is.
    SecretId, "secret"
);

/// Only the hyphenated form is an id on the wire; `Uuid` itself would also accept braces and URNs.
fn parse_hyphenated(text: &str) -> Option<Uuid> {
    (text.len() == 36).then(|| Uuid::try_parse(text).ok()).flatten()
}

impl FromStr for SandboxId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId(text.chars().take(64).collect(), "sandbox");
        let bare = match text.strip_prefix("sb-") {
            None => text,
            Some(rest) => {
                let (region, bare) = rest.split_once('-').ok_or_else(bad)?;
                let region_ok = !region.is_empty()
                    && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
                if !region_ok {
                    return Err(bad());
                }
                bare
            }
        };
        parse_hyphenated(bare).map(Self).ok_or_else(bad)
    }
}

impl FromStr for TemplateId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        parse_hyphenated(text).map(Self).ok_or_else(|| BadId(text.chars().take(64).collect(), "template"))
    }
}

impl FromStr for BuildId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        parse_hyphenated(text).map(Self).ok_or_else(|| BadId(text.chars().take(64).collect(), "build"))
    }
}

impl FromStr for SnapshotId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        parse_hyphenated(text).map(Self).ok_or_else(|| BadId(text.chars().take(64).collect(), "snapshot"))
    }
}

impl FromStr for TeamId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        parse_hyphenated(text).map(Self).ok_or_else(|| BadId(text.chars().take(64).collect(), "team"))
    }
}

impl FromStr for SecretId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        parse_hyphenated(text).map(Self).ok_or_else(|| BadId(text.chars().take(64).collect(), "secret"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_ids_come_bare_or_tagged() {
        let bare = "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b";
        let id: SandboxId = bare.parse().unwrap();
        assert_eq!(id.to_string(), bare);
        assert_eq!(format!("sb-usw-{bare}").parse::<SandboxId>().unwrap(), id);
        assert_eq!(bare.to_uppercase().parse::<SandboxId>().unwrap(), id);
        for bad in [
            "",
            "missing-id",
            "sb--x",
            &format!("sb-{bare}"),
            &format!("sb-US-{bare}"),
            &bare.replace('-', ""),
        ] {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad}");
        }
    }
}
