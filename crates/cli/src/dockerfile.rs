//! Reads a Dockerfile of one stage as the build of a template: the instructions that most of them consist of. What would be
//! left out silently, and change the result, is refused by name instead. Files for `COPY` travel inside the steps, so
//! they must be small; large things are better fetched by a `RUN`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use base64::Engine;
use client::{BuildSpec, BuildStep, EnvStep, UserStep};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::error::CliError;

/// Of base64 in one step; a command may have 64 KiB.
const PIECE_BYTES: usize = 60 * 1024;
/// Of base64 in all steps; a request may have 1 MiB.
const MAX_COPY_BYTES: usize = 720 * 1024;
/// Where pieces are put together in the machine.
const STAGING: &str = "/.superserve-copy";
/// Instructions about things a sandbox does not have.
const IGNORED: [&str; 5] = ["LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK"];

/// Reads a Dockerfile; `context` is where `COPY` finds its files, `given` the values of `ARG`s.
pub(crate) fn read(
    text: &str,
    context: &Path,
    given: &BTreeMap<String, String>,
) -> Result<BuildSpec, CliError> {
    let mut reading = Reading::new(context, given);
    for (number, line) in logical_lines(text) {
        reading
            .instruction(&line)
            .map_err(|why| CliError::new(format!("Dockerfile, line {number}: {why}")))?;
    }
    let from = reading.from.ok_or_else(|| CliError::new("the Dockerfile has no FROM"))?;
    let start_cmd = match (reading.entrypoint, reading.cmd) {
        (None, None) => None,
        (entrypoint, cmd) => Some([entrypoint, cmd].into_iter().flatten().collect::<Vec<_>>().join(" ")),
    };
    Ok(BuildSpec { from, steps: Some(reading.steps), start_cmd, ready_cmd: None })
}

struct Reading<'a> {
    context: &'a Path,
    given: &'a BTreeMap<String, String>,
    from: Option<String>,
    steps: Vec<BuildStep>,
    /// Variables that later instructions may name.
    known: BTreeMap<String, String>,
    /// Those of them that only commands see.
    args: Vec<String>,
    user: Option<String>,
    entrypoint: Option<String>,
    cmd: Option<String>,
    copied: usize,
}

impl<'a> Reading<'a> {
    fn new(context: &'a Path, given: &'a BTreeMap<String, String>) -> Self {
        Self {
            context,
            given,
            from: None,
            steps: Vec::new(),
            known: BTreeMap::new(),
            args: Vec::new(),
            user: None,
            entrypoint: None,
            cmd: None,
            copied: 0,
        }
    }

