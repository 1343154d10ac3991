//! Revisions of the protocol, malformed input, and the ways a session ends.

use std::time::Duration;

use serde_json::{Value, json};

use super::session::{ID, Session};
use crate::tools::{self, Hints, Tool};

fn hello(version: &str) -> Value {
    json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}})
}

/// `params` of the newest revision.
fn modern(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    params
}

#[tokio::test]
async fn every_revision_with_a_handshake_is_spoken() {
    for (asked, agreed) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let mut session = Session::offline();
        let answer = session.ask("initialize", hello(asked)).await;
        let result = &answer["result"];
        assert_eq!(result["protocolVersion"], agreed);
        assert_eq!(result["serverInfo"]["name"], "superserve");
        assert_eq!(result["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(result["capabilities"], json!({"tools": {}}));
        assert!(result["instructions"].as_str().unwrap().contains("sandbox_create"));
        session.send_raw(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        let list = session.ask("tools/list", json!({})).await["result"].clone();
        assert_eq!(list["tools"].as_array().unwrap().len(), tools::ALL.len());
        for key in ["resultType", "ttlMs", "cacheScope", "_meta", "nextCursor"] {
            assert!(list.get(key).is_none(), "{asked}: {key}");
        }
        assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
    }
}

#[tokio::test]
async fn the_newest_revision_needs_no_handshake() {
    let mut session = Session::offline();
    let discovered = session.ask("server/discover", modern(json!({}))).await["result"].clone();
    assert_eq!(discovered["supportedVersions"].as_array().unwrap().len(), 5);
    assert_eq!(discovered["cacheScope"], "public");
    assert!(discovered["ttlMs"].is_u64() && discovered["instructions"].is_string());
    let list = session.ask("tools/list", modern(json!({}))).await["result"].clone();
    assert_eq!(list["cacheScope"], "public");
    assert!(list["ttlMs"].as_u64().unwrap() > 0);
    let called = session.ask("tools/call", modern(json!({"name": "sandbox_list"}))).await["result"].clone();
    for result in [discovered, list, called] {
        assert_eq!(result["resultType"], "complete");
        assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "superserve");
    }
    let code = |answer: &Value| answer["error"]["code"].as_i64().unwrap();
    assert_eq!(code(&session.ask("ping", modern(json!({}))).await), -32601);
    assert_eq!(code(&session.ask("server/discover", json!({})).await), -32602);
    let mut future = modern(json!({}));
    future["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let refused = session.ask("tools/list", future).await;
    assert_eq!(refused["error"]["data"]["requested"], "2099-01-01");
    assert_eq!(code(&refused), -32022);
    let mut incomplete = modern(json!({}));
    incomplete["_meta"].as_object_mut().unwrap().remove("io.modelcontextprotocol/clientCapabilities");
    assert_eq!(code(&session.ask("tools/list", incomplete).await), -32602);
}

#[tokio::test]
async fn faults_of_the_protocol_are_protocol_errors_and_the_session_goes_on() {
    let mut session = Session::offline();
    // Nothing of this ends the session, not even before the handshake.
    session
        .send_raw(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#)
        .await;
    session.send_raw(r#"{"jsonrpc":"2.0","method":"notifications/unheard_of"}"#).await;
    session.send_raw(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#).await;
    for (line, code) in [("{oops", -32700), ("[]", -32600), ("{}", -32600), ("\"x\"", -32600)] {
        session.send_raw(line).await;
        let answer = session.receive().await;
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &Value::Null), "{line}");
    }
    let unknown = session.ask("tools/call", json!({"name": "sandbox_explode"})).await;
    assert_eq!(unknown["error"]["code"], -32602);
    assert!(unknown["error"]["message"].as_str().unwrap().contains("sandbox_create"));
    for (method, params, code) in [
        ("resources/list", json!({}), -32601),
        ("prompts/list", json!({}), -32601),
        ("logging/setLevel", json!({"level": "info"}), -32601),
        ("completion/complete", json!({}), -32601),
        ("nonsense", json!({}), -32601),
        ("tools/call", json!({"name": 5}), -32602),
        ("tools/call", json!({"name": "sandbox_list", "arguments": []}), -32602),
        ("initialize", json!({"protocolVersion": 5}), -32602),
    ] {
        let answer = session.ask(method, params).await;
        assert_eq!(answer["error"]["code"], code, "{method}: {answer}");
    }
    assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn bad_arguments_are_results() {
    let mut session = Session::offline();
    let text = session.fail("sandbox_create", json!({"auto_delete_seconds": 2_592_001})).await;
    assert!(text.starts_with("Input validation error: invalid arguments for `sandbox_create`: "), "{text}");
    assert!(text.contains("`auto_delete_seconds` must be an integer from 0 to 2592000, got 2592001"));
    let text = session.fail("sandbox_create", json!({"from_template": "a", "from_snapshot": "b"})).await;
    assert!(text.contains("exclude each other"));
    let text = session.fail("sandbox_update", json!({"sandbox_id": ID})).await;
    assert!(text.contains("nothing to update") && text.contains("timeout_seconds"));
    let text = session.fail("sandbox_kill", json!({"sandbox_id": "a.b"})).await;
    assert!(text.contains("sandbox_list"));
    let text = session.fail("sandbox_files_read", json!({"sandbox_id": ID, "path": "a/../b"})).await;
    assert!(text.contains("absolute path"));
    let result = session.call("sandbox_exec", json!({"sandbox_id": ID, "cmd": "ls", "comand": "ls"})).await;
    assert_eq!(result["isError"], true);
    assert!(result["content"][1]["text"].as_str().unwrap().contains("did you mean `command`?"), "{result}");
    // A call without `arguments` is one without arguments.
    let answer = session.ask("tools/call", json!({"name": "sandbox_list"})).await;
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("Cannot reach the Superserve API at 127.0.0.1:9"), "{text}");
}

const PANICS: Tool = Tool {
    name: "sandbox_list",
    title: "Panics",
    description: "Panics.",
    hints: Hints::READ,
    params: &[],
    check: |_, _| {},
    run: |_| Box::pin(async { panic!("a planted panic") }),
};

#[tokio::test]
async fn a_panicking_tool_fails_alone() {
    let mut session = Session::start("http://127.0.0.1:9", const { &[&PANICS] });
    assert_eq!(session.fail("sandbox_list", json!({})).await, "Unexpected error.");
    assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
}

/// Set for the process of [`standard_output_of_a_process_stays_pure_when_a_tool_panics`].
const CHILD: &str = "SUPERSERVE_MCP_TEST_CHILD";

/// Not a test of its own: the process that the next one looks at.
#[tokio::test]
async fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    crate::process::set_panic_hook();
    crate::process::set_log(tracing::level_filters::LevelFilter::DEBUG);
    let config = crate::McpConfig::from_vars(|name| {
        (name == crate::API_KEY_VAR).then(|| super::session::KEY.to_owned())
    })
    .unwrap();
    let (input, output) = rmcp::transport::stdio_pipes();
    let served = crate::stdio::serve(&config, const { &[&PANICS] }, input, output, std::future::pending());
    served.await.unwrap();
    // What the test harness would still print is not ours.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

#[test]
fn standard_output_of_a_process_stays_pure_when_a_tool_panics() {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server::tests::protocol::child", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for id in 1..=3 {
        let call =
            json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "sandbox_list"}});
        writeln!(input, "{call}\n{{broken").unwrap();
    }
    drop(input);
    let ended = child.wait_with_output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap());
    // The harness announces its one test first.
    let lines: Vec<&str> = stdout.lines().filter(|line| !matches!(*line, "" | "running 1 test")).collect();
    let answers: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 6, "{stdout}");
    for id in 1..=3 {
        let answer = answers.iter().find(|answer| answer["id"] == id).unwrap();
        assert_eq!(answer["result"]["content"][0]["text"], "Unexpected error.");
    }
    assert_eq!(stderr.matches("a planted panic").count(), 3, "{stderr}");
    assert!(!stdout.contains("planted") && !stderr.contains(super::session::KEY), "{stdout}{stderr}");
}

/// A tool that never ends.
const HANGS: Tool = Tool {
    name: "sandbox_list",
    title: "Hangs",
    description: "Hangs.",
    hints: Hints::READ,
    params: &[],
    check: |_, _| {},
    run: |_| Box::pin(std::future::pending()),
};

async fn hanging() -> Session {
    let mut session = Session::start("http://127.0.0.1:9", const { &[&HANGS] });
    session.send("tools/call", json!({"name": "sandbox_list"})).await;
    assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
    session
}

#[tokio::test]
async fn every_end_is_quick_although_a_call_hangs() {
    let limit = Duration::from_secs(2);
    let mut session = hanging().await;
    session.close_input();
    assert!(session.ended().await < limit, "end of input");

    let session = hanging().await;
    session.signal();
    assert!(session.ended().await < limit, "signal");

    let mut session = hanging().await;
    session.close_output();
    session.send("ping", json!({})).await;
    assert!(session.ended().await < limit, "broken output");
}

#[tokio::test]
async fn answers_in_flight_survive_the_end_of_input() {
    let mut session = Session::offline();
    let id = session.send("tools/list", json!({})).await;
    session.close_input();
    assert_eq!(session.receive().await["id"], id);
    session.ended().await;
}
