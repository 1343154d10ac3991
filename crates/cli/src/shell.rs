//! `sandbox shell`, `sandbox exec -i`, `-t` and `sandbox sessions`: which command runs, and how it is wired to us.

use client::{Client, ClientError, ExecRequest, SessionInfo, SessionKind};

use crate::args::{SessionAction, ShellArgs};
use crate::error::{CliError, NOT_RUN};
use crate::interactive::{self, Wiring};
use crate::out::{self, Stop};
use crate::sandbox::whole_seconds;
use crate::{table, terminal};

/// The best shell there is. Not a login shell: its profile would undo the PATH of the template.
const SHELL: &str = "command -v bash >/dev/null && exec bash; exec sh";
/// Terminal types that Debian describes without more packages; for others the sandbox's own default is better.
const KNOWN_TERMINALS: &[&str] = &[
    "ansi",
    "dumb",
    "linux",
    "rxvt",
    "rxvt-unicode-256color",
    "screen",
    "screen-256color",
    "tmux",
    "tmux-256color",
    "vt100",
    "vt220",
    "xterm",
    "xterm-256color",
    "xterm-color",
    "xterm-mono",
];

pub(crate) async fn shell(args: ShellArgs, client: &Client) -> Result<u8, Stop> {
    let request = ExecRequest {
        command: SHELL.to_owned(),
        env: (!args.env.is_empty()).then(|| args.env.into_iter().collect()),
        working_dir: args.cwd,
        ..ExecRequest::default()
    };
    start(client, &args.id, request, true, true).await
}

/// Runs a command that takes our standard input (`stdin`), has a terminal (`tty`), or both.
pub(crate) async fn start(
    client: &Client,
    id: &str,
    mut request: ExecRequest,
    stdin: bool,
    tty: bool,
) -> Result<u8, Stop> {
    let size = if tty { Some(own_terminal(id, &mut request)?) } else { None };
    let session = client.start_session(id, request, size).await.map_err(|error| failed(&error, id))?;
    interactive::run(client, id, session, Wiring { stdin, tty, closes: !tty }).await
}

/// The size of our terminal; its type goes to the command.
fn own_terminal(id: &str, request: &mut ExecRequest) -> Result<client::TtySize, CliError> {
    if !terminal::stdin_is_terminal() {
        return Err(CliError::new("a terminal was asked for, but standard input is none")
            .hint(format!("without -t: superserve sandbox exec -i {id} COMMAND"))
            .exit_code(NOT_RUN));
    }
    if let Some(kind) = std::env::var("TERM").ok().filter(|kind| KNOWN_TERMINALS.contains(&kind.as_str())) {
        request.env.get_or_insert_default().entry("TERM".to_owned()).or_insert(kind);
    }
    Ok(terminal::size())
}

pub(crate) async fn sessions(
    id: &str,
    action: Option<SessionAction>,
    client: &Client,
    json: bool,
) -> Result<u8, Stop> {
    match action {
        None => list(id, client, json).await,
        Some(SessionAction::Attach { session }) => attach(id, &session, client).await,
        Some(SessionAction::Kill { sessions }) => {
            let mut code = 0;
            for session in &sessions {
                match client.kill_session(id, session).await {
                    Ok(()) if json => out::json(&serde_json::json!({ "id": session, "status": "killed" }))?,
                    Ok(()) => out::line(&format!("killed {}", out::printable(session)))?,
                    Err(error) => {
                        let failed = about(&error, id, session);
                        failed.report(json);
                        code = failed.exit_code;
                    }
                }
            }
            Ok(code)
        }
    }
}

async fn attach(id: &str, session: &str, client: &Client) -> Result<u8, Stop> {
    let size = terminal::stdin_is_terminal().then(terminal::size);
    let attached = client.attach_session(id, session, None, size).await;
    let attached = attached.map_err(|error| about(&error, id, session).exit_code(NOT_RUN))?;
    let tty = attached.tty() && size.is_some();
    // What is piped into a session with a terminal ends; the person at the terminal has not typed Ctrl-D.
    let wiring = Wiring { stdin: true, tty, closes: !attached.tty() };
    interactive::run(client, id, attached, wiring).await
}

async fn list(id: &str, client: &Client, json: bool) -> Result<u8, Stop> {
    let sessions = client.list_sessions(id).await.map_err(|error| CliError::of_sandbox(&error, id))?;
    if json {
        out::json(&sessions)?;
        return Ok(0);
    }
    if sessions.is_empty() {
        out::note(&format!("No sessions. Open one: superserve sandbox shell {id}"));
        return Ok(0);
    }
    let rows: Vec<_> = sessions.iter().map(row).collect();
    out::line(&table::render(&["ID", "KIND", "TTY", "STARTED", "STATUS", "COMMAND"], &rows))?;
    Ok(0)
}

fn row(session: &SessionInfo) -> Vec<String> {
    /// Longest command shown, characters.
    const COMMAND_CHARS: usize = 60;
    let kind = match session.kind {
        SessionKind::Exec => "exec",
        SessionKind::Stream => "stream",
        SessionKind::Connect => "session",
        SessionKind::Terminal => "terminal",
    };
    let status = match (session.exit_code, &session.ended_at) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(_)) => "ended".to_owned(),
        (None, None) if session.attached => "attached".to_owned(),
        (None, None) => "running".to_owned(),
    };
    let mut command: String = session.command.chars().take(COMMAND_CHARS).collect();
    if command.len() < session.command.len() {
        command.push('…');
    }
    let tty = if session.tty { "yes" } else { "no" };
    vec![
        session.id.clone(),
        kind.to_owned(),
        tty.to_owned(),
        whole_seconds(&session.started_at),
        status,
        command,
    ]
}

fn failed(error: &ClientError, id: &str) -> CliError {
    CliError::of_sandbox(error, id).exit_code(NOT_RUN)
}

/// A failed call about one session.
fn about(error: &ClientError, id: &str, session: &str) -> CliError {
    let shown = CliError::of_sandbox(error, id);
    match error.api() {
        Some(api)
            if api.status == 404 && api.plane == client::Plane::Data && api.code != "sandbox_route_stale" =>
        {
            CliError { message: format!("session {} not found", out::printable(session)), ..shown }
                .hint(format!("superserve sandbox sessions {id}"))
        }
        _ => shown,
    }
}
