//! Moving files (`spec/data-plane.md` §6). Neither direction holds a whole file, and a download stops at the caller's
//! limit.

use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Method;
use reqwest::{Body, RequestBuilder, Response};
use tokio::io::AsyncRead;
use wire::data_plane::Uploaded;

use crate::control::Client;
use crate::data_plane::{DataBody, DataCall};
use crate::error::{ClientError, Plane};
use crate::transport::{Exchange, read_all};

/// Longest wait for the head of a download; a zip begins as soon as the first file is found.
const DOWNLOAD_HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest silence within a download.
const DOWNLOAD_SILENCE: Duration = Duration::from_secs(60);
/// Longest upload; the largest accepted file at some 5 MB/s.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Largest answer to an upload: a path and a number.
const MAX_UPLOADED_BYTES: usize = 64 * 1024;

/// What an upload sends.
pub enum UploadBody {
    /// Content in memory.
    Bytes(Bytes),
    /// A local file, opened again for each attempt.
    File(PathBuf),
    /// Something that can be read only once, such as standard input. The sandbox is activated first.
    Once {
        /// The source; taken by the first attempt.
        reader: Option<Box<dyn AsyncRead + Send + Unpin>>,
    },
}

impl UploadBody {
    /// A source that can be read only once.
    #[must_use]
    pub fn once(reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self::Once { reader: Some(Box::new(reader)) }
    }

    pub(crate) async fn attach(&mut self, request: RequestBuilder) -> Result<RequestBuilder, ClientError> {
        match self {
            Self::Bytes(bytes) => Ok(request.body(bytes.clone())),
            Self::File(path) => {
                let unreadable = |error: std::io::Error| {
                    ClientError::Local(format!("cannot read {}: {error}", path.display()))
                };
                let file = tokio::fs::File::open(&*path).await.map_err(unreadable)?;
                let length = file.metadata().await.map_err(unreadable)?.len();
                let limited = tokio::io::AsyncReadExt::take(file, length);
                Ok(request.header(http::header::CONTENT_LENGTH, length).body(stream(limited)))
            }
            Self::Once { reader } => {
                let reader =
                    reader.take().ok_or_else(|| ClientError::Local("the source is used up".to_owned()))?;
                Ok(request.body(stream(reader)))
            }
        }
    }
}

fn stream(reader: impl AsyncRead + Send + Unpin + 'static) -> Body {
    Body::wrap_stream(tokio_util::io::ReaderStream::with_capacity(reader, 64 * 1024))
}

impl std::fmt::Debug for UploadBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => f.debug_tuple("Bytes").field(&bytes.len()).finish(),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Once { .. } => f.write_str("Once"),
        }
    }
}

impl Client {
    /// Reads a file of at most `limit` bytes; resumes a paused sandbox.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is none, 400 for a directory. [`ClientError::TooLarge`] already
    /// here when the platform announces more than `limit`.
    pub async fn read_file(&self, id: &str, path: &str, limit: u64) -> Result<Download, ClientError> {
        self.download(id, vec![("path", check_path(path)?)], "the file", limit).await
    }

    /// Reads a directory as a zip archive of at most `limit` bytes; resumes a paused sandbox. The platform sends the
    /// raw bytes when `path` is a regular file: see [`Download::content_type`].
    ///
    /// # Errors
    /// As [`Client::read_file`].
    pub async fn download_zip(&self, id: &str, path: &str, limit: u64) -> Result<Download, ClientError> {
        self.download(id, vec![("path", check_path(path)?), ("format", "zip")], "the directory", limit).await
    }

    async fn download(
        &self,
        id: &str,
        query: Vec<(&'static str, &str)>,
        what: &'static str,
        limit: u64,
    ) -> Result<Download, ClientError> {
        let exchange = Exchange { what, plane: Plane::Data, mutating: false, timeout: DOWNLOAD_HEAD_TIMEOUT };
        let call =
            DataCall { exchange, method: Method::GET, path: "/files".into(), query, body: DataBody::None };
        let response = self.data_call(id, call).await?;
        if response.content_length().is_some_and(|length| length > limit) {
            return Err(ClientError::TooLarge { what, limit });
        }
        Ok(Download {
            response,
            exchange: Exchange { timeout: DOWNLOAD_SILENCE, ..exchange },
            limit,
            seen: 0,
        })
    }

    /// Creates or replaces a file, with its parent directories; resumes a paused sandbox.
    ///
    /// # Errors
    /// See [`ClientError`]. A failed upload leaves no partial file.
    pub async fn write_file(&self, id: &str, path: &str, body: UploadBody) -> Result<Uploaded, ClientError> {
        let exchange =
            Exchange { what: "the upload", plane: Plane::Data, mutating: true, timeout: UPLOAD_TIMEOUT };
        let call = DataCall {
            exchange,
            method: Method::POST,
            path: "/files".into(),
            query: vec![("path", check_path(path)?)],
            body: DataBody::Upload(body),
        };
        let response = self.data_call(id, call).await?;
        let answer = read_all(exchange, response, MAX_UPLOADED_BYTES).await?;
        serde_json::from_slice(&answer).map_err(|_| exchange.protocol("not the expected JSON"))
    }
}

/// Absolute, without NUL and `..` segments, as the platform demands.
fn check_path(path: &str) -> Result<&str, ClientError> {
    if path.starts_with('/') && !path.contains('\0') && path.split('/').all(|segment| segment != "..") {
        return Ok(path);
    }
    Err(ClientError::Invalid {
        field: "path",
        accepted: "an absolute path without `..` is accepted".to_owned(),
    })
}

/// Content on its way here. Dropping it closes the connection.
#[derive(Debug)]
pub struct Download {
    response: Response,
    exchange: Exchange,
    limit: u64,
    seen: u64,
}

impl Download {
    /// Announced size, bytes.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// Announced media type.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.response.headers().get(http::header::CONTENT_TYPE)?.to_str().ok()
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// [`ClientError::TooLarge`] as soon as more than the limit has arrived; a broken or silent connection.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        let chunk = tokio::time::timeout(self.exchange.timeout, self.response.chunk())
            .await
            .map_err(|_| self.exchange.timed_out())?
            .map_err(|_| self.exchange.interrupted())?;
        self.seen += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        if self.seen > self.limit {
            return Err(ClientError::TooLarge { what: self.exchange.what, limit: self.limit });
        }
        Ok(chunk)
    }

    /// The rest in memory; meant for small limits.
    ///
    /// # Errors
    /// As [`Download::chunk`].
    pub async fn bytes(mut self) -> Result<Bytes, ClientError> {
        let mut all = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    }
}
