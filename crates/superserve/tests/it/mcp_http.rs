//! MCP over HTTP on the real platform, at `/mcp` of `up` and as `superserve mcp --http`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testing::{Platform, wait_for};

use crate::{BIN, platform};

const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// Within this time after its client has gone a command is dead (`spec/mcp.md` §B.7).
const CANCELLED: Duration = Duration::from_secs(2);

/// A client of one endpoint.
struct Mcp {
    url: String,
    key: String,
    http: reqwest::Client,
}

impl Mcp {
    fn new(url: String, key: &str) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(120)).build().unwrap();
        Self { url, key: key.to_owned(), http }
    }

    fn mounted(p: &Platform) -> Self {
        Self::new(format!("{}/mcp", p.base_url()), p.key())
    }

    fn post(&self, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
        self.http
            .post(&self.url)
            .header("authorization", format!("Bearer {}", self.key))
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(body)
    }

    fn request(&self, method: &str, params: Value) -> reqwest::RequestBuilder {
        self.post(json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string())
    }

    /// The same in the newest revision.
    fn newest(&self, method: &str, mut params: Value) -> reqwest::RequestBuilder {
        let meta = [("protocolVersion", json!("2026-07-28")), ("clientCapabilities", json!({}))];
        for (key, value) in meta {
            params["_meta"][format!("io.modelcontextprotocol/{key}")] = value;
        }
        let name = params["name"].as_str().map(str::to_owned);
        let mut request = self
            .request(method, params)
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", method);
        if let Some(name) = name {
            request = request.header("mcp-name", name);
        }
        request
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        let response = self.request(method, params).send().await.unwrap();
        let status = response.status();
        let body: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
        assert_eq!(status, 200, "{body}");
        body["result"].clone()
    }

    /// The structured result of a tool that must succeed.
    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let result = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert!(result.get("isError").is_none(), "{tool}: {result}");
        result["structuredContent"].clone()
    }
}

/// `superserve mcp --http` in front of a platform; dropped, it is killed.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start(base_url: &str) -> Self {
        let mut child = Command::new(BIN)
            .args(["mcp", "--http", "127.0.0.1:0"])
            .env("SUPERSERVE_BASE_URL", base_url)
            .env_remove("SUPERSERVE_API_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        log.read_line(&mut line).unwrap();
        // The rest must be read, or the server waits for room in the pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        assert!(line.starts_with("[superserve-mcp] ") && line.contains("this machine only"), "{line}");
        let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned();
        Self { child, url }
    }

    fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _already_ended = self.child.kill();
        let _already_ended = self.child.wait();
    }
}

