//! Bytes between a guest and whoever it reached, unchanged, both ways: half-closes and resets come out as they went in. No
//! buffer is held while nothing moves, and a long stream goes through the kernel alone ([`crate::pipe`]).

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::net::sockopt;
use tokio::net::TcpStream;

use crate::budget::Bandwidth;
use crate::pipe::Pipe;

/// Large enough that system calls do not count, small enough that a hundred slow readers do not either.
const BUFFER: usize = 128 * 1024;
/// Buffers that are kept for the next transfer.
const KEPT: usize = 64;

/// How much went through.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// Until the connection is closed properly, whatever ends it must look like a failure to both sides.
pub(crate) fn reset_when_dropped(stream: &TcpStream) {
    let _the_kernel_knows_the_option = stream.set_zero_linger();
}

/// From now on an end is a proper one: what was written still arrives.
pub(crate) fn close_when_dropped(stream: &TcpStream) {
    let _the_kernel_knows_the_option = sockopt::set_socket_linger(stream.as_fd(), None);
}

/// Closes a connection whose last byte has been handed over.
pub(crate) fn close_cleanly(stream: TcpStream) {
    close_when_dropped(&stream);
}

/// Ends a connection as a closed port would.
pub(crate) fn refuse(stream: TcpStream) {
    reset_when_dropped(&stream);
}

/// Moves bytes until both sides have ended.
///
/// # Errors
/// One side was reset; then both are.
pub(crate) async fn relay(
    guest: TcpStream,
    service: TcpStream,
    limits: (&Bandwidth, &Bandwidth),
    traffic: &Traffic,
) -> io::Result<()> {
    let (upward, downward) = limits;
    tokio::try_join!(
        pump(&guest, &service, upward, &traffic.sent),
        pump(&service, &guest, downward, &traffic.received)
    )?;
    close_cleanly(guest);
    close_cleanly(service);
    Ok(())
}

async fn pump(from: &TcpStream, to: &TcpStream, limit: &Bandwidth, count: &AtomicU64) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut buffer = take_buffer();
        let read = match from.try_read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                give_back(buffer);
                continue;
            }
            Err(error) => return Err(error),
        };
        if read == 0 {
            give_back(buffer);
            return match rustix::net::shutdown(to, rustix::net::Shutdown::Write) {
                // It has been reset meanwhile, which its own direction finds out.
                Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        limit.spend(read).await;
        write(to, &buffer[..read]).await?;
        count.fetch_add(read as u64, Ordering::Relaxed);
        let more_waits = read == buffer.len();
        give_back(buffer);
        if more_waits && let Some(pipe) = Pipe::take() {
            pipe.carry(from, to, limit, count).await?;
        }
    }
}

/// Writes all of it.
pub(crate) async fn write(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

static BUFFERS: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());

fn take_buffer() -> Box<[u8]> {
    let kept = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner).pop();
    kept.unwrap_or_else(|| vec![0; BUFFER].into_boxed_slice())
}

fn give_back(buffer: Box<[u8]>) {
    let mut kept = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() < KEPT {
        kept.push(buffer);
    }
}
