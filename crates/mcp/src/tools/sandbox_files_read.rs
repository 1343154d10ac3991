//! `sandbox_files_read` (`spec/mcp.md` §C.6).

use client::ClientError;
use serde_json::json;

use super::{Call, Hints, Tool, no_check};
use crate::base64;
use crate::params::{Kind, Param};
use crate::path::quote;
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line};

/// Labelled read-only although it may resume a paused sandbox: the product documents fix it so.
pub(super) const TOOL: Tool = Tool {
    name: "sandbox_files_read",
    title: "Read a file from a sandbox",
    description: "Read a file of at most 1 MiB. Larger ones are refused: read a slice with sandbox_exec and `head -c`. Use encoding \
        base64 for binary files. A paused sandbox is resumed.",
    // 1 MiB, twice in the result, and the message with what must be escaped.
    hints: Hints::READ.holding(6 * 1024 * 1024),
    params: &[
        Param::sandbox_id(),
        Param::required("path", Kind::Path, "Absolute path."),
        Param::optional(
            "encoding",
            Kind::Choice { of: ENCODINGS, default: Some("text") },
            "How content is returned.",
        ),
    ],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

/// Encodings of file contents.
pub(super) const ENCODINGS: &[&str] = &["text", "base64"];
/// Largest file, bytes, inclusive.
const MAX_BYTES: u64 = 1024 * 1024;

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let path = call.args.required_text("path");
    let encoding = call.args.text("encoding").unwrap_or_else(|| "text".to_owned());
    let content = async { call.client.read_file(&id, &path, MAX_BYTES).await?.bytes().await };
    let content = content.await.map_err(|error| match error {
        ClientError::TooLarge { .. } => too_large(&path),
        error => explain(
            &error,
            About { target: Target::Path { sandbox: &id, path: &path }, repeat: Repeat::Safe },
        ),
    })?;

    let bytes = content.len();
    let (content, lossy) = if encoding == "base64" {
        (base64::encode(&content), false)
    } else {
        let text = String::from_utf8_lossy(&content);
        let lossy = matches!(text, std::borrow::Cow::Owned(_));
        (text.into_owned(), lossy)
    };
    let note = if lossy { " (not valid UTF-8, so some bytes are replaced; use encoding base64)" } else { "" };
    let text = format!("read {bytes} bytes from {}{note}\n{content}", line(&path));
    let mut structured = json!({"path": path, "encoding": encoding, "bytes": bytes, "content": content});
    if lossy {
        structured["lossy"] = true.into();
    }
    Ok(Outcome::new(text, structured))
}

fn too_large(path: &str) -> Failure {
    let quoted = quote(path);
    Failure {
        text: format!(
            "{} is larger than the 1 MiB sandbox_files_read limit. Read a slice with sandbox_exec, whose output is cut at 32 \
             KiB: `tail -c +1 {quoted} | head -c 24576`, then continue with +24577; for binary content add `| base64 -w0` and \
             slices of 18432 bytes. For the whole file use the SDK or the CLI.",
            line(path)
        ),
        class: "too_large".to_owned(),
    }
}
