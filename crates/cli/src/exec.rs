//! `sandbox exec`: output as it comes, the command's exit code as ours. Ctrl-C goes to the command, as it would here;
//! a second one kills it and leaves.

use client::{Client, ClientError, ExecEvent, ExecRequest, ExecResponse, ExecStream};
use futures_util::StreamExt;
use wire::data_plane::EXEC_RETENTION_BYTES;

use crate::args::ExecArgs;
use crate::error::{CliError, INTERRUPTED, NOT_RUN};
use crate::interrupt::interrupts;
use crate::out::{self, Stop};
use crate::shell;

/// Runs the command. With `json` the whole result is printed at the end as one object.
pub(crate) async fn run(args: ExecArgs, client: &Client, json: bool) -> Result<u8, Stop> {
    let request = ExecRequest {
        command: command_line(&args.command),
        env: (!args.env.is_empty()).then(|| args.env.into_iter().collect()),
        working_dir: args.cwd,
        timeout_s: args.timeout,
        ..ExecRequest::default()
    };
    if args.interactive || args.tty {
        if json {
            return Err(CliError::new("--json prints a result, and -i and -t have none")
                .exit_code(NOT_RUN)
                .into());
        }
        return shell::start(client, &args.id, request, args.interactive, args.tty).await;
    }
    let failed = |error: ClientError| CliError::of_sandbox(&error, &args.id).exit_code(NOT_RUN);
    let mut output = Output { json, whole: ExecResponse::default() };
    // One listener for the whole run: it remembers an interrupt that comes while output is being written.
    let mut interrupts = interrupts()?;
    let mut events = tokio::select! {
        events = client.exec_stream(&args.id, &request) => events.map_err(failed)?,
        _ = interrupts.recv() => return Ok(INTERRUPTED),
    };
    let mut interrupted = false;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = interrupts.recv() => {
                if interrupted {
                    end(client, &args.id, &events, None).await.map_err(failed)?;
                    return Ok(INTERRUPTED);
                }
                end(client, &args.id, &events, Some("INT")).await.map_err(failed)?;
                interrupted = true;
                continue;
            }
        };
        let Some(event) = event else { break };
        if let Err(stop) = output.take(event.map_err(failed)?) {
            // Nobody reads any more; a local command would learn it the same way.
            end(client, &args.id, &events, Some("PIPE")).await.map_err(failed)?;
            return Err(stop);
        }
    }
    if json {
        out::json(&output.whole)?;
    }
    Ok(u8::try_from(output.whole.exit_code).unwrap_or(u8::MAX))
}

/// Signals the command, or kills it. A platform lets a streamed command go on when its caller vanishes; one that gives
/// commands no names leaves no more to do than that.
async fn end(
    client: &Client,
    id: &str,
    events: &ExecStream,
    signal: Option<&str>,
) -> Result<(), ClientError> {
    match (events.session_id(), signal) {
        (Some(session), Some(signal)) => client.signal_session(id, session, signal).await,
        (Some(session), None) => client.kill_session(id, session).await,
        (None, _) => Ok(()),
    }
}

/// What has been shown, or, for JSON, kept.
struct Output {
    json: bool,
    whole: ExecResponse,
}

impl Output {
    /// As much has been kept as the platform itself would keep.
    fn is_full(&self) -> bool {
        self.whole.stdout.len() + self.whole.stderr.len() >= EXEC_RETENTION_BYTES
    }

    fn take(&mut self, event: ExecEvent) -> Result<(), Stop> {
        match event {
            ExecEvent::Stdout(_) | ExecEvent::Stderr(_) if self.json && self.is_full() => {
                self.whole.truncated = true
            }
            ExecEvent::Stdout(text) if self.json => self.whole.stdout.push_str(&text),
            ExecEvent::Stderr(text) if self.json => self.whole.stderr.push_str(&text),
            ExecEvent::Stdout(text) => out::raw(text.as_bytes())?,
            ExecEvent::Stderr(text) => out::raw_error(text.as_bytes()),
            ExecEvent::Exit(code) => self.whole.exit_code = code,
        }
        Ok(())
    }
}

/// One argument is a shell command; several are a program and its arguments, quoted so that the shell in the sandbox
/// sees exactly them.
fn command_line(words: &[String]) -> String {
    match words {
        [command] => command.clone(),
        words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    let plain =
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./:,+@%^".contains(&b));
    if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_json_is_bounded() {
        let mut output = Output { json: true, whole: ExecResponse::default() };
        let piece = "x".repeat(1024 * 1024);
        for _ in 0..20 {
            assert!(output.take(ExecEvent::Stdout(piece.clone())).is_ok());
        }
        assert_eq!(output.whole.stdout.len(), EXEC_RETENTION_BYTES);
        assert!(output.whole.truncated);
    }

    #[test]
    fn the_shell_gives_the_words_back() {
        let words = [
            "printf", "%s\\n", "a b", "", "it's", "$HOME", "*", "a=b", "~", "\n", "ü", "-n", "#x", "{a,b}",
            "!x",
        ];
        let words = words.map(str::to_owned);
        let line = command_line(&words);
        let output = std::process::Command::new("/bin/sh").arg("-c").arg(&line).output().unwrap();
        let expected: String = words[2..].iter().map(|word| format!("{word}\n")).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{line}");
        assert_eq!(command_line(&["ls | wc -l".to_owned()]), "ls | wc -l");
    }
}
