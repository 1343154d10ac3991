//! Downloads of blobs. A connection that breaks is followed by another one that goes on where the first stopped; what has
//! come is hashed as it comes, and compared with the digest as a whole.

use std::io::SeekFrom;
use std::path::Path;

use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Response, StatusCode};
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

use super::manifest::Descriptor;
use super::registry::{Registry, hex};
use super::trouble::{Again, Patience, Trouble};
use crate::error::TemplateError;
use crate::store::LayerStore;

/// A try that brought this much got on; below, a registry that sends a few bytes a time would never be given up.
const PROGRESS: u64 = 256 * 1024;
/// Tries in all, however much each brings.
const MAX_TRIES: u32 = 1_000;
/// Bytes between two looks at the disk.
const ROOM_EVERY: u64 = 16 << 20;

/// What is told about a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// So many bytes more.
    Came(u64),
    /// So many bytes have to come again.
    Lost(u64),
    /// The registry broke off, or asks to wait.
    Again,
}

/// What is there of a blob.
struct Part<'a> {
    of: &'a Descriptor,
    file: File,
    hash: Sha256,
    have: u64,
    heard: &'a (dyn Fn(Heard) + Sync),
    store: &'a LayerStore,
}

impl Registry {
    /// Fetches a blob into a file.
    pub(super) async fn blob(
        &self,
        of: &Descriptor,
        into: &Path,
        store: &LayerStore,
        heard: &(dyn Fn(Heard) + Sync),
    ) -> Result<(), TemplateError> {
        let file = File::create(into).await.map_err(failed())?;
        let mut part = Part { of, file, hash: Sha256::new(), have: 0, heard, store };
        let mut patience = Patience::long();
        for _ in 0..MAX_TRIES {
            let before = part.have;
            let trouble = match self.rest_of(&mut part).await? {
                Ok(()) => return Ok(()),
                Err(trouble) => trouble,
            };
            if part.have.saturating_sub(before) >= PROGRESS {
                patience.renew();
            }
            let wait = patience.next(trouble).map_err(|trouble| self.about(trouble))?;
            heard(Heard::Again);
            tokio::time::sleep(wait).await;
        }
        Err(self.about(Trouble::silent("the connection breaks again and again", Again::Later)))
    }

    /// One try; what the host is to blame for is an error at once.
    async fn rest_of(&self, part: &mut Part<'_>) -> Result<Result<(), Trouble>, TemplateError> {
        let path = format!("blobs/{}", part.of.digest.with_algorithm());
        let range = (part.have > 0).then(|| format!("bytes={}-", part.have));
        let asked = self.get(&path, |request| match &range {
            Some(range) => request.header(RANGE, range),
            None => request,
        });
        let mut response = match asked.await {
            Ok(response) => response,
            Err(trouble) => return Ok(Err(trouble)),
        };
        if response.status() == StatusCode::PARTIAL_CONTENT {
            if range.is_none() || begin(&response) != Some(part.have) {
                return Ok(Err(Trouble::Refused(
                    "the registry sends another part than the one asked for".to_owned(),
                )));
            }
        } else {
            part.begin_anew().await?;
        }
        let mut looked_at = part.have;
        part.store.check_room(part.of.size.saturating_sub(part.have))?;
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(error) => return Ok(Err(Trouble::of(&error))),
            };
            let count = chunk.len() as u64;
            if part.of.size - part.have < count {
                return Ok(Err(Trouble::Refused("a layer is longer than its manifest says".to_owned())));
            }
            part.hash.update(&chunk);
            part.file.write_all(&chunk).await.map_err(failed())?;
            part.have += count;
            (part.heard)(Heard::Came(count));
            if part.have - looked_at >= ROOM_EVERY {
                looked_at = part.have;
                part.store.check_room(0)?;
            }
        }
        part.file.flush().await.map_err(failed())?;
        if part.have < part.of.size {
            // Without a length of its own, an answer that was cut off cannot be told from a short one.
            let reason = format!("it ended a layer after {} of {} bytes", part.have, part.of.size);
            return Ok(Err(Trouble::silent(reason, Again::Soon)));
        }
        if hex(part.hash.clone()) != part.of.digest.hex() {
            return Ok(Err(Trouble::Refused("a layer is not what its digest says".to_owned())));
        }
        Ok(Ok(()))
    }
}

impl Part<'_> {
    /// The registry sends all of it, whatever it was asked for.
    async fn begin_anew(&mut self) -> Result<(), TemplateError> {
        if self.have > 0 {
            self.file.set_len(0).await.map_err(failed())?;
            self.file.seek(SeekFrom::Start(0)).await.map_err(failed())?;
            (self.heard)(Heard::Lost(self.have));
            self.hash = Sha256::new();
            self.have = 0;
        }
        Ok(())
    }
}

fn failed<E: Into<std::io::Error>>() -> impl FnOnce(E) -> TemplateError {
    |error| {
        let error: std::io::Error = error.into();
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => TemplateError::DiskFull,
            _ => TemplateError::io("cannot write a downloaded layer")(error),
        }
    }
}

/// Where a part begins: `bytes 5-9/10`.
fn begin(response: &Response) -> Option<u64> {
    let range = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}
