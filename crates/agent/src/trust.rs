//! Makes programs of the guest trust the authority that signs for the hosts of its secrets: in the system's store, where
//! most look, and through variables for those that bring roots of their own. All of it happens inside the guest, as the
//! guest's root, on paths that the guest owns: whatever it has put there leads nowhere but into itself. A guest that
//! spoils it only loses the use of its secrets, so nothing of this makes a start fail.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use wire::agent::Trust;

use crate::agent::Agent;

/// A few small files; a file system of the guest that does not answer must not keep it from starting.
const LIMIT: Duration = Duration::from_secs(3);
/// Where bundles of public roots are: Debian and Alpine, Fedora, SUSE, OpenSSL's own default.
const BUNDLES: [&str; 4] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/ssl/ca-bundle.pem",
    "etc/ssl/cert.pem",
];
/// The authority alone, where `update-ca-certificates` finds it again.
const ALONE: &str = "usr/local/share/ca-certificates/superserve.crt";
/// The same for `update-ca-trust`; only where there is such a directory.
const ANCHORS: &str = "etc/pki/ca-trust/source/anchors";
/// OpenSSL looks here for files named after a hash.
const HASHED: &str = "etc/ssl/certs";
/// Real bundles have 200 to 300 KiB.
const MAX_BUNDLE: u64 = 4 * 1024 * 1024;
const BEGIN: &str = "# Superserve: the authority for hosts of this sandbox's secrets\n";
const END: &str = "# Superserve: end\n";
/// Variables for the whole bundle: OpenSSL (Python, Ruby, PHP, Go), requests, curl, git, AWS, cargo, gRPC, Nix.
const BUNDLE_VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NIX_SSL_CERT_FILE",
];
/// Node, npm and Bun add this to their own roots.
const EXTRA_VARIABLE: &str = "NODE_EXTRA_CA_CERTS";
/// Deno asks the system only when told to.
const DENO: (&str, &str) = ("DENO_TLS_CA_STORE", "system,mozilla");

/// Enters the authority, and adds variables that are not set otherwise.
pub(crate) async fn establish(agent: &Agent, trust: Trust, env: &mut BTreeMap<String, String>) {
    let entered = agent.accounts.run(move || enter(Path::new("/"), &trust));
    let Ok(Ok(bundle)) = tokio::time::timeout(LIMIT, entered).await else { return };
    let bundle = format!("/{bundle}");
    for name in BUNDLE_VARIABLES {
        env.entry(name.to_owned()).or_insert_with(|| bundle.clone());
    }
    env.entry(EXTRA_VARIABLE.to_owned()).or_insert_with(|| format!("/{ALONE}"));
    env.entry(DENO.0.to_owned()).or_insert_with(|| DENO.1.to_owned());
}

/// Says in which bundle the authority is now.
fn enter(root: &Path, trust: &Trust) -> io::Result<&'static str> {
    write(&root.join(ALONE), &trust.authority)?;
    let mut first = None;
    for bundle in BUNDLES {
        let path = root.join(bundle);
        let there = match read(&path) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let wanted = with_block(&there, &trust.authority);
        if wanted != there {
            write(&path, &wanted)?;
        }
        first = first.or(Some(bundle));
    }
    // A guest without roots gets the host's, or nothing else could be trusted through the variables.
    let bundle = match first {
        Some(bundle) => bundle,
        None => {
            write(&root.join(BUNDLES[0]), &with_block(&trust.roots, &trust.authority))?;
            BUNDLES[0]
        }
    };
    if root.join(ANCHORS).is_dir() {
        write(&root.join(ANCHORS).join("superserve.pem"), &trust.authority)?;
    }
    link(root, &trust.subject_hash)?;
    Ok(bundle)
}