/// Kilobytes of a line of `/proc/<pid>/status`.
fn memory(pid: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with(line)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn both_endpoints_speak_every_revision() {
    let Some(p) = platform().await else { return };
    let served = Served::start(p.base_url());
    for mcp in [Mcp::mounted(&p), Mcp::new(served.url.clone(), p.key())] {
        for revision in REVISIONS {
            let hello = json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
            assert_eq!(mcp.ask("initialize", hello).await["protocolVersion"], revision);
        }
        let discovered = mcp.newest("server/discover", json!({})).send().await.unwrap();
        assert_eq!(discovered.status(), 200);
        let made = mcp.call("sandbox_create", json!({"name": "http"})).await;
        let id = made["id"].as_str().unwrap();
        let ran = mcp.call("sandbox_exec", json!({"sandbox_id": id, "command": "echo hello"})).await;
        assert_eq!((&ran["stdout"], &ran["exit_code"]), (&json!("hello\n"), &json!(0)));
        let bytes = "A".repeat(11_000_000);
        let wrote = json!({"sandbox_id": id, "path": "/tmp/big", "content": bytes, "encoding": "base64"});
        assert_eq!(mcp.call("sandbox_files_write", wrote).await["bytes"], 8_250_000);
        mcp.call("sandbox_pause", json!({"sandbox_id": id})).await;
        let params =
            json!({"name": "sandbox_exec", "arguments": {"sandbox_id": id, "command": "wc -c </tmp/big"}});
        let woken = mcp.newest("tools/call", params).send().await.unwrap();
        let woken: Value = serde_json::from_slice(&woken.bytes().await.unwrap()).unwrap();
        assert_eq!(woken["result"]["structuredContent"]["stdout"], "8250000\n");
        assert_eq!(woken["result"]["resultType"], "complete");
        mcp.call("sandbox_kill", json!({"sandbox_id": id})).await;
    }

    let stranger = Mcp::new(served.url.clone(), "ss_live_wrong");
    let refused = stranger.ask("tools/call", json!({"name": "sandbox_list"})).await;
    assert_eq!(refused["isError"], true);
    assert!(refused["content"][0]["text"].as_str().unwrap().contains("Authentication failed"), "{refused}");
    assert!(!p.log().contains(p.key()), "the key is not logged");
    // Elsewhere the platform is what it was.
    assert_eq!(p.rest("GET", "/sandboxes", None).await.status, 200);
    assert_eq!(p.rest("GET", "/", None).await.code(), "not_found");
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_command() {
    let Some(p) = platform().await else { return };
    let mcp = Mcp::mounted(&p);
    let (id, token) = p.create(json!({})).await;
    let sleeps = || async { p.exec(&id, &token, "pgrep -fx 'sleep 300'").await.body["exit_code"] == 0 };
    for (newest, progress) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut params = json!({"name": "sandbox_exec", "arguments": {"sandbox_id": id, "command": "sleep 300 & sleep 300"}});
        if progress {
            params["_meta"]["progressToken"] = "t".into();
        }
        let request =
            if newest { mcp.newest("tools/call", params) } else { mcp.request("tools/call", params) };
        let call = tokio::spawn(async move {
            let mut response = request.send().await.unwrap();
            while response.chunk().await.unwrap().is_some() {}
        });
        wait_for("the command runs", Duration::from_secs(20), || async { sleeps().await.then_some(()) })
            .await;
        assert!(!call.is_finished());
        call.abort();
        let gone = Instant::now();
        wait_for("the command is dead", CANCELLED, || async { (!sleeps().await).then_some(()) }).await;
        eprintln!("newest {newest}, progress {progress}: dead after {:?}", gone.elapsed());
    }
}

#[tokio::test]
async fn large_bodies_cost_no_memory_and_attackers_no_wait() {
    let Some(p) = platform().await else { return };
    let mcp = Mcp::mounted(&p);
    mcp.call("sandbox_list", json!({})).await;
    let before = memory(p.pid(), "VmHWM");
    let large = vec![b'x'; 17 << 20];
    let refused = (0..8).map(|_| mcp.post(large.clone()).send());
    for answer in futures_util::future::join_all(refused).await {
        assert_eq!(answer.unwrap().status(), 413);
    }
    let grown = memory(p.pid(), "VmHWM") - before;
    assert!(grown < 8 * 1024, "eight bodies of 17 MiB: the peak grew by {grown} KiB");

    // Without a length it shows only at the end; one body at a time is held, and never more than the limit.
    let pieces = (0..17).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 20]));
    let answer =
        mcp.post(reqwest::Body::wrap_stream(futures_util::stream::iter(pieces))).send().await.unwrap();
    assert_eq!(answer.status(), 413);
    for (name, value) in [("host", "evil.example"), ("origin", "http://evil.example"), ("origin", "null")] {
        let answer = mcp.request("tools/list", json!({})).header(name, value).send().await.unwrap();
        assert_eq!(answer.status(), 403, "{name}: {value}");
    }
}

/// All succeed: those beyond what may run at once wait, and their connections hold little.
#[tokio::test]
async fn a_thousand_calls_at_once() {
    let Some(p) = platform().await else { return };
    let served = Served::start(p.base_url());
    let mut ids = Vec::new();
    for _ in 0..8 {
        ids.push(p.create(json!({})).await.0);
    }
    for (name, pid, mcp) in [
        ("up", p.pid(), Mcp::mounted(&p)),
        ("mcp --http", served.child.id(), Mcp::new(served.url.clone(), p.key())),
    ] {
        let before = memory(pid, "VmHWM");
        let calls = (0..1000).map(|n| {
            let (mcp, id) = (&mcp, &ids[n % 8]);
            async move {
                if n % 5 == 0 {
                    let command = json!({"sandbox_id": id, "command": format!("echo {n}")});
                    assert_eq!(mcp.call("sandbox_exec", command).await["stdout"], format!("{n}\n"));
                } else {
                    assert_eq!(mcp.call("sandbox_info", json!({"sandbox_id": id})).await["id"], **id);
                }
            }
        });
        let begun = Instant::now();
        futures_util::future::join_all(calls).await;
        let grown = memory(pid, "VmHWM") - before;
        eprintln!("{name}: 1000 calls in {:?}, the peak of memory grew by {grown} KiB", begun.elapsed());
        assert!(grown < 160 * 1024, "{name}: the peak grew by {grown} KiB");
        // And everything is as before.
        assert_eq!(mcp.call("sandbox_info", json!({"sandbox_id": ids[0]})).await["id"], ids[0]);
    }
}

