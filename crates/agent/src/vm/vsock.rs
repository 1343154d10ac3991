//! Calls over vsock: each connection is one. Nobody but the host can make them: the guest's kernel has no way of its own from
//! itself to itself here, and the address says who called.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::sys;

/// A host that runs out of memory makes accepting fail at once, again and again.
const PAUSE: Duration = Duration::from_millis(20);

/// Starts the thread that takes calls.
pub(super) fn serve(listener: OwnedFd) -> io::Result<mpsc::Receiver<UnixStream>> {
    let (announce, calls) = mpsc::channel(1);
    std::thread::Builder::new().name("vsock".to_owned()).spawn(move || {
        loop {
            match sys::vsock::accept_from_host(listener.as_fd()) {
                // An error means that the rest of this process is gone. What is read and written is a stream of bytes, whatever
                // it is called.
                Ok(Some(call)) => {
                    if announce.blocking_send(UnixStream::from(call)).is_err() {
                        return;
                    }
                }
                Ok(None) => {}
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    })?;
    Ok(calls)
}
