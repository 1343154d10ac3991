//! What lies in the state directory, and who may read it. Everything is created 0700/0600, by root; keys are written
//! whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use domain::Secret;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Why the state directory cannot be used; one sentence with the next step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateDirError {
    #[error("the state directory {path} cannot be used: {source}; choose a writable one with --state-dir")]
    Unusable { path: PathBuf, source: std::io::Error },
    #[error(
        "another superserve (pid {pid}) uses the state directory {path}; stop it or choose another --state-dir"
    )]
    Busy { path: PathBuf, pid: String },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path} is damaged: {why}; restore it from a backup")]
    Damaged { path: PathBuf, why: &'static str },
    #[error(
        "no server has run on the state directory {path}; start one with `superserve up --state-dir {path}`"
    )]
    NeverStarted { path: PathBuf },
}

/// The directory, held by this process alone until dropped.
#[derive(Debug)]
pub(crate) struct StateDir {
    root: PathBuf,
    _lock: File,
}

/// What a running server tells commands on the same machine; rewritten at each start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ServerInfo {
    /// Process id of the server that wrote this.
    pub(crate) pid: u32,
    /// Base URL of the control plane.
    pub(crate) base_url: String,
    /// Address of the edge.
    pub(crate) edge: std::net::SocketAddr,
    /// Sandbox hosts it answers for.
    pub(crate) sandbox_hosts: Vec<String>,
}

impl StateDir {
    /// Creates the directory if needed and takes it for this process.
    pub(crate) fn open(root: &Path) -> Result<Self, StateDirError> {
        let unusable = |source| StateDirError::Unusable { path: root.to_path_buf(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(unusable)?;
        let root = root.canonicalize().map_err(unusable)?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(root.join("lock"))
            .map_err(unusable)?;
        if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _unknown_pid_is_fine = Read::by_ref(&mut lock).take(16).read_to_string(&mut pid);
            return Err(StateDirError::Busy { path: root, pid: pid.trim().to_owned() });
        }
        for private in [tls_dir(&root), client_dir(&root)] {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(private).map_err(unusable)?;
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(unusable)?;
        Ok(Self { root, _lock: lock })
    }

    /// The canonical path.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The 32 bytes everything private is derived from; made at first start.
    pub(crate) fn master_key(&self) -> Result<[u8; 32], StateDirError> {
        let path = self.root.join("master.key");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let mut key = [0_u8; 32];
                getrandom::fill(&mut key).map_err(|_| StateDirError::Damaged {
                    path: path.clone(),
                    why: "the system has no random source",
                })?;
                write_private(&path, &key)?;
                return Ok(key);
            }
            Err(source) => return Err(StateDirError::File { path, source }),
        };
        bytes.try_into().map_err(|_| StateDirError::Damaged { path, why: "it should have exactly 32 bytes" })
    }

    /// The keys that seal secrets, the one that seals now first; the first is made when there is none. They are not
    /// derived from the master key, so that they can be replaced without ending every token.
    pub(crate) fn secret_keys(&self) -> Result<Vec<SecretKey>, StateDirError> {
        let path = self.root.join("secret.keys");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let first = vec![self.new_secret_key()?];
                self.write_secret_keys(&first)?;
                return Ok(first);
            }
            Err(source) => return Err(StateDirError::File { path, source }),
        };
        let keys: Option<Vec<SecretKey>> = text.lines().map(parse_secret_key).collect();
        let keys = keys.filter(|keys| !keys.is_empty());
        keys.ok_or(StateDirError::Damaged {
            path,
            why: "each line should be a name and 64 hexadecimal digits",
        })
    }

    /// A key nobody has had.
    pub(crate) fn new_secret_key(&self) -> Result<SecretKey, StateDirError> {
        let mut name = [0_u8; 4];
        let mut key = Zeroizing::new([0_u8; secrets::KEY_BYTES]);
        let filled = getrandom::fill(&mut name).and_then(|()| getrandom::fill(&mut *key));
        let path = self.root.join("secret.keys");
        filled.map_err(|_| StateDirError::Damaged { path, why: "the system has no random source" })?;
        Ok((hex(&name).as_str().to_owned(), key))
    }

    /// Replaces the keys that seal secrets.
    pub(crate) fn write_secret_keys(&self, keys: &[SecretKey]) -> Result<(), StateDirError> {
        let mut text = Zeroizing::new(String::new());
        for (name, key) in keys {
            text.push_str(name);
            text.push(' ');
            text.push_str(&hex(&**key));
            text.push('\n');
        }
        write_private(&self.root.join("secret.keys"), text.as_bytes())
    }

    /// Records what a running server is reachable by.
    pub(crate) fn write_server_info(&self, info: &ServerInfo) -> Result<(), StateDirError> {
        let text = serde_json::to_vec_pretty(info).expect("plain strings and numbers serialise");
        write_private(&server_info_path(&self.root), &text)
    }

    /// Stores the first API key where only root reads it.
    pub(crate) fn write_api_key(&self, key: &Secret) -> Result<(), StateDirError> {
        write_private(&api_key_path(&self.root), format!("{}\n", key.expose_secret()).as_bytes())
    }
}

