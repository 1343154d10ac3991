//! The official conformance suite against tools that it asks for, which only return what they have: it tests this server's
//! transport, dispatch, results and progress. `tests/mcp/test_conformance.py` runs the suite against the real endpoints, and
//! `docs/mcp-conformance.md` explains what is expected.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use axum::extract::Request;
use http::header::AUTHORIZATION;
use rmcp::model::ContentBlock;
use serde_json::{Value, json};

use super::*;
use crate::progress::Output;
use crate::text::{Failure, Outcome};
use crate::tools::Hints;

/// All scenarios of a revision take about three seconds; generous for a busy machine.
const SUITE_LIMIT: Duration = Duration::from_secs(120);
/// A picture of one red point.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A sound without a sample.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

/// A tool without parameters.
macro_rules! tool {
    ($name:literal, |$call:ident| $outcome:expr) => {
        &Tool {
            name: $name,
            title: "Fixture",
            description: "Fixture.",
            hints: Hints::READ,
            params: &[],
            check: |_, _| {},
            run: |$call| Box::pin(async move { $outcome }),
        }
    };
}

const FIXTURES: &[&Tool] = &[
    tool!("test_simple_text", |_call| with(vec![])),
    tool!("test_image_content", |_call| with(vec![ContentBlock::image(PNG, "image/png")])),
    tool!("test_audio_content", |_call| with(vec![ContentBlock::audio(WAV, "audio/wav")])),
    tool!("test_embedded_resource", |_call| with(vec![ContentBlock::embedded_text(
        "test://embedded",
        "text"
    )])),
    tool!("test_multiple_content_types", |_call| with(vec![
        ContentBlock::image(PNG, "image/png"),
        ContentBlock::embedded_text("test://mixed", "text"),
    ])),
    tool!("test_error_handling", |_call| Err(Failure::refused("This fails on purpose."))),
    tool!("test_tool_with_progress", |call| {
        let output = Output::default();
        let work = async {
            for _ in 0..4 {
                output.add(1);
                tokio::time::sleep(Duration::from_millis(400)).await;
            }
        };
        match &call.progress {
            Some(progress) => progress.during(Duration::from_secs(2), &output, work).await,
            None => work.await,
        }
        with(vec![])
    }),
    // What is shown of these is what a server does not do: write a log, or ask its client.
    tool!("test_logging_tool", |_call| with(vec![])),
    tool!("test_streaming_elicitation", |_call| with(vec![])),
];

fn with(more: Vec<ContentBlock>) -> Result<Outcome, Failure> {
    Ok(Outcome { more, ..Outcome::new("Some text.", json!({})) })
}

/// Where `scripts/install-test-deps.sh` puts the suite; `None`, loudly, when it did not.
fn installed() -> Option<(PathBuf, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let given = std::env::var_os("SUPERSERVE_CONFORMANCE").map(PathBuf::from);
    let packages = given.unwrap_or_else(|| root.join("target/clients/conformance")).join("node_modules");
    let nodes = ["x64", "arm64"].map(|arch| packages.join(format!("node-linux-{arch}/bin/node")));
    let node = nodes.into_iter().find(|node| node.exists());
    if node.is_none() {
        eprintln!("SKIPPED: the conformance suite is not installed; scripts/install-test-deps.sh does that");
    }
    Some((node?, packages.join(".bin/conformance")))
}

#[tokio::test]
async fn the_suite_passes_with_its_own_tools() {
    let Some((node, suite)) = installed() else { return };
    let expected: Value =
        serde_json::from_str(include_str!("../../../../../tests/conformance/scenarios.json")).unwrap();
    // The suite cannot send a key.
    let app = server_with(Limits::default(), FIXTURES).router().layer(axum::middleware::map_request(
        |mut request: Request| async {
            request.headers_mut().insert(AUTHORIZATION, http::HeaderValue::from_static("Bearer ss_live_x"));
            request
        },
    ));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    for version in expected["versions"].as_array().unwrap() {
        let results = tempfile::tempdir().unwrap();
        let mut ran = tokio::process::Command::new(&node);
        ran.arg(&suite).args(["server", "--suite", "all", "--url", &url]);
        ran.args(["--spec-version", version.as_str().unwrap(), "-o"]).arg(results.path());
        ran.current_dir(results.path()).stdin(Stdio::null()).kill_on_drop(true);
        // Its exit code says that scenarios failed which are not for us; what counts is in the files.
        let output = tokio::time::timeout(SUITE_LIMIT, ran.output()).await.expect("an end in time").unwrap();
        let mut fixtures = 0;
        for scenario in std::fs::read_dir(results.path()).unwrap() {
            let path = scenario.unwrap().path();
            // server-<scenario>-<date and time of six parts>
            let name = path.file_name().unwrap().to_str().unwrap().strip_prefix("server-").unwrap();
            let name = name.rsplitn(7, '-').last().unwrap();
            let expected = &expected["scenarios"][name];
            if !matches!(expected["by"].as_str(), Some("server" | "fixture")) {
                continue;
            }
            fixtures += usize::from(expected["by"] == "fixture");
            let checks: Vec<Value> =
                serde_json::from_slice(&std::fs::read(path.join("checks.json")).unwrap()).unwrap();
            let failed: Vec<&Value> = checks.iter().filter(|check| check["status"] == "FAILURE").collect();
            let ids: BTreeSet<&str> = failed.iter().map(|check| check["id"].as_str().unwrap()).collect();
            let excepted = expected["except"].as_object().into_iter().flatten();
            let excepted: BTreeSet<&str> =
                excepted.filter(|(_, reason)| *reason != "fixture").map(|(id, _)| id.as_str()).collect();
            assert_eq!(ids, excepted, "{version} {name}: {failed:#?}");
        }
        assert_eq!(fixtures, 7, "{version}: {}", String::from_utf8_lossy(&output.stderr));
    }
    serving.abort();
}
