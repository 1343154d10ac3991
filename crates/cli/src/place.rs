//! The two ends of a copy.

use std::path::PathBuf;

use crate::error::CliError;

/// Where something is copied from or to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A path on this machine.
    Local(PathBuf),
    /// A path in a sandbox.
    Sandbox {
        /// Sandbox id.
        id: String,
        /// Absolute path.
        path: String,
    },
    /// Standard input or output.
    Standard,
}

impl Place {
    /// `-`, `ID:/path`, or else a local path. A local name with a colon is written `./a:b`.
    pub(crate) fn parse(text: &str) -> Result<Self, CliError> {
        if text == "-" {
            return Ok(Self::Standard);
        }
        let is_id = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        match text.split_once(':') {
            Some((id, path)) if is_id(id) && path.starts_with('/') => {
                Ok(Self::Sandbox { id: id.to_owned(), path: path.to_owned() })
            }
            Some((id, path)) if is_id(id) => Err(CliError::new("a path in a sandbox begins with `/`")
                .hint(format!("{id}:/{path}, or ./{text} for a local file of that name"))),
            _ if text.is_empty() => Err(CliError::new("a path must not be empty")),
            _ => Ok(Self::Local(PathBuf::from(text))),
        }
    }
}

/// The last segment of a sandbox path.
pub(crate) fn base_name(path: &str) -> Option<&str> {
    path.rsplit('/').find(|segment| !segment.is_empty() && *segment != ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let local = |path: &str| Some(Place::Local(path.into()));
        let remote = |id: &str, path: &str| Some(Place::Sandbox { id: id.into(), path: path.into() });
        for (text, expected) in [
            ("-", Some(Place::Standard)),
            ("a", local("a")),
            ("./a:b", local("./a:b")),
            ("/tmp/a:/b", local("/tmp/a:/b")),
            ("sb-usw-1:/tmp/x:y", remote("sb-usw-1", "/tmp/x:y")),
            ("a:b", None),
            ("a:", None),
            ("", None),
        ] {
            assert_eq!(Place::parse(text).ok(), expected, "{text}");
        }
        assert_eq!(base_name("/a/b/"), Some("b"));
        assert_eq!(base_name("/"), None);
    }
}