/// Where the first API key is kept.
pub(crate) fn api_key_path(root: &Path) -> PathBuf {
    root.join("api-key")
}

/// The database file.
pub(crate) fn database_path(root: &Path) -> PathBuf {
    root.join("superserve.db")
}

/// The directory of CA and edge certificate.
pub(crate) fn tls_dir(root: &Path) -> PathBuf {
    root.join("tls")
}

/// The directory of files that official clients are pointed at.
pub(crate) fn client_dir(root: &Path) -> PathBuf {
    root.join("client")
}

fn server_info_path(root: &Path) -> PathBuf {
    root.join("server.json")
}

/// The API key of the first start.
pub(crate) fn read_api_key(root: &Path) -> Result<Secret, StateDirError> {
    let path = api_key_path(root);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Secret::new(text.trim())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(StateDirError::NeverStarted { path: root.to_path_buf() })
        }
        Err(source) => Err(StateDirError::File { path, source }),
    }
}

/// What the last server on this directory said of itself.
pub(crate) fn read_server_info(root: &Path) -> Result<ServerInfo, StateDirError> {
    let path = server_info_path(root);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(StateDirError::NeverStarted { path: root.to_path_buf() });
        }
        Err(source) => return Err(StateDirError::File { path, source }),
    };
    serde_json::from_slice(&text)
        .map_err(|_| StateDirError::Damaged { path, why: "it is not the expected JSON" })
}

/// A key that seals secrets, by name.
pub(crate) type SecretKey = (String, Zeroizing<[u8; secrets::KEY_BYTES]>);

fn hex(bytes: &[u8]) -> Zeroizing<String> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = Zeroizing::new(String::with_capacity(bytes.len() * 2));
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

fn parse_secret_key(line: &str) -> Option<SecretKey> {
    let (name, digits) = line.split_once(' ')?;
    let mut key = Zeroizing::new([0_u8; secrets::KEY_BYTES]);
    if name.is_empty() || digits.len() != key.len() * 2 || !digits.is_ascii() {
        return None;
    }
    for (place, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[place * 2..place * 2 + 2], 16).ok()?;
    }
    Some((name.to_owned(), key))
}

/// Writes a 0600 file so that a crash leaves the old content or the new one.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<(), StateDirError> {
    let file = |source| StateDirError::File { path: path.to_path_buf(), source };
    let fresh = path.with_extension("new");
    let mut out =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh).map_err(file)?;
    out.write_all(content).and_then(|()| out.sync_all()).map_err(file)?;
    std::fs::rename(&fresh, path).map_err(file)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn one_owner_private_files_stable_key() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("deep/state");
        let state = StateDir::open(&root).unwrap();
        let key = state.master_key().unwrap();
        assert_eq!(state.master_key().unwrap(), key);
        let mode = |name: &str| std::fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("master.key"), 0o600);
        assert_eq!(mode("lock"), 0o600);
        assert_eq!(std::fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
        let first = state.secret_keys().unwrap();
        assert_eq!((first.len(), mode("secret.keys")), (1, 0o600));
        let two = vec![state.new_secret_key().unwrap(), first[0].clone()];
        state.write_secret_keys(&two).unwrap();
        assert_eq!(state.secret_keys().unwrap(), two);
        assert_ne!(two[0], two[1]);
        for damage in
            ["", "name", "name 00", &format!("name {}", "g".repeat(64)), &format!("{}\nx", "a ".repeat(9))]
        {
            std::fs::write(root.join("secret.keys"), damage).unwrap();
            assert!(state.secret_keys().unwrap_err().to_string().contains("damaged"), "{damage}");
        }
        let busy = StateDir::open(&root).unwrap_err().to_string();
        assert!(busy.contains(&format!("pid {}", std::process::id())), "{busy}");
        drop(state);
        std::fs::write(root.join("master.key"), b"short").unwrap();
        let damaged = StateDir::open(&root).unwrap().master_key().unwrap_err().to_string();
        assert!(damaged.contains("32 bytes"), "{damaged}");
    }
}
