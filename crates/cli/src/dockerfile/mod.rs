//! Reads a Dockerfile as the build of a template: the instructions that most of them consist of. What would be left out
//! silently, and change the result, is refused by name instead; what has no meaning in a sandbox is said. Files for `COPY`
//! travel inside the steps, so they must be small; large things are better fetched by a `RUN`.

mod files;
mod stage;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeMap;
use std::path::Path;

use client::{BuildSpec, BuildStep};

use self::files::Context;
use self::stage::{MAX_COPY_BYTES, Stage, command, expanded};
use self::text::{exec_form, logical_lines, words};
use crate::error::CliError;

/// Notes for people about an image.
const WITHOUT_EFFECT: [&str; 2] = ["LABEL", "MAINTAINER"];
/// Instructions about things that sandboxes do otherwise, and how.
const OTHERWISE: [(&str, &str); 3] = [
    ("EXPOSE", "publish ports of a sandbox instead: superserve sandbox preview"),
    ("STOPSIGNAL", "sandboxes are paused or deleted, not stopped by a signal"),
    ("VOLUME", "the whole disk of a sandbox is writable and kept"),
];
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