/// The bundle with our block at its end, and no older one.
fn with_block(bundle: &str, authority: &str) -> String {
    let mut text = bundle.to_owned();
    while let Some(begin) = text.find(BEGIN) {
        let end = text[begin..].find(END).map_or(text.len(), |end| begin + end + END.len());
        text.replace_range(begin..end, "");
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let newline = if authority.ends_with('\n') { "" } else { "\n" };
    text.push_str(&format!("{BEGIN}{authority}{newline}{END}"));
    text
}

/// `<hash>.<n>` leads to the authority, for the first free `n`.
fn link(root: &Path, hash: &str) -> io::Result<()> {
    let target = Path::new("/").join(ALONE);
    if !root.join(HASHED).is_dir() || hash.is_empty() || !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    for n in 0..10 {
        let link = root.join(HASHED).join(format!("{hash}.{n}"));
        match std::os::unix::fs::symlink(&target, &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if std::fs::read_link(&link).is_ok_and(|found| found == target) {
                    return Ok(());
                }
            }
            other => return other,
        }
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<String> {
    // A pipe must not be waited for.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.len() > MAX_BUNDLE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = Vec::new();
    file.take(MAX_BUNDLE).read_to_end(&mut text)?;
    // Comments may be in any encoding.
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes beside the file, or beside what it is a link to, and renames: readers see the old one or the new one.
fn write(path: &Path, content: &str) -> io::Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    if read(&path).is_ok_and(|there| there == content) {
        return Ok(());
    }
    let mut beside = path.clone().into_os_string();
    beside.push(".superserve");
    let beside = PathBuf::from(beside);
    let written = || {
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(0o644).open(&beside)?;
        file.write_all(content.as_bytes())?;
        std::fs::rename(&beside, &path)
    };
    written().inspect_err(|_| {
        let _not_there = std::fs::remove_file(&beside);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(authority: &str) -> Trust {
        Trust {
            authority: authority.to_owned(),
            subject_hash: "8f1b30f9".to_owned(),
            roots: "PUBLIC\n".to_owned(),
        }
    }

    fn text(root: &Path, path: &str) -> String {
        std::fs::read_to_string(root.join(path)).unwrap()
    }

    #[test]
    fn is_entered_once_and_replaced() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        std::fs::create_dir_all(root.join(HASHED)).unwrap();
        std::fs::write(root.join(BUNDLES[0]), "OWN").unwrap();
        for _ in 0..2 {
            assert_eq!(enter(root, &trust("ONE\n")).unwrap(), BUNDLES[0]);
            assert_eq!(text(root, BUNDLES[0]), format!("OWN\n{BEGIN}ONE\n{END}"));
        }
        enter(root, &trust("TWO\n")).unwrap();
        assert_eq!(text(root, BUNDLES[0]), format!("OWN\n{BEGIN}TWO\n{END}"));
        assert_eq!(text(root, ALONE), "TWO\n");
        let links: Vec<_> =
            std::fs::read_dir(root.join(HASHED)).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(links.len(), 2, "one bundle, one link: {links:?}");
    }

    #[test]
    fn a_guest_without_roots_gets_the_hosts() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(enter(root.path(), &trust("ONE\n")).unwrap(), BUNDLES[0]);
        assert_eq!(text(root.path(), BUNDLES[0]), format!("PUBLIC\n{BEGIN}ONE\n{END}"));
    }

    #[test]
    fn a_linked_bundle_is_changed_where_it_is() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        std::fs::create_dir_all(root.join("etc/pki/tls/certs")).unwrap();
        std::fs::create_dir_all(root.join(ANCHORS)).unwrap();
        std::fs::write(root.join("real.pem"), "OWN\n").unwrap();
        std::os::unix::fs::symlink("../../../../real.pem", root.join(BUNDLES[1])).unwrap();
        assert_eq!(enter(root, &trust("ONE\n")).unwrap(), BUNDLES[1]);
        assert!(root.join(BUNDLES[1]).is_symlink() && text(root, "real.pem").contains("ONE"));
        assert_eq!(text(root, "etc/pki/ca-trust/source/anchors/superserve.pem"), "ONE\n");
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        std::fs::create_dir_all(root.join(HASHED)).unwrap();
        let pipe = root.join(BUNDLES[0]);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
        assert!(enter(root, &trust("ONE\n")).is_err());
    }
}
