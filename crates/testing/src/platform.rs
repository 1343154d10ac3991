//! Starts `superserve up` as a child process and speaks to it as any client would.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::leaks::Remains;
use crate::wait::wait_for;

/// Start-up with a base template that is there already: namespaces, nftables, database; generous for a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// A request that hangs longer than this is a failure of its own.
const REQUEST_LIMIT: Duration = Duration::from_secs(100);

/// Status and body of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Parsed body; `Null` when empty, a string when it is no JSON.
    pub body: Value,
    /// Header names in lower case.
    pub headers: std::collections::BTreeMap<String, String>,
}

impl Answer {
    /// `error.code` of a refusal.
    #[must_use]
    pub fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

/// A running platform; dropped, it is stopped and everything it made is removed.
#[derive(Debug)]
pub struct Platform {
    bin: PathBuf,
    state: TempDir,
    extra: Vec<String>,
    env: Vec<(String, String)>,
    server: Option<Child>,
    http: reqwest::Client,
    base_url: String,
    edge: SocketAddr,
    key: String,
}

/// The engine that sandboxes of these tests run on, unless a test asks for another: what `SUPERSERVE_ISOLATION` says, or containers.
#[must_use]
pub fn isolation() -> String {
    std::env::var("SUPERSERVE_ISOLATION").unwrap_or_else(|_| "container".to_owned())
}

impl Platform {
    /// Starts a platform on a new state directory.
    ///
    /// # Panics
    /// When it does not become ready; its log is part of the message.
    pub async fn start(bin: &str) -> Self {
        Self::start_with(bin, &[]).await
    }

    /// Starts a platform with more flags for `up`.
    ///
    /// # Panics
    /// As [`Platform::start`].
    pub async fn start_with(bin: &str, flags: &[&str]) -> Self {
        Self::start_with_env(bin, flags, &[]).await
    }

    /// Starts a platform with more flags for `up` and more environment.
    ///
    /// # Panics
    /// As [`Platform::start`].
    pub async fn start_with_env(bin: &str, flags: &[&str], env: &[(&str, &str)]) -> Self {
        Self::start_on(bin, Self::new_state(), flags, env).await
    }

    /// A new state directory.
    ///
    /// # Panics
    /// When none can be made.
    #[must_use]
    pub fn new_state() -> TempDir {
        tempfile::Builder::new().prefix("ss-test-").tempdir().expect("a temporary directory can be made")
    }

    /// Starts a platform on a state directory that somebody has prepared.
    ///
    /// # Panics
    /// As [`Platform::start`].
    pub async fn start_on(bin: &str, state: TempDir, flags: &[&str], env: &[(&str, &str)]) -> Self {
        // A second call finds the provider installed, which is what is wanted.
        let _already_there = rustls::crypto::ring::default_provider().install_default();
        let http =
            reqwest::Client::builder().timeout(REQUEST_LIMIT).no_proxy().build().expect("a plain client");
        let mut platform = Self {
            bin: bin.into(),
            state,
            extra: flags.iter().map(|f| (*f).to_owned()).collect(),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            server: None,
            http,
            base_url: String::new(),
            edge: SocketAddr::from(([127, 0, 0, 1], 0)),
            key: String::new(),
        };
        platform.spawn().await;
        platform
    }

    /// Starts the server again on the same state directory.
    ///
    /// # Panics
    /// As [`Platform::start`].
    pub async fn spawn(&mut self) {
        assert!(self.server.is_none(), "the server runs already");
        let info = self.state.path().join("server.json");
        // The old one names a server that is gone.
        let _absent_at_first = std::fs::remove_file(&info);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.state.path().join("test.log"))
            .expect("the log can be opened");
        let child = Command::new(&self.bin)
            .args(["up", "--listen", "127.0.0.1:0", "--edge-listen", "127.0.0.1:0", "--state-dir"])
            .arg(self.state.path())
            .args(&self.extra)
            // What `auto` would choose depends on the machine; a test that wants another engine says so.
            .env("SUPERSERVE_ISOLATION", isolation())
            // Machines that nobody asked for are in the way of counting, and of slow ones; a test's own wish comes later.
            .env("SUPERSERVE_TEMPLATE_SNAPSHOTS", "0")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            // It shows the first key, which the log must never do.
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the superserve program starts");
        self.server = Some(child);
        let until = std::time::Instant::now() + START_LIMIT;
        loop {
            let ended = self.server.as_mut().and_then(|s| s.try_wait().ok().flatten());
            assert!(ended.is_none(), "the server ended with {ended:?}:\n{}", self.log());
            assert!(std::time::Instant::now() < until, "the server is not ready:\n{}", self.log());
            if let Some(info) =
                std::fs::read(&info).ok().and_then(|b| serde_json::from_slice::<Value>(&b).ok())
            {
                self.base_url = info["base_url"].as_str().expect("server.json has base_url").to_owned();
                self.edge = info["edge"].as_str().and_then(|e| e.parse().ok()).expect("server.json has edge");
                if self
                    .http
                    .get(format!("{}/health", self.base_url))
                    .send()
                    .await
                    .is_ok_and(|a| a.status() == 200)
                {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let key = std::fs::read_to_string(self.state.path().join("api-key"))
            .expect("the first key is in the state directory");
        self.key = key.trim().to_owned();
    }

    /// Other flags for the next start.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.extra = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// The server's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.state.path().join("test.log")).unwrap_or_default()
    }

    /// Its state directory.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        self.state.path()
    }

