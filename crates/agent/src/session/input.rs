//! Standard input of a session: a bounded queue and the task that feeds it to the command, so that a command that does
//! not read holds up neither signals nor, beyond the bound, more than its own connection.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Session;
use crate::pty;

/// Bytes that wait for the command to read, beyond the kernel's own buffer.
const QUEUE_BYTES: usize = 256 * 1024;
/// Many small pieces cost more than their bytes.
const QUEUE_PIECES: usize = 64;
/// Given input after which a client is told.
const NEWS_BYTES: u64 = 64 * 1024;
/// A piece that takes its turn in the queue.
const PIECE_BYTES: usize = 32 * 1024;

/// The sending end; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Input {
    queue: mpsc::Sender<Piece>,
    room: Arc<Semaphore>,
    /// Bytes taken since the start.
    taken: Rc<Cell<u64>>,
    /// Of these, bytes the command has been given.
    given: Rc<Cell<u64>>,
}

#[derive(Debug)]
enum Piece {
    Bytes(Bytes, OwnedSemaphorePermit),
    End,
}

impl Input {
    /// A queue, and the task that empties it into the command.
    pub(super) fn new(
        session: Rc<Session>,
        target: Rc<AsyncFd<OwnedFd>>,
    ) -> (Self, impl Future<Output = ()> + 'static) {
        let (queue, receiver) = mpsc::channel(QUEUE_PIECES);
        let room = Arc::new(Semaphore::new(QUEUE_BYTES));
        let given = Rc::new(Cell::new(0));
        let count = Rc::clone(&given);
        let feed = async move {
            let counted = |length: usize| {
                count.set(count.get() + length as u64);
                session.changed.notify_waiters();
            };
            tokio::select! {
                () = session.ended() => {}
                // An error means that nobody reads any more.
                _ = feed(&target, receiver, session.tty, counted) => {}
            }
        };
        (Self { queue, room, taken: Rc::default(), given }, feed)
    }

    /// Waits for room. Bytes for a command that reads no more are dropped, as are those after the end. Takes no more
    /// once `wanted` says no, so that a client that took over knows exactly what was taken.
    pub(super) async fn push(&self, mut bytes: Bytes, wanted: impl Fn() -> bool) {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
            let length = piece.len();
            let cost = u32::try_from(length).unwrap_or(u32::MAX);
            let place = async {
                tokio::try_join!(self.permit(cost), async { self.queue.reserve().await.map_err(drop) })
            };
            let place = tokio::select! {
                place = place => place,
                () = self.queue.closed() => Err(()),
            };
            if !wanted() {
                return;
            }
            self.taken.set(self.taken.get() + length as u64);
            if let Ok((permit, place)) = place {
                place.send(Piece::Bytes(piece, permit));
            }
        }
    }

    async fn permit(&self, cost: u32) -> Result<OwnedSemaphorePermit, ()> {
        Arc::clone(&self.room).acquire_many_owned(cost).await.map_err(drop)
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// How much the command has been given, when a client that was told `told` should know: now and then, and when
    /// nothing is left. What a command that reads no more does not get counts as well.
    pub(super) fn news(&self, told: Option<u64>) -> Option<u64> {
        let taken = self.taken.get();
        let given = if self.queue.is_closed() { taken } else { self.given.get() };
        let due = match told {
            None => true,
            Some(told) => given > told && (given == taken || given - told >= NEWS_BYTES),
        };
        due.then_some(given)
    }

    pub(super) async fn end(&self) {
        // Nobody reads any more: as good.
        let _ = self.queue.send(Piece::End).await;
    }
}

async fn feed(
    target: &AsyncFd<OwnedFd>,
    mut queue: mpsc::Receiver<Piece>,
    tty: bool,
    counted: impl Fn(usize),
) -> io::Result<()> {
    while let Some(piece) = queue.recv().await {
        match piece {
            Piece::Bytes(bytes, _room) => {
                write_all(target, &bytes).await?;
                counted(bytes.len());
            }
            Piece::End if tty => write_all(target, &[pty::end_of_file(target.get_ref())]).await?,
            // Leaving closes the pipe.
            Piece::End => return Ok(()),
        }
    }
    Ok(())
}

async fn write_all(target: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut ready = target.writable().await?;
        match ready.try_io(|target| Ok(rustix::io::write(target.get_ref(), bytes)?)) {
            Ok(written) => bytes = &bytes[written?..],
            Err(_not_ready) => {}
        }
    }
    Ok(())
}
