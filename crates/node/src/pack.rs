//! Makes a layer of what a guest packs: its disk is not for this host's kernel. The archive is unpacked like any that comes
//! from elsewhere, and what the guest says of it is believed only where it says that there is none.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use driver::{Machine, NotPacked, Pack, PackStream};
use templates::{LayerStore, Staged, TemplateError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::error::NodeError;

/// How soon it is noticed that nobody wants a layer any more of which nothing arrives. Whoever wants it says so by a flag.
const UNWANTED_POLL: Duration = Duration::from_millis(200);
/// Of the archive on its way to the unpacker.
const BUFFER_BYTES: usize = 128 * 1024;

/// Has the guest pack, and unpacks. The workload stands still until this returns, and nothing is left of what fails.
pub(crate) async fn read(
    machine: &dyn Machine,
    what: &Pack,
    store: LayerStore,
    stop: &AtomicBool,
) -> Result<Option<Staged>, NodeError> {
    let max_bytes = what.max_bytes;
    let archive = machine.pack(what).await?;
    let failed = || NodeError::io("take the guest's archive");
    let (ours, theirs) = StdStream::pair().map_err(failed())?;
    ours.set_nonblocking(true).map_err(failed())?;
    let ours = UnixStream::from_std(ours).map_err(failed())?;
    let unpacking = tokio::task::spawn_blocking(move || {
        let unpacked = store.receive(&theirs, max_bytes);
        // Whoever writes is to know at once that nobody reads.
        let _gone = theirs.shutdown(Shutdown::Both);
        unpacked
    });
    let passed = pass(archive, ours, stop).await;
    let unpacked = unpacking.await.map_err(NodeError::Worker)?;
    match (passed, unpacked) {
        (Ok(()), unpacked) => Ok(unpacked?),
        // Whoever gave up first knows why.
        (Err(Lost::Unread), Err(error)) => Err(error.into()),
        (Err(Lost::Unread), Ok(_)) => Err(failed()(io::Error::other("it goes on after its end"))),
        (Err(Lost::Unwanted), _) => Err(NodeError::Unwanted),
        (Err(Lost::Cut(error)), _) => Err(cut(error, max_bytes)),
    }
}

/// Why an archive did not get to its end.
enum Lost {
    /// The unpacker takes no more of it.
    Unread,
    /// Nobody wants the layer any more.
    Unwanted,
    /// The guest has not finished it.
    Cut(io::Error),
}

async fn pass(mut archive: PackStream, mut to: UnixStream, stop: &AtomicBool) -> Result<(), Lost> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = tokio::time::timeout(UNWANTED_POLL, archive.read(&mut buffer)).await;
        if stop.load(Ordering::Relaxed) {
            return Err(Lost::Unwanted);
        }
        match read {
            Ok(Ok(0)) => return Ok(()),
            Ok(Ok(read)) => to.write_all(&buffer[..read]).await.map_err(|_| Lost::Unread)?,
            Ok(Err(error)) => return Err(Lost::Cut(error)),
            Err(_) => {}
        }
    }
}

fn cut(error: io::Error, limit: u64) -> NodeError {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(NotPacked::Refused { path, reason }) => {
            TemplateError::Refused { entry: path.clone(), reason: reason.clone() }.into()
        }
        Some(NotPacked::TooLarge) => TemplateError::TooLarge { limit, unit: "bytes" }.into(),
        Some(NotPacked::Failed) | None => NodeError::io("take the guest's archive")(error),
    }
}
