//! What the MCP server costs: start, memory, and what it adds to the same command over REST, measured in turns so that
//! the machine's moods meet both.

use std::process::Stdio;
use std::time::{Duration, Instant};

use client::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::report::{Row, millis};
use super::{BenchTarget, paths};

/// Starts that are measured.
const STARTS: usize = 5;
/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const INITIALIZE: &str = "mcp: start → initialize answered";
const RESIDENT: &str = "mcp: resident";
const TOOLS: &str = "mcp: size of tools/list";
const ADDED: &str = "mcp: added per sandbox_exec";

pub(crate) async fn rows(target: &BenchTarget, client: &Client, id: &str, calls: u32) -> Vec<Row> {
    match measure(target, client, id, calls).await {
        Ok(rows) => rows,
        Err(why) => [(INITIALIZE, "ms"), (RESIDENT, "MiB"), (TOOLS, "kB"), (ADDED, "ms")]
            .map(|(name, unit)| Row::absent(name, unit, why.clone()))
            .into(),
    }
}

async fn measure(target: &BenchTarget, client: &Client, id: &str, calls: u32) -> Result<Vec<Row>, String> {
    let mut starts = Vec::new();
    let mut resident = Vec::new();
    let mut server = None;
    for _ in 0..STARTS {
        let started = Instant::now();
        let mut fresh = Server::start(target)?;
        fresh.initialize().await?;
        starts.push(millis(started.elapsed()));
        resident.push(fresh.resident_mib()?);
        server = Some(fresh);
    }
    let mut server = server.ok_or("no start was measured")?;
    let tools = server.call("tools/list", json!({})).await?;
    let arguments = json!({ "name": "sandbox_exec", "arguments": { "sandbox_id": id, "command": "true" } });
    server.call("tools/call", arguments.clone()).await?;
    paths::exec(client, id).await.map_err(|error| super::reason(&error))?;
    let mut added = Vec::new();
    for _ in 0..calls {
        let rest = paths::exec(client, id).await.map_err(|error| super::reason(&error))?;
        let started = Instant::now();
        let answer = server.call("tools/call", arguments.clone()).await?;
        added.push(millis(started.elapsed()) - millis(rest));
        if answer["isError"] == true {
            return Err("sandbox_exec reports an error".to_owned());
        }
    }
    Ok(vec![
        Row::samples(INITIALIZE, "ms", starts).budget("≤ 20"),
        Row::samples(RESIDENT, "MiB", resident).budget("≤ 12"),
        Row::samples(TOOLS, "kB", vec![tools.to_string().len() as f64 / 1000.0]).budget("≤ 20"),
        Row::samples(ADDED, "ms", added).budget("≤ 0.2").note("each call minus the REST exec before it"),
    ])
}

/// A running `superserve mcp`; killed when dropped.
struct Server {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    next_id: u64,
}

impl Server {
    fn start(target: &BenchTarget) -> Result<Self, String> {
        let mut command = Command::new(&target.superserve);
        command
            .arg("mcp")
            .env("SUPERSERVE_API_KEY", target.config.api_key.expose_secret())
            .env("SUPERSERVE_BASE_URL", &target.config.base_url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        if let Some(ca_file) = &target.config.ca_file {
            command.env("SSL_CERT_FILE", ca_file);
        }
        let mut child = command.spawn().map_err(|error| format!("cannot start the MCP server: {error}"))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the MCP server has no pipes".to_owned());
        };
        Ok(Self { child, to, from: BufReader::new(from).lines(), next_id: 0 })
    }

    async fn initialize(&mut self) -> Result<(), String> {
        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "superserve-bench", "version": env!("CARGO_PKG_VERSION") },
        });
        self.call("initialize", hello).await?;
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await
    }

    async fn call(&mut self, method: &str, params: Value) -> Result<Value, String> {
        tokio::time::timeout(ANSWER_TIMEOUT, self.call_unbounded(method, params))
            .await
            .unwrap_or_else(|_| Err(format!("the MCP server did not answer {method}")))
    }

    async fn call_unbounded(&mut self, method: &str, params: Value) -> Result<Value, String> {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await?;
        loop {
            let line = self.from.next_line().await.map_err(|error| error.to_string())?;
            let line = line.ok_or_else(|| format!("the MCP server ended before it answered {method}"))?;
            let mut message: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
            if message["id"] != id {
                continue;
            }
            return match message["result"].take() {
                Value::Null => Err(format!("the MCP server refused {method}")),
                result => Ok(result),
            };
        }
    }

    async fn send(&mut self, message: &Value) -> Result<(), String> {
        let line = format!("{message}\n");
        self.to.write_all(line.as_bytes()).await.map_err(|error| format!("the MCP server went away: {error}"))
    }

    fn resident_mib(&self) -> Result<f64, String> {
        let pid = self.child.id().ok_or("the MCP server ended")?;
        let status =
            std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| error.to_string())?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0).ok_or_else(|| "its memory cannot be read".to_owned())
    }
}
