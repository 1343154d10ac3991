//! The one configuration: defaults, then `superserve.toml`, then environment, then flags. Read once, here; everything
//! below gets typed values. Every key of the file has a flag and a variable of the same name.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use domain::Engine;
use rustls::pki_types::CertificateDer;
use serde::Deserialize;

use crate::engine::VmSettings;
use crate::template_limits::TemplateLimits;

/// Names of all environment variables this program reads.
pub(crate) mod env {
    pub(crate) const API_KEY: &str = "SUPERSERVE_API_KEY";
    pub(crate) const BASE_URL: &str = "SUPERSERVE_BASE_URL";
    pub(crate) const LOG: &str = "SUPERSERVE_LOG";
}

/// Where the platform keeps everything when nobody says otherwise.
pub(crate) const DEFAULT_STATE_DIR: &str = "/var/lib/superserve";
const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
const DEFAULT_EDGE_LISTEN: &str = "127.0.0.1:8443";
/// Active sandboxes per team (`spec/rest-api.md` §10.3).
const DEFAULT_MAX_ACTIVE: u32 = 50;
/// What a small host has room for; each takes some hundred MiB.
const DEFAULT_TEMPLATE_SNAPSHOTS: u32 = 4;
/// Rows of the activity log: weeks of a busy team, some 50 MiB.
const DEFAULT_ACTIVITY_ROWS: u32 = 100_000;
const MAX_ACTIVITY_ROWS: u32 = 10_000_000;
/// Days of the activity log.
const DEFAULT_ACTIVITY_DAYS: u32 = 30;
const MAX_LOG_DAYS: u32 = 3_650;
/// Rows of one sandbox's network log: some 2 MiB.
const DEFAULT_NETWORK_LOG_ROWS: u32 = 10_000;
const MAX_NETWORK_LOG_ROWS: u32 = 1_000_000;
/// Days of the network log. It is bounded by rows; this is for those who must forget.
const DEFAULT_NETWORK_LOG_DAYS: u32 = 365;
/// The file is small; a larger one is a mistake.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Engines a user can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Isolation {
    /// The strongest engine that has proved itself here.
    Auto,
    /// Hardware virtual machines by Firecracker.
    Firecracker,
    /// Virtual machines by QEMU.
    Qemu,
    /// A user-space kernel.
    Gvisor,
    /// Namespaces, seccomp and cgroups by an OCI runtime.
    Container,
}

