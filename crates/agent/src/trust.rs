//! The authority by which the platform opens TLS to hosts of bound secrets: the system's store and the common runtimes are
//! made to believe it, in addition to whatever they believe.

use std::fs;
use std::io;
use std::path::Path;

use wire::agent::AgentConfig;

/// What is ours in the guest.
const DIR: &str = "/etc/superserve";
const AUTHORITY: &str = "/etc/superserve/ca.pem";
const BUNDLE: &str = "/etc/superserve/ca-bundle.pem";
/// Where systems keep the public authorities as one file.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Where Debian's tool looks when it makes that file anew.
const ADDED: &str = "/usr/local/share/ca-certificates";
/// Programs that bring their own list of authorities, or are told where one is: the public ones and ours together.
const BUNDLE_VARIABLES: [&str; 9] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NPM_CONFIG_CAFILE",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
];
/// Node adds to its own.
const NODE_VARIABLE: &str = "NODE_EXTRA_CA_CERTS";
/// The public authorities are some 230 KiB.
const MAX_BUNDLE: u64 = 4 * 1024 * 1024;

/// Variables for new processes; the template's and the sandbox's own win.
pub(crate) fn add_variables(config: &mut AgentConfig) {
    for (names, value) in [(&BUNDLE_VARIABLES[..], BUNDLE), (&[NODE_VARIABLE][..], AUTHORITY)] {
        for name in names {
            config.template_env.entry((*name).to_owned()).or_insert_with(|| value.to_owned());
        }
    }
}

/// Writes the authority into the guest's stores. What is there already is not written again.
pub(crate) fn install(pem: &str) -> io::Result<()> {
    let system = SYSTEM.iter().map(Path::new).find(|path| path.is_file());
    let public = system.map(read).transpose()?.unwrap_or_default();
    let known = public.contains(pem.trim());
    fs::create_dir_all(DIR)?;
    let bundle = if known { public.clone() } else { format!("{}\n{pem}", public.trim_end()) };
    for (path, content) in [(AUTHORITY, pem), (BUNDLE, bundle.as_str())] {
        if fs::read_to_string(path).is_ok_and(|there| there == content) {
            continue;
        }
        fs::write(path, content)?;
    }
    if let Some(system) = system
        && !known
    {
        fs::write(system, &bundle)?;
    }
    let added = Path::new(ADDED);
    if added.is_dir() {
        fs::write(added.join("superserve.crt"), pem)?;
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.len() > MAX_BUNDLE {
        return Err(io::Error::other("the list of authorities is too long"));
    }
    fs::read_to_string(path)
}
