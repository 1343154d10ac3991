//! What an unmodified official client needs to reach this server (`spec/client-compat.md` §2): the key, the base URL,
//! trust in our certificate, and a way from the fixed names and port 443 to our address. Python, Bun and curl go through
//! the edge's CONNECT proxy; Node ignores proxy variables and gets a hook that rewrites the address.
//!
//! `superserve client-env` = [`write_files`] once, then [`render`].

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use domain::Secret;

const NODE_HOOK: &str = include_str!("../assets/node-hook.cjs");

/// Where Linux distributions keep the roots that programs trust.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// A bundle of roots has about 250 kB; anything far larger is something else.
const MAX_ROOTS: u64 = 4 * 1024 * 1024;

/// How the variables are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// `export` lines for `eval`.
    Shell,
    /// One JSON object.
    Json,
}

/// The files the variables point to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientFiles {
    /// Our authority's certificate alone, for programs that add it to their own roots.
    pub(crate) ca: PathBuf,
    /// It and the system's roots, for programs that replace their own.
    pub(crate) bundle: PathBuf,
    /// For `node --require`.
    pub(crate) node_hook: PathBuf,
}

/// What the variables are made of.
#[derive(Debug)]
pub(crate) struct ClientEnv<'a> {
    pub(crate) api_key: &'a Secret,
    /// Base URL of the control plane; a trailing slash is removed, because clients only append.
    pub(crate) base_url: &'a str,
    /// Where the edge listens; an unspecified address means loopback here.
    pub(crate) edge: SocketAddr,
    pub(crate) hosts: &'a edge::Hosts,
    pub(crate) files: &'a ClientFiles,
    /// The caller's own `NODE_OPTIONS`, which are kept.
    pub(crate) node_options: Option<&'a str>,
}

/// Writes the files into `dir`, which exists. `roots` is the bundle to extend, normally the caller's `SSL_CERT_FILE`;
/// without one, the system's. When it is our own from an earlier call, the bundle that one extended.
///
/// # Errors
/// A file cannot be written, or the given bundle cannot be read.
pub(crate) fn write_files(dir: &Path, ca_pem: &str, roots: Option<&Path>) -> io::Result<ClientFiles> {
    let files = ClientFiles {
        ca: dir.join("ca.pem"),
        bundle: dir.join("ca-bundle.pem"),
        node_hook: dir.join("node-hook.cjs"),
    };
    let roots = match roots {
        Some(roots) if same_file(roots, &files.bundle) => {
            let bundle = read_bounded(roots)?;
            let added = read_bounded(&files.ca)?;
            bundle.strip_suffix(&added).unwrap_or(&bundle).to_owned()
        }
        Some(roots) => read_bounded(roots)?,
        None => SYSTEM_ROOTS.iter().find_map(|path| read_bounded(Path::new(path)).ok()).unwrap_or_default(),
    };
    write(&files.ca, ca_pem)?;
    write(&files.bundle, &format!("{}\n{ca_pem}", roots.trim_end()))?;
    write(&files.node_hook, NODE_HOOK)?;
    Ok(files)
}

/// The variables as text for standard output. It contains the API key.
pub(crate) fn render(env: &ClientEnv<'_>, format: Format) -> String {
    let variables = variables(env);
    match format {
        Format::Shell => {
            let mut text = String::from(
                "# Use: eval \"$(superserve client-env)\". HTTPS_PROXY leads to the sandbox hosts only; for programs \
                 that need\n# other https hosts in the same shell, add those hosts to NO_PROXY.\n",
            );
            for (name, value) in variables {
                text.push_str(&format!("export {name}={}\n", shell_quoted(&value)));
            }
            text
        }
        Format::Json => {
            let object: serde_json::Map<_, _> =
                variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
            format!("{:#}\n", serde_json::Value::Object(object))
        }
    }
}

fn variables(env: &ClientEnv<'_>) -> Vec<(&'static str, String)> {
    let edge = reachable(env.edge);
    let base_url = env.base_url.trim_end_matches('/');
    let proxy = format!("http://{edge}");
    let mut direct = vec!["127.0.0.1", "localhost"];
    direct.extend(host_of(base_url).filter(|host| !direct.contains(host)));
    let direct = direct.join(",");
    let path = |path: &Path| path.display().to_string();
    vec![
        ("SUPERSERVE_API_KEY", env.api_key.expose_secret().to_owned()),
        ("SUPERSERVE_BASE_URL", base_url.to_owned()),
        // Both spellings: where a program knows both, a lower-case one from elsewhere would win.
        ("HTTPS_PROXY", proxy.clone()),
        ("https_proxy", proxy),
        ("NO_PROXY", direct.clone()),
        ("no_proxy", direct),
        ("SSL_CERT_FILE", path(&env.files.bundle)),
        // Debian's curl looks here only.
        ("CURL_CA_BUNDLE", path(&env.files.bundle)),
        ("NODE_EXTRA_CA_CERTS", path(&env.files.ca)),
        ("NODE_OPTIONS", node_options(env.node_options, &path(&env.files.node_hook))),
        ("SUPERSERVE_EDGE_ADDR", edge.to_string()),
        ("SUPERSERVE_SANDBOX_HOSTS", env.hosts.iter().collect::<Vec<_>>().join(",")),
    ]
}

fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// The host of an http or https URL, in the form of `NO_PROXY`.
fn host_of(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next()?,
        None => host.split(':').next()?,
    };
    (!host.is_empty()).then_some(host)
}

/// Adds the hook to the options that are there already, once.
fn node_options(present: Option<&str>, hook: &str) -> String {
    // Node splits at spaces and knows double quotes with backslashes.
    let needs_quotes = hook.contains([' ', '"', '\\']);
    let hook = if needs_quotes {
        format!("--require \"{}\"", hook.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        format!("--require {hook}")
    };
    match present.map(str::trim) {
        None | Some("") => hook,
        Some(present) if present.contains(&hook) => present.to_owned(),
        Some(present) => format!("{present} {hook}"),
    }
}

fn shell_quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let read = fs::File::open(path).and_then(|file| file.take(MAX_ROOTS + 1).read_to_string(&mut text));
    match read.map_err(named)? as u64 {
        size if size > MAX_ROOTS => Err(named(io::Error::other("too large for a bundle of certificates"))),
        _ => Ok(text),
    }
}

/// Replaces the file in one step: a client may be reading it.
fn write(path: &Path, content: &str) -> io::Result<()> {
    let beside = path.with_extension("new");
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let replace = || {
        let _ = fs::remove_file(&beside);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&beside)?;
        file.write_all(content.as_bytes())?;
        fs::rename(&beside, path)
    };
    replace().map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, node_options: Option<&str>, format: Format) -> String {
        let files = ClientFiles {
            ca: "/s t/ca.pem".into(),
            bundle: "/s t/ca-bundle.pem".into(),
            node_hook: "/s t/node-hook.cjs".into(),
        };
        let env = ClientEnv {
            api_key: &Secret::new(key),
            base_url: "http://box.lan:8080/",
            edge: "0.0.0.0:8443".parse().unwrap(),
            hosts: &edge::Hosts::default(),
            files: &files,
            node_options,
        };
        render(&env, format)
    }

    #[test]
    fn a_shell_takes_every_value_literally() {
        let key = "a'b $(touch /tmp/x) `id`\\ \"q\"\n;c";
        let script = format!("{}\nprintf %s \"$SUPERSERVE_API_KEY\"", check(key, None, Format::Shell));
        let output = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), key);
    }

    #[test]
    fn json_has_every_variable() {
        let json: serde_json::Value =
            serde_json::from_str(&check("k", Some("--no-warnings"), Format::Json)).unwrap();
        assert_eq!(json["SUPERSERVE_API_KEY"], "k");
        assert_eq!(json["SUPERSERVE_BASE_URL"], "http://box.lan:8080");
        assert_eq!(json["HTTPS_PROXY"], "http://127.0.0.1:8443");
        assert_eq!(json["NO_PROXY"], "127.0.0.1,localhost,box.lan");
        assert_eq!(json["NODE_OPTIONS"], "--no-warnings --require \"/s t/node-hook.cjs\"");
        assert_eq!(json["SUPERSERVE_EDGE_ADDR"], "127.0.0.1:8443");
        assert_eq!(
            check("k", json["NODE_OPTIONS"].as_str(), Format::Json),
            check("k", Some("--no-warnings"), Format::Json)
        );
    }

    #[test]
    fn the_bundle_extends_the_roots_and_stays_one_bundle() {
        let dir = tempfile::tempdir().unwrap();
        let roots = dir.path().join("roots.pem");
        fs::write(&roots, "ROOTS\n").unwrap();
        let files = write_files(dir.path(), "OURS\n", Some(&roots)).unwrap();
        assert_eq!(fs::read_to_string(&files.bundle).unwrap(), "ROOTS\nOURS\n");
        // With our own bundle as the caller's, the roots stay and our certificate is replaced.
        write_files(dir.path(), "NEW\n", Some(&files.bundle)).unwrap();
        assert_eq!(fs::read_to_string(&files.bundle).unwrap(), "ROOTS\nNEW\n");
        assert!(write_files(dir.path(), "OURS\n", Some(Path::new("/does/not/exist"))).is_err());
    }

    #[test]
    fn hosts_of_urls() {
        assert_eq!(host_of("https://u@api.example.com:1/x"), Some("api.example.com"));
        assert_eq!(host_of("http://[::1]:80"), Some("::1"));
        assert_eq!(host_of("nonsense"), None);
    }
}
