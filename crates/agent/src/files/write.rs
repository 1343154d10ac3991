//! Uploads: streamed into a new file beside the target, then renamed over it. Whatever goes wrong, and also when the
//! client goes away, the target keeps its old content and the new file is removed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use wire::data_plane::{MAX_UPLOAD_BYTES, Uploaded};

use super::{fault, query};
use crate::agent::Agent;
use crate::pool::Pool;
use crate::reply::{Refusal, Response, json};
use crate::sys::identity::Identity;

/// Frames are collected up to this size for one write on a pool thread.
const PIECE_BYTES: usize = 256 * 1024;
/// Between two frames; a client that sends nothing for so long has gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// After a refusal.
const MAX_DISCARDED_BYTES: usize = 256 * 1024 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);
/// As the kernel's own limit.
const MAX_LINKS: usize = 40;

pub(super) async fn answer(
    agent: &Rc<Agent>,
    who: &Arc<Identity>,
    path: PathBuf,
    headers: &HeaderMap,
    body: &mut Incoming,
) -> Result<Response, Refusal> {
    if path == Path::new("/") {
        return Err(Refusal::bad_request("/ cannot be written"));
    }
    let too_large = || Refusal::too_large(format!("an upload may have {MAX_UPLOAD_BYTES} bytes"));
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > MAX_UPLOAD_BYTES) {
        return Err(too_large());
    }
    let begun = {
        let path = path.clone();
        agent.files.run_as(who, move || begin(&path)).await
    };
    let new = match begun.map_err(|error| fault::refusal(&path, &error))? {
        Begun::New(new) => new,
        Begun::Refused(why) => return Err(Refusal::bad_request(why)),
    };
    let mut upload = Upload { pool: agent.files.clone(), who: Arc::clone(who), new: Some(new) };
    let size = receive(&upload, &path, body, too_large).await?;
    upload.finish().await.map_err(|error| fault::refusal(&path, &error))?;
    Ok(json(StatusCode::OK, &Uploaded { path: path.to_string_lossy().into_owned(), size }))
}

async fn receive(
    upload: &Upload,
    path: &Path,
    body: &mut Incoming,
    too_large: impl Fn() -> Refusal,
) -> Result<u64, Refusal> {
    let mut size = 0;
    let mut piece = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(IDLE_TIMEOUT, body.frame()).await.map_err(|_| {
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "bad_request", "the upload stood still")
        })?;
        let data = match frame {
            None => None,
            Some(Ok(frame)) => frame.into_data().ok(),
            Some(Err(_)) => return Err(Refusal::bad_request("the upload ended early")),
        };
        let over = data.is_none();
        if let Some(data) = data {
            size += data.len() as u64;
            if size > MAX_UPLOAD_BYTES {
                return Err(too_large());
            }
            piece.extend_from_slice(&data);
        }
        if piece.len() >= PIECE_BYTES || (over && !piece.is_empty()) {
            upload.write(piece.split().freeze()).await.map_err(|error| fault::refusal(path, &error))?;
        }
        if over {
            return Ok(size);
        }
    }
}

/// Takes what the client still sends: many read no answer before they have sent everything, and would report a broken
/// connection instead of the refusal.
pub(super) async fn discard(body: Incoming) {
    let mut body = Limited::new(body, MAX_DISCARDED_BYTES);
    let all = async { while let Some(Ok(_)) = body.frame().await {} };
    // A client that takes longer gets the broken connection.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, all).await;
}

/// An upload under way; dropped unfinished, it removes its file.
#[derive(Debug)]
struct Upload {
    pool: Pool,
    who: Arc<Identity>,
    new: Option<New>,
}

impl Upload {
    async fn write(&self, piece: Bytes) -> io::Result<()> {
        let Some(new) = &self.new else { return Ok(()) };
        let file = Arc::clone(&new.file);
        self.pool.run_as(&self.who, move || (&*file).write_all(&piece)).await
    }

    async fn finish(&mut self) -> io::Result<()> {
        let Some(new) = self.new.take() else { return Ok(()) };
        self.pool.run_as(&self.who, move || new.install()).await
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(new) = self.new.take() {
            self.pool.leave(Some(&self.who), move || drop(new));
        }
    }
}

enum Begun {
    New(New),
    Refused(String),
}

/// A new file on its way to a target. Dropped, it is removed again: with the rights of the thread that drops it.
#[derive(Debug)]
struct New {
    file: Arc<File>,
    path: PathBuf,
    target: PathBuf,
    installed: bool,
}

/// Blocking: checks the target, makes missing parents and the new file.
fn begin(path: &Path) -> io::Result<Begun> {
    let target = follow_links(path)?;
    let (Some(parent), Some(_)) = (target.parent(), target.file_name()) else {
        return Ok(Begun::Refused("/ cannot be written".to_owned()));
    };
    DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(|error| match error.kind() {
        // What is in the way of a directory.
        io::ErrorKind::AlreadyExists => io::Error::from_raw_os_error(libc::ENOTDIR),
        _ => error,
    })?;
    let real = parent.canonicalize()?;
    if query::is_reserved(&real.join(target.file_name().unwrap_or_default())) {
        return Ok(Begun::Refused(format!("path leads to {}, which cannot be written", real.display())));
    }
    let old = match std::fs::symlink_metadata(&target) {
        Ok(old) if old.is_dir() => return Ok(Begun::Refused(format!("{} is a directory", path.display()))),
        Ok(old) if !old.is_file() => {
            return Ok(Begun::Refused(format!("{} is not an ordinary file", path.display())));
        }
        Ok(old) => {
            // A rename asks for the directory's permission alone; overwriting has to be allowed by the file as well.
            match OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
                .open(&target)
            {
                Err(error) if error.raw_os_error() != Some(libc::ETXTBSY) => return Err(error),
                _ => Some(old),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let path = parent.join(temporary_name());
    let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path)?;
    let new = New { file: Arc::new(file), path, target, installed: false };
    if let Some(old) = old {
        // As if the old file had been overwritten: owner where possible, and the mode, e.g. of a script.
        let _ = fchown(&*new.file, Some(old.uid()), Some(old.gid()));
        new.file.set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o777))?;
    }
    Ok(Begun::New(new))
}

impl New {
    fn install(mut self) -> io::Result<()> {
        match std::fs::rename(&self.path, &self.target) {
            Ok(()) => {
                self.installed = true;
                Ok(())
            }
            // A file that is itself a mount point cannot be replaced, only overwritten.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                let mut from = File::open(&self.path)?;
                let mut to = OpenOptions::new()
                    .write(true)
                    .truncate(true)
                    .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
                    .open(&self.target)?;
                io::copy(&mut from, &mut to).map(drop)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.installed {
            // It may be gone with its directory.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Where writing to `path` would end up, for links whose target does not exist too.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match std::fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("/")).join(link),
            // No link, or nothing there.
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Unique among the agents that may share a directory.
fn temporary_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".superserve-upload-{}-{:x}-{next}", std::process::id(), now.as_nanos())
}
