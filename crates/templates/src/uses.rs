//! Who needs layers that nothing in the database refers to yet. Whoever makes a template adds layers, or finds some that
//! are there, long before its row names them; meanwhile somebody else removes what no row names.
//!
//! ```text
//! .adding/7/812-0.user  somebody adds layers since generation 7, and needs those whose digests are in it; it is locked
//!                       as long as that is so
//! .adding/7/<digest>    the layer was added in generation 7, by whom is not known
//! .adding/8/…
//! ```
//!
//! A layer that somebody needs is kept, and one that was added by whom is not known as long as anybody is there who may
//! have been it: whoever began in its generation or before. Everyone who begins opens a new generation, so removal never
//! waits for a moment in which nobody adds. Generations are counted, not dated: clocks go backwards.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::FlockOperation;

use crate::error::TemplateError;
use crate::store::{LayerStore, WorkDir, is_digest, lock_file};

const DIR: &str = ".adding";
const USER: &str = ".user";
/// Held, shared, for the moment of a note, and alone while layers are taken out.
const LOCK: &str = ".adding.lock";
/// Notes take microseconds each; whoever removes comes in between two of them.
const TRIES: u32 = 100;
const TRY_EVERY: Duration = Duration::from_millis(10);

/// See [`LayerStore::adding`].
#[derive(Debug, Clone)]
pub struct Adding(Arc<User>);

#[derive(Debug)]
struct User {
    path: PathBuf,
    /// Locked.
    file: File,
    /// The directory is not swept while somebody adds.
    _in_use: Arc<OwnedFd>,
}

impl Drop for User {
    fn drop(&mut self) {
        // The lock goes in any case, and with it what the file stands for.
        let _unlocked = fs::remove_file(&self.path);
    }
}

/// See [`LayerStore::removing`].
#[derive(Debug)]
pub struct Removing {
    store: LayerStore,
    _lock: OwnedFd,
}

/// Layers that are in the store no more; removing their files takes a while.
#[derive(Debug)]
pub struct Remains {
    /// How many there were.
    pub count: usize,
    _work: WorkDir,
}

impl LayerStore {
    /// Held by whoever adds layers until something refers to them: what is added, or [kept](Self::keep), since it was taken is
    /// not removed. Blocking.
    ///
    /// # Errors
    /// `Io` when the layer directory cannot be written.
    pub fn adding(&self) -> Result<Adding, TemplateError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let _noting = self.noting()?;
        // What was noted before is not needed by this one.
        let dir = opened(self.dir()).map_err(failed())?;
        let (path, file) = loop {
            let name = format!("{}-{}{USER}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = dir.join(name);
            match File::options().create_new(true).append(true).open(&path) {
                // Of a process that had the same number and was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => break (path, opened.map_err(failed())?),
            }
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(failed())?;
        Ok(Adding(Arc::new(User { path, file, _in_use: self.in_use() })))
    }

    /// The same store, for the use of one who adds: what comes by way of it is known to be needed by nobody else.
    #[must_use]
    pub fn used_by(mut self, adding: &Adding) -> Self {
        self.user = Some(adding.clone());
        self
    }

    /// Notes that a layer is of use to somebody who [adds](Self::adding); `false` when it is not there. Blocking.
    ///
    /// # Errors
    /// `Io` when the layer directory cannot be written.
    pub fn keep(&self, digest: &str) -> Result<bool, TemplateError> {
        let noting = self.noting()?;
        if self.path(digest).is_none() {
            return Ok(false);
        }
        self.note(&noting, digest)?;
        if self.user.is_some() {
            // Now it is known who has added it.
            forget(self.dir(), digest).map_err(failed())?;
        }
        Ok(true)
    }

    /// Nobody removes layers while this is held, which must be for a moment only.
    pub(crate) fn noting(&self) -> Result<Noting, TemplateError> {
        let lock = lock_file(&self.dir().join(LOCK))?;
        rustix::fs::flock(&lock, FlockOperation::LockShared).map_err(failed())?;
        Ok(Noting { _lock: lock })
    }

    pub(crate) fn note(&self, _while: &Noting, digest: &str) -> Result<(), TemplateError> {
        let note = || match &self.user {
            Some(Adding(user)) => (&user.file).write_all(format!("{digest}\n").as_bytes()),
            None => File::create(newest(self.dir())?.join(digest)).map(drop),
        };
        note().map_err(failed())
    }

    /// Held by whoever removes layers that nothing refers to, from before it asks what is referred to: nothing is added
    /// meanwhile. `None` when it could not be had, because others note something all the time. Blocking.
    ///
    /// # Errors
    /// `Io` when the lock file cannot be used.
    pub fn removing(&self) -> Result<Option<Removing>, TemplateError> {
        let lock = lock_file(&self.dir().join(LOCK))?;
        for _ in 0..TRIES {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Removing { store: self.clone(), _lock: lock })),
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(TRY_EVERY),
                Err(error) => return Err(failed()(error)),
            }
        }
        Ok(None)
    }
}

