//! What steps pass on to each other, and into the template: variables, directory, user. Pure.

use domain::{BuildStep, RuntimeDefaults};
use sha2::{Digest, Sha256};
use wire::agent::AgentConfig;

/// How commands of the next step run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepState {
    pub(crate) defaults: RuntimeDefaults,
}

impl StepState {
    /// For a machine that runs commands of this state.
    pub(crate) fn config(&self) -> AgentConfig {
        AgentConfig {
            template_env: self.defaults.env.clone(),
            workdir: Some(self.workdir().to_owned()),
            user: self.defaults.user.clone(),
            ..AgentConfig::default()
        }
    }

    /// Steps begin in the root (`spec/semantics.md` §9.1).
    pub(crate) fn workdir(&self) -> &str {
        self.defaults.workdir.as_deref().unwrap_or("/")
    }

    /// After a step.
    pub(crate) fn apply(&mut self, step: &BuildStep) {
        match step {
            BuildStep::Run(_) => {}
            BuildStep::Env { key, value } => {
                self.defaults.env.insert(key.clone(), value.clone());
            }
            BuildStep::Workdir(path) => self.defaults.workdir = Some(joined(self.workdir(), path)),
            BuildStep::User { name, .. } => self.defaults.user = Some(name.clone()),
        }
    }
}

/// A path relative to another one, without `.` and `..`.
fn joined(base: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let base = if path.starts_with('/') { "" } else { base };
    for part in base.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Steps that share a machine: whatever prepares a command, and the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group<'a> {
    /// The number of its first step, from 0.
    pub(crate) first: usize,
    pub(crate) steps: &'a [BuildStep],
}

/// Splits steps after each command.
pub(crate) fn groups(steps: &[BuildStep]) -> Vec<Group<'_>> {
    let mut first = 0;
    let split = steps.split_inclusive(|step| matches!(step, BuildStep::Run(_)));
    split
        .map(|steps| {
            let group = Group { first, steps };
            first += steps.len();
            group
        })
        .collect()
}

impl Group<'_> {
    /// Whether a machine is needed at all.
    pub(crate) fn writes(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step, BuildStep::Env { .. }))
    }

    /// Names everything the outcome depends on, as far as the platform can know: the content below, the state before, the
    /// steps. What a command fetches from elsewhere is not part of it.
    pub(crate) fn key(&self, layers: &[String], before: &StepState) -> String {
        let mut hash = Sha256::new();
        let mut put = |text: &str| {
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        };
        put("superserve build step 1");
        for layer in layers {
            put(layer);
        }
        put("state");
        for (name, value) in &before.defaults.env {
            put(name);
            put(value);
        }
        put("directory and user");
        put(before.workdir());
        put(before.defaults.user.as_deref().unwrap_or_default());
        for step in self.steps {
            match step {
                BuildStep::Run(command) => ["run", command].map(&mut put),
                BuildStep::Env { key, value } => {
                    put("env");
                    [key.as_str(), value.as_str()].map(&mut put)
                }
                BuildStep::Workdir(path) => ["workdir", path].map(&mut put),
                BuildStep::User { name, sudo } => {
                    put(if *sudo { "user with sudo" } else { "user" });
                    [name.as_str(), ""].map(&mut put)
                }
            };
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &str) -> BuildStep {
        BuildStep::Run(command.to_owned())
    }

    fn env(key: &str, value: &str) -> BuildStep {
        BuildStep::Env { key: key.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn directories_are_relative_to_the_one_before() {
        for (base, path, expected) in [
            ("/", "/srv/app", "/srv/app"),
            ("/", "a", "/a"),
            ("/srv", "app/./x", "/srv/app/x"),
            ("/srv/app", "..", "/srv"),
            ("/srv", "../../../etc", "/etc"),
            ("/srv", "/", "/"),
        ] {
            assert_eq!(joined(base, path), expected, "{base} {path}");
        }
    }

    #[test]
    fn a_machine_per_command() {
        let steps = [env("A", "1"), run("a"), run("b"), env("B", "2"), BuildStep::Workdir("/x".into())];
        let found: Vec<_> = groups(&steps).iter().map(|g| (g.first, g.steps.len(), g.writes())).collect();
        assert_eq!(found, [(0, 2, true), (2, 1, true), (3, 2, true)]);
        assert!(!groups(&[env("A", "1")])[0].writes());
        assert!(groups(&[]).is_empty());
    }

    #[test]
    fn the_key_is_about_everything_that_counts() {
        let state = |key: &str, value: &str| {
            let mut state = StepState { defaults: RuntimeDefaults::default() };
            state.apply(&env(key, value));
            state
        };
        let layers = ["aa".to_owned(), "bb".to_owned()];
        let steps = [run("make")];
        let key = groups(&steps)[0].key(&layers, &state("A", "1"));
        assert_eq!(key, groups(&steps)[0].key(&layers, &state("A", "1")));
        let mut other_place = state("A", "1");
        other_place.apply(&BuildStep::Workdir("/x".into()));
        let mut other_user = state("A", "1");
        other_user.apply(&BuildStep::User { name: "x".into(), sudo: false });
        let sudo = |sudo| [BuildStep::User { name: "x".into(), sudo }, run("make")];
        let different = [
            groups(&steps)[0].key(&layers[..1], &state("A", "1")),
            groups(&steps)[0].key(&layers, &state("A", "2")),
            groups(&steps)[0].key(&layers, &state("A1", "")),
            groups(&steps)[0].key(&layers, &other_place),
            groups(&steps)[0].key(&layers, &other_user),
            groups(&[run("make it")])[0].key(&layers, &state("A", "1")),
            groups(&sudo(true))[0].key(&layers, &state("A", "1")),
            groups(&sudo(false))[0].key(&layers, &state("A", "1")),
        ];
        let all: std::collections::BTreeSet<_> = different.iter().chain([&key]).collect();
        assert_eq!(all.len(), different.len() + 1);
    }
}
