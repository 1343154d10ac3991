//! The data plane as the guest agent serves it and the edge relays it (`spec/data-plane.md`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::desktop::DesktopMethod;

/// Carries the per-sandbox token.
pub const ACCESS_TOKEN_HEADER: &str = "x-access-token";
/// Names the sandbox on the shared host.
pub const SANDBOX_ID_HEADER: &str = "x-superserve-sandbox-id";
/// Optional hint of other deployments; ignored here.
pub const ROUTING_HINT_HEADER: &str = "x-superserve-routing-hint";

/// Default of `ExecRequest::timeout_s` on `/exec`, seconds (§3).
pub const DEFAULT_EXEC_TIMEOUT_S: i64 = 30;
/// Combined output kept by `/exec`, bytes (§3).
pub const EXEC_RETENTION_BYTES: usize = 8 * 1024 * 1024;
/// Largest read chunk of one stream event, bytes (§4).
pub const STREAM_CHUNK_BYTES: usize = 32 * 1024;
/// Exit code of a command that ran out of time.
pub const TIMEOUT_EXIT_CODE: i32 = 124;
/// Largest upload, bytes (§6.2).
pub const MAX_UPLOAD_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// Most entries of a zip (§6.1).
pub const MAX_ZIP_ENTRIES: usize = 100_000;
/// Most content bytes of a zip (§6.1).
pub const MAX_ZIP_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Most rows of a JSON listing (§6.1).
pub const MAX_LISTING_ENTRIES: usize = 10_000;

/// Body of `POST /exec` and `POST /exec/stream`. Unknown fields are ignored: older agents meet newer clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// A shell command, or the program when `args` is given.
    #[serde(default)]
    pub command: String,
    /// Run `command` directly with these arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Variables of this command only; they win over all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Absolute directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Seconds; 0 and less mean the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
}

/// Answer of `POST /exec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResponse {
    /// UTF-8; invalid sequences are replaced.
    #[serde(default)]
    pub stdout: String,
    /// UTF-8; invalid sequences are replaced.
    #[serde(default)]
    pub stderr: String,
    /// 0 to 255; 128+n for death by signal n, 124 for a timeout, 127 not found, 126 not executable.
    #[serde(default)]
    pub exit_code: i32,
    /// The retention cap was hit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// One `data:` record of `POST /exec/stream` (§4).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEvent {
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// A piece of standard output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// A piece of standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// On the last event of a command that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The command could not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// `bad_request`, `exec_failed` or `gone`, with `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// True on the last event.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finished: bool,
}

/// Answer of `POST /files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploaded {
    /// Absolute path.
    pub path: String,
    /// Bytes written.
    pub size: u64,
}

/// Query parameters of `/files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileQuery {
    /// Absolute path.
    pub path: String,
    /// `zip` or `json` for directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// The paths of the data plane that the edge lets through (§1.4), beside those of [`session_path`] and
/// [`DesktopMethod`]; everything else is 404.
pub const EXPOSED_PATHS: &[&str] =
    &["/files", "/exec", "/exec/stream", "/exec/connect", "/exec/sessions", "/terminal"];

/// Whether the edge lets a path through. Exact texts only: nothing is decoded, so no other spelling gets in.
#[must_use]
pub fn exposed(path: &str) -> bool {
    EXPOSED_PATHS.contains(&path) || session_path(path).is_some() || DesktopMethod::of_path(path).is_some()
}

/// What a path below `/exec/sessions/` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionPath<'a> {
    /// `/exec/sessions/{id}`
    One(&'a str),
    /// `/exec/sessions/{id}/attach`
    Attach(&'a str),
}

/// The session a path names. Session ids are lower-case letters and digits.
#[must_use]
pub fn session_path(path: &str) -> Option<SessionPath<'_>> {
    let rest = path.strip_prefix(SESSIONS_PATH)?.strip_prefix('/')?;
    let (id, attach) = match rest.strip_suffix("/attach") {
        Some(id) => (id, true),
        None => (rest, false),
    };
    let valid = (1..=MAX_SESSION_ID_LEN).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    valid.then_some(if attach { SessionPath::Attach(id) } else { SessionPath::One(id) })
}

