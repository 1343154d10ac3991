//! `sandbox_files_list` (`spec/mcp.md` §C.8): one command in the sandbox, see [`crate::listing`].

use client::{ExecRequest, ExecResponse};
use serde_json::{Value, json};

use super::{Call, Hints, Tool, no_check};
use crate::listing::{self, EXIT_MISSING, EXIT_NOT_DIRECTORY, Entry, MAX_ENTRIES};
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line};
use crate::truncate::OUTPUT_CAP;

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_files_list",
    title: "List a directory in a sandbox",
    description: "List one directory level, hidden files included, with type, size and time. A paused sandbox is resumed.",
    hints: Hints::READ,
    params: &[Param::sandbox_id(), Param::required("path", Kind::Path, "Absolute path of a directory.")],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

/// Longest listing; reading 100,000 directory entries from a slow disk takes a few seconds.
const TIMEOUT_S: i64 = 30;

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let path = call.args.required_text("path");
    let request = ExecRequest {
        command: listing::script(&path),
        timeout_s: Some(TIMEOUT_S),
        // A sandbox whose default directory is gone can still be listed.
        working_dir: Some("/".to_owned()),
        ..ExecRequest::default()
    };
    // A command-level 404 is about the sandbox; the path's absence is an exit code of the script.
    let about = About { target: Target::Sandbox(&id), repeat: Repeat::Safe };
    let response = call.client.exec(&id, &request).await.map_err(|error| explain(&error, about))?;
    outcome(&path, &response)
}

fn outcome(path: &str, response: &ExecResponse) -> Result<Outcome, Failure> {
    let entries = listing::parse(&response.stdout);
    let mut entries = match (response.exit_code, entries) {
        (0, Some(entries)) => entries,
        // `find` goes on past an entry it cannot look at; what it did see is worth showing.
        (_, Some(entries)) if !entries.is_empty() => entries,
        (code, _) => return Err(failure(path, code, &response.stderr)),
    };
    let total = entries.len();
    entries.truncate(MAX_ENTRIES);
    let cut = total > MAX_ENTRIES || response.truncated;
    let mut structured = json!({"path": path, "entries": entries.iter().map(row).collect::<Vec<_>>()});
    if cut {
        structured["truncated"] = true.into();
    }
    let mut text = text(path, &entries);
    if cut {
        text.push_str(&format!(
            "\n(only the first {} of {} entries are listed; look at subdirectories, or use sandbox_exec with find)",
            entries.len(),
            if response.truncated { "many".to_owned() } else { total.to_string() }
        ));
    }
    Ok(Outcome::new(text, structured))
}

fn text(path: &str, entries: &[Entry]) -> String {
    let mut text = line(path);
    if entries.is_empty() {
        text.push_str("\n(empty directory)");
    }
    for (index, entry) in entries.iter().enumerate() {
        let row = format!("\n{} {}\t{}", entry.kind.mark(), entry.size, line(&entry.name));
        if text.len() + row.len() > OUTPUT_CAP {
            text.push_str(&format!(
                "\n({} more entries are in the structured content)",
                entries.len() - index
            ));
            break;
        }
        text.push_str(&row);
    }
    text
}

fn row(entry: &Entry) -> Value {
    let mut row = json!({"name": entry.name, "type": entry.kind.as_str(), "size": entry.size});
    if let Some(modified) = &entry.modified {
        row["modified"] = modified.as_str().into();
    }
    row
}

fn failure(path: &str, code: i32, stderr: &str) -> Failure {
    let (reason, next) = match code {
        EXIT_MISSING => {
            ("it does not exist".to_owned(), "Check the parent directory with sandbox_files_list.")
        }
        EXIT_NOT_DIRECTORY => ("it is not a directory".to_owned(), "Read it with sandbox_files_read."),
        wire::data_plane::TIMEOUT_EXIT_CODE => {
            (format!("the listing timed out after {TIMEOUT_S} s"), "Look at a subdirectory instead.")
        }
        _ if stderr.contains("Permission denied") => {
            ("permission denied".to_owned(), "Look at it with sandbox_exec and sudo.")
        }
        _ => match stderr.lines().next() {
            Some(said) if !said.trim().is_empty() => (client::quote(said), "Look at it with sandbox_exec."),
            _ => (format!("the listing ended with exit code {code}"), "Look at it with sandbox_exec."),
        },
    };
    Failure { text: format!("Could not list {}: {reason}. {next}", line(path)), class: "listing".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(stdout: &str, stderr: &str, exit_code: i32) -> Result<Outcome, Failure> {
        outcome(
            "/d",
            &ExecResponse { stdout: stdout.into(), stderr: stderr.into(), exit_code, truncated: false },
        )
    }

    #[test]
    fn rows_in_both_forms() {
        let outcome = listed("F\0f\t5\t1.5\ta\nb\0d\t4096\t2\tsub\0l\t1\t\tln\0", "", 0).unwrap();
        assert_eq!(outcome.text, "/d\nd 4096\tsub\n- 5\ta?b\nl 1\tln");
        assert_eq!(
            Value::Object(outcome.structured),
            json!({"path": "/d", "entries": [
                {"name": "sub", "type": "directory", "size": 4096, "modified": "1970-01-01T00:00:02.000Z"},
                {"name": "a\nb", "type": "file", "size": 5, "modified": "1970-01-01T00:00:01.500Z"},
                {"name": "ln", "type": "symlink", "size": 1},
            ]})
        );
        assert_eq!(listed("F\0", "", 0).unwrap().text, "/d\n(empty directory)");
        assert!(listed("F\0f\t5\t1\ta\0", "find: x: Permission denied", 1).is_ok());
    }

    #[test]
    fn failures_say_what_to_do() {
        let text = |code, stderr: &str| listed("", stderr, code).unwrap_err().text;
        assert_eq!(
            text(EXIT_MISSING, ""),
            "Could not list /d: it does not exist. Check the parent directory with sandbox_files_list."
        );
        assert!(text(EXIT_NOT_DIRECTORY, "").contains("not a directory. Read it with sandbox_files_read"));
        assert!(text(1, "find: '/d': Permission denied\n").contains("permission denied"));
        assert!(text(124, "").contains("timed out"));
        assert!(text(139, "").contains("exit code 139"));
    }

    #[test]
    fn long_directories_are_cut_with_a_note() {
        let mut stdout = "F\0".to_owned();
        for i in 0..MAX_ENTRIES + 7 {
            stdout.push_str(&format!("f\t1\t1\tsome-file-name-{i:05}\0"));
        }
        let outcome = listed(&stdout, "", 0).unwrap();
        assert_eq!(outcome.structured["entries"].as_array().unwrap().len(), MAX_ENTRIES);
        assert_eq!(outcome.structured["truncated"], true);
        assert!(outcome.text.len() < OUTPUT_CAP + 300);
        assert!(outcome.text.contains("more entries are in the structured content"));
        assert!(outcome.text.contains("first 5000 of 5007"));
    }
}