#[tokio::test]
async fn a_stop_lets_calls_end() {
    let Some(p) = platform().await else { return };
    let mut served = Served::start(p.base_url());
    let mcp = Mcp::new(served.url.clone(), p.key());
    let (id, token) = p.create(json!({})).await;
    let arguments = json!({"sandbox_id": id, "command": "sleep 4; echo ended"});
    let call = mcp.call("sandbox_exec", arguments);
    let stop = async {
        wait_for("the command runs", Duration::from_secs(20), || async {
            (p.exec(&id, &token, "pgrep -fx 'sleep 4'").await.body["exit_code"] == 0).then_some(())
        })
        .await;
        served.terminate();
        wait_for("nobody is let in any more", Duration::from_secs(5), || async {
            reqwest::get(served.url.replace("/mcp", "/health")).await.is_err().then_some(())
        })
        .await;
    };
    let (ended, ()) = tokio::join!(call, stop);
    assert_eq!(ended["stdout"], "ended\n");
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
}

/// An nginx in front, stopped when dropped.
struct Nginx {
    child: Child,
    url: String,
    _dir: tempfile::TempDir,
}

impl Nginx {
    /// `None`, loudly, where it is not installed.
    async fn start(target: &str, idle_seconds: u32) -> Option<Self> {
        let Some(program) =
            ["/usr/sbin/nginx", "/usr/bin/nginx"].into_iter().find(|path| Path::new(path).exists())
        else {
            eprintln!("SKIPPED: nginx is not installed");
            return None;
        };
        let dir = tempfile::Builder::new().prefix("ss-nginx-").tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let base = dir.path().display();
        let conf = format!(
            "daemon off; master_process off; pid {base}/pid; error_log stderr warn; events {{}}\n\
             http {{ access_log off; client_body_temp_path {base}/b; proxy_temp_path {base}/p; fastcgi_temp_path {base}/f;\n\
             uwsgi_temp_path {base}/u; scgi_temp_path {base}/s; client_max_body_size 32m;\n\
             server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {target}; proxy_http_version 1.1;\n\
             proxy_set_header Host localhost; proxy_read_timeout {idle_seconds}s; proxy_send_timeout {idle_seconds}s; }} }} }}\n"
        );
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, conf).unwrap();
        let child =
            Command::new(program).arg("-p").arg(dir.path()).arg("-c").arg(&file).stdin(Stdio::null()).spawn();
        let url = format!("http://127.0.0.1:{port}/mcp");
        let nginx = Self { child: child.unwrap(), url, _dir: dir };
        wait_for("nginx listens", Duration::from_secs(10), || async {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop)
        })
        .await;
        Some(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _already_ended = self.child.kill();
        let _already_ended = self.child.wait();
    }
}

/// Time is compressed to a third: an idle limit of 20 s for the usual 60 s, and a command of 45 s for one of minutes. What is shown
/// is the same: the command outlives the limit twice over, because comments come before it. With `SUPERSERVE_REAL_TIME=1` it is
/// five minutes behind 60 s.
#[tokio::test]
async fn a_long_command_survives_behind_nginx() {
    let Some(p) = platform().await else { return };
    let (idle, seconds) =
        if std::env::var_os("SUPERSERVE_REAL_TIME").is_some() { (60, 300) } else { (20, 45) };
    let served = Served::start(p.base_url());
    let Some(nginx) = Nginx::start(&served.url.replace("/mcp", ""), idle).await else { return };
    let mcp = Mcp::new(nginx.url.clone(), p.key());
    let (id, token) = p.create(json!({})).await;
    let command = format!("sleep {seconds}; echo survived");
    let arguments = json!({"sandbox_id": id, "command": command, "timeout_ms": 600_000});
    let params = json!({"name": "sandbox_exec", "arguments": arguments});
    let begun = Instant::now();
    let patient = mcp.request("tools/call", params).timeout(Duration::from_secs(2 * seconds));
    let mut response = patient.send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let head = begun.elapsed();
    assert!(
        head > Duration::from_secs(8) && head < Duration::from_secs(18),
        "head after {head:?}: not buffered"
    );
    let (mut text, mut last, mut silence) = (String::new(), Instant::now(), Duration::ZERO);
    while let Some(chunk) = response.chunk().await.unwrap() {
        silence = silence.max(last.elapsed());
        last = Instant::now();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    let comments = text.matches(": keep-alive").count();
    eprintln!(
        "{seconds} s behind an idle limit of {idle} s: head after {head:?}, {comments} comments, longest silence {silence:?}, end after {:?}",
        begun.elapsed()
    );
    assert!(comments as u64 >= seconds / 15 - 1 && text.contains("survived"), "{text}");

    // And a client that leaves nginx leaves us.
    let params = json!({"name": "sandbox_exec", "arguments": {"sandbox_id": id, "command": "sleep 301"}});
    let request = mcp.request("tools/call", params);
    let call = tokio::spawn(request.send());
    let sleeps = || async { p.exec(&id, &token, "pgrep -fx 'sleep 301'").await.body["exit_code"] == 0 };
    wait_for("the command runs", Duration::from_secs(20), || async { sleeps().await.then_some(()) }).await;
    call.abort();
    wait_for("the command is dead", CANCELLED, || async { (!sleeps().await).then_some(()) }).await;
}
