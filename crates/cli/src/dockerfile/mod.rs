//! Reads a Dockerfile as the build of a template: the instructions that most of them consist of. What would be left out
//! silently, and change the result, is refused by name instead; what has no meaning in a sandbox is said. Files for `COPY`
//! travel inside the steps, so they must be small; large things are better fetched by a `RUN`.

mod files;
mod text;

use std::collections::BTreeMap;
use std::path::Path;

use client::{BuildSpec, BuildStep, EnvStep, UserStep};

use self::files::Context;
use self::text::{exec_form, logical_lines, quoted, words};
use crate::error::CliError;

/// Of base64 in one step; a command may have 64 KiB.
const PIECE_BYTES: usize = 40 * 1024;
/// Of names in the same command.
const MAX_CHOWN: usize = 20 * 1024;
/// Of base64 in all steps; a request may have 1 MiB.
const MAX_COPY_BYTES: usize = 720 * 1024;
/// Where pieces are put together in the machine.
const STAGING: &str = "/.superserve-copy";
/// Notes for people about an image.
const WITHOUT_EFFECT: [&str; 2] = ["LABEL", "MAINTAINER"];
/// Instructions about things that sandboxes do otherwise, and how.
const OTHERWISE: [(&str, &str); 3] = [
    ("EXPOSE", "publish ports of a sandbox instead: superserve sandbox preview"),
    ("STOPSIGNAL", "sandboxes are paused or deleted, not stopped by a signal"),
    ("VOLUME", "the whole disk of a sandbox is writable and kept"),
];
/// What `ADD` would unpack.
const ARCHIVES: [&str; 7] = [".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tar.zst"];

/// What a Dockerfile says.
#[derive(Debug)]
pub(crate) struct Dockerfile {
    pub(crate) spec: BuildSpec,
    /// What in it has no effect, for whoever wrote it.
    pub(crate) notes: Vec<String>,
}

/// Reads a Dockerfile; `context` is where `COPY` finds its files, `given` the values of `ARG`s, `target` the stage to build
/// unless it is the last one.
pub(crate) fn read(
    text: &str,
    context: &Path,
    given: &BTreeMap<String, String>,
    target: Option<&str>,
) -> Result<Dockerfile, CliError> {
    let files = Context::open(context).map_err(CliError::new)?;
    let mut reading =
        Reading { files: &files, given, globals: BTreeMap::new(), stages: Vec::new(), notes: Vec::new() };
    for (number, line) in logical_lines(text) {
        reading
            .instruction(number, &line)
            .map_err(|why| CliError::new(format!("Dockerfile, line {number}: {why}")))?;
    }
    let wanted = match target {
        Some(target) => reading.stages.iter().rposition(|stage| stage.is(target)),
        None => reading.stages.len().checked_sub(1),
    };
    let wanted = wanted.ok_or_else(|| match target {
        Some(target) => CliError::new(format!("the Dockerfile has no stage `{target}`")),
        None => CliError::new("the Dockerfile has no FROM"),
    })?;
    let stage = reading.stages.swap_remove(wanted);
    let start_cmd = stage.start_cmd();
    if let Some(why) = stage.refused {
        return Err(CliError::new(why));
    }
    if stage.copied > MAX_COPY_BYTES {
        return Err(CliError::new(format!(
            "the files of COPY have more than {} KiB, compressed; fetch large ones with RUN, or import an image",
            MAX_COPY_BYTES * 3 / 4 / 1024
        )));
    }
    let spec = BuildSpec {
        from: stage.from,
        steps: Some(stage.steps),
        start_cmd,
        ready_cmd: stage.ready_cmd,
        ..BuildSpec::default()
    };
    Ok(Dockerfile { spec, notes: reading.notes })
}

/// A command as it was written, in the form that says how it runs.
#[derive(Debug, Clone)]
enum Command {
    Shell(String),
    Exec(Vec<String>),
}

