//! `sandbox exec`: output as it comes, the command's exit code as ours.

use client::{Client, ClientError, ExecEvent, ExecRequest, ExecResponse};
use futures_util::StreamExt;

use crate::args::ExecArgs;
use crate::error::{CliError, NOT_RUN};
use crate::out::{self, Stop};

/// Runs the command. With `json` the whole result is printed at the end as one object.
pub(crate) async fn run(args: ExecArgs, client: &Client, json: bool) -> Result<u8, Stop> {
    let request = ExecRequest {
        command: command_line(&args.command),
        env: (!args.env.is_empty()).then(|| args.env.into_iter().collect()),
        working_dir: args.cwd,
        timeout_s: args.timeout,
        ..ExecRequest::default()
    };
    let failed = |error: ClientError| CliError::of_sandbox(&error, &args.id).exit_code(NOT_RUN);
    let mut whole = ExecResponse::default();
    let mut events = client.exec_stream(&args.id, &request).await.map_err(failed)?;
    while let Some(event) = events.next().await {
        match event.map_err(failed)? {
            ExecEvent::Stdout(text) if json => whole.stdout.push_str(&text),
            ExecEvent::Stderr(text) if json => whole.stderr.push_str(&text),
            ExecEvent::Stdout(text) => out::raw(text.as_bytes())?,
            ExecEvent::Stderr(text) => out::raw_error(text.as_bytes()),
            ExecEvent::Exit(code) => whole.exit_code = code,
        }
    }
    if json {
        out::json(&whole)?;
    }
    Ok(u8::try_from(whole.exit_code).unwrap_or(u8::MAX))
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
