//! Packs what was written on the disk, for a host that must not read it. The workload stands still meanwhile.

use std::io::{self, BufWriter, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use pack::{Owners, PackError, Source};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use wire::agent::vm::{PackEnd, PackRequest};

use super::root;
use super::workload::Workload;

/// Of the archive on its way to the port.
const BUFFER_BYTES: usize = 128 * 1024;
/// One frame's worth.
const CHUNK: usize = 16 * 1024;
/// What is said of a name, characters: trailers are short.
const QUOTED: usize = 200;

/// The archive, as it is being made.
pub(super) type Archive = UnsyncBoxBody<Bytes, io::Error>;

/// Stops the workload and begins. The archive ends early when nobody reads it any more.
pub(super) async fn begin(query: &str, workload: &Arc<Workload>) -> Result<Archive, StatusCode> {
    let request = PackRequest::from_query(query).ok_or(StatusCode::BAD_REQUEST)?;
    let failed = |_| StatusCode::SERVICE_UNAVAILABLE;
    let (archive, write) = StdStream::pair().map_err(failed)?;
    archive.set_nonblocking(true).map_err(failed)?;
    let archive = UnixStream::from_std(archive).map_err(failed)?;
    let (tell, stands_still) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let unwanted = Unwanted::default();
    let stop = Arc::clone(&unwanted.0);
    let workload = Arc::clone(workload);
    let work = move || {
        let packing = match workload.pack() {
            Ok(packing) => packing,
            Err(error) => {
                crate::log(format_args!("cannot stop the workload: {error}"));
                let status = match error.kind() {
                    io::ErrorKind::ResourceBusy => StatusCode::CONFLICT,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                };
                let _gone = tell.send(Err(status));
                return;
            }
        };
        if tell.send(Ok(())).is_err() {
            return;
        }
        let packed = pack(&request, &stop, &write);
        drop((packing, write));
        let _gone = end.send(said(packed));
    };
    std::thread::Builder::new().name("pack".to_owned()).spawn(work).map_err(failed)?;
    stands_still.await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)??;
    Ok(body(archive, ended, unwanted))
}

fn pack(request: &PackRequest, stop: &AtomicBool, out: &StdStream) -> Result<(), PackError> {
    let except: Vec<&str> = request.except.iter().map(String::as_str).collect();
    let merged = Path::new(root::ROOT);
    let source = Source {
        upper: if request.everything { merged } else { Path::new(root::UPPER) },
        merged,
        except: &except,
        max_bytes: request.max_bytes,
        owners: Owners::Plain,
        stop,
    };
    let failed = |source| PackError::Io { path: Vec::new(), source };
    pack::pack(source, BufWriter::with_capacity(BUFFER_BYTES, out))?.flush().map_err(failed)
}

fn said(packed: Result<(), PackError>) -> PackEnd {
    match packed {
        Ok(()) => PackEnd::Whole,
        Err(PackError::Refused { path, reason }) => {
            // What is not ASCII would be more than one byte of a header, or none that is permitted.
            let path = path.escape_ascii().to_string().chars().take(QUOTED).collect();
            PackEnd::Refused { path, reason: reason.to_owned() }
        }
        Err(PackError::TooLarge { unit: "bytes", .. }) => PackEnd::TooLarge,
        Err(PackError::TooLarge { .. }) => {
            PackEnd::Refused { path: "/".to_owned(), reason: "has too many directories".to_owned() }
        }
        Err(PackError::Io { path, source }) => {
            crate::log(format_args!("cannot pack {}: {source}", path.escape_ascii()));
            PackEnd::Failed
        }
    }
}

/// Ends the work when nobody reads the archive any more.
#[derive(Debug, Default)]
struct Unwanted(Arc<AtomicBool>);

impl Drop for Unwanted {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What is read of the archive, then how it ended.
fn body(archive: UnixStream, ended: oneshot::Receiver<PackEnd>, unwanted: Unwanted) -> Archive {
    let frames = stream::try_unfold(Some((archive, ended, unwanted)), async |state| {
        let Some((mut archive, ended, unwanted)) = state else { return Ok(None) };
        let mut chunk = bytes::BytesMut::with_capacity(CHUNK);
        if archive.read_buf(&mut chunk).await? > 0 {
            return Ok(Some((Frame::data(chunk.freeze()), Some((archive, ended, unwanted)))));
        }
        let end = ended.await.map_err(io::Error::other)?;
        let end = serde_json::to_string(&end).map_err(io::Error::other)?;
        let end = HeaderValue::from_str(&end).map_err(io::Error::other)?;
        let trailers = HeaderMap::from_iter([(http::HeaderName::from_static(PackEnd::TRAILER), end)]);
        Ok::<_, io::Error>(Some((Frame::trailers(trailers), None)))
    });
    StreamBody::new(frames).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_fits_a_trailer() {
        for path in [&b"a\"b\\c\nd\xff\x7f"[..], "é".repeat(4_000).as_bytes()] {
            let refused = PackError::Refused { path: path.to_vec(), reason: "is bad" };
            let end = serde_json::to_string(&said(Err(refused))).unwrap();
            assert!(end.len() < 1_024 && HeaderValue::from_str(&end).is_ok(), "{end}");
            assert!(matches!(serde_json::from_str(&end), Ok(PackEnd::Refused { .. })));
        }
    }

    #[tokio::test]
    async fn an_archive_ends_with_how_it_ended_and_never_without() {
        for outcome in [Some(PackEnd::Whole), None] {
            let (archive, mut write) = StdStream::pair().unwrap();
            archive.set_nonblocking(true).unwrap();
            let (end, ended) = oneshot::channel();
            let unwanted = Unwanted::default();
            let stop = Arc::clone(&unwanted.0);
            let archive = body(UnixStream::from_std(archive).unwrap(), ended, unwanted);
            write.write_all(b"abc").unwrap();
            drop(write);
            match outcome {
                Some(outcome) => {
                    end.send(outcome).unwrap();
                    let all = archive.collect().await.unwrap();
                    assert_eq!(all.trailers().unwrap()[PackEnd::TRAILER], r#"{"end":"whole"}"#);
                    assert_eq!(all.to_bytes(), "abc");
                }
                // The thread is gone.
                None => {
                    drop(end);
                    assert!(archive.collect().await.is_err());
                }
            }
            assert!(stop.load(Ordering::Relaxed));
        }
    }
}
