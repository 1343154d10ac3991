//! `format=zip`: a directory as an archive, written while it is sent. Each archive has a thread of its own, because a
//! slow client may hold it up for long; under a process limit there may be none, which is an error and no panic.

use std::fs::Metadata;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::{StatusCode, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::fs::OFlags;
use tokio::sync::mpsc;
use wire::data_plane::{MAX_ZIP_BYTES, MAX_ZIP_ENTRIES};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::query;
use super::read::{disposition, is_kernel_interface, open_file, set};
use crate::agent::{Agent, Counted};
use crate::reply::{Refusal, Response, empty};
use crate::sys::identity::{self, Identity};

/// At one time; each has a thread and the compressor's state.
const MAX_ARCHIVES: usize = 4;
/// The compressor keeps its state on the heap.
const STACK_BYTES: usize = 256 * 1024;
const PIECE_BYTES: usize = 64 * 1024;
/// Pieces waiting for a slow client.
const WAITING_PIECES: usize = 2;
/// The format's own limit for a name.
const MAX_NAME_BYTES: usize = 60_000;

pub(super) fn answer(agent: &Rc<Agent>, who: &Arc<Identity>, path: PathBuf) -> Result<Response, Refusal> {
    let counted = Counted::new(agent, |agent| &agent.archives, MAX_ARCHIVES).ok_or_else(|| {
        Refusal::busy(format!("{MAX_ARCHIVES} archives are being made; wait for one to end"))
    })?;
    let base = query::base_name(&path);
    let (sender, receiver) = mpsc::channel(WAITING_PIECES);
    let who = Arc::clone(who);
    let name = base.clone();
    std::thread::Builder::new()
        .name("archive".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let made = identity::assume(&who).and_then(|()| write(&path, &name, Pieces::new(sender.clone())));
            if let Err(error) = made {
                // Nobody listens any more, or the archive breaks off, which the client sees as a broken connection.
                let _ = sender.blocking_send(Err(error));
            }
        })
        .map_err(|error| Refusal::internal(format!("no thread for an archive: {error}")))?;
    let pieces = stream::unfold((receiver, counted), |(mut receiver, counted)| async move {
        let piece: io::Result<Bytes> = receiver.recv().await?;
        Some((piece.map(Frame::data), (receiver, counted)))
    });
    let mut response = empty(StatusCode::OK);
    *response.body_mut() = Box::pin(StreamBody::new(pieces));
    set(&mut response, header::CONTENT_TYPE, "application/zip");
    set(&mut response, header::CONTENT_DISPOSITION, &disposition("attachment", &format!("{base}.zip")));
    Ok(response)
}

/// Hands the archive's bytes on in pieces. Once nobody takes them any more, writing fails and the thread ends.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Pieces {
    fn new(sender: mpsc::Sender<io::Result<Bytes>>) -> Self {
        Self { sender, buffer: Vec::with_capacity(PIECE_BYTES) }
    }

    fn hand_on(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE_BYTES)));
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == PIECE_BYTES {
            self.hand_on()?;
        }
        Ok(taken)
    }

    /// Only [`Pieces::hand_on`] decides when a piece is large enough.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Blocking: directories and regular files below `root`; links and special files are skipped, and what cannot be read
/// too. Past a cap the archive is cut but valid.
fn write(root: &Path, base: &str, out: Pieces) -> io::Result<()> {
    let mut zip = ZipWriter::new_stream(out);
    let mut bytes_left = MAX_ZIP_BYTES;
    let mut entries_left = MAX_ZIP_ENTRIES - 1;
    let mut buffer = vec![0; PIECE_BYTES];
    zip.add_directory(format!("{base}/"), options(&std::fs::metadata(root)?))?;
    let mut directories = vec![(root.to_path_buf(), base.to_owned())];
    'walk: while let Some((directory, prefix)) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else { continue };
            if !(metadata.is_dir() || metadata.is_file()) || query::is_reserved(&path) {
                continue;
            }
            if entries_left == 0 || bytes_left == 0 {
                break 'walk;
            }
            let name = format!("{prefix}/{}", entry.file_name().to_string_lossy());
            if name.len() > MAX_NAME_BYTES {
                continue;
            }
            entries_left -= 1;
            if metadata.is_dir() {
                // Two names that differ only in broken characters: the first one counts.
                if zip.add_directory(format!("{name}/"), options(&metadata)).is_ok() {
                    directories.push((path, name));
                }
                continue;
            }
            let Ok(file) = open_file(&path, OFlags::NOFOLLOW) else { continue };
            if !file.metadata().is_ok_and(|metadata| metadata.is_file())
                || is_kernel_interface(&file)
                || zip.start_file(name, options(&metadata)).is_err()
            {
                continue;
            }
            let mut file = file.take(bytes_left);
            // A file that cannot be read to its end is cut; a writer that fails ends the archive.
            while let Ok(length @ 1..) = file.read(&mut buffer) {
                zip.write_all(&buffer[..length])?;
                bytes_left -= length as u64;
            }
        }
    }
    zip.finish()?.into_inner().hand_on()
}

fn options(metadata: &Metadata) -> SimpleFileOptions {
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .unix_permissions(metadata.mode() & 0o777);
    let modified = Timestamp::from_second(metadata.mtime()).ok().and_then(|modified| {
        let at = modified.to_zoned(TimeZone::UTC).datetime();
        let part = |value: i8| u8::try_from(value).ok();
        let (year, month, day) = (u16::try_from(at.year()).ok()?, part(at.month())?, part(at.day())?);
        // Fails before 1980 and after 2107, which the format cannot express.
        DateTime::from_date_and_time(
            year,
            month,
            day,
            part(at.hour())?,
            part(at.minute())?,
            part(at.second())?,
        )
        .ok()
    });
    modified.map_or(options, |modified| options.last_modified_time(modified))
}