/// `GET`: the sessions of a sandbox, an addition of this server (`docs/data-plane-sessions.md`).
pub const SESSIONS_PATH: &str = "/exec/sessions";
/// On the answers of `/exec`, `/exec/stream`, `/exec/connect` and `/terminal`: what was started. An addition.
pub const SESSION_ID_HEADER: &str = "x-superserve-session-id";
const MAX_SESSION_ID_LEN: usize = 64;

/// The subprotocol of `/exec/connect` and of attaching (§5.1).
pub const EXEC_SUBPROTOCOL: &str = "superserve.exec.v1";
/// The subprotocol of `/terminal` (§8).
pub const TERMINAL_SUBPROTOCOL: &str = "superserve.terminal.v1";
/// First byte of a binary frame to the command (§5.2).
pub const CHANNEL_STDIN: u8 = 0;
/// First byte of a binary frame with standard output, or with a terminal's.
pub const CHANNEL_STDOUT: u8 = 1;
/// First byte of a binary frame with standard error.
pub const CHANNEL_STDERR: u8 = 2;
/// Input that is taken from a client although the command does not read it; in at most [`STDIN_WINDOW_PIECES`] frames.
pub const STDIN_WINDOW_BYTES: u64 = 128 * 1024;
/// See [`STDIN_WINDOW_BYTES`].
pub const STDIN_WINDOW_PIECES: usize = 32;
/// Largest frame from a client of a session (§5.3).
pub const MAX_SESSION_FRAME_BYTES: usize = 4 * 1024 * 1024;
/// Largest frame from a client of `/terminal` (§8).
pub const MAX_TERMINAL_FRAME_BYTES: usize = 64 * 1024;
/// Longest session, seconds (§5.3).
pub const MAX_SESSION_S: u64 = 12 * 3600;

/// Close codes of sessions (§5.3, §8).
pub mod close {
    /// The command ended; also a client's way to end a session.
    pub const NORMAL: u16 = 1000;
    /// The sandbox stops. From a client: it goes, and the command stays.
    pub const GOING_AWAY: u16 = 1001;
    /// The first frame is not text.
    pub const UNSUPPORTED: u16 = 1003;
    /// The start frame is missing, late or wrong.
    pub const POLICY: u16 = 1008;
    /// A frame is too large.
    pub const TOO_BIG: u16 = 1009;
    /// The command could not be started.
    pub const ERROR: u16 = 1011;
    /// Another connection took the session over; an addition.
    pub const TAKEN_OVER: u16 = 4001;
}

/// First text frame of `/exec/connect`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStart {
    /// The command. No `timeout_s` means the session cap.
    #[serde(flatten)]
    pub exec: ExecRequest,
    /// Runs the command on a terminal of this size, whose output all comes on [`CHANNEL_STDOUT`]. An addition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TtySize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

/// A later text frame of a client. Others are ignored (§5.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SessionControl {
    /// No more standard input; on a terminal, its end-of-file character.
    StdinClose,
    /// A POSIX signal, with or without `SIG`.
    Signal {
        /// E.g. `SIGTERM` or `INT`.
        name: String,
    },
    /// A terminal's new size; on `/terminal` and, as an addition, in sessions with `tty`.
    Resize {
        /// Columns.
        cols: u16,
        /// Rows.
        rows: u16,
    },
    /// The client has output safely up to this offset; from then on the command waits rather than letting output that
    /// is not acknowledged go. An addition.
    Ack {
        /// As in [`Attached::offset`].
        offset: u64,
    },
}

/// Text frame of a server in the course of a session, to clients that acknowledge output. An addition.
///
/// A client that has no more input on the way than [`STDIN_WINDOW_BYTES`] is always listened to. With more, its
/// acknowledgements may wait behind input for a command that waits for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SessionNews {
    /// The command has been given standard input.
    Stdin {
        /// Bytes of it since the start.
        offset: u64,
    },
}

