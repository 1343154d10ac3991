//! What has been read of one stage of a Dockerfile, as steps of a build.

use std::collections::BTreeMap;

use client::{BuildStep, EnvStep, UserStep};

use super::files::Context;
use super::text::{exec_form, quoted, words};

/// Of base64 in one step; a command may have 64 KiB.
const PIECE_BYTES: usize = 40 * 1024;
/// Of names in the same command.
const MAX_CHOWN: usize = 20 * 1024;
/// Of base64 in all steps; a request may have 1 MiB.
pub(super) const MAX_COPY_BYTES: usize = 720 * 1024;
/// Where pieces are put together in the machine.
const STAGING: &str = "/.superserve-copy";
/// What `ADD` would unpack.
const ARCHIVES: [&str; 7] = [".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tar.zst"];

/// A command as it was written, in the form that says how it runs.
#[derive(Debug, Clone)]
pub(super) enum Command {
    Shell(String),
    Exec(Vec<String>),
}

/// What has been read of one stage. One that begins with another one begins with everything of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Stage {
    pub(super) name: Option<String>,
    pub(super) from: String,
    pub(super) steps: Vec<BuildStep>,
    /// Variables that later instructions may name.
    pub(super) known: BTreeMap<String, String>,
    /// Those of them that only commands see.
    pub(super) args: Vec<String>,
    pub(super) user: Option<String>,
    /// Instead of `/bin/sh -c`.
    pub(super) shell: Option<Vec<String>>,
    pub(super) entrypoint: Option<Command>,
    pub(super) cmd: Option<Command>,
    pub(super) ready_cmd: Option<String>,
    pub(super) copied: usize,
    /// Why it cannot be built; it may be that nobody wants it.
    pub(super) refused: Option<String>,
}

