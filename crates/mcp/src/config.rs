//! What the environment says: the key, the platform's address, the log level. The names are documented in
//! `spec/mcp.md` §A.3.

use std::io::Read;
use std::path::{Path, PathBuf};

use client::{ClientConfig, resolve_base_url};
use domain::Secret;
use tracing::level_filters::LevelFilter;

/// The control-plane key.
pub const API_KEY_VAR: &str = "SUPERSERVE_API_KEY";
/// The control-plane base URL; blank counts as unset.
pub const BASE_URL_VAR: &str = "SUPERSERVE_BASE_URL";
/// The log level on stderr.
pub const LOG_VAR: &str = "SUPERSERVE_MCP_LOG";
/// PEM file of certificate authorities to trust besides the system's.
pub const CA_FILE_VAR: &str = "SUPERSERVE_CA_FILE";

/// `1` gives results with an image their structured form, too; clients that hide images then show nothing else.
pub(crate) const STRUCTURED_IMAGES_VAR: &str = "SUPERSERVE_MCP_STRUCTURED_IMAGES";

/// What production keys begin with.
pub(crate) const KEY_PREFIX: &str = "ss_live_";
/// Where keys are made.
pub(crate) const CONSOLE_URL: &str = "https://console.superserve.ai";
/// Every line of ours on stderr begins with it.
pub(crate) const STDERR_PREFIX: &str = "[superserve-mcp]";

/// Everything the MCP server needs. `Debug` masks the key.
#[derive(Debug, Clone)]
pub struct McpConfig {
    /// Team API key.
    pub api_key: Secret,
    /// Control-plane base URL.
    pub base_url: String,
    /// See [`CA_FILE_VAR`].
    pub ca_file: Option<PathBuf>,
    /// What goes to stderr.
    pub log: LevelFilter,
    /// Whether results with an image have their structured form, too.
    pub structured_images: bool,
    /// Lines for stderr that the start-up should print: suspicious but usable settings.
    pub warnings: Vec<String>,
}

/// The server cannot start; `Display` is the line for stderr, and the exit code is 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// No key.
    #[error(
        "{STDERR_PREFIX} {API_KEY_VAR} is not set. Production keys begin with `{KEY_PREFIX}`; create one at {CONSOLE_URL}. \
         MCP clients do not inherit the environment of your shell, so put the key into the `env` block of this server's \
         entry in the client's configuration."
    )]
    NoKey,
    /// An unusable setting.
    #[error("{STDERR_PREFIX} {0}")]
    Setting(String),
}

impl McpConfig {
    /// Reads the variables above through `get`, which is `std::env::var` or a map of a test.
    ///
    /// # Errors
    /// [`StartupError::NoKey`] when the key is missing or blank.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Result<Self, StartupError> {
        let given = |name| given(&get, name);
        let api_key = Secret::new(given(API_KEY_VAR).ok_or(StartupError::NoKey)?);
        let mut warnings = Vec::new();
        if !api_key.expose_secret().starts_with(KEY_PREFIX) {
            warnings.push(format!(
                "{API_KEY_VAR} does not begin with `{KEY_PREFIX}`, as production keys do; continuing."
            ));
        }
        let log = log_level(&get, &mut warnings);
        let base_url = resolve_base_url(given(BASE_URL_VAR).as_deref(), &api_key);
        Ok(Self {
            api_key,
            base_url,
            ca_file: given(CA_FILE_VAR).map(PathBuf::from),
            log,
            structured_images: structured_images(&get),
            warnings,
        })
    }

    /// How the platform is reached.
    pub(crate) fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new(&self.base_url, self.api_key.clone());
        config.user_agent = concat!("superserve-mcp/", env!("CARGO_PKG_VERSION")).to_owned();
        config.ca_file.clone_from(&self.ca_file);
        config
    }
}

/// Longest key file; keys have some 50 bytes.
const MAX_KEY_FILE_BYTES: u64 = 4096;

/// The key in a file, which is an alternative to keeping it in a client's configuration.
///
/// # Errors
/// [`StartupError::Setting`] when the file cannot be read or is no key file.
pub fn read_key_file(path: &Path) -> Result<Secret, StartupError> {
    let unusable =
        |why: &str| StartupError::Setting(format!("cannot use the key file {}: {why}.", path.display()));
    let file = std::fs::File::open(path).map_err(|error| unusable(&error.to_string()))?;
    let mut text = String::new();
    file.take(MAX_KEY_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| unusable(&error.to_string()))?;
    if text.len() as u64 > MAX_KEY_FILE_BYTES || text.trim().is_empty() {
        return Err(unusable("it should hold a key and nothing else"));
    }
    Ok(Secret::new(text.trim()))
}

/// A variable's value, trimmed; blank counts as unset.
pub(crate) fn given(get: &impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

pub(crate) fn structured_images(get: &impl Fn(&str) -> Option<String>) -> bool {
    given(get, STRUCTURED_IMAGES_VAR).as_deref() == Some("1")
}

pub(crate) fn log_level(get: &impl Fn(&str) -> Option<String>, warnings: &mut Vec<String>) -> LevelFilter {
    match given(get, LOG_VAR).map(|level| level.parse::<LevelFilter>()) {
        None => LevelFilter::INFO,
        Some(Ok(level)) => level,
        Some(Err(_)) => {
            warnings
                .push(format!("{LOG_VAR} is not one of off, error, warn, info, debug, trace; using info."));
            LevelFilter::INFO
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn config(vars: &[(&str, &str)]) -> Result<McpConfig, StartupError> {
        McpConfig::from_vars(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn a_missing_key_says_what_to_do() {
        for vars in [&[][..], &[(API_KEY_VAR, " \n")]] {
            let error = config(vars).unwrap_err();
            expect![[r#"[superserve-mcp] SUPERSERVE_API_KEY is not set. Production keys begin with `ss_live_`; create one at https://console.superserve.ai. MCP clients do not inherit the environment of your shell, so put the key into the `env` block of this server's entry in the client's configuration."#]]
                .assert_eq(&error.to_string());
        }
    }

    #[test]
    fn values_are_trimmed_and_blank_means_unset() {
        let config = config(&[
            (API_KEY_VAR, " ss_live_x\n"),
            (BASE_URL_VAR, "  "),
            (LOG_VAR, "debug"),
            (CA_FILE_VAR, "/ca.pem"),
        ])
        .unwrap();
        assert_eq!(config.api_key.expose_secret(), "ss_live_x");
        assert_eq!(config.base_url, client::PRODUCTION_URL);
        assert_eq!(config.log, LevelFilter::DEBUG);
        assert_eq!(config.ca_file.as_deref(), Some(std::path::Path::new("/ca.pem")));
        assert!(config.warnings.is_empty());
        assert!(!format!("{config:?}").contains("ss_live_x"));
    }

    #[test]
    fn suspicious_settings_only_warn() {
        let config =
            config(&[(API_KEY_VAR, "staging-key"), (LOG_VAR, "loud"), (BASE_URL_VAR, "http://a")]).unwrap();
        assert_eq!(config.base_url, "http://a");
        assert_eq!(config.log, LevelFilter::INFO);
        assert_eq!(config.warnings.len(), 2);
        assert!(!config.warnings.concat().contains("staging-key"));
    }
}