/// Last text frame of a server (§5.2).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEnd {
    /// As in [`ExecResponse::exit_code`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The command could not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// `bad_request` or `exec_failed`, with `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Always true.
    pub finished: bool,
}

/// First text frame of a server to a client that attaches; `type` is `attached`. An addition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "attached")]
pub struct Attached {
    /// The session.
    pub session_id: String,
    /// Where output goes on, in bytes of both streams together since the start, without channel bytes.
    pub offset: u64,
    /// Bytes between the offset asked for and `offset`, which are gone.
    pub lost: u64,
    /// End of the output so far; what lies before it is a replay.
    pub next_offset: u64,
    /// The session is a terminal.
    pub tty: bool,
    /// Bytes of standard input taken since the start. What a client sent beyond them was lost on the way. Absent when
    /// the command takes none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_offset: Option<u64>,
}

/// Answer of `GET /exec/sessions`, oldest first. An addition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionList {
    /// Running ones and some that ended lately.
    pub sessions: Vec<SessionInfo>,
}

/// One command. An addition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Names it in paths.
    pub id: String,
    /// What started it.
    pub kind: SessionKind,
    /// The beginning of its text.
    pub command: String,
    /// RFC 3339.
    pub started_at: String,
    /// It runs on a terminal.
    pub tty: bool,
    /// A client is connected.
    pub attached: bool,
    /// RFC 3339; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Once it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Offset of the oldest output that is kept.
    pub first_offset: u64,
    /// Offset after the newest output.
    pub next_offset: u64,
}

/// What started a command, and so whether it can be attached to: `connect` and `terminal` can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionKind {
    /// `POST /exec`
    Exec,
    /// `POST /exec/stream`
    Stream,
    /// `GET /exec/connect`
    Connect,
    /// `GET /terminal`
    Terminal,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(session_path("/exec/sessions/a1"), Some(SessionPath::One("a1")));
        assert_eq!(session_path("/exec/sessions/a1/attach"), Some(SessionPath::Attach("a1")));
        for path in [
            "/exec/sessions",
            "/exec/sessions/",
            "/exec/sessions//attach",
            "/exec/sessions/a/b",
            "/exec/sessions/..",
            "/exec/sessions/%61",
            "/exec/sessions/a1/attach/",
            "/exec/sessionsa1",
        ] {
            assert_eq!(session_path(path), None, "{path}");
        }
        assert!(exposed("/exec/sessions") && exposed("/exec/sessions/a1") && !exposed("/exec/"));
    }

    #[test]
    fn frames() {
        let start: SessionStart =
            serde_json::from_str(r#"{"command":"top","timeout_s":5,"tty":{"cols":80,"rows":24},"new":1}"#)
                .unwrap();
        assert_eq!((start.exec.command.as_str(), start.exec.timeout_s), ("top", Some(5)));
        assert_eq!(start.tty, Some(TtySize { cols: 80, rows: 24 }));
        let control = |text| serde_json::from_str::<SessionControl>(text).ok();
        assert_eq!(control(r#"{"type":"stdin_close"}"#), Some(SessionControl::StdinClose));
        assert_eq!(
            control(r#"{"type":"signal","name":"SIGTERM"}"#),
            Some(SessionControl::Signal { name: "SIGTERM".to_owned() })
        );
        assert_eq!(
            control(r#"{"type":"resize","cols":1,"rows":2}"#),
            Some(SessionControl::Resize { cols: 1, rows: 2 })
        );
        assert_eq!(control(r#"{"type":"dance"}"#), None);
        let end = SessionEnd { exit_code: Some(3), finished: true, ..SessionEnd::default() };
        assert_eq!(serde_json::to_string(&end).unwrap(), r#"{"exit_code":3,"finished":true}"#);
        let attached = Attached {
            session_id: "a".to_owned(),
            offset: 2,
            lost: 1,
            next_offset: 9,
            tty: false,
            stdin_offset: Some(4),
        };
        assert_eq!(
            serde_json::to_string(&attached).unwrap(),
            r#"{"type":"attached","session_id":"a","offset":2,"lost":1,"next_offset":9,"tty":false,"stdin_offset":4}"#
        );
    }
}