/// See [`LayerStore::noting`].
#[derive(Debug)]
pub(crate) struct Noting {
    _lock: OwnedFd,
}

impl Removing {
    /// Takes layers out of the store, but for those that somebody who adds needs; what is returned are their remains,
    /// which go when it is dropped. Blocking.
    ///
    /// # Errors
    /// `Io` when one cannot be taken out; those before it are.
    pub fn take_out(self, digests: &[String]) -> Result<Remains, TemplateError> {
        let needed = still_needed(self.store.dir()).map_err(failed())?;
        let work = self.store.work_dir()?;
        let mut count = 0;
        for digest in digests.iter().filter(|digest| !needed.contains(*digest)) {
            if let Some(path) = self.store.path(digest) {
                fs::rename(path, work.path().join(digest))
                    .map_err(TemplateError::io("cannot remove the layer"))?;
                count += 1;
            }
        }
        Ok(Remains { count, _work: work })
    }
}

fn failed<E: Into<io::Error>>() -> impl FnOnce(E) -> TemplateError {
    TemplateError::io("cannot note the use of layers")
}

/// The generations there are, oldest first.
fn generations(layers: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    match fs::read_dir(layers.join(DIR)) {
        Ok(entries) => {
            for entry in entries {
                found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    found.sort_unstable();
    Ok(found)
}

/// The directory of the newest generation, made if there is none.
fn newest(layers: &Path) -> io::Result<PathBuf> {
    let number = generations(layers)?.last().copied().unwrap_or(1);
    let path = layers.join(DIR).join(number.to_string());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    Ok(path)
}

/// The directory of a generation in which nothing has been noted yet.
fn opened(layers: &Path) -> io::Result<PathBuf> {
    let newest = newest(layers)?;
    let noted = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(is_digest))
    };
    if !fs::read_dir(&newest)?.any(noted) {
        return Ok(newest);
    }
    let next = generations(layers)?.last().map_or(1, |last| last + 1);
    let path = layers.join(DIR).join(next.to_string());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    Ok(path)
}

/// Takes back what was noted without a name.
fn forget(layers: &Path, digest: &str) -> io::Result<()> {
    for number in generations(layers)? {
        match fs::remove_file(layers.join(DIR).join(number.to_string()).join(digest)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Forgets the generations of which nobody is left, and says what is still needed.
fn still_needed(layers: &Path) -> io::Result<BTreeSet<String>> {
    let known = generations(layers)?;
    let mut needed = BTreeSet::new();
    let mut anybody = false;
    for number in &known {
        let dir = layers.join(DIR).join(number.to_string());
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir)? {
            names.extend(entry?.file_name().into_string());
        }
        let (users, digests): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.ends_with(USER));
        for user in users {
            let path = dir.join(user);
            let mut file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                // Its process ended without a word, or it has ended since.
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => continue,
                }
            }
            anybody = true;
            let mut noted = String::new();
            file.read_to_string(&mut noted)?;
            needed.extend(noted.lines().map(str::to_owned));
        }
        if anybody {
            needed.extend(digests);
        } else {
            fs::remove_dir_all(dir)?;
        }
    }
    Ok(needed)
}

