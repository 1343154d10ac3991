//! What begins each call on a machine's port (`wire::agent::vm`). Whoever knew it could end the platform's connection out of
//! what a client sends, and speak to the agent in its place: so it is derived from a secret of this platform. The secret
//! is kept, because the memory of a paused machine has its mark.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use domain::SandboxId;
use sha2::{Digest, Sha256};
use wire::agent::vm::MARK_BYTES;

const SECRET_BYTES: usize = 32;
const FILE: &str = "secret";

/// What a machine's calls begin with.
pub type Mark = [u8; MARK_BYTES];

/// From which marks are made; never shown.
pub struct Secret([u8; SECRET_BYTES]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// One of which nothing is kept.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn passing() -> io::Result<Self> {
        let mut bytes = [0; SECRET_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes))
    }

    /// The one of a directory, made there once. One that is damaged is not replaced: paused machines know it.
    ///
    /// # Errors
    /// It cannot be read or made.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let path = dir.join(FILE);
        match read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        let unfinished = dir.join(format!("{FILE}.{}.new", std::process::id()));
        let written = write(&unfinished).and_then(|()| match std::fs::hard_link(&unfinished, &path) {
            // Another was first.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => File::open(dir)?.sync_all(),
        });
        let _not_there = std::fs::remove_file(&unfinished);
        written.and_then(|()| read(&path))
    }

    /// The same for one machine for ever, and of no use for finding out another's.
    #[must_use]
    pub fn mark(&self, id: SandboxId) -> Mark {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        hasher.update(uuid::Uuid::from(id).as_bytes());
        let digest = hasher.finalize();
        std::array::from_fn(|at| digest[at])
    }
}

fn read(path: &Path) -> io::Result<Secret> {
    let mut found = Vec::new();
    let most = SECRET_BYTES as u64 + 1;
    File::open(path)?.take(most).read_to_end(&mut found)?;
    found.try_into().map(Secret).map_err(|_| {
        let what = format!("{} is damaged; removing it gives up paused machines", path.display());
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

fn write(path: &Path) -> io::Result<()> {
    let _former = std::fs::remove_file(path);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&Secret::passing()?.0)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_closed() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let made: Vec<_> = std::thread::scope(|scope| {
            let all = [(); 4].map(|()| scope.spawn(|| Secret::of(at).map(|secret| secret.0)));
            all.map(|one| one.join().unwrap()).into_iter().flatten().collect()
        });
        assert!(!made.is_empty());
        let kept = Secret::of(at).unwrap();
        assert!(made.iter().all(|secret| *secret == kept.0));
        assert_eq!(std::fs::metadata(at.join(FILE)).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(at).unwrap().count(), 1);
        assert_eq!(format!("{kept:?}"), "Secret");
        std::fs::write(at.join(FILE), "").unwrap();
        assert!(Secret::of(at).unwrap_err().to_string().contains("damaged"));
    }

    #[test]
    fn marks_are_a_machines_and_a_platforms_own() {
        let (one, other) = (Secret::passing().unwrap(), Secret::passing().unwrap());
        let id = SandboxId::new();
        assert_eq!(one.mark(id), one.mark(id));
        assert_ne!(one.mark(id), other.mark(id));
        assert_ne!(one.mark(id), one.mark(SandboxId::new()));
    }
}
