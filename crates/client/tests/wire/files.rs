//! Files: limits while reading, form of uploads, paths.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::{Body, Bytes};
use axum::response::Response;
use client::{ClientError, UploadBody};
use futures_util::{StreamExt, stream};

use crate::platform::{ID, Platform, wait_for};

#[tokio::test]
async fn exactly_the_limit_is_accepted_and_one_more_is_not() {
    let platform = Platform::start().await;
    platform.activates();
    platform.on("GET /files", 200, "0123456789");
    let client = platform.client();
    assert_eq!(client.read_file(ID, "/x", 10).await.unwrap().bytes().await.unwrap(), "0123456789");
    let refused = client.read_file(ID, "/x", 9).await.unwrap_err();
    assert_eq!(refused.to_string(), "the file is larger than 9 bytes");
    assert!(matches!(refused, ClientError::TooLarge { limit: 9, .. }));
}

#[tokio::test]
async fn an_endless_download_is_left_at_the_limit() {
    let platform = Platform::start().await;
    platform.activates();
    let sent = Arc::new(AtomicU64::new(0));
    let gone = Arc::new(AtomicU64::new(0));
    let counters = (Arc::clone(&sent), Arc::clone(&gone));
    struct Gone(Arc<AtomicU64>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.store(1, Ordering::SeqCst);
        }
    }
    platform.handle("GET /files", move |seen| {
        assert!(seen.line.ends_with("format=zip"), "{}", seen.line);
        let (sent, gone) = (Arc::clone(&counters.0), Gone(Arc::clone(&counters.1)));
        let body = stream::repeat(Bytes::from(vec![0; 64 * 1024])).map(move |chunk| {
            let _held = &gone;
            sent.fetch_add(chunk.len() as u64, Ordering::SeqCst);
            Ok::<_, Infallible>(chunk)
        });
        async move { Response::new(Body::from_stream(body)) }
    });
    let zip = platform.client().download_zip(ID, "/dir", 1024 * 1024).await.unwrap();
    let refused = zip.bytes().await.unwrap_err();
    assert_eq!(refused.to_string(), "the directory is larger than 1048576 bytes");
    wait_for("the end of the connection", || gone.load(Ordering::SeqCst) == 1).await;
    let sent = sent.load(Ordering::SeqCst);
    assert!(sent < 32 * 1024 * 1024, "{sent} bytes were produced: the connection should have been closed");
}

#[tokio::test]
async fn uploads_carry_bytes_and_paths_unharmed() {
    let platform = Platform::start().await;
    platform.activates();
    platform.on("POST /files", 200, r#"{"path":"/a","size":4}"#);
    let client = platform.client();
    let bytes = Bytes::from_static(&[0, 255, b'\r', b'\n']);
    client.write_file(ID, "/tmp/ü b&c=d?#+%", UploadBody::Bytes(bytes.clone())).await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    client.write_file(ID, "/a", UploadBody::File(file.path().to_owned())).await.unwrap();
    let seen = platform.seen();
    let uploads: Vec<_> = seen.iter().filter(|seen| seen.line.starts_with("POST /files")).collect();
    assert_eq!(uploads[0].line, "POST /files?path=%2Ftmp%2F%C3%BC+b%26c%3Dd%3F%23%2B%25");
    for upload in uploads {
        assert_eq!(upload.body, bytes);
        assert_eq!(upload.header("content-length"), "4");
        assert_eq!(upload.header("content-type"), "application/octet-stream");
    }
}

#[tokio::test]
async fn bad_paths_and_missing_sources_are_refused_here() {
    let platform = Platform::start().await;
    platform.activates();
    let client = platform.client();
    for path in ["", "x", "/a/../b", "/..", "/a\0b"] {
        assert!(matches!(client.read_file(ID, path, 1).await, Err(ClientError::Invalid { .. })), "{path:?}");
    }
    let body = UploadBody::File("/nonexistent/file".into());
    let refused = client.write_file(ID, "/x", body).await.unwrap_err();
    assert!(matches!(refused, ClientError::Local(_)), "{refused:?}");
    assert!(!platform.lines().iter().any(|line| line.contains("/files")));
}
