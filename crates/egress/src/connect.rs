//! Opening a connection in two steps, so that what decides on it and its beginning can be one.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use tokio::net::TcpStream;

/// A connection that is being opened.
#[derive(Debug)]
pub(crate) struct Pending(OwnedFd);

/// Sends the first packet; never waits.
pub(crate) fn begin(socket: OwnedFd, to: SocketAddr) -> io::Result<Pending> {
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(Pending(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Waits for the other side.
pub(crate) async fn finish(pending: Pending) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(pending.0.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        None => Ok(stream),
        Some(error) => Err(error),
    }
}