/// What has been read of one stage. One that begins with another one begins with everything of it.
#[derive(Debug, Clone, Default)]
struct Stage {
    name: Option<String>,
    from: String,
    steps: Vec<BuildStep>,
    /// Variables that later instructions may name.
    known: BTreeMap<String, String>,
    /// Those of them that only commands see.
    args: Vec<String>,
    user: Option<String>,
    /// Instead of `/bin/sh -c`.
    shell: Option<Vec<String>>,
    entrypoint: Option<Command>,
    cmd: Option<Command>,
    ready_cmd: Option<String>,
    copied: usize,
    /// Why it cannot be built; it may be that nobody wants it.
    refused: Option<String>,
}

impl Stage {
    fn is(&self, name: &str) -> bool {
        self.name.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(name))
    }

    /// For `/bin/sh -c`.
    fn line(&self, command: &Command) -> String {
        match (command, &self.shell) {
            (Command::Shell(text), None) => text.clone(),
            (Command::Shell(text), Some(shell)) => format!("{} {}", joined(shell), quoted(text)),
            (Command::Exec(words), _) => joined(words),
        }
    }

    /// `ENTRYPOINT` with `CMD` as its arguments, as other engines join them.
    fn start_cmd(&self) -> Option<String> {
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

    fn run(&mut self, command: String) {
        self.steps.push(BuildStep { run: Some(command), ..BuildStep::default() });
    }

    fn become_user(&mut self, name: &str) {
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

    fn copy(&mut self, word: &str, rest: &str, files: &Context) -> Result<(), String> {
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

struct Reading<'a> {
    files: &'a Context,
    given: &'a BTreeMap<String, String>,
    /// `ARG`s before the first stage.
    globals: BTreeMap<String, String>,
    stages: Vec<Stage>,
    notes: Vec<String>,
}

impl Reading<'_> {
    fn instruction(&mut self, number: usize, line: &str) -> Result<(), String> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let (word, rest) = (word.to_ascii_uppercase(), rest.trim());
        if word == "FROM" {
            return self.from(rest);
        }
        let Some(stage) = self.stages.last_mut() else {
            return match word.as_str() {
                "ARG" => {
                    for pair in words(&expanded(&self.globals, rest)?)? {
                        let (name, default) = pair.split_once('=').unwrap_or((&pair, ""));
                        let value = self.given.get(name).map_or(default, String::as_str);
                        self.globals.insert(name.to_owned(), value.to_owned());
                    }
                    Ok(())
                }
                _ => Err(format!("{word} stands before FROM")),
            };
        };
        match word.as_str() {
            "ARG" => {
                for pair in words(&expanded(&stage.known, rest)?)? {
                    let (name, default) = match pair.split_once('=') {
                        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                        None => (pair, None),
                    };
                    let value = self.given.get(&name).cloned().or(default);
                    if let Some(value) = value.or_else(|| self.globals.get(&name).cloned()) {
                        // An ENV of the same name stays what it is.
                        if !stage.known.contains_key(&name) || stage.args.contains(&name) {
                            stage.known.insert(name.clone(), value);
                            stage.args.retain(|arg| *arg != name);
                            stage.args.push(name);
                        }
                    }
                }
            }
            "ENV" => stage.env(rest)?,
            "RUN" => {
                if rest.starts_with("--") || rest.contains("<<") {
                    return Err("RUN with mounts or here-documents is not supported".to_owned());
                }
                let command = stage.line(&command(rest)?);
                let run = format!("{}{command}", stage.arguments());
                stage.run(run);
            }
            "SHELL" => stage.shell = Some(exec_form(rest)?).filter(|shell| !shell.is_empty()),
            "WORKDIR" => {
                let path = expanded(&stage.known, rest)?;
                stage.steps.push(BuildStep { workdir: Some(path), ..BuildStep::default() });
            }
            "USER" => {
                let name = expanded(&stage.known, rest)?;
                if name.contains(':') || name.bytes().next().is_some_and(|b| b.is_ascii_digit()) {
                    return Err("USER takes the name of a user here, without a group".to_owned());
                }
                stage.become_user(&name);
                stage.user = Some(name);
            }
            "COPY" | "ADD" => {
                if let Err(why) = stage.copy(&word, rest, self.files) {
                    // Often of a stage that only others would have taken files from.
                    stage.refused.get_or_insert(format!("Dockerfile, line {number}: {why}"));
                }
            }
            "CMD" => stage.cmd = Some(command(rest)?),
            "ENTRYPOINT" => {
                stage.entrypoint = Some(command(rest)?);
                stage.cmd = None;
            }
            "HEALTHCHECK" => {
                // Its options are about checks that are repeated; here it is the one that says that the command serves.
                let words = rest.split_whitespace().skip_while(|word| word.starts_with("--"));
                let first = words.clone().next().unwrap_or_default();
                let check = rest.find(first).map_or("", |at| rest[at + first.len()..].trim());
                stage.ready_cmd = match first.to_ascii_uppercase().as_str() {
                    "NONE" => None,
                    "CMD" => Some(stage.line(&command(check)?)),
                    _ => return Err("HEALTHCHECK takes CMD and a command, or NONE".to_owned()),
                };
            }
            quiet if WITHOUT_EFFECT.contains(&quiet) => {}
            other => match OTHERWISE.iter().find(|(word, _)| *word == other) {
                Some((word, instead)) => self.notes.push(format!("{word} has no effect here: {instead}")),
                None => return Err(format!("{other} is not supported")),
            },
        }
        Ok(())
    }

    fn from(&mut self, rest: &str) -> Result<(), String> {
        let rest = expanded(&self.globals, rest)?;
        let (options, words): (Vec<&str>, Vec<&str>) =
            rest.split_whitespace().partition(|word| word.starts_with("--"));
        if let Some(option) = options.iter().find(|option| !option.starts_with("--platform=")) {
            return Err(format!("FROM {option} is not supported"));
        }
        let (image, name) = match words[..] {
            [image] => (image, None),
            [image, "AS" | "as" | "As", name] => (image, Some(name.to_owned())),
            _ => return Err("FROM takes an image, and AS with a name".to_owned()),
        };
        let stage = match self.stages.iter().rev().find(|stage| stage.is(image)) {
            Some(below) => {
                let mut stage = Stage { name, ..below.clone() };
                for arg in std::mem::take(&mut stage.args) {
                    stage.known.remove(&arg);
                }
                stage
            }
            None => Stage { name, from: image.to_owned(), ..Stage::default() },
        };
        self.stages.push(stage);
        Ok(())
    }
}