    /// The network namespace of a sandbox.
    #[must_use]
    pub fn netns(&self, id: &str) -> PathBuf {
        crate::leaks::run_dir(&self.state.path().canonicalize().expect("it exists")).join("n").join(id)
    }

    /// Base URL of the control plane.
    #[must_use]
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Address of the edge.
    #[must_use]
    pub fn edge(&self) -> SocketAddr {
        self.edge
    }

    /// The first API key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Process id of the server.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.as_ref().expect("the server runs").id()
    }

    /// Ends the server without a chance to clean up.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill_hard(&mut self) {
        let mut server = self.server.take().expect("the server runs");
        server.kill().expect("a running child can be killed");
        server.wait().expect("a killed child ends");
    }

    /// Asks the server to stop and gives its exit code.
    ///
    /// # Panics
    /// When it does not run, or does not end within half a minute.
    pub async fn stop(&mut self) -> Option<i32> {
        let mut server = self.server.take().expect("the server runs");
        let pid = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .expect("a running child can be signalled");
        for _ in 0..1_500 {
            if let Some(status) = server.try_wait().expect("a child can be waited for") {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let _already_failing = server.kill();
        let _already_failing = server.wait();
        panic!("the server did not stop:\n{}", self.log());
    }

    /// One control-plane request.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn rest(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.try_rest(method, path, body)
            .await
            .unwrap_or_else(|e| panic!("{method} {path}: {e:?}\n{}", self.log()))
    }

    /// One control-plane request that may find nobody.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn try_rest(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Answer, reqwest::Error> {
        let mut request = self
            .http
            .request(method.parse().expect("a method"), format!("{}{path}", self.base_url))
            .header("x-api-key", &self.key)
            .header("content-type", "application/json");
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        answer(request).await
    }

    /// Creates a sandbox and gives its id and token.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn create(&self, body: Value) -> (String, String) {
        let mut body = body;
        if body.get("name").is_none() {
            body["name"] = "test".into();
        }
        let made = self.rest("POST", "/sandboxes", Some(body)).await;
        assert_eq!(made.status, 201, "{:?}\n{}", made.body, self.log());
        let text = |key: &str| made.body[key].as_str().expect("create gives id and token").to_owned();
        (text("id"), text("access_token"))
    }

    /// One data-plane request over the edge's plain HTTP.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn data(&self, method: &str, path: &str, id: &str, token: &str, body: Vec<u8>) -> Answer {
        let request = self
            .http
            .request(method.parse().expect("a method"), format!("http://{}{path}", self.edge))
            .header("x-superserve-sandbox-id", id)
            .header("x-access-token", token)
            .body(body);
        answer(request).await.unwrap_or_else(|e| panic!("{method} {path}: {e:?}\n{}", self.log()))
    }

    /// Runs a shell command and gives the answer of `/exec`.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn exec(&self, id: &str, token: &str, command: &str) -> Answer {
        let body = serde_json::json!({"command": command, "timeout_s": 60}).to_string();
        self.data("POST", "/exec", id, token, body.into_bytes()).await
    }

    /// Runs a shell command that must succeed and gives its output.
    ///
    /// # Panics
    /// When it does not exit with 0.
    pub async fn run(&self, id: &str, token: &str, command: &str) -> String {
        let answer = self.exec(id, token, command).await;
        assert_eq!(answer.status, 200, "{command}: {:?}\n{}", answer.body, self.log());
        assert_eq!(answer.body["exit_code"], 0, "{command}: {:?}", answer.body);
        answer.body["stdout"].as_str().expect("stdout is a string").to_owned()
    }

    /// Waits for a state and fails on `failed`.
    ///
    /// # Panics
    /// When it does not come within `limit`.
    pub async fn wait_state(&self, id: &str, state: &str, limit: Duration) {
        wait_for(&format!("state {state}"), limit, || async {
            let got = self.rest("GET", &format!("/sandboxes/{id}"), None).await;
            (got.body["status"] == state).then_some(())
        })
        .await;
    }

    /// What this platform has on the machine now.
    #[must_use]
    pub fn remains(&self) -> Remains {
        Remains::of(self.state.path())
    }

    /// Stops the server, removes every sandbox and gives what is left on the machine.
    ///
    /// # Panics
    /// When the reset fails.
    pub fn tear_down(&mut self) -> Remains {
        if let Some(mut server) = self.server.take() {
            let _gone_already = server.kill();
            let _gone_already = server.wait();
        }
        let reset =
            Command::new(&self.bin).args(["reset", "--yes", "--state-dir"]).arg(self.state.path()).output();
        let reset = reset.expect("the superserve program starts");
        assert!(reset.status.success(), "reset failed: {}", String::from_utf8_lossy(&reset.stderr));
        self.remains()
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!("--- last lines of the server's log ---");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
            if let Some(mut server) = self.server.take() {
                let _gone_already = server.kill();
                let _gone_already = server.wait();
            }
            let _best_effort = Command::new(&self.bin)
                .args(["reset", "--yes", "--state-dir"])
                .arg(self.state.path())
                .status();
            return;
        }
        let left = self.tear_down();
        assert_eq!(left, Remains::default(), "the platform left something behind");
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Result<Answer, reqwest::Error> {
    let response = request.send().await?;
    let status = response.status().as_u16();
    let headers = response
        .headers()
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    let bytes = response.bytes().await?;
    let body = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()))
    };
    Ok(Answer { status, body, headers })
}
