//! What the environment says about serving over HTTP (`spec/mcp.md` §A.3).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use super::access::{Access, Allowed, Origin};
use super::authorization::Authorization;
use crate::config::{BASE_URL_VAR, CA_FILE_VAR, StartupError, given, log_level, structured_images};

/// The port to listen on.
const PORT_VAR: &str = "PORT";
/// The address to listen on.
const HOST_VAR: &str = "HOST";
/// Comma-separated hosts that requests may name.
const ALLOWED_HOSTS_VAR: &str = "SUPERSERVE_MCP_ALLOWED_HOSTS";
/// Comma-separated browser origins that may ask.
const ALLOWED_ORIGINS_VAR: &str = "SUPERSERVE_MCP_ALLOWED_ORIGINS";
const DEFAULT_PORT: u16 = 8080;

/// Everything the HTTP server needs. It has no key of its own: each request brings one.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Control-plane base URL; `None`: the region of each key decides.
    pub base_url: Option<String>,
    /// See [`CA_FILE_VAR`].
    pub ca_file: Option<PathBuf>,
    /// What goes to stderr.
    pub log: LevelFilter,
    /// Sizes and times.
    pub limits: Limits,
    /// Lines that the start-up should print.
    pub warnings: Vec<String>,
    /// Whether results with an image have their structured form, too.
    pub structured_images: bool,
    /// OAuth beside keys.
    pub authorization: Option<Authorization>,
    pub(super) access: Access,
    /// See [`super::cancel`].
    pub(super) cancel_by_notification: bool,
}

/// Sizes and times of the server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Calls at once.
    pub calls: usize,
    /// Calls that wait for others to end.
    pub waiting: usize,
    /// How long one waits.
    pub wait: Duration,
    /// Bytes that requests and results may hold at once.
    pub bytes: usize,
    /// How long the head of an answer waits for the result.
    pub hold_back: Duration,
    /// Longest silence of a stream.
    pub keep_alive: Duration,
    /// Longest silence in a request body.
    pub body_idle: Duration,
    /// Longest time for a request body: the largest one at 64 KiB per second.
    pub body_total: Duration,
    /// Longest call: the longest command and half a minute.
    pub call: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls: 2048,
            waiting: 2048,
            wait: Duration::from_secs(10),
            bytes: 1024 * 1024 * 1024,
            hold_back: Duration::from_secs(10),
            keep_alive: Duration::from_secs(15),
            body_idle: Duration::from_secs(30),
            body_total: Duration::from_secs(256),
            call: Duration::from_secs(630),
        }
    }
}

impl Limits {
    /// For a server inside the platform that it calls: it shares processor and data plane with everything else there.
    #[must_use]
    pub fn mounted() -> Self {
        Self { calls: 384, bytes: 384 * 1024 * 1024, ..Self::default() }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)),
            base_url: None,
            ca_file: None,
            log: LevelFilter::INFO,
            limits: Limits::default(),
            warnings: Vec::new(),
            structured_images: false,
            authorization: None,
            access: Access { loopback: true, ..Access::default() },
            cancel_by_notification: true,
        }
    }
}

impl HttpConfig {
    /// Reads the variables through `get`; an address from the command line wins over `HOST` and `PORT`.
    ///
    /// # Errors
    /// [`StartupError::Setting`] for a value that cannot be used.
    pub fn from_vars(
        get: impl Fn(&str) -> Option<String>,
        listen: Option<SocketAddr>,
    ) -> Result<Self, StartupError> {
        let given = |name| given(&get, name);
        let listen = match listen {
            Some(listen) => listen,
            None => SocketAddr::new(host(given(HOST_VAR))?, port(given(PORT_VAR))?),
        };
        let mut warnings = Vec::new();
        let log = log_level(&get, &mut warnings);
        let access = access(&get, listen)?;
        warnings.extend(access.warning());
        Ok(Self {
            listen,
            base_url: given(BASE_URL_VAR),
            ca_file: given(CA_FILE_VAR).map(PathBuf::from),
            log,
            limits: Limits::default(),
            warnings,
            structured_images: structured_images(&get),
            authorization: None,
            // What is open to others may be one of several behind a balancer.
            cancel_by_notification: access.loopback,
            access,
        })
    }

    /// For the endpoint of a platform that listens on `listen` and is reached at `base_url`.
    ///
    /// # Errors
    /// As [`HttpConfig::from_vars`].
    pub fn mounted(
        get: impl Fn(&str) -> Option<String>,
        listen: SocketAddr,
        base_url: &str,
    ) -> Result<Self, StartupError> {
        let access = access(&get, listen)?;
        Ok(Self {
            listen,
            base_url: Some(base_url.to_owned()),
            limits: Limits::mounted(),
            warnings: access.warning().into_iter().collect(),
            structured_images: structured_images(&get),
            access,
            ..Self::default()
        })
    }
}

