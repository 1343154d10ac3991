//! `sandbox_files_download_dir` (`spec/mcp.md` §C.9).

use client::ClientError;
use serde_json::json;

use super::{Call, Hints, Tool, no_check};
use crate::base64;
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_files_download_dir",
    title: "Download a directory as a zip",
    description: "Return a directory as a base64 zip of at most 10 MiB, inline in the structured result. Meant for clients that save \
        it; to look at files use sandbox_files_list and sandbox_files_read. Symbolic links are left out.",
    // 10 MiB, its base64, and the message around it.
    hints: Hints::READ.holding(40 * 1024 * 1024),
    params: &[Param::sandbox_id(), Param::required("path", Kind::Path, "Absolute path of a directory.")],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

/// Largest zip, bytes, inclusive.
const MAX_BYTES: u64 = 10 * 1024 * 1024;

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let path = call.args.required_text("path");
    let content = async {
        let download = call.client.download_zip(&id, &path, MAX_BYTES).await?;
        let announced = download.content_length().is_some();
        Ok((announced, download.bytes().await?))
    };
    let (announced, zip) = content.await.map_err(|error| match error {
        ClientError::TooLarge { .. } => Failure {
            text: format!(
                "{} is more than the 10 MiB limit of sandbox_files_download_dir. Download a smaller subdirectory, read single \
                 files with sandbox_files_read, or use the SDK (files.downloadDir) or the CLI.",
                line(&path)
            ),
            class: "too_large".to_owned(),
        },
        error => explain(
            &error,
            About { target: Target::Path { sandbox: &id, path: &path }, repeat: Repeat::Safe },
        ),
    })?;
    if is_regular_file(&path, &zip, announced) {
        return Err(Failure::refused(format!(
            "{} is a regular file, not a directory. Read it with sandbox_files_read.",
            line(&path)
        )));
    }
    let bytes = zip.len();
    Ok(Outcome::new(
        format!("downloaded {} as a zip ({bytes} bytes; base64 in structured content)", line(&path)),
        json!({
            "path": path,
            "format": "zip",
            "encoding": "base64",
            "bytes": bytes,
            "content": base64::encode(&zip),
        }),
    ))
}

/// The platform sends a regular file as it is. A file that is itself a zip shows by its entries: those of a directory
/// begin with the directory's name, and its length is not known in advance.
fn is_regular_file(path: &str, content: &[u8], announced: bool) -> bool {
    const LOCAL_HEADER: &[u8] = b"PK\x03\x04";
    const EMPTY: &[u8] = b"PK\x05\x06";
    if !content.starts_with(LOCAL_HEADER) {
        return !content.starts_with(EMPTY);
    }
    let Some(base) = path.split('/').rfind(|segment| !matches!(*segment, "" | ".")) else { return false };
    let name = content.get(30..).unwrap_or_default();
    let inside = name.strip_prefix(base.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'/'));
    announced && !inside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_from_directories() {
        let mut zip = b"PK\x03\x04".to_vec();
        zip.resize(30, 0);
        zip.extend_from_slice(b"app/main.py");
        assert!(!is_regular_file("/srv/app", &zip, false));
        assert!(!is_regular_file("/srv/app/", &zip, true));
        assert!(!is_regular_file("/srv/app/.", &zip, true));
        assert!(!is_regular_file("/srv/bundle.zip", &zip, false), "only an announced length tells");
        assert!(is_regular_file("/srv/bundle.zip", &zip, true));
        assert!(!is_regular_file("/empty", b"PK\x05\x06\0\0", false));
        assert!(is_regular_file("/a.txt", b"hello", true));
        assert!(is_regular_file("/a.txt", b"", true));
        assert!(is_regular_file("/cut.zip", b"PK\x03\x04", true));
    }
}
