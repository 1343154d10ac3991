//! `sandbox_exec` (`spec/mcp.md` §C.5): a command that ends with its call, see [`crate::command`].

use std::time::{Duration, Instant};

use client::ExecRequest;
use serde_json::json;

use super::{Call, Hints, Tool, no_check};
use crate::command::{self, Finished};
use crate::params::{Kind, Param};
use crate::progress::Output;
use crate::text::{About, Failure, Outcome, Repeat, Target};
use crate::truncate::Cut;

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_exec",
    title: "Run a command in a sandbox",
    description: "Run a shell command and return stdout, stderr and exit code (non-zero is not an error). A paused sandbox is \
        resumed by itself. Output above 32 KiB per stream is cut in the middle. The call waits for the command, so start \
        servers in the background with redirected output: `nohup CMD >app.log 2>&1 &`.",
    // 64 KiB as they come, in both forms, each byte of which may need six.
    hints: Hints::WRITE.holding(1024 * 1024),
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
    let (started, output) = (Instant::now(), Output::default());
    let work = command::run(&call.client, &call.background, &id, request, timeout, &output);
    let finished = match &call.progress {
        Some(progress) => progress.during(timeout, &output, work).await,
        None => work.await,
    };
    let finished = finished.map_err(|fault| {
        fault.explain(About {
            target: Target::Sandbox(&id),
            repeat: Repeat::LookFirst("the command may have run, so look at its effects with sandbox_exec"),
        })
    })?;
    match finished.exit_code {
        Some(TIMED_OUT) if started.elapsed() >= timeout => Err(timed_out(timeout, finished)),
        None => Err(timed_out(timeout, finished)),
        Some(exit_code) => {
            let note = (wanted > MAX_TIMEOUT_MS).then_some("timeout_ms was reduced to 600000");
            Ok(outcome(exit_code, finished, note))
        }
    }
}

/// Both streams, cut to fit.
struct Shown {
    stdout: Cut,
    stderr: Cut,
}

impl Shown {
    fn new(finished: Finished) -> Self {
        Self { stdout: finished.stdout.cut(), stderr: finished.stderr.cut() }
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
        for (name, cut) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !cut.text.is_empty() {
                text.push_str(&format!("\n--- {name} ---\n{}", cut.text));
            }
        }
        text
    }
}

fn outcome(exit_code: i32, finished: Finished, note: Option<&str>) -> Outcome {
    let shown = Shown::new(finished);
    let note = note.map(|note| format!(" ({note})")).unwrap_or_default();
    let text = format!("exit {exit_code}{note}{}", shown.text());
    let structured = json!({
        "exit_code": exit_code,
        "truncated": shown.stdout.cut || shown.stderr.cut,
        "stdout_bytes": shown.stdout.bytes,
        "stderr_bytes": shown.stderr.bytes,
        "stdout": shown.stdout.text,
        "stderr": shown.stderr.text,
    });
    Outcome::new(text, structured)
}

fn timed_out(timeout: Duration, finished: Finished) -> Failure {
    let text = format!(
        "Command timed out after {} ms and was killed. Raise timeout_ms (at most {MAX_TIMEOUT_MS}), or start it in the \
         background with redirected output and poll. Output so far:{}",
        timeout.as_millis(),
        match Shown::new(finished).text() {
            text if text.is_empty() => " (none)".to_owned(),
            text => text,
        }
    );
    Failure { text, class: "command_timeout".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::truncate::{Kept, OUTPUT_CAP};

    fn finished(stdout: &str, stderr: &str) -> Finished {
        let kept = |text| {
            let mut kept = Kept::new(OUTPUT_CAP);
            kept.push(text);
            kept
        };
        Finished { stdout: kept(stdout), stderr: kept(stderr), exit_code: None }
    }

    #[test]
    fn text_and_structured_tell_the_same() {
        let shown = outcome(0, finished("hello\n", ""), None);
        assert_eq!(shown.text, "exit 0\n--- stdout ---\nhello\n");
        assert_eq!(
            serde_json::Value::Object(shown.structured),
            json!({"exit_code": 0, "stdout": "hello\n", "stderr": "", "stdout_bytes": 6, "stderr_bytes": 0, "truncated": false})
        );
        assert_eq!(outcome(3, finished("", ""), None).text, "exit 3");
    }

    #[test]
    fn cut_output_says_so_in_both_forms() {
        let shown = outcome(0, finished(&"x".repeat(50_000), "e"), Some("n"));
        assert!(
            shown
                .text
                .starts_with("exit 0 (n)\nstdout was cut: 32768 of 50000 bytes are shown\n--- stdout ---\n")
        );
        assert!(shown.text.ends_with("\n--- stderr ---\ne"));
        assert_eq!(shown.structured["stdout_bytes"], 50_000);
        assert_eq!(shown.structured["truncated"], true);
        assert_eq!(shown.structured["stdout"].as_str().unwrap().len(), OUTPUT_CAP);
    }

    #[test]
    fn a_timeout_keeps_what_was_said() {
        let failure = timed_out(Duration::from_millis(1500), finished("partial", ""));
        assert!(failure.text.starts_with("Command timed out after 1500 ms"), "{}", failure.text);
        assert!(failure.text.contains("600000") && failure.text.ends_with("--- stdout ---\npartial"));
        assert!(timed_out(Duration::from_secs(1), finished("", "")).text.ends_with("Output so far: (none)"));
    }
}
