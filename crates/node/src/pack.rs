//! Makes a layer of what a guest packs: its disk is not for this host's kernel. The archive is unpacked like any that comes
//! from elsewhere, and what the guest says of it is believed only where it says that there is none.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use driver::{Machine, NotPacked, Pack, PackStream};
use templates::{Layer, LayerStore, Staged, TemplateError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::error::NodeError;

/// How soon it is noticed that nobody wants a layer any more of which nothing arrives. Whoever wants it says so by a flag.
const UNWANTED_POLL: Duration = Duration::from_millis(200);
/// Of the archive on its way to the unpacker.
const BUFFER_BYTES: usize = 128 * 1024;
const TAKING: &str = "take the guest's archive";

/// Has the guest pack, and makes a layer of it; `None` when it has written nothing. Of what fails nothing is left.
pub(crate) async fn capture(
    machine: &dyn Machine,
    what: &Pack,
    layers: PathBuf,
    stop: &AtomicBool,
) -> Result<Option<Layer>, NodeError> {
    let archive = machine.pack(what).await?;
    let max_bytes = what.max_bytes;
    let (ours, theirs) = ends().map_err(NodeError::io(TAKING))?;
    let unpacking = tokio::task::spawn_blocking(move || {
        let unpacked = LayerStore::open(layers).and_then(|store| store.receive(&theirs, max_bytes));
        // Whoever writes is to know at once that nobody reads.
        let _gone = theirs.shutdown(Shutdown::Both);
        unpacked
    });
    let passed = pass(archive, ours, stop).await;
    let unpacked = unpacking.await.map_err(NodeError::Worker)?;
    let staged = match (passed, unpacked) {
        (Ok(()), unpacked) => unpacked?,
        // Whoever gave up first knows why.
        (Err(Lost::Unread), Err(error)) => return Err(error.into()),
        (Err(Lost::Unread), Ok(_)) => {
            return Err(NodeError::io(TAKING)(io::Error::other("the unpacker ended before the archive")));
        }
        (Err(Lost::Unwanted), _) => return Err(NodeError::Unwanted),
        (Err(Lost::Cut(error)), _) => return Err(cut(error, max_bytes)),
    };
    let commit = move || staged.map(Staged::commit).transpose();
    Ok(tokio::task::spawn_blocking(commit).await.map_err(NodeError::Worker)??)
}

fn ends() -> io::Result<(UnixStream, StdStream)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, theirs))
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
        Some(NotPacked::Failed) | None => NodeError::io(TAKING)(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use async_trait::async_trait;
    use driver::{BoxStream, DriverError, Power, Usage};
    use tar::{EntryType, Header};
    use tokio::io::{AsyncRead, ReadBuf};

    use super::*;

    /// A guest that says what it is told to.
    struct Guest(std::sync::Mutex<Option<PackStream>>);

    impl std::fmt::Debug for Guest {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Guest")
        }
    }

    impl Guest {
        fn saying(archive: impl AsyncRead + Send + Unpin + 'static) -> Self {
            Self(std::sync::Mutex::new(Some(Box::new(archive))))
        }
    }

    #[async_trait]
    impl Machine for Guest {
        async fn pack(&self, _what: &Pack) -> Result<PackStream, DriverError> {
            self.0.lock().unwrap().take().ok_or(DriverError::Gone)
        }
        async fn freeze(&self) -> Result<(), DriverError> {
            panic!("a guest that packs runs")
        }
        async fn thaw(&self) -> Result<(), DriverError> {
            Ok(())
        }
        async fn power(&self) -> Result<Power, DriverError> {
            Ok(Power::Running)
        }
        async fn agent(&self) -> Result<BoxStream, DriverError> {
            Err(DriverError::Gone)
        }
        async fn usage(&self) -> Result<Usage, DriverError> {
            Err(DriverError::Gone)
        }
        fn exit_fd(&self) -> Result<OwnedFd, DriverError> {
            Err(DriverError::Gone)
        }
        async fn destroy(&self) -> Result<(), DriverError> {
            Ok(())
        }
    }

    /// Says something, then fails, or the same again without end.
    struct Then {
        first: Vec<u8>,
        at: usize,
        then: Option<io::ErrorKind>,
    }

    impl AsyncRead for Then {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if self.at == self.first.len() {
                match self.then {
                    Some(error) => return Poll::Ready(Err(error.into())),
                    None => self.at = 0,
                }
            }
            let length = buffer.remaining().min(self.first.len() - self.at);
            buffer.put_slice(&self.first[self.at..self.at + length]);
            self.at += length;
            Poll::Ready(Ok(()))
        }
    }

    fn entry(kind: EntryType, name: &[u8], link: &[u8], size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        for (set, id) in [(Header::set_uid as fn(&mut Header, u64), 7), (Header::set_gid, 8)] {
            set(&mut header, id);
        }
        header.set_mode(0o4755);
        header.set_mtime(1);
        header.set_size(size);
        header.set_cksum();
        header
    }

    fn file(name: &[u8]) -> Vec<u8> {
        [entry(EntryType::Regular, name, b"", 1).as_bytes(), &[b'x'; 1][..], &[0; 511]].concat()
    }

    /// The end of an archive.
    const END: [u8; 1024] = [0; 1024];

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn layers(&self) -> PathBuf {
            self.0.path().join("layers")
        }

        async fn take(&self, guest: &Guest, max_bytes: u64, stop: bool) -> Result<Option<Layer>, NodeError> {
            let what = Pack { everything: false, except: Vec::new(), max_bytes };
            let stop = AtomicBool::new(stop);
            let taken = capture(guest, &what, self.layers(), &stop);
            tokio::time::timeout(Duration::from_secs(60), taken).await.expect("it comes to an end")
        }

        /// What is there but for locks and notes.
        fn left(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.layers()).into_iter().flatten();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| !name.ends_with("lock") && name != ".adding").collect()
        }
    }

    async fn refused(archive: impl AsyncRead + Send + Unpin + 'static, max_bytes: u64) -> String {
        let place = Place::new();
        let victim = place.0.path().join("victim");
        std::fs::write(&victim, "intact").unwrap();
        let error = place.take(&Guest::saying(archive), max_bytes, false).await.unwrap_err();
        assert_eq!(place.left(), Vec::<String>::new(), "after {error}");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "intact");
        assert_eq!(std::fs::metadata(&victim).unwrap().nlink(), 1);
        assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 2, "after {error}");
        crate::problem::of(domain::SandboxId::new(), error).chain()
    }

    #[tokio::test]
    async fn a_guests_archive_becomes_a_layer_of_its_own_ids() {
        let place = Place::new();
        let archive =
            [&file(b"srv/su")[..], entry(EntryType::Block, b"sda", b"", 0).as_bytes(), &END].concat();
        let guest = Guest::saying(io::Cursor::new(archive));
        let layer = place.take(&guest, 1 << 20, false).await.unwrap().unwrap();
        let of = std::fs::metadata(place.layers().join(&layer.digest).join("srv/su")).unwrap();
        assert_eq!((of.uid(), of.gid(), of.mode() & 0o7777), (1_000_007, 1_000_008, 0o4755));
        assert!(!place.layers().join(&layer.digest).join("sda").exists(), "devices are the engine's");
        // Nothing but the root, which is there anyway.
        let root = [&entry(EntryType::Directory, b"./", b"", 0).as_bytes()[..], &END].concat();
        let place = Place::new();
        assert_eq!(place.take(&Guest::saying(io::Cursor::new(root)), 1, false).await.unwrap(), None);
        assert_eq!(place.left(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_guest_that_packs_lies_writes_nowhere_else() {
        let link = |name: &[u8], to: &[u8]| entry(EntryType::Symlink, name, to, 0).as_bytes().to_vec();
        let hard = |name: &[u8], to: &[u8]| entry(EntryType::Link, name, to, 0).as_bytes().to_vec();
        let huge = entry(EntryType::Regular, b"huge", b"", 1 << 60).as_bytes().to_vec();
        let cases: [(&str, Vec<u8>); 13] = [
            ("absolute", file(b"/tmp/new")),
            ("`..`", file(b"a/../../../victim")),
            ("symbolic link", [link(b"out", b"../../.."), file(b"out/victim")].concat()),
            ("symbolic link", [link(b"out", b"../../.."), hard(b"mine", b"out/victim")].concat()),
            ("`..`", hard(b"mine", b"../../../victim")),
            ("hard link to nothing", hard(b"mine", b"nothing")),
            ("`..`", file(b"../../../.wh.victim")),
            ("whiteout of nothing", file(b"d/.wh...")),
            ("lies below a whiteout", file(b".wh.../victim")),
            ("unknown type", entry(EntryType::GNUSparse, b"holes", b"", 0).as_bytes().to_vec()),
            ("archive", huge),
            ("archive", b"HTTP/1.1 200 OK\r\n\r\n".repeat(50)),
            ("would replace a directory", [file(b"d/x"), file(b"d")].concat()),
        ];
        for (expected, archive) in cases {
            let archive = [&archive[..], &END].concat();
            let why = refused(io::Cursor::new(archive), 1 << 20).await;
            assert!(why.contains(expected), "{expected}: {why}");
        }
    }

    #[tokio::test]
    async fn a_guest_that_comes_to_no_end_is_stopped() {
        // As many bytes as one likes, in one file, in many, and behind the end of the archive.
        let endless = |first: Vec<u8>| Then { first, at: 0, then: None };
        let long = entry(EntryType::Regular, b"long", b"", 1 << 40).as_bytes().to_vec();
        let little = 1 << 20;
        for first in [[long, vec![b'x'; 1 << 20]].concat(), [file(b"a"), END.to_vec()].concat()] {
            let why = refused(endless(first), little).await;
            assert!(why.contains("bytes") || why.contains("larger than accepted"), "{why}");
        }
        // Nothing at all, until nobody wants it any more.
        let place = Place::new();
        let (silent, _held) = tokio::io::duplex(1);
        let stopped = place.take(&Guest::saying(silent), 1, true).await;
        assert!(matches!(stopped, Err(NodeError::Unwanted)), "{stopped:?}");
        assert_eq!(place.left(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn an_archive_that_breaks_off_is_none_wherever_it_does() {
        let whole = [&file(b"a")[..], &file(b"b"), &END].concat();
        for length in (0..=whole.len()).step_by(256) {
            let cut =
                Then { first: whole[..length].to_vec(), at: 0, then: Some(io::ErrorKind::UnexpectedEof) };
            let why = refused(cut, 1 << 20).await;
            assert!(why.contains("archive"), "{length}: {why}");
        }
    }

    #[tokio::test]
    async fn what_a_guest_says_of_a_failure_is_told() {
        struct Says(NotPacked);
        impl AsyncRead for Says {
            fn poll_read(
                self: Pin<&mut Self>,
                _: &mut Context<'_>,
                _: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                Poll::Ready(Err(io::Error::other(self.0.clone())))
            }
        }
        let reserved = NotPacked::Refused { path: "a/.wh.b".to_owned(), reason: "is bad".to_owned() };
        for (said, expected) in [(reserved, "`a/.wh.b` is bad"), (NotPacked::TooLarge, "more than 77 bytes")]
        {
            let why = refused(Says(said), 77).await;
            assert!(why.contains(expected), "{why}");
        }
        refused(Says(NotPacked::Failed), 77).await;
    }

    /// The way of the test is the way of the product.
    #[test]
    fn the_victim_is_where_archives_lead() {
        let place = Place::new();
        let root = place.layers().join(".tmp-1-1/root");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(place.0.path().join("victim"), "").unwrap();
        assert!(Path::new(&root).join("../../../victim").exists());
    }
}
