//! `sandbox_files_write` (`spec/mcp.md` §C.7).

use client::UploadBody;
use serde_json::json;

use super::{Call, Hints, Tool, no_check};
use crate::base64;
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_files_write",
    title: "Write a file to a sandbox",
    description: "Create or overwrite a file of at most 8 MiB; missing parent directories are made. A paused sandbox is resumed.",
    hints: Hints::WRITE_ONCE,
    params: &[
        Param::sandbox_id(),
        Param::required("path", Kind::Path, "Absolute path."),
        Param::required("content", Kind::Text { min: 0 }, "The whole content; may be empty."),
        Param::optional(
            "encoding",
            Kind::Choice { of: super::sandbox_files_read::ENCODINGS, default: Some("text") },
            "How content is given.",
        ),
    ],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

/// Largest content after decoding, bytes, inclusive.
const MAX_BYTES: usize = 8 * 1024 * 1024;

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let path = call.args.required_text("path");
    let content = call.args.required_text("content");
    let content = match call.args.text("encoding").as_deref() {
        Some("base64") => base64::decode(&content).map_err(|base64::Invalid(why)| {
            Failure::refused(format!("Invalid base64 content: {why}. Nothing was written."))
        })?,
        _ => content.into_bytes(),
    };
    let bytes = content.len();
    if bytes > MAX_BYTES {
        return Err(Failure {
            text: format!(
                "Refusing to write {bytes} bytes to {}: sandbox_files_write is limited to 8 MiB ({MAX_BYTES} bytes). Use the SDK \
                 or the CLI, or write it in parts and append them with sandbox_exec.",
                line(&path)
            ),
            class: "too_large".to_owned(),
        });
    }
    let about = About { target: Target::Path { sandbox: &id, path: &path }, repeat: Repeat::Safe };
    let body = UploadBody::Bytes(content.into());
    let written = call.client.write_file(&id, &path, body).await.map_err(|error| explain(&error, about))?;
    if written.size != bytes as u64 {
        return Err(Failure {
            text: format!(
                "The platform reports {} written bytes of {bytes} for {}. Check the file with sandbox_files_list, then write \
                 it again.",
                written.size,
                line(&path)
            ),
            class: "protocol".to_owned(),
        });
    }
    Ok(Outcome::new(format!("wrote {bytes} bytes to {}", line(&path)), json!({"path": path, "bytes": bytes})))
}