    fn instruction(&mut self, line: &str) -> Result<(), String> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let (word, rest) = (word.to_ascii_uppercase(), rest.trim());
        if self.from.is_none() && !matches!(word.as_str(), "FROM" | "ARG") {
            return Err(format!("{word} stands before FROM"));
        }
        match word.as_str() {
            "FROM" if self.from.is_some() => {
                return Err("a second stage; build it on its own, or join the stages".to_owned());
            }
            "FROM" => {
                let rest = self.expanded(rest);
                let words: Vec<&str> = rest.split_whitespace().collect();
                let image = words.iter().find(|word| !word.starts_with("--"));
                self.from = Some((*image.ok_or("FROM names no image")?).to_owned());
                self.known.clear();
            }
            "ARG" => {
                for pair in words(&self.expanded(rest))? {
                    let (name, default) = match pair.split_once('=') {
                        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                        None => (pair, None),
                    };
                    if let Some(value) = self.given.get(&name).cloned().or(default) {
                        self.known.insert(name.clone(), value);
                        if self.from.is_some() {
                            self.args.push(name);
                        }
                    }
                }
            }
            "ENV" => self.env(rest)?,
            "RUN" => {
                if rest.starts_with("--") || rest.contains("<<") {
                    return Err("RUN with mounts or here-documents is not supported".to_owned());
                }
                let command = command(rest)?;
                let run = format!("{}{command}", self.arguments());
                self.run(run);
            }
            "WORKDIR" => {
                let path = self.expanded(rest);
                self.steps.push(BuildStep { workdir: Some(path), ..BuildStep::default() });
            }
            "USER" => {
                let name = self.expanded(rest);
                if name.contains(':') || name.bytes().next().is_some_and(|b| b.is_ascii_digit()) {
                    return Err("USER takes the name of a user here, without a group".to_owned());
                }
                self.user(&name);
                self.user = Some(name);
            }
            "COPY" | "ADD" => self.copy(&word, rest)?,
            "CMD" => self.cmd = Some(command(rest)?),
            "ENTRYPOINT" => {
                self.entrypoint = Some(command(rest)?);
                self.cmd = None;
            }
            ignored if IGNORED.contains(&ignored) => {}
            other => return Err(format!("{other} is not supported")),
        }
        Ok(())
    }

    fn run(&mut self, command: String) {
        self.steps.push(BuildStep { run: Some(command), ..BuildStep::default() });
    }

    fn user(&mut self, name: &str) {
        let user = UserStep { name: name.to_owned(), sudo: None };
        self.steps.push(BuildStep { user: Some(user), ..BuildStep::default() });
    }

    /// `ARG`s as a command sees them.
    fn arguments(&self) -> String {
        let set = |name: &String| format!("export {name}={}; ", quoted(&self.known[name]));
        self.args.iter().map(set).collect()
    }

    fn env(&mut self, rest: &str) -> Result<(), String> {
        let first = rest.split_whitespace().next().unwrap_or_default();
        let pairs: Vec<(String, String)> = if first.contains('=') {
            let pairs = words(rest)?.into_iter().map(|pair| {
                let (name, value) = pair.split_once('=').ok_or("ENV takes NAME=VALUE")?;
                Ok((name.to_owned(), self.expanded(value)))
            });
            pairs.collect::<Result<_, &str>>()?
        } else {
            let (name, value) = rest.split_once(char::is_whitespace).ok_or("ENV takes NAME=VALUE")?;
            vec![(name.to_owned(), self.expanded(value.trim()))]
        };
        for (key, value) in pairs {
            self.args.retain(|arg| *arg != key);
            self.known.insert(key.clone(), value.clone());
            self.steps.push(BuildStep { env: Some(EnvStep { key, value }), ..BuildStep::default() });
        }
        Ok(())
    }

    fn copy(&mut self, word: &str, rest: &str) -> Result<(), String> {
        let mut paths = if rest.starts_with('[') { exec_form(rest)? } else { words(&self.expanded(rest))? };
        let mut owner = None;
        while paths.first().is_some_and(|path| path.starts_with("--")) {
            let option = paths.remove(0);
            match option.split_once('=') {
                Some(("--chown", value)) => owner = Some(value.to_owned()),
                _ => return Err(format!("{word} {option} is not supported")),
            }
        }
        let to = paths.pop().filter(|_| !paths.is_empty());
        let to = to.ok_or_else(|| format!("{word} takes at least one source and a destination"))?;
        if paths.iter().any(|path| path.contains("://")) {
            return Err("ADD of an address is not supported; fetch it with RUN curl".to_owned());
        }
        let sources: Vec<PathBuf> = paths.iter().map(|path| self.source(path)).collect::<Result<_, _>>()?;
        let into_directory = to.ends_with('/') || sources.len() > 1 || sources[0].is_dir();
        let (directory, name) = match (into_directory, to.rsplit_once('/')) {
            (true, _) => (to.as_str(), None),
            (false, Some((directory, name))) => {
                (if directory.is_empty() { "/" } else { directory }, Some(name))
            }
            (false, None) => (".", Some(to.as_str())),
        };
        let packed = pack(&sources, name).map_err(|error| format!("cannot read the files: {error}"))?;
        self.copied += packed.len();
        if self.copied > MAX_COPY_BYTES {
            return Err(format!(
                "the files of COPY have more than {} KiB, compressed; fetch large ones with RUN, or import an image",
                MAX_COPY_BYTES * 3 / 4 / 1024
            ));
        }
        // Whoever runs the commands: copied files are root's, as with other builders.
        let user = self.user.clone().filter(|user| user != "root");
        if user.is_some() {
            self.user("root");
        }
        let pieces =
            packed.as_bytes().chunks(PIECE_BYTES).map(|piece| String::from_utf8_lossy(piece).into_owned());
        let mut pieces: Vec<String> = pieces.collect();
        let last = pieces.pop().unwrap_or_default();
        for piece in pieces {
            self.run(format!("printf %s {piece} >>{STAGING}"));
        }
        let directory = quoted(directory);
        let owner =
            owner.map(|owner| format!(" && chown -R {} {directory}", quoted(&owner))).unwrap_or_default();
        self.run(format!(
            "printf %s {last} >>{STAGING} && mkdir -p {directory} && base64 -d {STAGING} | gzip -d | tar -xf - --no-same-owner -C {directory} && rm -f {STAGING}{owner}"
        ));
        if let Some(user) = user {
            self.user(&user);
        }
        Ok(())
    }

    /// A path below the context; nothing outside is sent anywhere.
    fn source(&self, path: &str) -> Result<PathBuf, String> {
        let relative = Path::new(path.trim_start_matches('/'));
        if relative.components().any(|part| matches!(part, Component::ParentDir)) {
            return Err(format!("`{path}` leads out of the build's directory"));
        }
        if path.contains(['*', '?', '[']) {
            return Err(format!("`{path}` is a pattern; name files or directories"));
        }
        let full = self.context.join(relative);
        if full.symlink_metadata().is_err() {
            return Err(format!("there is no `{path}` in {}", self.context.display()));
        }
        Ok(full)
    }

    /// Puts variables in.
    fn expanded(&self, text: &str) -> String {
        let mut result = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            result.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let (name, after) = match rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
                Some((name, after)) => (name, after),
                None => {
                    let end =
                        rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                    rest.split_at(end)
                }
            };
            let (name, default) = name.split_once(":-").unwrap_or((name, ""));
            if name.is_empty() {
                result.push('$');
            } else {
                result.push_str(self.known.get(name).map_or(default, String::as_str));
            }
            rest = after;
        }
        result.push_str(rest);
        result
    }
}

