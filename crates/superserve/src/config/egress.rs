//! The settings of the way out.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use domain::{Cidr, Secret};
use egress::{GatewayConfig, Proxy};

use super::{ConfigError, Settings};

/// Where resolvers listen when nobody says otherwise.
const DNS_PORT: u16 = 53;
/// Most entries of a list; longer ones slow every connection down.
const MAX_ENTRIES: usize = 1_000;
/// One sandbox cannot have more than the whole host.
const MAX_CONNECTIONS: u32 = 8_192;
/// `user:password` is short.
const MAX_AUTH_BYTES: u64 = 1_024;

/// Flags over file over the gateway's own defaults.
pub(super) fn gateway(flags: &Settings, file: &Settings) -> Result<GatewayConfig, ConfigError> {
    let default = GatewayConfig::default();
    let resolvers = flags.egress_resolvers.as_ref().or(file.egress_resolvers.as_ref());
    let blocked = flags.egress_blocked.as_ref().or(file.egress_blocked.as_ref());
    let permitted = flags.egress_permitted.as_ref().or(file.egress_permitted.as_ref());
    let address = flags.egress_proxy.or(file.egress_proxy);
    let auth = flags.egress_proxy_auth_file.as_ref().or(file.egress_proxy_auth_file.as_ref());
    let credentials = auth.map(|path| read_credentials(path)).transpose()?;
    let sandbox_connections = match flags.egress_connections.or(file.egress_connections) {
        None => default.sandbox_connections,
        Some(n) if (1..=MAX_CONNECTIONS).contains(&n) => n as usize,
        Some(n) => {
            let value = n.to_string();
            return Err(ConfigError::Value { key: "egress_connections", value, accepted: "1 to 8192" });
        }
    };
    Ok(GatewayConfig {
        uplink: flags.uplink_namespace.clone().or_else(|| file.uplink_namespace.clone()),
        resolvers: list("egress_resolvers", resolvers, resolver)?,
        proxy: address.map(|address| Proxy { address, credentials }),
        blocked: list("egress_blocked", blocked, network)?,
        permitted: list("egress_permitted", permitted, network)?,
        sandbox_connections,
        sandbox_bandwidth: flags.egress_bandwidth.or(file.egress_bandwidth).filter(|bytes| *bytes > 0),
        ..default
    })
}

fn list<T>(
    key: &'static str,
    texts: Option<&Vec<String>>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, ConfigError> {
    let texts = texts.map_or(&[][..], Vec::as_slice);
    if texts.len() > MAX_ENTRIES {
        let value = format!("{} entries", texts.len());
        return Err(ConfigError::Value { key, value, accepted: "at most 1000 entries" });
    }
    let parse = |text: &String| {
        parse(text.trim()).map_err(|why| ConfigError::Entry { key, value: text.clone(), why })
    };
    texts.iter().map(parse).collect()
}

fn resolver(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, DNS_PORT));
    let expected = |_| "an address such as 9.9.9.9, 9.9.9.9:53 or [2620:fe::fe]:53 is expected".to_owned();
    address.or_else(|_| text.parse()).map_err(expected)
}

fn network(text: &str) -> Result<Cidr, String> {
    text.parse().map_err(|bad: domain::BadRule| bad.to_string())
}

/// What is in it must not be readable by others, nor appear in an error.
fn read_credentials(path: &Path) -> Result<Secret, ConfigError> {
    let wrong = |why: String| ConfigError::PrivateFile {
        key: "egress_proxy_auth_file",
        path: path.to_path_buf(),
        why,
    };
    let meta = std::fs::metadata(path).map_err(|error| wrong(format!("it cannot be read: {error}")))?;
    if meta.permissions().mode() & 0o077 != 0 {
        return Err(wrong("others may read it; run `chmod 600` on it".to_owned()));
    }
    if meta.len() > MAX_AUTH_BYTES {
        return Err(wrong("it is too large to hold only user:password".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("it cannot be read: {error}")))?;
    let text = Secret::new(text);
    let pair = text.expose_secret().trim();
    if !pair.contains(':') || pair.chars().any(char::is_control) {
        return Err(wrong("it should hold user:password in one line".to_owned()));
    }
    Ok(Secret::new(pair))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn every_setting_reaches_the_gateway() {
        let dir = tempfile::tempdir().unwrap();
        let auth = dir.path().join("auth");
        std::fs::write(&auth, "user:hunter2\n").unwrap();
        let file = settings(&format!(
            "egress_resolvers = [\"9.9.9.9\", \"[::1]:5353\"]\negress_proxy = \"127.0.0.1:3128\"\n\
             egress_proxy_auth_file = {auth:?}\negress_blocked = [\"198.51.100.0/24\"]\negress_permitted = [\"10.1.0.0/16\"]\n\
             egress_connections = 7\negress_bandwidth = 1000\nuplink_namespace = \"/run/netns/x\"\n"
        ));
        let open = gateway(&Settings::default(), &file).unwrap_err().to_string();
        assert!(open.contains("chmod 600") && !open.contains("hunter2"), "{open}");
        std::fs::set_permissions(&auth, std::fs::Permissions::from_mode(0o600)).unwrap();
        let config = gateway(&Settings::default(), &file).unwrap();
        let shown: Vec<_> = config.resolvers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["9.9.9.9:53", "[::1]:5353"]);
        let proxy = config.proxy.as_ref().unwrap();
        assert_eq!(proxy.credentials.as_ref().unwrap().expose_secret(), "user:hunter2");
        assert_eq!(
            (config.blocked[0].to_string(), config.permitted[0].to_string()),
            ("198.51.100.0/24".into(), "10.1.0.0/16".into())
        );
        assert_eq!((config.sandbox_connections, config.sandbox_bandwidth), (7, Some(1000)));
        assert_eq!(config.uplink.as_deref(), Some(Path::new("/run/netns/x")));
        assert!(!format!("{config:?}").contains("hunter2"));
        let flags = settings("egress_bandwidth = 0\negress_connections = 9\negress_blocked = []");
        let config = gateway(&flags, &file).unwrap();
        assert_eq!(
            (config.sandbox_connections, config.sandbox_bandwidth, config.blocked.len()),
            (9, None, 0)
        );
    }

    #[test]
    fn mistakes_name_the_key_and_what_is_expected() {
        for (text, key, told) in [
            ("egress_resolvers = [\"dns.example\"]", "egress_resolvers", "9.9.9.9"),
            ("egress_blocked = [\"example.com\"]", "egress_blocked", "IPv4"),
            ("egress_permitted = [\"fd00::/8\"]", "egress_permitted", "IPv6 is not supported"),
            ("egress_connections = 0", "egress_connections", "1 to 8192"),
            ("egress_proxy_auth_file = \"/nonexistent\"", "egress_proxy_auth_file", "cannot be read"),
        ] {
            let error = gateway(&Settings::default(), &settings(text)).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(told), "{error}");
        }
    }
}
