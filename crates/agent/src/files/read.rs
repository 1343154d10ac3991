//! Opening and sending files.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::fs::{FsWord, Mode, OFlags};

use super::range::{self, Wanted};
use super::{fault, query, sniff};
use crate::agent::Agent;
use crate::reply::{Refusal, Response, empty};
use crate::route::Request;
use crate::sys::identity::Identity;

/// One read and one frame; large enough for loopback speed, small enough for many at once.
const PIECE_BYTES: u64 = 128 * 1024;
/// File systems whose files are kernel interfaces, wherever they are mounted and whichever link leads there.
const KERNEL_FILE_SYSTEMS: [FsWord; 4] =
    [libc::PROC_SUPER_MAGIC, libc::SYSFS_MAGIC, libc::DEBUGFS_MAGIC, libc::TRACEFS_MAGIC];

#[derive(Debug)]
pub(super) enum Opened {
    File(Found),
    Directory {
        linked: bool,
    },
    /// A device, pipe or socket, or a kernel interface.
    Special,
}

#[derive(Debug)]
pub(super) struct Found {
    file: Arc<File>,
    size: u64,
    modified: i64,
    content_type: &'static str,
}

/// Blocking. Never waits for the other end of a pipe and never touches a device.
pub(super) fn open(path: &Path) -> io::Result<Opened> {
    let seen = std::fs::metadata(path)?;
    if seen.is_dir() {
        return Ok(Opened::Directory { linked: std::fs::symlink_metadata(path)?.is_symlink() });
    }
    if !seen.is_file() {
        return Ok(Opened::Special);
    }
    let file = open_file(path, OFlags::empty())?;
    // The guest may have put something else there meanwhile.
    let metadata = file.metadata()?;
    if !metadata.is_file() || is_kernel_interface(&file) {
        return Ok(Opened::Special);
    }
    let mut head = [0; sniff::SNIFFED_BYTES];
    let length = file.read_at(&mut head, 0)?;
    Ok(Opened::File(Found {
        size: metadata.size(),
        modified: metadata.mtime(),
        content_type: sniff::content_type(&head[..length]),
        file: Arc::new(file),
    }))
}

/// Says yes also when the file system does not tell.
pub(super) fn is_kernel_interface(file: &File) -> bool {
    !rustix::fs::fstatfs(file).is_ok_and(|found| !KERNEL_FILE_SYSTEMS.contains(&found.f_type))
}

/// Opens for reading what should be a plain file.
pub(super) fn open_file(path: &Path, more: OFlags) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | more;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

pub(super) async fn answer(
    agent: &Rc<Agent>,
    who: &Arc<Identity>,
    path: PathBuf,
    found: Found,
    request: &Request,
) -> Result<Response, Refusal> {
    let headers = request.headers();
    // The condition of `If-Range` needs a validator we do not give; then the whole file is right.
    let range = headers.get(header::RANGE).filter(|_| !headers.contains_key(header::IF_RANGE));
    let wanted = range::parse(range.and_then(|value| value.to_str().ok()), found.size);
    let (status, start, length) = match wanted {
        Wanted::Whole => (StatusCode::OK, 0, found.size),
        Wanted::Part { start, length } => (StatusCode::PARTIAL_CONTENT, start, length),
        Wanted::Unsatisfiable => {
            let mut response = Response::from(Refusal::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "bad_request",
                format!("the file has {} bytes", found.size),
            ));
            set(&mut response, header::CONTENT_RANGE, &format!("bytes */{}", found.size));
            return Ok(response);
        }
    };
    let mut response = empty(status);
    if request.method() != Method::HEAD {
        *response.body_mut() = body(agent, who, &path, found.file, start, length).await?;
    }
    set(&mut response, header::CONTENT_LENGTH, &length.to_string());
    set(&mut response, header::CONTENT_TYPE, found.content_type);
    set(&mut response, header::ACCEPT_RANGES, "bytes");
    set(&mut response, header::CONTENT_DISPOSITION, &disposition("inline", &query::base_name(&path)));
    if let Ok(modified) = jiff::Timestamp::from_second(found.modified) {
        set(
            &mut response,
            header::LAST_MODIFIED,
            &modified.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string(),
        );
    }
    if status == StatusCode::PARTIAL_CONTENT {
        let last = start + length - 1;
        set(&mut response, header::CONTENT_RANGE, &format!("bytes {start}-{last}/{}", found.size));
    }
    Ok(response)
}

/// The first piece is read before the answer starts, so that a file that cannot be read gets a proper refusal. Later
/// failures, and a file that shrinks, end the connection: the length was promised.
async fn body(
    agent: &Rc<Agent>,
    who: &Arc<Identity>,
    path: &Path,
    file: Arc<File>,
    start: u64,
    length: u64,
) -> Result<crate::reply::Body, Refusal> {
    let (pool, who) = (agent.files.clone(), Arc::clone(who));
    let read = move |at: u64, end: u64| {
        let (pool, who, file) = (pool.clone(), Arc::clone(&who), Arc::clone(&file));
        async move {
            let length = (end - at).min(PIECE_BYTES);
            pool.run_as(&who, move || piece(&file, at, length)).await
        }
    };
    let end = start + length;
    let first = if length == 0 {
        Bytes::new()
    } else {
        read(start, end).await.map_err(|error| fault::refusal(path, &error))?
    };
    let pieces = stream::try_unfold((start, Some(first)), move |(at, ready)| {
        let read = read.clone();
        async move {
            if at >= end {
                return Ok(None);
            }
            let piece = match ready {
                Some(piece) => piece,
                None => read(at, end).await?,
            };
            if piece.is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            let next = at + piece.len() as u64;
            Ok(Some((Frame::data(piece), (next, None))))
        }
    });
    Ok(Box::pin(StreamBody::new(pieces)))
}

fn piece(file: &File, at: u64, length: u64) -> io::Result<Bytes> {
    let mut buffer = vec![0; usize::try_from(length).unwrap_or(0)];
    let length = file.read_at(&mut buffer, at)?;
    buffer.truncate(length);
    Ok(Bytes::from(buffer))
}

/// `Content-Disposition`: a plain name for everybody, the real one for those who know RFC 8187.
pub(super) fn disposition(kind: &str, name: &str) -> String {
    let plain: String =
        name.chars()
            .map(|character| {
                if matches!(character, ' '..='~') && !matches!(character, '"' | '\\') {
                    character
                } else {
                    '_'
                }
            })
            .collect();
    if plain == name {
        format!("{kind}; filename=\"{plain}\"")
    } else {
        format!(
            "{kind}; filename=\"{plain}\"; filename*=UTF-8''{}",
            utf8_percent_encode(name, NON_ALPHANUMERIC)
        )
    }
}

/// All values given here are visible ASCII.
pub(super) fn set(response: &mut Response, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispositions() {
        assert_eq!(disposition("inline", "a b.txt"), "inline; filename=\"a b.txt\"");
        assert_eq!(
            disposition("attachment", "ü\"\n.zip"),
            "attachment; filename=\"___.zip\"; filename*=UTF-8''%C3%BC%22%0A%2Ezip"
        );
    }
}
