//! The registries of the tests: Debian's `docker-registry`, and one in this process that answers as it is told.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Blob, Pushed, digest};

/// A real registry on a free port of this machine; ended when dropped.
pub(super) struct Real {
    child: Child,
    address: SocketAddr,
    http: reqwest::Client,
    _dir: tempfile::TempDir,
}

impl Real {
    /// `None`, loudly, where it is not installed.
    pub(super) async fn start() -> Option<Self> {
        if !Path::new("/usr/bin/docker-registry").exists() {
            eprintln!("SKIPPED: docker-registry is not installed; scripts/install-deps.sh tests installs it");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{address}\"}}\n",
            dir.path().join("data").display()
        );
        std::fs::write(dir.path().join("config.yml"), config).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(dir.path().join("config.yml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let _already_there = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let registry = Self { child, address, http, _dir: dir };
        for _ in 0..500 {
            if registry.http.get(registry.url("/v2/")).send().await.is_ok() {
                return Some(registry);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("docker-registry does not answer on {address}");
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A reference into this registry.
    pub(super) fn reference(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    pub(super) async fn push(&self, repository: &str, tag: &str, image: &Pushed) {
        for blob in &image.blobs {
            let begun = self.http.post(self.url(&format!("/v2/{repository}/blobs/uploads/"))).send();
            let place = begun.await.unwrap().headers()["location"].to_str().unwrap().to_owned();
            let place = format!("{place}&digest={}", digest(&blob.bytes));
            let put = self.http.put(place).body(blob.bytes.clone()).send().await.unwrap();
            assert_eq!(put.status(), 201);
        }
        self.push_manifest(repository, tag, &image.manifest).await;
    }

    pub(super) async fn push_manifest(&self, repository: &str, tag: &str, manifest: &Blob) {
        let put = self.http.put(self.url(&format!("/v2/{repository}/manifests/{tag}")));
        let put =
            put.header("content-type", manifest.kind).body(manifest.bytes.clone()).send().await.unwrap();
        assert_eq!(put.status(), 201, "{}", put.text().await.unwrap());
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// One answer of the scripted registry.
#[derive(Clone, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
    /// Only with this `Authorization`; otherwise 401 with this challenge.
    pub(super) locked: Option<(String, String)>,
    /// Goes on sending zeroes after the body, without an end.
    pub(super) endless: bool,
    /// Keeps the connection open after the body.
    pub(super) slow: bool,
}

impl Answer {
    pub(super) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }
}

/// A registry that answers by path, and remembers what it was asked.
pub(super) struct Scripted {
    pub(super) address: SocketAddr,
    pub(super) asked: Arc<Mutex<Vec<String>>>,
    answers: Arc<Mutex<HashMap<String, Answer>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Scripted {
    pub(super) async fn start() -> Self {
        Self::start_at("127.0.0.1").await
    }

    pub(super) async fn start_at(host: &str) -> Self {
        let listener = tokio::net::TcpListener::bind((host, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, answers) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<HashMap<_, _>>>::default());
        let (heard, known) = (Arc::clone(&asked), Arc::clone(&answers));
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(converse(stream, Arc::clone(&heard), Arc::clone(&known)));
            }
        });
        Self { address, asked, answers, server }
    }

    pub(super) fn answer(&self, path: impl Into<String>, answer: Answer) {
        self.answers.lock().unwrap().insert(path.into(), answer);
    }

    /// Everything of an image as it should be; tests then spoil parts.
    pub(super) fn serve(&self, image: &Pushed) {
        self.answer("/v2/x/manifests/1", Answer::ok(image.manifest.bytes.clone()));
        for blob in &image.blobs {
            self.answer(format!("/v2/x/blobs/{}", digest(&blob.bytes)), Answer::ok(blob.bytes.clone()));
        }
    }

    pub(super) fn reference(&self) -> String {
        format!("{}/x:1", self.address)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn converse(
    mut stream: tokio::net::TcpStream,
    asked: Arc<Mutex<Vec<String>>>,
    answers: Arc<Mutex<HashMap<String, Answer>>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let authorization = head.lines().find_map(|line| {
        line.to_ascii_lowercase().starts_with("authorization: ").then(|| line[15..].to_owned())
    });
    asked.lock().unwrap().push(format!("{path} {}", authorization.as_deref().unwrap_or("-")));
    let missing = Answer { status: 404, ..Answer::default() };
    let mut answer = answers.lock().unwrap().get(&path).cloned().unwrap_or(missing);
    if let Some((key, challenge)) = answer.locked.take()
        && authorization != Some(key)
    {
        answer = Answer { status: 401, headers: vec![("www-authenticate", challenge)], ..Answer::default() };
    }
    let mut text = format!("HTTP/1.1 {} x\r\nconnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    // A client that has seen enough closes the connection.
    let _closed = stream.write_all(text.as_bytes()).await;
    let _closed = stream.write_all(&answer.body).await;
    while answer.endless && stream.write_all(&[0; 65_536]).await.is_ok() {}
    if answer.slow {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let _closed = stream.shutdown().await;
}
