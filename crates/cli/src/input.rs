//! Standard input as an asynchronous source.

use std::io::{self, Read};

use bytes::Bytes;
use futures_util::stream;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio_util::io::StreamReader;

const CHUNK: usize = 64 * 1024;
/// Chunks read ahead: one is sent while the next is read.
const AHEAD: usize = 2;

/// Standard input in pieces. Reads on a thread of its own that nobody waits for: a read that never returns, as at a
/// terminal, must not keep the process alive after its work has ended. It ends with the input, or when the receiver is
/// dropped.
pub(crate) fn chunks() -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(AHEAD);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        let mut buffer = vec![0; CHUNK];
        loop {
            let chunk = match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => Ok(Bytes::copy_from_slice(&buffer[..length])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let last = chunk.is_err();
            if sender.blocking_send(chunk).is_err() || last {
                return;
            }
        }
    });
    receiver
}

/// The same as a stream of bytes.
pub(crate) fn stdin() -> impl AsyncRead + Send + Unpin {
    let chunks = stream::unfold(chunks(), |mut receiver| async move {
        receiver.recv().await.map(|chunk| (chunk, receiver))
    });
    StreamReader::new(Box::pin(chunks))
}
