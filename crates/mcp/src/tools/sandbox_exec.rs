//! `sandbox_exec` (`spec/mcp.md` §C.5). The answer comes in one piece; dropping the future closes the connection, upon
//! which the platform kills the command, so cancelling a call ends the command too.

use std::time::{Duration, Instant};

use client::{ExecRequest, ExecResponse};
use serde_json::json;

use super::{Call, Hints, Tool, no_check};
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain};
use crate::truncate::{self, Cut, OUTPUT_CAP};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_exec",
    title: "Run a command in a sandbox",
    description: "Run a shell command and return stdout, stderr and exit code (non-zero is not an error). A paused sandbox is \
        resumed by itself. Output above 32 KiB per stream is cut in the middle. The call waits for the command, so start \
        servers in the background with redirected output: `nohup CMD >app.log 2>&1 &`.",
    hints: Hints::WRITE,
    params: &[
        Param::sandbox_id(),
        Param::required("command", Kind::Text { min: 1 }, "Shell command line."),
        Param::optional("cwd", Kind::Path, "Working directory, absolute."),
        Param::optional("env", Kind::Map, "Environment of this command only. No credentials."),
        Param::optional(
            "timeout_ms",
            Kind::Integer { min: 1, max: None, default: Some(DEFAULT_TIMEOUT_MS) },
            "Kill the command after this time; raise it for slow ones (at most 600000, larger values count as that).",
        ),
    ],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

const DEFAULT_TIMEOUT_MS: i64 = 60_000;
/// Larger wishes are clamped.
const MAX_TIMEOUT_MS: i64 = 600_000;
/// The exit code of the platform for a command that ran out of time. Commands can end with it too, so the clock decides.
const TIMED_OUT: i32 = wire::data_plane::TIMEOUT_EXIT_CODE;

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let wanted = call.args.integer("timeout_ms").unwrap_or(DEFAULT_TIMEOUT_MS);
    let timeout = Duration::from_millis(wanted.min(MAX_TIMEOUT_MS).unsigned_abs());
    let seconds = timeout.as_millis().div_ceil(1000);
    let request = ExecRequest {
        command: call.args.required_text("command"),
        args: None,
        env: call.args.map("env"),
        working_dir: call.args.text("cwd"),
        timeout_s: i64::try_from(seconds).ok(),
    };
    let started = Instant::now();
    let work = call.client.exec(&id, &request);
    let response = match &call.progress {
        Some(progress) => progress.during(timeout, work).await,
        None => work.await,
    };
    let response = response.map_err(|error| {
        let about = About {
            target: Target::Sandbox(&id),
            repeat: Repeat::LookFirst("the command may have run, so look at its effects with sandbox_exec"),
        };
        explain(&error, about)
    })?;
    if response.exit_code == TIMED_OUT && started.elapsed() >= timeout {
        return Err(timed_out(timeout, response));
    }
    let note = (wanted > MAX_TIMEOUT_MS).then_some("timeout_ms was reduced to 600000");
    Ok(outcome(response, note))
}

/// Both streams, cut to fit.
struct Output {
    stdout: Cut,
    stderr: Cut,
    platform_truncated: bool,
}

impl Output {
    fn new(response: ExecResponse) -> Self {
        Self {
            stdout: truncate::middle(response.stdout, OUTPUT_CAP),
            stderr: truncate::middle(response.stderr, OUTPUT_CAP),
            platform_truncated: response.truncated,
        }
    }

    /// The lines after the first one.
    fn text(&self) -> String {
        let mut text = String::new();
        for (name, cut) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if cut.cut {
                text.push_str(&format!(
                    "\n{name} was cut: {} of {} bytes are shown",
                    cut.text.len(),
                    cut.bytes
                ));
            }
        }
        if self.platform_truncated {
            text.push_str("\nthe platform kept only a part of the output, so byte counts are lower bounds");
        }
        for (name, cut) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !cut.text.is_empty() {
                text.push_str(&format!("\n--- {name} ---\n{}", cut.text));
            }
        }
        text
    }
}

fn outcome(response: ExecResponse, note: Option<&str>) -> Outcome {
    let exit_code = response.exit_code;
    let output = Output::new(response);
    let note = note.map(|note| format!(" ({note})")).unwrap_or_default();
    let text = format!("exit {exit_code}{note}{}", output.text());
    let mut structured = json!({
        "exit_code": exit_code,
        "truncated": output.stdout.cut || output.stderr.cut || output.platform_truncated,
        "stdout_bytes": output.stdout.bytes,
        "stderr_bytes": output.stderr.bytes,
        "stdout": output.stdout.text,
        "stderr": output.stderr.text,
    });
    if output.platform_truncated {
        structured["platform_truncated"] = true.into();
    }
    Outcome::new(text, structured)
}

fn timed_out(timeout: Duration, response: ExecResponse) -> Failure {
    let text = format!(
        "Command timed out after {} ms and was killed. Raise timeout_ms (at most {MAX_TIMEOUT_MS}), or start it in the \
         background with redirected output and poll. Output so far:{}",
        timeout.as_millis(),
        match Output::new(response).text() {
            text if text.is_empty() => " (none)".to_owned(),
            text => text,
        }
    );
    Failure { text, class: "command_timeout".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(stdout: &str, stderr: &str, exit_code: i32) -> ExecResponse {
        ExecResponse { stdout: stdout.into(), stderr: stderr.into(), exit_code, truncated: false }
    }

    #[test]
    fn text_and_structured_tell_the_same() {
        let outcome = outcome(response("hello\n", "", 0), None);
        assert_eq!(outcome.text, "exit 0\n--- stdout ---\nhello\n");
        assert_eq!(
            serde_json::Value::Object(outcome.structured),
            json!({"exit_code": 0, "stdout": "hello\n", "stderr": "", "stdout_bytes": 6, "stderr_bytes": 0, "truncated": false})
        );
        assert_eq!(super::outcome(response("", "", 3), None).text, "exit 3");
    }

    #[test]
    fn cut_output_says_so_in_both_forms() {
        let outcome = outcome(response(&"x".repeat(50_000), "e", 0), Some("n"));
        assert!(
            outcome
                .text
                .starts_with("exit 0 (n)\nstdout was cut: 32768 of 50000 bytes are shown\n--- stdout ---\n")
        );
        assert!(outcome.text.ends_with("\n--- stderr ---\ne"));
        assert_eq!(outcome.structured["stdout_bytes"], 50_000);
        assert_eq!(outcome.structured["truncated"], true);
        assert_eq!(outcome.structured["stdout"].as_str().unwrap().len(), OUTPUT_CAP);
        assert!(!outcome.structured.contains_key("platform_truncated"));
        let mut response = response("a", "", 0);
        response.truncated = true;
        let outcome = super::outcome(response, None);
        assert_eq!(outcome.structured["platform_truncated"], true);
        assert_eq!(outcome.structured["truncated"], true);
    }

    #[test]
    fn a_timeout_keeps_what_was_said() {
        let failure = timed_out(Duration::from_millis(1500), response("partial", "", 124));
        assert!(failure.text.starts_with("Command timed out after 1500 ms"), "{}", failure.text);
        assert!(failure.text.contains("600000") && failure.text.ends_with("--- stdout ---\npartial"));
        assert!(
            timed_out(Duration::from_secs(1), response("", "", 124)).text.ends_with("Output so far: (none)")
        );
    }
}
