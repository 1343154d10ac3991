//! A byte stream over two named pipes. The guest's side holds both open for reading and writing, so neither ever ends while
//! the guest lives, whoever comes and goes on this side: no process of ours has to outlive the server.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags};
use tokio::net::unix::pipe;

/// The two ends that the guest gets.
#[derive(Debug)]
pub struct Side {
    /// What we write.
    pub input: File,
    /// What we read.
    pub output: File,
}

/// Where the pipes are.
#[derive(Debug, Clone)]
pub struct Pipes {
    to_guest: PathBuf,
    from_guest: PathBuf,
}

impl Pipes {
    /// In a directory that nobody else may enter.
    #[must_use]
    pub fn below(dir: PathBuf) -> Self {
        Self { to_guest: dir.join("agent.in"), from_guest: dir.join("agent.out") }
    }

    /// Makes them, and opens the guest's side.
    ///
    /// # Errors
    /// They are there already, or cannot be made.
    pub fn create(&self) -> io::Result<Side> {
        let make = |path: &PathBuf| {
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, path.as_os_str().as_bytes(), FileType::Fifo, mode, 0)?;
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            Ok::<_, io::Error>(File::from(rustix::fs::open(path, flags, Mode::empty())?))
        };
        Ok(Side { input: make(&self.to_guest)?, output: make(&self.from_guest)? })
    }

    /// Opens our side; "not connected" when there is no guest.
    pub(crate) fn open(&self) -> io::Result<(pipe::Receiver, pipe::Sender)> {
        let gone = |error: io::Error| match error.raw_os_error() {
            // Nobody has it open for reading.
            Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => {
                io::ErrorKind::NotConnected.into()
            }
            _ => error,
        };
        let sender = pipe::OpenOptions::new().open_sender(&self.to_guest).map_err(gone)?;
        Ok((pipe::OpenOptions::new().open_receiver(&self.from_guest)?, sender))
    }
}