impl Stage {
    pub(super) fn is(&self, name: &str) -> bool {
        self.name.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(name))
    }

    /// For `/bin/sh -c`.
    pub(super) fn line(&self, command: &Command) -> String {
        match (command, &self.shell) {
            (Command::Shell(text), None) => text.clone(),
            (Command::Shell(text), Some(shell)) => format!("{} {}", joined(shell), quoted(text)),
            (Command::Exec(words), _) => joined(words),
        }
    }

    /// `ENTRYPOINT` with `CMD` as its arguments, as other engines join them.
    pub(super) fn start_cmd(&self) -> Option<String> {
        match (&self.entrypoint, &self.cmd) {
            (None, cmd) => cmd.as_ref().map(|cmd| self.line(cmd)),
            // A shell of its own passes nothing on.
            (Some(entrypoint @ Command::Shell(_)), _) | (Some(entrypoint), None) => {
                Some(self.line(entrypoint))
            }
            (Some(Command::Exec(entrypoint)), Some(Command::Exec(cmd))) => {
                Some(joined(&[&entrypoint[..], &cmd[..]].concat()))
            }
            (Some(Command::Exec(entrypoint)), Some(Command::Shell(text))) => {
                let shell = self.shell.clone().unwrap_or_else(|| vec!["/bin/sh".to_owned(), "-c".to_owned()]);
                Some(joined(&[&entrypoint[..], &shell[..], std::slice::from_ref(text)].concat()))
            }
        }
    }

    pub(super) fn run(&mut self, command: String) {
        self.steps.push(BuildStep { run: Some(command), ..BuildStep::default() });
    }

    pub(super) fn become_user(&mut self, name: &str) {
        let user = UserStep { name: name.to_owned(), sudo: None };
        self.steps.push(BuildStep { user: Some(user), ..BuildStep::default() });
    }

    /// `ARG`s as a command sees them.
    pub(super) fn arguments(&self) -> String {
        let set = |name: &String| format!("export {name}={}; ", quoted(&self.known[name]));
        self.args.iter().map(set).collect()
    }

    pub(super) fn env(&mut self, rest: &str) -> Result<(), String> {
        let first = rest.split_whitespace().next().unwrap_or_default();
        let pairs: Vec<(String, String)> = if first.contains('=') {
            let pairs = words(rest)?.into_iter().map(|pair| {
                let (name, value) = pair.split_once('=').ok_or("ENV takes NAME=VALUE")?;
                Ok((name.to_owned(), expanded(&self.known, value)?))
            });
            pairs.collect::<Result<_, String>>()?
        } else {
            let (name, value) = rest.split_once(char::is_whitespace).ok_or("ENV takes NAME=VALUE")?;
            vec![(name.to_owned(), expanded(&self.known, value.trim())?)]
        };
        for (key, value) in pairs {
            self.args.retain(|arg| *arg != key);
            self.known.insert(key.clone(), value.clone());
            self.steps.push(BuildStep { env: Some(EnvStep { key, value }), ..BuildStep::default() });
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, word: &str, rest: &str, files: &Context) -> Result<(), String> {
        let mut paths =
            if rest.starts_with('[') { exec_form(rest)? } else { words(&expanded(&self.known, rest)?)? };
        let (mut owner, mut mode) = (None, None);
        while paths.first().is_some_and(|path| path.starts_with("--")) {
            let option = paths.remove(0);
            match option.split_once('=') {
                Some(("--chown", value)) => owner = Some(value.to_owned()),
                Some(("--chmod", value)) => {
                    let octal = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o7777);
                    mode = Some(octal.ok_or("--chmod takes an octal number such as 755")?);
                }
                Some(("--from", stage)) => {
                    return Err(format!(
                        "{word} --from={stage} takes files of another image, which a build here cannot reach; begin with \
                         that stage instead (FROM {stage}), or make the files in this one"
                    ));
                }
                _ => return Err(format!("{word} {option} is not supported")),
            }
        }
        let to = paths.pop().filter(|_| !paths.is_empty());
        let to = to.ok_or_else(|| format!("{word} takes at least one source and a destination"))?;
        for path in &paths {
            if path.contains("://") || path.starts_with("git@") {
                return Err("ADD of an address is not supported; fetch it with RUN curl".to_owned());
            }
            if path.starts_with("<<") {
                return Err(format!("{word} with a here-document is not supported; copy a file"));
            }
            if word == "ADD" && ARCHIVES.iter().any(|end| path.ends_with(end)) {
                return Err(format!(
                    "ADD would unpack `{path}`, which is not supported; COPY it and RUN tar -x"
                ));
            }
        }
        let (packed, directory) = files.pack(&paths, &to, mode)?;
        self.copied += packed.base64.len();
        if self.copied > MAX_COPY_BYTES {
            // Refused in the end, if this stage is wanted.
            return Ok(());
        }
        let directory = quoted(&directory);
        let mut last = format!(
            "mkdir -p {directory} && base64 -d {STAGING} | gzip -d | tar -xf - --no-same-owner -C {directory} && rm -f {STAGING}"
        );
        if let Some(owner) = owner {
            // Each by its name: what is there already keeps its owner.
            let names: Vec<String> = packed.names.iter().map(|name| quoted(name)).collect();
            let chown = format!(" && cd {directory} && chown -h {} -- {}", quoted(&owner), names.join(" "));
            if chown.len() > MAX_CHOWN {
                return Err(format!("{word} --chown of so many files is not supported; RUN chown -R"));
            }
            if !names.is_empty() {
                last.push_str(&chown);
            }
        }
        // Whoever runs the commands: copied files are root's, as with other builders.
        let user = self.user.clone().filter(|user| user != "root");
        if user.is_some() {
            self.become_user("root");
        }
        // Each command is a step of its own; small files need one only.
        let mut pieces = packed.base64.as_bytes().chunks(PIECE_BYTES).map(String::from_utf8_lossy).peekable();
        while let Some(piece) = pieces.next() {
            let put = format!("printf %s {piece} >>{STAGING}");
            self.run(if pieces.peek().is_some() { put } else { format!("{put} && {last}") });
        }
        if let Some(user) = user {
            self.become_user(&user);
        }
        Ok(())
    }
}

/// Puts variables in. `\\$` stands for the sign itself.
pub(super) fn expanded(known: &BTreeMap<String, String>, text: &str) -> Result<String, String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        if let Some(before) = rest[..at].strip_suffix('\\') {
            result.push_str(before);
            result.push('$');
            rest = &rest[at + 1..];
            continue;
        }
        result.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let (name, after) = match rest.strip_prefix('{') {
            Some(inner) => inner.split_once('}').ok_or("a closing brace is missing")?,
            None => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                rest.split_at(end)
            }
        };
        let value = |name: &str| known.get(name).map(String::as_str).filter(|value| !value.is_empty());
        if let Some((name, default)) = name.split_once(":-") {
            result.push_str(value(name).unwrap_or(default));
        } else if let Some((name, instead)) = name.split_once(":+") {
            result.push_str(value(name).map_or("", |_| instead));
        } else if name.is_empty() {
            result.push('$');
        } else if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            result.push_str(value(name).unwrap_or_default());
        } else {
            return Err(format!(
                "`${{{name}}}` is not supported; only ${{name}}, ${{name:-default}} and ${{name:+other}} are"
            ));
        }
        rest = after;
    }
    result.push_str(rest);
    Ok(result)
}

/// A command in either form.
pub(super) fn command(text: &str) -> Result<Command, String> {
    match text {
        "" => Err("a command is expected".to_owned()),
        // What is no list of strings is a shell's own.
        list if list.starts_with('[') => {
            Ok(exec_form(list).map_or_else(|_| Command::Shell(list.to_owned()), Command::Exec))
        }
        text => Ok(Command::Shell(text.to_owned())),
    }
}

fn joined(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}
