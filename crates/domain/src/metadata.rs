//! The two string maps a caller can put on a sandbox, checked once and then carried as types.

use std::collections::BTreeMap;
use std::fmt;

use crate::limits::*;
use crate::problem::Problem;

/// Searchable tags: visible in every answer about the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata(BTreeMap<String, String>);

impl Metadata {
    /// Checks a map against the limits.
    ///
    /// # Errors
    /// A `bad_request` problem that names the offending key and the limit.
    pub fn new(map: BTreeMap<String, String>) -> Result<Self, Problem> {
        let fail = |accepted: String| Err(Problem::invalid("metadata", accepted));
        if map.len() > MAX_METADATA_KEYS {
            return fail(format!("at most {MAX_METADATA_KEYS} keys are accepted, got {}", map.len()));
        }
        let mut total = 2;
        for (key, value) in &map {
            check_metadata_pair(key, value)?;
            // Quotes, colon and comma of the JSON text; escapes make real text longer, never shorter.
            total += key.len() + value.len() + 6;
        }
        if total > MAX_METADATA_BYTES {
            return fail(format!("at most {MAX_METADATA_BYTES} bytes in total are accepted, got {total}"));
        }
        Ok(Self(map))
    }

    /// The tags, sorted by key.
    #[must_use]
    pub fn as_map(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Gives up the map.
    #[must_use]
    pub fn into_map(self) -> BTreeMap<String, String> {
        self.0
    }
}

/// Checks one tag; also used for the `metadata.<key>` filter of the list.
///
/// # Errors
/// A `bad_request` problem that names the key and the rule.
pub(crate) fn check_metadata_pair(key: &str, value: &str) -> Result<(), Problem> {
    let fail = |accepted: String| Err(Problem::invalid("metadata", accepted));
    if key.is_empty() || key.len() > MAX_METADATA_KEY_BYTES {
        return fail(format!("a key has 1 to {MAX_METADATA_KEY_BYTES} bytes"));
    }
    let lower = key.to_ascii_lowercase();
    if lower.starts_with("superserve.") || lower.starts_with("_superserve") {
        return fail(format!(
            "the key `{key}` is reserved; choose one that does not begin with `superserve.`"
        ));
    }
    if value.len() > MAX_METADATA_VALUE_BYTES {
        return fail(format!("the value of `{key}` may have at most {MAX_METADATA_VALUE_BYTES} bytes"));
    }
    Ok(())
}

/// Plain environment variables of a sandbox. They may hold something private, so they do not print.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EnvVars(BTreeMap<String, String>);

impl EnvVars {
    /// Checks a map against the limits.
    ///
    /// # Errors
    /// A `bad_request` problem that names the offending variable (never its value) and the limit.
    pub fn new(map: BTreeMap<String, String>) -> Result<Self, Problem> {
        let fail = |accepted: String| Err(Problem::invalid("env_vars", accepted));
        if map.len() > MAX_ENV_KEYS {
            return fail(format!("at most {MAX_ENV_KEYS} variables are accepted, got {}", map.len()));
        }
        let mut total = 0;
        for (key, value) in &map {
            if key.is_empty() || key.len() > MAX_ENV_KEY_BYTES || key.contains(['=', '\0']) {
                return fail(format!(
                    "a name has 1 to {MAX_ENV_KEY_BYTES} bytes and contains neither `=` nor NUL"
                ));
            }
            if value.len() > MAX_ENV_VALUE_BYTES || value.contains('\0') {
                return fail(format!(
                    "the value of `{key}` may have at most {MAX_ENV_VALUE_BYTES} bytes and no NUL"
                ));
            }
            total += key.len() + value.len();
        }
        if total > MAX_ENV_BYTES {
            return fail(format!("at most {MAX_ENV_BYTES} bytes in total are accepted, got {total}"));
        }
        Ok(Self(map))
    }

    /// The variables with their values, for the guest agent and the database only.
    #[must_use]
    pub fn as_map(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

impl fmt::Debug for EnvVars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn metadata_limits() {
        assert!(Metadata::new(one("env", "prod")).is_ok());
        for key in ["", "superserve.x", "SuperServe.x", "_superserve", "_SUPERSERVEx"] {
            assert!(Metadata::new(one(key, "v")).is_err(), "{key}");
        }
        assert!(Metadata::new(one(&"k".repeat(256), &"v".repeat(2048))).is_ok());
        assert!(Metadata::new(one(&"k".repeat(257), "v")).is_err());
        assert!(Metadata::new(one("k", &"v".repeat(2049))).is_err());
        let many = |n: usize| (0..n).map(|i| (format!("k{i}"), "v".repeat(300))).collect::<BTreeMap<_, _>>();
        assert!(Metadata::new(many(50)).is_ok());
        assert!(Metadata::new(many(64)).is_err(), "total");
        assert!(Metadata::new(many(65)).is_err(), "count");
    }

    #[test]
    fn env_limits_and_silence() {
        let env = EnvVars::new(one("TOKEN", "hunter2")).unwrap();
        assert!(!format!("{env:?}").contains("hunter2"));
        for key in ["", "A=B", "A\0"] {
            assert!(EnvVars::new(one(key, "v")).is_err(), "{key:?}");
        }
        assert!(EnvVars::new(one("A", &"v".repeat(8193))).is_err());
        assert!(EnvVars::new(one("A", "a\0b")).is_err());
    }
}