/// Who runs the instructions of virtual machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum VmAcceleration {
    /// QEMU, by translating them: works on every host, several times slower.
    Emulated,
    /// The processor, through KVM.
    Kvm,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Who may read `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MetricsSetting {
    /// Whoever is on this machine, and whoever has an API key.
    On,
    /// Whoever has an API key.
    Key,
    /// Nobody.
    Off,
}

/// Which state directory a command works on.
#[derive(Debug, Clone, Args)]
pub(crate) struct StateDirArg {
    /// Directory that holds keys, database, layers and disks.
    #[arg(long, env = "SUPERSERVE_STATE_DIR", default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    pub(crate) state_dir: PathBuf,
}

/// What `up` is told, and what `doctor` has to know to answer for it.
#[derive(Debug, Args)]
pub(crate) struct PlatformArgs {
    #[command(flatten)]
    state: StateDirArg,
    /// Configuration file; superserve.toml in the state directory by default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

impl PlatformArgs {
    /// Reads the file and puts everything together.
    pub(crate) fn load(self) -> Result<Config, ConfigError> {
        let file = Settings::from_file(self.config.as_deref(), &self.state.state_dir)?;
        self.settings.over(file, self.state.state_dir)
    }
}

/// Everything that can be set; unset values fall through to the file, then to the default.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// Address of the control plane.
    #[arg(long, env = "SUPERSERVE_LISTEN", value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Address of the edge: TLS, plain HTTP and CONNECT on one port.
    #[arg(long, env = "SUPERSERVE_EDGE_LISTEN", value_name = "ADDR")]
    pub(crate) edge_listen: Option<SocketAddr>,
    /// Isolation engine.
    #[arg(long, env = "SUPERSERVE_ISOLATION", value_enum)]
    pub(crate) isolation: Option<Isolation>,
    /// Engines that sandboxes and templates may ask for: container, gvisor, qemu, firecracker. By default those that work here
    /// and are no weaker than `isolation`.
    #[arg(long, env = "SUPERSERVE_ENGINES", value_delimiter = ',', value_name = "ENGINE")]
    pub(crate) engines: Option<Vec<String>>,
    /// The kernel image that virtual machines boot; the newest installed cloud kernel by default.
    #[arg(long, env = "SUPERSERVE_VM_KERNEL", value_name = "FILE")]
    pub(crate) vm_kernel: Option<PathBuf>,
    /// The directory of that kernel's modules, as in /lib/modules/RELEASE.
    #[arg(long, env = "SUPERSERVE_VM_MODULES", value_name = "DIR")]
    pub(crate) vm_modules: Option<PathBuf>,
    /// Who runs the instructions of virtual machines.
    #[arg(long, env = "SUPERSERVE_VM_ACCELERATION", value_enum)]
    pub(crate) vm_acceleration: Option<VmAcceleration>,
    /// Most templates that are kept with their memory, so that sandboxes begin with it instead of booting.
    #[arg(long, env = "SUPERSERVE_TEMPLATE_SNAPSHOTS", value_name = "N")]
    pub(crate) template_snapshots: Option<u32>,
    /// Most sandboxes of the team that hold compute at once.
    #[arg(long, env = "SUPERSERVE_MAX_ACTIVE_SANDBOXES", value_name = "N")]
    pub(crate) max_active_sandboxes: Option<u32>,
    /// Host names under which sandboxes answer; the first local one is shown to users.
    #[arg(long, env = "SUPERSERVE_SANDBOX_HOSTS", value_delimiter = ',', value_name = "HOST")]
    pub(crate) sandbox_hosts: Option<Vec<String>>,
    /// Browser origins that may read and write files across origins.
    #[arg(long, env = "SUPERSERVE_CORS_ORIGINS", value_delimiter = ',', value_name = "ORIGIN")]
    pub(crate) cors_origins: Option<Vec<String>>,
    /// Directory of template layers; shared and read-only layers may live outside the state directory.
    #[arg(long, env = "SUPERSERVE_LAYERS_DIR", value_name = "DIR")]
    pub(crate) layers_dir: Option<PathBuf>,
    /// A root file system archive to use for superserve/base instead of a Debian bootstrap.
    #[arg(long, env = "SUPERSERVE_BASE_TAR", value_name = "FILE")]
    pub(crate) base_tar: Option<PathBuf>,
    /// An image in a registry to use for superserve/base; pulled once. Without an answer of the registry: a Debian bootstrap.
    #[arg(long, env = "SUPERSERVE_BASE_IMAGE", value_name = "REF")]
    pub(crate) base_image: Option<String>,
    /// A config.json with registry credentials, as `docker login` or `skopeo login` writes it.
    #[arg(long, env = "SUPERSERVE_REGISTRY_AUTH_FILE", value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
    /// Registries on private networks from which clients may build templates, and the places that they lead to.
    #[arg(long, env = "SUPERSERVE_INTERNAL_REGISTRIES", value_delimiter = ',', value_name = "HOST[:PORT]")]
    pub(crate) internal_registries: Option<Vec<String>>,
    /// Registries that are spoken to without TLS; those on this machine always are.
    #[arg(long, env = "SUPERSERVE_PLAIN_REGISTRIES", value_delimiter = ',', value_name = "HOST:PORT")]
    pub(crate) plain_registries: Option<Vec<String>>,
    /// Registries that are asked first for images of the default registry (docker.io).
    #[arg(long, env = "SUPERSERVE_REGISTRY_MIRRORS", value_delimiter = ',', value_name = "HOST:PORT")]
    pub(crate) registry_mirrors: Option<Vec<String>>,
    /// Most templates of the team.
    #[arg(long, env = "SUPERSERVE_MAX_TEMPLATES", value_name = "N")]
    pub(crate) max_templates: Option<u32>,
    /// Most builds of the team that wait or run.
    #[arg(long, env = "SUPERSERVE_MAX_BUILDS", value_name = "N")]
    pub(crate) max_builds: Option<u32>,
    /// Builds that run at once.
    #[arg(long, env = "SUPERSERVE_CONCURRENT_BUILDS", value_name = "N")]
    pub(crate) concurrent_builds: Option<u32>,
    /// MiB of layers that are kept for builds to come, though no template or sandbox has them.
    #[arg(long, env = "SUPERSERVE_BUILD_CACHE_MIB", value_name = "MIB")]
    pub(crate) build_cache_mib: Option<u32>,
    /// Seconds within which the ready_cmd of a template must succeed.
    #[arg(long, env = "SUPERSERVE_READY_CMD_SECONDS", value_name = "N")]
    pub(crate) ready_cmd_seconds: Option<u32>,
    /// Most processors of a template.
    #[arg(long, env = "SUPERSERVE_MAX_VCPU", value_name = "N")]
    pub(crate) max_vcpu: Option<u32>,
    /// Most memory of a template, MiB.
    #[arg(long, env = "SUPERSERVE_MAX_MEMORY_MIB", value_name = "MIB")]
    pub(crate) max_memory_mib: Option<u32>,
    /// Largest disk of a template, MiB.
    #[arg(long, env = "SUPERSERVE_MAX_DISK_MIB", value_name = "MIB")]
    pub(crate) max_disk_mib: Option<u32>,
    /// The guest agent's executable; beside this program by default.
    #[arg(long, env = "SUPERSERVE_AGENT", value_name = "FILE")]
    pub(crate) agent: Option<PathBuf>,
    /// Private /16 from which links of sandboxes get their addresses.
    #[arg(long, env = "SUPERSERVE_LINK_RANGE", value_name = "A.B.0.0")]
    pub(crate) link_range: Option<std::net::Ipv4Addr>,
    /// A sandbox host of your own that URLs for people name, with its port unless 443; it is reached with TLS.
    #[arg(long, env = "SUPERSERVE_PUBLIC_HOST", value_name = "HOST[:PORT]")]
    pub(crate) public_host: Option<String>,
    /// Certificate chain (PEM) for public_host and everything one label below it; read again when it changes.
    #[arg(long, env = "SUPERSERVE_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key (PEM) of tls_cert.
    #[arg(long, env = "SUPERSERVE_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Requests a second that one previewed port takes; unlimited by default.
    #[arg(long, env = "SUPERSERVE_PREVIEW_REQUESTS_PER_SECOND", value_name = "N")]
    pub(crate) preview_requests_per_second: Option<u32>,
    /// MiB that one request to a preview may send or fetch; unlimited by default.
    #[arg(long, env = "SUPERSERVE_PREVIEW_BODY_MIB", value_name = "MIB")]
    pub(crate) preview_body_mib: Option<u32>,
    /// Resolvers that are asked for sandboxes; the host's own by default.
    #[arg(long, env = "SUPERSERVE_RESOLVERS", value_delimiter = ',', value_name = "ADDR[:PORT]")]
    pub(crate) resolvers: Option<Vec<String>>,
    /// An HTTP proxy through which all connections of sandboxes go out.
    #[arg(long, env = "SUPERSERVE_UPSTREAM_PROXY", value_name = "ADDR:PORT")]
    pub(crate) upstream_proxy: Option<SocketAddr>,
    /// A file that holds user:password for that proxy.
    #[arg(long, env = "SUPERSERVE_UPSTREAM_PROXY_AUTH_FILE", value_name = "FILE")]
    pub(crate) upstream_proxy_auth_file: Option<PathBuf>,
    /// Networks that no sandbox reaches, whatever its rules say.
    #[arg(long, env = "SUPERSERVE_BLOCKED_RANGES", value_delimiter = ',', value_name = "CIDR")]
    pub(crate) blocked_ranges: Option<Vec<String>>,
    /// Private networks that sandboxes may reach if their rules permit it.
    #[arg(long, env = "SUPERSERVE_PERMITTED_RANGES", value_delimiter = ',', value_name = "CIDR")]
    pub(crate) permitted_ranges: Option<Vec<String>>,
    /// Most connections out of one sandbox at once.
    #[arg(long, env = "SUPERSERVE_SANDBOX_CONNECTIONS", value_name = "N")]
    pub(crate) sandbox_connections: Option<u32>,
    /// Most MiB per second out of, and into, one sandbox; 0 for no limit.
    #[arg(long, env = "SUPERSERVE_SANDBOX_BANDWIDTH_MIB", value_name = "N")]
    pub(crate) sandbox_bandwidth_mib: Option<u32>,
    /// Network namespace from which connections of sandboxes go out, as a file; the host's own by default.
    #[arg(long, env = "SUPERSERVE_UPLINK_NAMESPACE", value_name = "FILE")]
    pub(crate) uplink_namespace: Option<PathBuf>,
    /// A PEM file with authorities, besides the public ones, of services at which secrets are used.
    #[arg(long, env = "SUPERSERVE_SERVICE_CA_FILE", value_name = "FILE")]
    pub(crate) service_ca_file: Option<PathBuf>,
    /// How log lines look.
    #[arg(long, env = "SUPERSERVE_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
    /// Who may read /metrics on the control plane.
    #[arg(long, env = "SUPERSERVE_METRICS", value_enum)]
    pub(crate) metrics: Option<MetricsSetting>,
    /// Let MCP clients that cannot send a key connect with OAuth.
    #[arg(
        long,
        env = "SUPERSERVE_OAUTH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = clap::builder::BoolishValueParser::new(),
        value_name = "BOOL"
    )]
    pub(crate) oauth: Option<bool>,
    /// URL under which clients reach this server for OAuth, without a path; where it listens, by default.
    #[arg(long, env = "SUPERSERVE_OAUTH_URL", value_name = "URL")]
    pub(crate) oauth_url: Option<String>,
    /// Newest rows of the activity log that are kept.
    #[arg(long, env = "SUPERSERVE_ACTIVITY_MAX_ROWS", value_name = "N")]
    pub(crate) activity_max_rows: Option<u32>,
    /// Days after which rows of the activity log are removed.
    #[arg(long, env = "SUPERSERVE_ACTIVITY_MAX_DAYS", value_name = "N")]
    pub(crate) activity_max_days: Option<u32>,
    /// Newest rows of each sandbox's network log that are kept.
    #[arg(long, env = "SUPERSERVE_NETWORK_LOG_MAX_ROWS", value_name = "N")]
    pub(crate) network_log_max_rows: Option<u32>,
    /// Days after which rows of the network log are removed.
    #[arg(long, env = "SUPERSERVE_NETWORK_LOG_MAX_DAYS", value_name = "N")]
    pub(crate) network_log_max_days: Option<u32>,
}

/// The configuration of `superserve up`, complete.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) state_dir: PathBuf,
    /// Where engines keep what they make for their machines: the state directory, but for a proof.
    pub(crate) engines_dir: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) edge_listen: SocketAddr,
    pub(crate) isolation: Isolation,
    /// What may be asked for, if somebody says.
    pub(crate) engines: Option<Vec<Engine>>,
    pub(crate) vm: VmSettings,
    /// Most templates that are kept with their memory.
    pub(crate) template_snapshots: u32,
    pub(crate) max_active_sandboxes: u32,
    pub(crate) sandbox_hosts: Vec<String>,
    pub(crate) cors_origins: Vec<String>,
    pub(crate) layers_dir: PathBuf,
    pub(crate) base_tar: Option<PathBuf>,
    pub(crate) base_image: Option<String>,
    pub(crate) registry_access: templates::Access,
    pub(crate) templates: TemplateLimits,
    pub(crate) agent: PathBuf,
    pub(crate) link_range: std::net::Ipv4Addr,
    /// Shown to people, with its port unless 443.
    pub(crate) public_host: Option<String>,
    pub(crate) certificate: Option<Certificate>,
    pub(crate) preview_requests_per_second: Option<u32>,
    pub(crate) preview_body_mib: Option<u32>,
    pub(crate) egress: egress::GatewayConfig,
    pub(crate) service_authorities: Vec<CertificateDer<'static>>,
    pub(crate) log_format: LogFormat,
    pub(crate) metrics: MetricsSetting,
    pub(crate) oauth: Oauth,
    pub(crate) activity: activity::Retention,
    pub(crate) network_log: activity::NetworkRetention,
}

impl Config {
    /// With the whole path of the state directory, which everything of it is named after.
    pub(crate) fn in_state_dir(mut self, state_dir: PathBuf) -> Self {
        if self.layers_dir == self.state_dir.join("layers") {
            self.layers_dir = state_dir.join("layers");
        }
        self.engines_dir.clone_from(&state_dir);
        self.state_dir = state_dir;
        self
    }
}

/// Whether there is an authorization server, and where browsers find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Oauth {
    /// There is none, nor any sign of one.
    Off,
    /// At the control plane's own address on this machine.
    Local,
    /// Behind this URL.
    At(oauth::PublicUrl),
}

impl Oauth {
    fn new(on: bool, url: Option<String>, listen: SocketAddr) -> Result<Self, ConfigError> {
        let refused = |value| ConfigError::Value {
            key: "oauth_url",
            value,
            accepted: "https://HOST[:PORT] without a path, as clients reach this server; http only for this machine; and \
                       needed when listen is not on this machine only",
        };
        let url = url.filter(|url| !url.trim().is_empty());
        let url = url.map(|url| oauth::PublicUrl::parse(url.trim()).map_err(|_| refused(url))).transpose()?;
        match url {
            _ if !on => Ok(Self::Off),
            Some(url) => Ok(Self::At(url)),
            None if listen.ip().is_loopback() => Ok(Self::Local),
            None => Err(refused(String::new())),
        }
    }
}

/// The operator's own certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// The sandbox host it is for.
    pub(crate) host: String,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// The configuration cannot be used; one sentence that says what to change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the configuration file {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the configuration file {path} is larger than 1 MiB; it should hold a few settings only")]
    TooLarge { path: PathBuf },
    #[error("the configuration file {path} is not valid: {message}")]
    Parse { path: PathBuf, message: String },
    #[error("{key} has the value `{value}`; accepted: {accepted}")]
    Value { key: &'static str, value: String, accepted: &'static str },
    #[error("{key} has the value `{value}`; accepted: {least} to {most}")]
    Range { key: &'static str, value: u32, least: u32, most: u32 },
    #[error("cannot read {key} {path}: {source}")]
    File { key: &'static str, path: PathBuf, source: std::io::Error },
    #[error("cannot find out where this program lives, which is where its agent is looked for: {0}")]
    OwnPath(std::io::Error),
}

impl Settings {
    /// Reads `superserve.toml`: the named file, or the one in the state directory if there is one.
    pub(crate) fn from_file(named: Option<&Path>, state_dir: &Path) -> Result<Self, ConfigError> {
        let path = named.map_or_else(|| state_dir.join("superserve.toml"), Path::to_path_buf);
        let text = match std::fs::metadata(&path) {
            Ok(meta) if meta.len() > MAX_FILE_BYTES => return Err(ConfigError::TooLarge { path }),
            Ok(_) => std::fs::read_to_string(&path),
            // Whether the directory itself is usable is asked, and answered, elsewhere.
            Err(error)
                if named.is_none()
                    && matches!(
                        error.kind(),
                        std::io::ErrorKind::NotFound
                            | std::io::ErrorKind::NotADirectory
                            | std::io::ErrorKind::PermissionDenied
                    ) =>
            {
                return Ok(Self::default());
            }
            Err(error) => Err(error),
        };
        let text = text.map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        toml::from_str(&text)
            .map_err(|error| ConfigError::Parse { path, message: error.to_string().trim_end().to_owned() })
    }

    /// Flags and environment over the file over the defaults.
    pub(crate) fn over(self, file: Self, state_dir: PathBuf) -> Result<Config, ConfigError> {
        let templates = TemplateLimits::of(&self, &file)?;
        let egress = crate::egress_config::from(&self, &file)?;
        let service_authorities = match self.service_ca_file.or(file.service_ca_file) {
            Some(path) => crate::egress_config::authorities(path)?,
            None => Vec::new(),
        };
        let agent = match self.agent.or(file.agent) {
            Some(agent) => agent,
            None => std::env::current_exe().map_err(ConfigError::OwnPath)?.with_file_name("superserve-agent"),
        };
        let fixed = |text: &str| text.parse().expect("the default addresses are well formed");
        let link_range =
            self.link_range.or(file.link_range).unwrap_or(std::net::Ipv4Addr::new(100, 96, 0, 0));
        let [_, _, c, d] = link_range.octets();
        if c != 0 || d != 0 || !(link_range.is_private() || (link_range.octets()[0] == 100)) {
            return Err(ConfigError::Value {
                key: "link_range",
                value: link_range.to_string(),
                accepted: "the first address of a private /16, such as 100.96.0.0",
            });
        }
        let max_active_sandboxes =
            self.max_active_sandboxes.or(file.max_active_sandboxes).unwrap_or(DEFAULT_MAX_ACTIVE);
        if max_active_sandboxes == 0 || max_active_sandboxes > 10_000 {
            return Err(ConfigError::Value {
                key: "max_active_sandboxes",
                value: max_active_sandboxes.to_string(),
                accepted: "1 to 10000",
            });
        }
        let activity = activity::Retention {
            rows: self.activity_max_rows.or(file.activity_max_rows).unwrap_or(DEFAULT_ACTIVITY_ROWS),
            days: self.activity_max_days.or(file.activity_max_days).unwrap_or(DEFAULT_ACTIVITY_DAYS),
        };
        let network_log = activity::NetworkRetention {
            rows: self.network_log_max_rows.or(file.network_log_max_rows).unwrap_or(DEFAULT_NETWORK_LOG_ROWS),
            days: self.network_log_max_days.or(file.network_log_max_days).unwrap_or(DEFAULT_NETWORK_LOG_DAYS),
        };
        for (key, value, most, accepted) in [
            ("activity_max_rows", activity.rows, MAX_ACTIVITY_ROWS, "1 to 10000000"),
            ("activity_max_days", activity.days, MAX_LOG_DAYS, "1 to 3650"),
            ("network_log_max_rows", network_log.rows, MAX_NETWORK_LOG_ROWS, "1 to 1000000"),
            ("network_log_max_days", network_log.days, MAX_LOG_DAYS, "1 to 3650"),
        ] {
            if value == 0 || value > most {
                return Err(ConfigError::Value { key, value: value.to_string(), accepted });
            }
        }
        let public_host = self.public_host.or(file.public_host).map(|host| host.to_ascii_lowercase());
        let mut sandbox_hosts = self.sandbox_hosts.or(file.sandbox_hosts).unwrap_or_else(default_hosts);
        let public_name = public_host.as_deref().map(public_name).transpose()?;
        if let Some(name) = public_name
            && !sandbox_hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
        {
            sandbox_hosts.push(name.to_owned());
        }
        let certificate = match (self.tls_cert.or(file.tls_cert), self.tls_key.or(file.tls_key), public_name)
        {
            (Some(cert), Some(key), Some(name)) => Some(Certificate { host: name.to_owned(), cert, key }),
            (None, None, _) => None,
            _ => {
                return Err(ConfigError::Value {
                    key: "tls_cert",
                    value: "set without one of the others".to_owned(),
                    accepted: "tls_cert, tls_key and public_host together",
                });
            }
        };
        let preview_requests_per_second =
            self.preview_requests_per_second.or(file.preview_requests_per_second);
        let preview_body_mib = self.preview_body_mib.or(file.preview_body_mib);
        for (key, value) in [
            ("preview_requests_per_second", preview_requests_per_second),
            ("preview_body_mib", preview_body_mib),
        ] {
            if value == Some(0) {
                let accepted = "1 or more; leave it out for no limit";
                return Err(ConfigError::Value { key, value: "0".to_owned(), accepted });
            }
        }
        let listen = self.listen.or(file.listen).unwrap_or_else(|| fixed(DEFAULT_LISTEN));
        let oauth_on = self.oauth.or(file.oauth).unwrap_or(false);
        let oauth = Oauth::new(oauth_on, self.oauth_url.or(file.oauth_url), listen)?;
        let kernel = match (self.vm_kernel.or(file.vm_kernel), self.vm_modules.or(file.vm_modules)) {
            (Some(image), Some(modules)) => Some(driver_vm::Kernel { image, modules }),
            (None, None) => None,
            _ => {
                return Err(ConfigError::Value {
                    key: "vm_kernel",
                    value: "set without vm_modules, or the other way round".to_owned(),
                    accepted: "vm_kernel and vm_modules together, of one release",
                });
            }
        };
        let acceleration =
            self.vm_acceleration.or(file.vm_acceleration).map(|acceleration| match acceleration {
                VmAcceleration::Kvm => driver_vm::Acceleration::Kvm,
                VmAcceleration::Emulated => driver_vm::Acceleration::Emulated,
            });
        let isolation = self.isolation.or(file.isolation).unwrap_or(Isolation::Auto);
        let engines = self.engines.or(file.engines).map(|names| engines(names, isolation)).transpose()?;
        Ok(Config {
            vm: VmSettings { kernel, acceleration },
            template_snapshots: self
                .template_snapshots
                .or(file.template_snapshots)
                .unwrap_or(DEFAULT_TEMPLATE_SNAPSHOTS),
            templates,
            listen,
            edge_listen: self.edge_listen.or(file.edge_listen).unwrap_or_else(|| fixed(DEFAULT_EDGE_LISTEN)),
            isolation,
            engines,
            max_active_sandboxes,
            sandbox_hosts,
            cors_origins: self.cors_origins.or(file.cors_origins).unwrap_or_default(),
            layers_dir: self.layers_dir.or(file.layers_dir).unwrap_or_else(|| state_dir.join("layers")),
            base_tar: self.base_tar.or(file.base_tar),
            base_image: self.base_image.or(file.base_image),
            registry_access: templates::Access {
                plain_http: self.plain_registries.or(file.plain_registries).unwrap_or_default(),
                auth_file: self.registry_auth_file.or(file.registry_auth_file),
                mirrors: self.registry_mirrors.or(file.registry_mirrors).unwrap_or_default(),
                internal: self.internal_registries.or(file.internal_registries).unwrap_or_default(),
            },
            agent,
            link_range,
            certificate,
            preview_requests_per_second,
            preview_body_mib,
            public_host,
            egress,
            service_authorities,
            log_format: self.log_format.or(file.log_format).unwrap_or(LogFormat::Text),
            metrics: self.metrics.or(file.metrics).unwrap_or(MetricsSetting::On),
            oauth,
            activity,
            network_log,
            engines_dir: state_dir.clone(),
            state_dir,
        })
    }
}

/// The host of `HOST[:PORT]`.
fn public_name(text: &str) -> Result<&str, ConfigError> {
    let (name, port) = text.split_once(':').unwrap_or((text, "443"));
    let port_ok = port.parse::<u16>().is_ok_and(|port| port > 0);
    if port_ok && edge::Hosts::new([name]).is_ok() {
        return Ok(name);
    }
    let accepted = "a DNS name with a port unless it is 443, such as sandbox.example.com";
    Err(ConfigError::Value { key: "public_host", value: text.chars().take(80).collect(), accepted })
}

/// The three hosts official clients derive, and a local one that browsers resolve without DNS (`spec/client-compat.md`
/// §6, open points 6 and 7).
fn default_hosts() -> Vec<String> {
    [
        "sandbox.superserve.ai",
        "usw-sandbox.superserve.ai",
        "staging-sandbox.superserve.ai",
        "sandbox.localhost",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// The names of engines, among which is the one that sandboxes get.
fn engines(names: Vec<String>, isolation: Isolation) -> Result<Vec<Engine>, ConfigError> {
    let refused = |value, accepted| ConfigError::Value { key: "engines", value, accepted };
    let all = names.join(",");
    let read = |name: String| {
        let accepted = "container, gvisor, qemu and firecracker, separated by commas";
        name.trim().parse().map_err(|_| refused(name, accepted))
    };
    let engines: Vec<Engine> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    if engines.is_empty() {
        return Err(refused(all, "one engine or more; leave it out for all that work here"));
    }
    match crate::engine::named(isolation) {
        Some(default) if !engines.contains(&default) => {
            Err(refused(all, "a list that has the engine which `isolation` names, since sandboxes get it"))
        }
        _ => Ok(engines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_file_is_valid_and_names_every_key() {
        let text = include_str!("../../../superserve.example.toml");
        let uncommented: String = text
            .lines()
            .filter_map(|l| l.strip_prefix("#= ").or_else(|| (!l.starts_with('#')).then_some(l)))
            .fold(String::new(), |mut all, line| {
                all.push_str(line);
                all.push('\n');
                all
            });
        let settings: Settings = toml::from_str(&uncommented).unwrap();
        let shown = format!("{settings:?}");
        assert!(!shown.contains("None"), "a key is missing in superserve.example.toml: {shown}");
    }

    #[test]
    fn flags_win_over_the_file_over_defaults() {
        let file: Settings = toml::from_str("listen = \"127.0.0.1:1\"\nmax_active_sandboxes = 7").unwrap();
        let flags = Settings { listen: Some("127.0.0.1:2".parse().unwrap()), ..Settings::default() };
        let config = flags.over(file, "/tmp/x".into()).unwrap();
        assert_eq!(config.listen.port(), 2);
        assert_eq!(config.max_active_sandboxes, 7);
        assert_eq!(config.edge_listen.port(), 8443);
    }

    #[test]
    fn a_host_of_ones_own_comes_with_its_certificate() {
        let own = |host: &str| Settings {
            public_host: Some(host.to_owned()),
            tls_cert: Some("/c".into()),
            tls_key: Some("/k".into()),
            ..Settings::default()
        };
        let config = own("Box.Example.com:8443").over(Settings::default(), "/tmp/x".into()).unwrap();
        assert_eq!(config.public_host.as_deref(), Some("box.example.com:8443"));
        assert_eq!(config.certificate.unwrap().host, "box.example.com");
        assert!(config.sandbox_hosts.contains(&"box.example.com".to_owned()));
        for bad in ["", "localhost", "a.b:", "a.b:0", "a.b:99999", "https://a.b", "a.b/c"] {
            let error = own(bad).over(Settings::default(), "/tmp/x".into()).unwrap_err().to_string();
            assert!(error.contains("public_host"), "{bad}: {error}");
        }
        let half = Settings { tls_key: None, ..own("box.example.com") };
        let error = half.over(Settings::default(), "/tmp/x".into()).unwrap_err().to_string();
        assert!(error.contains("tls_key") && error.contains("together"), "{error}");
    }

    #[test]
    fn oauth_is_off_until_asked_for_and_never_in_the_clear() {
        let oauth = |toml: &str| {
            let file: Settings = toml::from_str(toml).unwrap();
            Settings::default().over(file, "/tmp/x".into()).map(|config| config.oauth)
        };
        assert_eq!(oauth("").unwrap(), Oauth::Off);
        assert_eq!(oauth("oauth_url = \"https://mcp.example.com\"").unwrap(), Oauth::Off);
        assert_eq!(oauth("oauth = true").unwrap(), Oauth::Local);
        assert!(matches!(
            oauth("oauth = true\noauth_url = \"https://mcp.example.com/\"").unwrap(),
            Oauth::At(_)
        ));
        for bad in [
            "oauth_url = \"http://mcp.example.com\"",
            "oauth_url = \"https://mcp.example.com/mcp\"",
            "listen = \"0.0.0.0:8080\"",
        ] {
            let error = oauth(&format!("oauth = true\n{bad}")).unwrap_err().to_string();
            assert!(error.contains("oauth_url") && error.contains("https://HOST"), "{error}");
        }
    }

    #[test]
    fn a_kernel_of_ones_own_comes_with_its_modules() {
        let own = |modules: Option<&str>| Settings {
            vm_kernel: Some("/k".into()),
            vm_modules: modules.map(Into::into),
            ..Settings::default()
        };
        let config = own(Some("/m")).over(Settings::default(), "/tmp/x".into()).unwrap();
        assert_eq!(config.vm.kernel().unwrap().modules, PathBuf::from("/m"));
        let error = own(None).over(Settings::default(), "/tmp/x".into()).unwrap_err().to_string();
        assert!(error.contains("vm_modules") && error.contains("together"), "{error}");
    }

    #[test]
    fn the_engines_that_are_listed_bind() {
        let of = |toml: &str| {
            let file: Settings = toml::from_str(toml).unwrap();
            Settings::default().over(file, "/tmp/x".into()).map(|config| config.engines)
        };
        assert_eq!(of("").unwrap(), None);
        assert_eq!(of("engines = [\"gvisor\"]").unwrap(), Some(vec![Engine::Gvisor]));
        assert!(of("engines = [\"qemu\", \"gvisor\"]\nisolation = \"gvisor\"").is_ok());
        let other = of("engines = [\"qemu\"]\nisolation = \"gvisor\"").unwrap_err().to_string();
        assert!(other.contains("engines") && other.contains("`isolation`"), "{other}");
        let none = of("engines = []").unwrap_err().to_string();
        assert!(none.contains("engines") && none.contains("one engine or more"), "{none}");
    }

    #[test]
    fn bad_values_say_what_is_accepted() {
        let flags = Settings { link_range: Some("8.8.0.0".parse().unwrap()), ..Settings::default() };
        let error = flags.over(Settings::default(), "/tmp/x".into()).unwrap_err().to_string();
        assert!(error.contains("link_range") && error.contains("100.96.0.0"), "{error}");
        let flags = Settings { activity_max_days: Some(0), ..Settings::default() };
        let error = flags.over(Settings::default(), "/tmp/x".into()).unwrap_err().to_string();
        assert!(error.contains("activity_max_days") && error.contains("1 to 3650"), "{error}");
        let flags = Settings { preview_body_mib: Some(0), ..Settings::default() };
        let error = flags.over(Settings::default(), "/tmp/x".into()).unwrap_err().to_string();
        assert!(error.contains("preview_body_mib") && error.contains("no limit"), "{error}");
        assert!(toml::from_str::<Settings>("lisen = 1").unwrap_err().to_string().contains("listen"));
    }
}
