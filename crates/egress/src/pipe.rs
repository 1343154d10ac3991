//! The kernel's own way from one connection to another: what lies in a pipe is never copied into this process. It pays for
//! streams, so a pipe is lent to a direction as long as bytes keep coming, and there are few.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::budget::Bandwidth;

/// Pipes there are at most, each with two descriptors; streams beyond that are copied.
const MOST: usize = 64;
/// What goes through at once: more brings nothing, and the kernel's bound for all pipes of a user is 64 MiB.
const CAPACITY: usize = 512 * 1024;
/// A stream that pauses for longer gives its pipe back.
const PATIENCE: Duration = Duration::from_millis(20);

static MADE: AtomicUsize = AtomicUsize::new(0);
static IDLE: Mutex<Vec<Ends>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
}

impl Drop for Ends {
    fn drop(&mut self) {
        MADE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An empty pipe, which goes back when its stream has been carried. Dropped before, it is closed with what is in it.
#[derive(Debug)]
pub(crate) struct Pipe(Ends);

impl Pipe {
    /// One, if there is one: without descriptors, or with too many streams at once, there is none.
    pub(crate) fn take() -> Option<Self> {
        if let Some(ends) = idle().pop() {
            return Some(Self(ends));
        }
        let free = |made| (made < MOST).then_some(made + 1);
        MADE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok()?;
        let Ok((read, write)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else {
            MADE.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        // The kernel's own size where this one is not to be had.
        let capacity = fcntl_setpipe_size(&write, CAPACITY).unwrap_or(64 * 1024);
        Some(Self(Ends { read, write, capacity }))
    }

    /// Carries what comes until nothing has come for a moment, or the sender has ended, which is left for the caller to
    /// find.
    ///
    /// # Errors
    /// One side was reset.
    pub(crate) async fn carry(
        self,
        from: &TcpStream,
        to: &TcpStream,
        limit: &Bandwidth,
        count: &AtomicU64,
    ) -> io::Result<()> {
        let Self(ends) = self;
        while let Ok(ready) = timeout(PATIENCE, from.readable()).await {
            ready?;
            let taken = from.try_io(Interest::READABLE, || {
                moved(splice(from, None, &ends.write, None, ends.capacity, FLAGS))
            });
            let taken = match taken {
                Ok(0) => break,
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            limit.spend(taken).await;
            let mut left = taken;
            while left > 0 {
                let given =
                    to.try_io(Interest::WRITABLE, || moved(splice(&ends.read, None, to, None, left, FLAGS)));
                match given {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(given) => left -= given,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                    Err(error) => return Err(error),
                }
            }
            count.fetch_add(taken as u64, Ordering::Relaxed);
        }
        idle().push(ends);
        Ok(())
    }
}

const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);

fn moved(result: rustix::io::Result<usize>) -> io::Result<usize> {
    Ok(result?)
}

fn idle() -> std::sync::MutexGuard<'static, Vec<Ends>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::relay::{Traffic, relay};

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    /// More streams than pipes, both ways at once, with pauses: every byte arrives in its place, and no pipe is lost.
    #[tokio::test(flavor = "multi_thread")]
    async fn streams_arrive_as_they_were_sent() {
        const SIZE: usize = 3_000_000;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..MOST + 8 {
            tasks.spawn(async move {
                let (guest, guest_end) = pair().await;
                let (service_end, service) = pair().await;
                let limits = Bandwidth::new(None);
                let traffic = Traffic::default();
                let data: Vec<u8> =
                    (0..SIZE).map(|at| u8::try_from((at * 31 + number) % 251).unwrap()).collect();
                let talk = |end: TcpStream, data: Vec<u8>| async move {
                    let (mut read, mut write) = end.into_split();
                    let expected = data.clone();
                    let send = async move {
                        for part in data.chunks(1_000_000) {
                            write.write_all(part).await.unwrap();
                            tokio::time::sleep(PATIENCE * 2).await;
                        }
                        write.shutdown().await.unwrap();
                    };
                    let mut got = Vec::new();
                    let receive = async {
                        read.read_to_end(&mut got).await.unwrap();
                    };
                    tokio::join!(send, receive);
                    assert!(got == expected, "the bytes differ");
                };
                let (relayed, (), ()) = tokio::join!(
                    relay(guest_end, service_end, (&limits, &limits), &traffic),
                    talk(guest, data.clone()),
                    talk(service, data),
                );
                relayed.unwrap();
                assert_eq!(traffic.sent.load(Ordering::Relaxed), SIZE as u64);
                assert_eq!(traffic.received.load(Ordering::Relaxed), SIZE as u64);
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        // One more that is given up with bytes in its pipe: it is closed, not lent again.
        let (guest, guest_end) = pair().await;
        let (service_end, service) = pair().await;
        let sending = tokio::spawn(async move {
            let mut guest = guest;
            let _reset = guest.write_all(&vec![0; 64 << 20]).await;
        });
        let limits = Bandwidth::new(None);
        let traffic = Traffic::default();
        let relaying = relay(guest_end, service_end, (&limits, &limits), &traffic);
        assert!(timeout(Duration::from_millis(500), relaying).await.is_err(), "nobody reads");
        drop(service);
        sending.abort();
        let idle = idle();
        assert!(!idle.is_empty() && idle.len() == MADE.load(Ordering::Relaxed), "{} are idle", idle.len());
        for ends in idle.iter() {
            let left = rustix::io::ioctl_fionread(ends.read.as_fd()).unwrap();
            assert_eq!(left, 0, "bytes of another stream are in it");
        }
    }
}