/// Lines with their numbers, comments taken out and continued ones joined.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.trim_start().starts_with('#') || (line.trim().is_empty() && open.is_none()) {
            continue;
        }
        let (body, continues) = match line.strip_suffix('\\') {
            Some(body) => (body, true),
            None => (line, false),
        };
        let (_, joined) = open.get_or_insert_with(|| (number + 1, String::new()));
        joined.push_str(if joined.is_empty() { body.trim_start() } else { body });
        if !continues {
            found.extend(open.take());
        }
    }
    found.extend(open);
    found
}

/// A command in either form, for a shell.
fn command(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a command is expected".to_owned());
    }
    if !text.starts_with('[') {
        return Ok(text.to_owned());
    }
    let words = exec_form(text)?;
    Ok(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
}

fn exec_form(text: &str) -> Result<Vec<String>, String> {
    serde_json::from_str(text).map_err(|_| "a JSON list of strings is expected".to_owned())
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Words with quotes taken off.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quotation mark is missing".to_owned());
    }
    words.extend(word);
    Ok(words)
}

/// Files as base64 of a compressed archive: directories by their content, files by their names or the one given. The
/// same content gives the same text.
fn pack(sources: &[PathBuf], name: Option<&str>) -> std::io::Result<String> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    archive.follow_symlinks(false);
    for source in sources {
        if source.is_dir() && !source.is_symlink() {
            add_directory(&mut archive, source, Path::new(""))?;
        } else {
            let own = source.file_name().map(Path::new).unwrap_or(Path::new("file"));
            add(&mut archive, source, name.map_or(own, Path::new))?;
        }
    }
    let bytes = archive.into_inner()?.finish()?;
    Ok(base64::prelude::BASE64_STANDARD.encode(bytes))
}

fn add_directory<W: Write>(archive: &mut tar::Builder<W>, from: &Path, to: &Path) -> std::io::Result<()> {
    let mut entries = std::fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let to = to.join(entry.file_name());
        add(archive, &entry.path(), &to)?;
        if entry.file_type()?.is_dir() {
            add_directory(archive, &entry.path(), &to)?;
        }
    }
    Ok(())
}