/// Puts variables in. `\\$` stands for the sign itself.
fn expanded(known: &BTreeMap<String, String>, text: &str) -> Result<String, String> {
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
fn command(text: &str) -> Result<Command, String> {
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

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn shown(text: &str) -> String {
        let given = BTreeMap::from([("VERSION".to_owned(), "2".to_owned())]);
        match read(text, Path::new("/nonexistent"), &given, None) {
            Ok(read) => serde_json::to_string(&read.spec).unwrap(),
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
            ("FROM a\nONBUILD RUN x", "ONBUILD is not supported"),
            ("FROM a\nSHELL bash", "JSON list"),
            ("FROM --x=1 a", "FROM --x=1 is not supported"),
            ("FROM a b", "AS with a name"),
            ("FROM a\nADD x.tar.gz /", "would unpack"),
            ("FROM a\nRUN x <<EOF", "here-documents"),
            ("FROM a\nENV A=${B:?no}", "only ${name}"),
            ("FROM a\nCOPY --chmod=u+x x y", "octal"),
            ("FROM a\nHEALTHCHECK x", "HEALTHCHECK takes"),
            ("FROM a\nRUN --mount=type=cache x", "mounts"),
            ("FROM a\nUSER 1000", "name of a user"),
            ("FROM a\nCOPY --from=b x y", "cannot reach"),
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
    fn a_stage_goes_on_where_another_one_ended() {
        let text = "ARG TAG=3.11\nFROM --platform=linux/amd64 python:$TAG AS base\nARG TAG\nARG LOCAL=x\nENV A=1\nRUN one $TAG\n\
            FROM other AS tools\nCOPY --from=base /x /y\nRUN never\n\
            FROM base AS test\nRUN two\nSHELL [\"/bin/bash\", \"-ec\"]\nRUN echo \"$A\"\nCMD serve it\nFROM test\nRUN three\n";
        let read_target = |target: Option<&str>| {
            let read = read(text, Path::new("/nonexistent"), &BTreeMap::new(), target);
            read.map(|read| serde_json::to_string(&read.spec).unwrap()).unwrap_or_else(|error| error.message)
        };
        expect![[r#"{"from":"python:3.11","steps":[{"env":{"key":"A","value":"1"}},{"run":"export TAG=3.11; export LOCAL=x; one $TAG"},{"run":"two"},{"run":"/bin/bash -ec 'echo \"$A\"'"},{"run":"/bin/bash -ec three"}],"start_cmd":"/bin/bash -ec 'serve it'"}"#]]
        .assert_eq(&read_target(None));
        expect![[r#"{"from":"python:3.11","steps":[{"env":{"key":"A","value":"1"}},{"run":"export TAG=3.11; export LOCAL=x; one $TAG"}]}"#]]
        .assert_eq(&read_target(Some("BASE")));
        // Only who wants it learns that it cannot be.
        let error = read_target(Some("tools"));
        assert!(error.starts_with("Dockerfile, line 8: COPY --from=base takes files of another"), "{error}");
        assert_eq!(read_target(Some("no")), "the Dockerfile has no stage `no`");
    }

    #[test]
    fn commands_run_as_other_engines_run_them() {
        let start = |text: &str| {
            let read =
                read(&format!("FROM a\n{text}"), Path::new("/nonexistent"), &BTreeMap::new(), None).unwrap();
            (
                read.spec.start_cmd.unwrap_or_default(),
                read.spec.ready_cmd.unwrap_or_default(),
                read.notes.len(),
            )
        };
        for (text, command, ready, notes) in [
            ("CMD a b", "a b", "", 0),
            ("CMD [\"a\", \"b c\"]", "a 'b c'", "", 0),
            ("ENTRYPOINT [\"a\"]\nCMD [\"b\"]", "a b", "", 0),
            ("ENTRYPOINT [\"a\"]\nCMD b $C", "a /bin/sh -c 'b $C'", "", 0),
            ("ENTRYPOINT a\nCMD [\"b\"]", "a", "", 0),
            ("CMD [\"b\"]\nENTRYPOINT [\"a\"]", "a", "", 0),
            ("CMD [ -e x ] && y", "[ -e x ] && y", "", 0),
            ("HEALTHCHECK --interval=5s --retries=3 CMD curl -f localhost", "", "curl -f localhost", 0),
            ("HEALTHCHECK CMD x\nHEALTHCHECK NONE", "", "", 0),
            ("EXPOSE 80\nVOLUME /x\nSTOPSIGNAL 9\nLABEL a=b", "", "", 3),
        ] {
            assert_eq!(start(text), (command.to_owned(), ready.to_owned(), notes), "{text}");
        }
    }

    #[test]
    fn files_travel_in_the_steps() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("src")).unwrap();
        std::fs::write(dir.path().join("src/main.py"), "print(1)\n").unwrap();
        std::fs::write(dir.path().join("run.sh"), "#!/bin/sh\n").unwrap();
        let read_in =
            |text: &str| read(text, dir.path(), &BTreeMap::new(), None).unwrap().spec.steps.unwrap();
        let steps = read_in("FROM a\nUSER app\nCOPY --chown=app src/ run.sh /srv/app/\n");
        let steps: Vec<String> = steps.iter().map(|step| serde_json::to_string(step).unwrap()).collect();
        assert_eq!(steps.len(), 4, "{steps:?}");
        assert!(steps[1].contains("root") && steps[3].contains("app"));
        assert!(
            steps[2].contains("-C /srv/app/") && steps[2].contains("chown -h app -- main.py run.sh"),
            "{}",
            steps[2]
        );
        // The same content again, at another time.
        std::fs::write(dir.path().join("run.sh"), "#!/bin/sh\n").unwrap();
        assert_eq!(read_in("FROM a\nCOPY run.sh /x\n"), read_in("FROM a\nCOPY run.sh /x\n"));
        std::fs::write(dir.path().join("big"), vec_of_noise()).unwrap();
        let error = read("FROM a\nCOPY big /x\n", dir.path(), &BTreeMap::new(), None).unwrap_err();
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
