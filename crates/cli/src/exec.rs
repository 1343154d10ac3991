//! `sandbox exec`: output as it comes, the command's exit code as ours. Ctrl-C goes to the command, as it would here;
//! a second one leaves.
//!
//! The platform lets a streamed command go on when its caller vanishes, so Ctrl-C is a second command that signals
//! every process which carries this run's mark in its environment.

use client::{Client, ClientError, ExecEvent, ExecRequest, ExecResponse};
use futures_util::StreamExt;
use wire::data_plane::EXEC_RETENTION_BYTES;

use crate::args::ExecArgs;
use crate::error::{CliError, INTERRUPTED, NOT_RUN};
use crate::interrupt::interrupts;
use crate::out::{self, Stop};

/// Carries the mark of one run; every process of the command inherits it.
const MARK: &str = "SUPERSERVE_RUN";

/// Runs the command. With `json` the whole result is printed at the end as one object.
pub(crate) async fn run(args: ExecArgs, client: &Client, json: bool) -> Result<u8, Stop> {
    let mark = format!("{:08x}", getrandom::u32().unwrap_or(std::process::id()));
    let marked = args.env.into_iter().chain([(MARK.to_owned(), mark.clone())]);
    let request = ExecRequest {
        command: command_line(&args.command),
        env: Some(marked.collect()),
        working_dir: args.cwd,
        timeout_s: args.timeout,
        ..ExecRequest::default()
    };
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
                let name = if interrupted { "KILL" } else { "INT" };
                signal(client, &args.id, &mark, name).await.map_err(failed)?;
                if interrupted {
                    return Ok(INTERRUPTED);
                }
                interrupted = true;
                continue;
            }
        };
        let Some(event) = event else { break };
        if let Err(stop) = output.take(event.map_err(failed)?) {
            // Nobody reads any more; a local command would learn it the same way.
            signal(client, &args.id, &mark, "PIPE").await.map_err(failed)?;
            return Err(stop);
        }
    }
    if json {
        out::json(&output.whole)?;
    }
    Ok(u8::try_from(output.whole.exit_code).unwrap_or(u8::MAX))
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

/// Signals the processes of a run, except those that ignore it, such as background jobs and the interrupt.
async fn signal(client: &Client, id: &str, mark: &str, name: &str) -> Result<(), ClientError> {
    let request = ExecRequest { command: signal_command(mark, name), ..ExecRequest::default() };
    client.exec(id, &request).await.map(drop)
}

/// `environ` separates variables by NUL, so the mark is looked for as a piece of text; it is random enough.
fn signal_command(mark: &str, name: &str) -> String {
    format!(
        "for p in $(grep -ls {MARK}={mark} /proc/[0-9]*/environ); \
         do p=${{p%/environ}}; kill -{name} ${{p#/proc/}} 2>/dev/null; done; true"
    )
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

    #[test]
    fn a_signal_reaches_the_marked_tree_and_nobody_else() {
        let sleeper = |mark: &str| {
            let mut command = std::process::Command::new("/bin/sh");
            command.args(["-c", "sleep 60; true"]).env(MARK, mark);
            command.spawn().unwrap()
        };
        let (mark, other_mark) =
            (format!("{}-ours", std::process::id()), format!("{}-other", std::process::id()));
        let (mut ours, mut other) = (sleeper(&mark), sleeper(&other_mark));
        // Each shell and its `sleep`: a process forked while the signals are sent would be missed.
        let marked = |mark: &str| {
            let environs =
                std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("environ"));
            let texts = environs.flat_map(std::fs::read);
            texts.filter(|text| String::from_utf8_lossy(text).contains(&format!("{MARK}={mark}"))).count()
        };
        let within_5_s = |condition: &dyn Fn() -> bool| {
            (0..500).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                condition()
            })
        };
        assert!(within_5_s(&|| marked(&mark) == 2 && marked(&other_mark) == 2), "the commands have started");
        let status =
            std::process::Command::new("/bin/sh").arg("-c").arg(signal_command(&mark, "TERM")).status();
        assert!(status.unwrap().success());
        let ended = std::os::unix::process::ExitStatusExt::signal(&ours.wait().unwrap());
        assert_eq!(ended, Some(15));
        assert!(other.try_wait().unwrap().is_none(), "the other run goes on");
        let status =
            std::process::Command::new("/bin/sh").arg("-c").arg(signal_command(&other_mark, "KILL")).status();
        assert!(status.unwrap().success());
        other.wait().unwrap();
        assert!(within_5_s(&|| marked(&mark) + marked(&other_mark) == 0), "nothing of the trees is left");
    }
}