fn add<W: Write>(archive: &mut tar::Builder<W>, from: &Path, to: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    /// The first of 2000: no file is dated by when a checkout happened, and none before what archives know.
    const TIME: u64 = 946_684_800;
    let of = from.symlink_metadata()?;
    let mut header = tar::Header::new_gnu();
    header.set_metadata_in_mode(&of, tar::HeaderMode::Deterministic);
    header.set_mode(if of.mode() & 0o111 == 0 { 0o644 } else { 0o755 });
    header.set_mtime(TIME);
    if of.is_symlink() {
        archive.append_link(&mut header, to, std::fs::read_link(from)?)
    } else if of.is_dir() {
        archive.append_data(&mut header, to, std::io::empty())
    } else if of.is_file() {
        archive.append_data(&mut header, to, std::fs::File::open(from)?)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn shown(text: &str) -> String {
        let given = BTreeMap::from([("VERSION".to_owned(), "2".to_owned())]);
        match read(text, Path::new("/nonexistent"), &given) {
            Ok(spec) => serde_json::to_string(&spec).unwrap(),
            Err(error) => error.message,
        }
    }

    #[test]
    fn the_common_instructions() {
        let text = "# syntax\nARG BASE=python:3.11\nFROM ${BASE} AS final\nARG VERSION=1\nENV A=1 B=\"x y\" C=$VERSION\nENV LEGACY some words\n\
            WORKDIR /srv/app\nRUN apt-get update \\\n  # why\n  && echo it\\'s\nRUN [\"echo\", \"a b\"]\nLABEL x=y\nEXPOSE 80\nUSER app\n\
            ENTRYPOINT [\"python\", \"-m\"]\nCMD [\"http.server\", \"80\"]\n";
        expect![[r#"{"from":"python:3.11","steps":[{"env":{"key":"A","value":"1"}},{"env":{"key":"B","value":"x y"}},{"env":{"key":"C","value":"2"}},{"env":{"key":"LEGACY","value":"some words"}},{"workdir":"/srv/app"},{"run":"export VERSION=2; apt-get update   && echo it\\'s"},{"run":"export VERSION=2; echo 'a b'"},{"user":{"name":"app"}}],"start_cmd":"python -m http.server 80"}"#]]
        .assert_eq(&shown(text));
    }

    #[test]
    fn what_would_change_the_result_is_refused() {
        for (text, told) in [
            ("RUN x", "before FROM"),
            ("FROM a\nFROM b", "second stage"),
            ("FROM a\nONBUILD RUN x", "ONBUILD is not supported"),
            ("FROM a\nSHELL [\"bash\"]", "SHELL is not supported"),
            ("FROM a\nRUN --mount=type=cache x", "mounts"),
            ("FROM a\nUSER 1000", "name of a user"),
            ("FROM a\nCOPY --from=b x y", "--from=b is not supported"),
            ("FROM a\nCOPY ../x y", "leads out"),
            ("FROM a\nCOPY nothing y", "there is no `nothing`"),
            ("FROM a\nADD https://x/y z", "ADD of an address"),
            ("FROM a\nENV A=\"x", "quotation mark"),
            ("", "no FROM"),
        ] {
            assert!(shown(text).contains(told), "{text}: {}", shown(text));
        }
    }

    #[test]
    fn files_travel_in_the_steps() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("src")).unwrap();
        std::fs::write(dir.path().join("src/main.py"), "print(1)\n").unwrap();
        std::fs::write(dir.path().join("run.sh"), "#!/bin/sh\n").unwrap();
        let read_in = |text: &str| read(text, dir.path(), &BTreeMap::new()).unwrap().steps.unwrap();
        let steps = read_in("FROM a\nUSER app\nCOPY --chown=app src/ run.sh /srv/app/\n");
        let steps: Vec<String> = steps.iter().map(|step| serde_json::to_string(step).unwrap()).collect();
        assert_eq!(steps.len(), 4, "{steps:?}");
        assert!(steps[1].contains("root") && steps[3].contains("app"));
        assert!(
            steps[2].contains("-C /srv/app/") && steps[2].contains("chown -R app /srv/app/"),
            "{}",
            steps[2]
        );
        // The same content again, at another time.
        std::fs::write(dir.path().join("run.sh"), "#!/bin/sh\n").unwrap();
        assert_eq!(read_in("FROM a\nCOPY run.sh /x\n"), read_in("FROM a\nCOPY run.sh /x\n"));
        std::fs::write(dir.path().join("big"), vec_of_noise()).unwrap();
        let error = read("FROM a\nCOPY big /x\n", dir.path(), &BTreeMap::new()).unwrap_err();
        assert!(error.message.contains("more than 540 KiB"), "{}", error.message);
    }

    fn vec_of_noise() -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..1_000_000).map(|_| next()).collect()
    }
}
