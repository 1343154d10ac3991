//! The operator's part of the way out of sandboxes, from settings to the gateway's own configuration.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use domain::{Cidr, Secret};
use egress::{GatewayConfig, Proxy};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::config::{ConfigError, Settings};

/// Resolvers that are asked at all; more only make failures slower.
const MAX_RESOLVERS: usize = 4;
/// Networks in one list; each connection is compared with all of them.
const MAX_RANGES: usize = 1_000;
/// Connections of one sandbox: more than this is a limit of the host's descriptors instead.
const MAX_CONNECTIONS: u32 = 65_536;
const MIB: u64 = 1024 * 1024;
/// `user:password` is short.
const MAX_AUTH_BYTES: u64 = 1_024;

/// Flags and environment over the file over the defaults.
pub(crate) fn from(flags: &Settings, file: &Settings) -> Result<GatewayConfig, ConfigError> {
    let list = |own: &Option<Vec<String>>, other: &Option<Vec<String>>| {
        own.clone().or_else(|| other.clone()).unwrap_or_default()
    };
    let mut config = GatewayConfig {
        uplink: flags.uplink_namespace.clone().or_else(|| file.uplink_namespace.clone()),
        resolvers: resolvers(&list(&flags.resolvers, &file.resolvers))?,
        blocked: ranges("blocked_ranges", &list(&flags.blocked_ranges, &file.blocked_ranges))?,
        permitted: ranges("permitted_ranges", &list(&flags.permitted_ranges, &file.permitted_ranges))?,
        ..GatewayConfig::default()
    };
    if let Some(address) = flags.upstream_proxy.or(file.upstream_proxy) {
        let auth_file = flags.upstream_proxy_auth_file.as_ref().or(file.upstream_proxy_auth_file.as_ref());
        let key = "upstream_proxy_auth_file";
        let credentials = auth_file.map(|path| {
            private_text(path).map_err(|source| ConfigError::File { key, path: path.clone(), source })
        });
        config.proxy = Some(Proxy { address, credentials: credentials.transpose()? });
    }
    if let Some(most) = flags.sandbox_connections.or(file.sandbox_connections) {
        if most == 0 || most > MAX_CONNECTIONS {
            let value = most.to_string();
            return Err(ConfigError::Value { key: "sandbox_connections", value, accepted: "1 to 65536" });
        }
        config.sandbox_connections = most as usize;
    }
    let bandwidth = flags.sandbox_bandwidth_mib.or(file.sandbox_bandwidth_mib).filter(|mib| *mib > 0);
    config.sandbox_bandwidth = bandwidth.map(|mib| u64::from(mib) * MIB);
    Ok(config)
}

/// The certificates of a PEM file.
pub(crate) fn authorities(path: PathBuf) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let key = "service_ca_file";
    let text =
        std::fs::read(&path).map_err(|source| ConfigError::File { key, path: path.clone(), source })?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| ConfigError::Value {
        key,
        value: path.display().to_string(),
        accepted: "a PEM file with at least one certificate",
    })
}

/// The text of a small file that only its owner can read.
fn private_text(path: &Path) -> std::io::Result<Secret> {
    let meta = std::fs::metadata(path)?;
    if meta.permissions().mode() & 0o077 != 0 {
        return Err(std::io::Error::other("others can read it; run chmod 600 on it"));
    }
    if meta.len() > MAX_AUTH_BYTES {
        return Err(std::io::Error::other("it is too large to hold user:password"));
    }
    let text = Secret::new(std::fs::read_to_string(path)?);
    Ok(Secret::new(text.expose_secret().trim()))
}

fn resolvers(list: &[String]) -> Result<Vec<SocketAddr>, ConfigError> {
    let parse = |text: &String| {
        let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
        address.or_else(|_| text.parse()).ok()
    };
    let parsed: Option<Vec<SocketAddr>> = list.iter().map(parse).collect();
    parsed.filter(|parsed| parsed.len() <= MAX_RESOLVERS).ok_or_else(|| ConfigError::Value {
        key: "resolvers",
        value: list.join(","),
        accepted: "at most 4 addresses, with or without a port, such as 10.0.0.2 or 10.0.0.2:5353",
    })
}

fn ranges(key: &'static str, list: &[String]) -> Result<Vec<Cidr>, ConfigError> {
    let accepted = "at most 1000 IPv4 networks, such as 10.20.0.0/16";
    if list.len() > MAX_RANGES {
        return Err(ConfigError::Value { key, value: format!("{} networks", list.len()), accepted });
    }
    let parse =
        |text: &String| text.parse().map_err(|_| ConfigError::Value { key, value: text.clone(), accepted });
    list.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<GatewayConfig, ConfigError> {
        from(&Settings::default(), &toml::from_str(text).unwrap())
    }

    #[test]
    fn settings_reach_the_gateway() {
        let dir = tempfile::tempdir().unwrap();
        let auth = dir.path().join("auth");
        std::fs::write(&auth, "user:hunter2\n").unwrap();
        std::fs::set_permissions(&auth, std::fs::Permissions::from_mode(0o644)).unwrap();
        let open = format!("upstream_proxy = \"10.0.0.9:3128\"\nupstream_proxy_auth_file = {auth:?}");
        let open = read(&open).unwrap_err().to_string();
        assert!(open.contains("chmod 600") && !open.contains("hunter2"), "{open}");
        std::fs::set_permissions(&auth, std::fs::Permissions::from_mode(0o600)).unwrap();
        let config = read(&format!(
            "resolvers = [\"10.0.0.2\", \"10.0.0.3:5353\"]\nblocked_ranges = [\"198.51.100.0/24\"]\n\
             permitted_ranges = [\"10.1.0.0/16\"]\nsandbox_connections = 9\nsandbox_bandwidth_mib = 2\n\
             uplink_namespace = \"/run/netns/up\"\nupstream_proxy = \"10.0.0.9:3128\"\n\
             upstream_proxy_auth_file = \"{}\"",
            auth.display()
        ))
        .unwrap();
        let resolvers: Vec<String> = config.resolvers.iter().map(ToString::to_string).collect();
        assert_eq!(resolvers, ["10.0.0.2:53", "10.0.0.3:5353"]);
        assert_eq!((config.blocked.len(), config.permitted.len(), config.sandbox_connections), (1, 1, 9));
        assert_eq!(config.sandbox_bandwidth, Some(2 * MIB));
        assert!(!format!("{config:?}").contains("hunter2"), "credentials must not show");
        assert_eq!(config.proxy.unwrap().credentials.unwrap().expose_secret(), "user:hunter2");
        let none = read("sandbox_bandwidth_mib = 0").unwrap();
        assert!(none.sandbox_bandwidth.is_none() && none.proxy.is_none());
    }

    #[test]
    fn bad_values_say_what_is_accepted() {
        for (text, key) in [
            ("resolvers = [\"dns.example\"]", "resolvers"),
            ("blocked_ranges = [\"2001:db8::/32\"]", "blocked_ranges"),
            ("permitted_ranges = [\"10.0.0.0/33\"]", "permitted_ranges"),
            ("sandbox_connections = 0", "sandbox_connections"),
            ("upstream_proxy = \"127.0.0.1:1\"\nupstream_proxy_auth_file = \"/nowhere\"", "/nowhere"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