/// Forgets everything; nobody adds.
pub(crate) fn sweep(layers: &Path) -> io::Result<()> {
    match fs::remove_dir_all(layers.join(DIR)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{Archive, Place, place};

    fn layer(place: &Place, content: &str) -> String {
        place.import(Archive::default().file("a", content)).unwrap().digest
    }

    fn take_out(place: &Place, digests: &[&String]) -> usize {
        let digests: Vec<String> = digests.iter().map(|digest| (*digest).clone()).collect();
        place.store.removing().unwrap().unwrap().take_out(&digests).unwrap().count
    }

    #[test]
    fn what_somebody_needs_stays_and_the_rest_goes_meanwhile() {
        let place = place();
        let (old, found) = (layer(&place, "old"), layer(&place, "found"));
        let first = place.store.adding().unwrap();
        let added = layer(&place, "added");
        assert!(place.store.keep(&found).unwrap());
        assert!(!place.store.keep(&"0".repeat(64)).unwrap() && !place.store.keep("../x").unwrap());
        // Removal goes on although somebody adds, and is about nothing of theirs.
        assert_eq!(take_out(&place, &[&old, &found, &added]), 1);
        assert!(place.store.path(&old).is_none() && place.store.path(&found).is_some());
        // The same bytes again are of use again.
        let again = place.store.adding().unwrap();
        assert_eq!(layer(&place, "added"), added);
        assert_eq!(take_out(&place, &[&found, &added]), 0);
        drop(first);
        assert_eq!(take_out(&place, &[&found, &added]), 1);
        assert!(place.store.path(&added).is_some());
        drop(again);
        assert_eq!(take_out(&place, &[&added]), 1);
        assert!(place.store.list().unwrap().is_empty());
    }

    #[test]
    fn builds_that_overlap_without_an_end_hold_nothing_up() {
        let place = place();
        let mut last = place.store.adding().unwrap();
        for round in 0..20 {
            let made = layer(&place, &round.to_string());
            let next = place.store.adding().unwrap();
            // It is needed as long as anybody is there who was there when it was made.
            assert_eq!(take_out(&place, &[&made]), 0, "round {round}");
            drop(last);
            assert_eq!(take_out(&place, &[&made]), 1, "round {round}");
            last = next;
        }
        drop(last);
        assert!(std::fs::read_dir(place.dir.path().join("layers/.adding")).unwrap().count() < 4);
    }

    #[test]
    fn who_needs_a_layer_is_known_when_it_is_said() {
        let place = place();
        let long = place.store.adding().unwrap();
        let short = place.store.adding().unwrap();
        let of_short = place.store.clone().used_by(&short);
        let archive = Archive::default().file("a", "of short").bytes();
        let direct = of_short.import_tar(&archive[..], &|_| {}).unwrap().digest;
        // By somebody else for it, and then taken over.
        let by_other = layer(&place, "for short");
        let unknown = layer(&place, "unknown");
        assert!(of_short.keep(&by_other).unwrap());
        assert_eq!(take_out(&place, &[&direct, &by_other, &unknown]), 0);
        drop((of_short, short));
        assert_eq!(take_out(&place, &[&direct, &by_other, &unknown]), 2);
        drop(long);
        assert_eq!(take_out(&place, &[&unknown]), 1);
    }

    #[test]
    fn whoever_died_needs_nothing() {
        let place = place();
        let adding = place.store.adding().unwrap();
        let made = layer(&place, "x");
        // As after a kill: the file stays, the lock does not.
        let path = adding.0.path.clone();
        drop(adding);
        std::fs::write(&path, "").unwrap();
        // This process has its number now, and comes to the same name.
        let dir = place.dir.path().join("layers/.adding/2");
        std::fs::create_dir(&dir).unwrap();
        let (process, number) = path.file_stem().unwrap().to_str().unwrap().split_once('-').unwrap();
        let next = number.parse::<u64>().unwrap() + 1;
        std::fs::write(dir.join(format!("{process}-{next}.user")), "").unwrap();
        drop(place.store.adding().unwrap());
        assert_eq!(take_out(&place, &[&made]), 1);
    }
}