impl HttpConfig {
    /// The browser origins that may ask, as browsers write them.
    #[must_use]
    pub fn origins(&self) -> Vec<String> {
        self.access.origins.iter().map(ToString::to_string).collect()
    }

    /// Lets requests name this host.
    ///
    /// # Errors
    /// [`StartupError::Setting`] when it is none.
    pub fn allow_host(&mut self, host: &str) -> Result<(), StartupError> {
        let allowed = Allowed::parse(host)
            .ok_or_else(|| StartupError::Setting(format!("`{host}` is not a host name.")))?;
        // Without a list every host is allowed beyond this machine, and that is to remain so.
        if self.access.loopback || !self.access.hosts.is_empty() {
            self.access.hosts.push(allowed);
        }
        Ok(())
    }
}

impl Access {
    fn warning(&self) -> Option<String> {
        (!self.loopback && self.hosts.is_empty()).then(|| {
            format!(
                "listening beyond this machine without {ALLOWED_HOSTS_VAR}: MCP does not check the Host header. Put TLS in front."
            )
        })
    }
}

fn access(get: &impl Fn(&str) -> Option<String>, listen: SocketAddr) -> Result<Access, StartupError> {
    Ok(Access {
        loopback: listen.ip().is_loopback(),
        hosts: list(given(get, ALLOWED_HOSTS_VAR), ALLOWED_HOSTS_VAR, "mcp.example.com", Allowed::parse)?,
        origins: list(
            given(get, ALLOWED_ORIGINS_VAR),
            ALLOWED_ORIGINS_VAR,
            "https://app.example.com",
            Origin::parse,
        )?,
    })
}

fn host(value: Option<String>) -> Result<IpAddr, StartupError> {
    match value.as_deref() {
        None | Some("localhost") => Ok(Ipv4Addr::LOCALHOST.into()),
        Some(text) => text.trim_matches(['[', ']']).parse().map_err(|_| {
            StartupError::Setting(format!("{HOST_VAR} is not an IP address, such as 127.0.0.1 or 0.0.0.0."))
        }),
    }
}

fn port(value: Option<String>) -> Result<u16, StartupError> {
    value.map_or(Ok(DEFAULT_PORT), |text| {
        text.parse()
            .map_err(|_| StartupError::Setting(format!("{PORT_VAR} is not a number from 0 to 65535.")))
    })
}

fn list<T>(
    value: Option<String>,
    name: &str,
    example: &str,
    parse: fn(&str) -> Option<T>,
) -> Result<Vec<T>, StartupError> {
    let value = value.unwrap_or_default();
    let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
    items
        .map(|item| {
            parse(item).ok_or_else(|| {
                StartupError::Setting(format!("{name} must be a comma-separated list such as {example}."))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> Result<HttpConfig, StartupError> {
        let get = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        HttpConfig::from_vars(get, None)
    }

    #[test]
    fn defaults_and_values() {
        let plain = config(&[(BASE_URL_VAR, "  ")]).unwrap();
        assert_eq!(plain.listen.to_string(), "127.0.0.1:8080");
        assert!(plain.base_url.is_none() && plain.access.loopback && plain.warnings.is_empty());
        let open = config(&[(HOST_VAR, "0.0.0.0"), (PORT_VAR, "9"), (BASE_URL_VAR, " http://a ")]).unwrap();
        assert_eq!(open.listen.to_string(), "0.0.0.0:9");
        assert_eq!(open.base_url.as_deref(), Some("http://a"));
        assert!(!open.access.loopback);
        assert_eq!(open.warnings.len(), 1);
        let listed = config(&[
            (HOST_VAR, "[::]"),
            (ALLOWED_HOSTS_VAR, "a.example, b.example:1 ,"),
            (ALLOWED_ORIGINS_VAR, "https://c.example"),
        ]);
        let listed = listed.unwrap();
        assert_eq!((listed.access.hosts.len(), listed.access.origins.len()), (2, 1));
        assert!(listed.warnings.is_empty());
        let mounted = HttpConfig::mounted(|_| None, "0.0.0.0:1".parse().unwrap(), "http://a").unwrap();
        assert_eq!(mounted.warnings.len(), 1);
        assert!(mounted.cancel_by_notification && !open.cancel_by_notification);
        let flag = HttpConfig::from_vars(|_| Some("x".to_owned()), Some("[::1]:7".parse().unwrap()));
        assert!(flag.is_err(), "an unusable list is refused whatever the address is");
    }

    #[test]
    fn unusable_values_are_named() {
        for (name, value) in [
            (HOST_VAR, "example.com"),
            (PORT_VAR, "http"),
            (ALLOWED_HOSTS_VAR, "http://a"),
            (ALLOWED_ORIGINS_VAR, "a.example"),
            (ALLOWED_ORIGINS_VAR, "*"),
        ] {
            let error = config(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
