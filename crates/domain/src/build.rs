//! What a template is built from: an image, steps, and what runs in every sandbox. Checked once, here.

use std::collections::BTreeMap;

use crate::limits::*;
use crate::metadata::EnvVars;
use crate::problem::Problem;

/// What `from` begins with when it names a template instead of an image. No image reference looks like this.
pub const FROM_TEMPLATE: &str = "template:";

/// How a template is made (`spec/rest-api.md` §10.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildSpec {
    from: String,
    steps: Vec<BuildStep>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
    image_cmd: bool,
}

/// One step of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildStep {
    /// A command for `/bin/sh -c`.
    Run(String),
    /// A variable of all later steps and of the sandboxes.
    Env {
        /// Not empty.
        key: String,
        /// Anything.
        value: String,
    },
    /// The directory of all later steps and of the sandboxes; relative to the one before.
    Workdir(String),
    /// Who runs all later steps and the sandboxes' commands.
    User {
        /// Made if there is no such user.
        name: String,
        /// May become root without a password.
        sudo: bool,
    },
}

impl BuildSpec {
    /// Checks a build.
    ///
    /// # Errors
    /// A `bad_request` problem that names the field.
    pub fn new(
        from: &str,
        steps: Vec<BuildStep>,
        start_cmd: Option<String>,
        ready_cmd: Option<String>,
    ) -> Result<Self, Problem> {
        let from = from.trim();
        if from.is_empty() || from.len() > MAX_IMAGE_BYTES || from.chars().any(char::is_control) {
            let accepted = format!("an image reference of 1 to {MAX_IMAGE_BYTES} bytes is expected");
            return Err(Problem::invalid("build_spec.from", accepted));
        }
        for refused in ["alpine", "distroless"] {
            if from.to_ascii_lowercase().contains(refused) {
                let accepted = format!(
                    "{refused} images do not work; use one with glibc and a shell, such as debian:12"
                );
                return Err(Problem::invalid("build_spec.from", accepted));
            }
        }
        if steps.len() > MAX_BUILD_STEPS {
            return Err(Problem::invalid(
                "build_spec.steps",
                format!("at most {MAX_BUILD_STEPS} are accepted"),
            ));
        }
        for (number, step) in steps.iter().enumerate() {
            check(&format!("build_spec.steps[{number}]"), step)?;
        }
        let env = steps.iter().filter_map(|step| match step {
            BuildStep::Env { key, value } => Some((key.clone(), value.clone())),
            _ => None,
        });
        EnvVars::new(env.collect::<BTreeMap<_, _>>())
            .map_err(|problem| Problem::invalid("build_spec.steps", problem.to_string()))?;
        for (field, command) in [("start_cmd", &start_cmd), ("ready_cmd", &ready_cmd)] {
            if let Some(command) = command {
                check_command(&format!("build_spec.{field}"), command)?;
            }
        }
        let set = |command: Option<String>| command.filter(|text| !text.trim().is_empty());
        Ok(Self {
            from: from.to_owned(),
            steps,
            start_cmd: set(start_cmd),
            ready_cmd: set(ready_cmd),
            image_cmd: false,
        })
    }

    /// The image.
    #[must_use]
    pub fn from(&self) -> &str {
        &self.from
    }

    /// In order.
    #[must_use]
    pub fn steps(&self) -> &[BuildStep] {
        &self.steps
    }

    /// Started in every sandbox.
    #[must_use]
    pub fn start_cmd(&self) -> Option<&str> {
        self.start_cmd.as_deref()
    }

    /// The same, with the image's own command in the place of a `start_cmd` that is not given.
    #[must_use]
    pub fn with_image_cmd(self, image_cmd: bool) -> Self {
        Self { image_cmd, ..self }
    }

    /// Whether the image's `ENTRYPOINT` and `CMD` run in every sandbox when there is no `start_cmd`. Off unless it is asked
    /// for: the command of most images is a shell or an interpreter, which ends at once without a terminal.
    #[must_use]
    pub fn image_cmd(&self) -> bool {
        self.image_cmd
    }

    /// Succeeds once `start_cmd` serves.
    #[must_use]
    pub fn ready_cmd(&self) -> Option<&str> {
        self.ready_cmd.as_deref()
    }
}

fn check(field: &str, step: &BuildStep) -> Result<(), Problem> {
    match step {
        BuildStep::Run(command) if command.trim().is_empty() => {
            Err(Problem::invalid(format!("{field}.run"), "a command is expected"))
        }
        BuildStep::Run(command) => check_command(&format!("{field}.run"), command),
        BuildStep::Env { key, value } => {
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                let accepted = "a key without `=`, and neither key nor value with a NUL, is expected";
                return Err(Problem::invalid(format!("{field}.env"), accepted));
            }
            Ok(())
        }
        BuildStep::Workdir(path) => {
            if path.is_empty() || path.len() > MAX_PATH_BYTES || path.chars().any(char::is_control) {
                let accepted = format!("a path of 1 to {MAX_PATH_BYTES} bytes is expected");
                return Err(Problem::invalid(format!("{field}.workdir"), accepted));
            }
            Ok(())
        }
        BuildStep::User { name, .. } => {
            let first = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
            let rest =
                name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b));
            if !first || !rest || name.len() > MAX_USER_BYTES {
                let accepted = format!(
                    "1 to {MAX_USER_BYTES} lower-case letters, digits, `_`, `-`, beginning with a letter or `_`"
                );
                return Err(Problem::invalid(format!("{field}.user.name"), accepted));
            }
            Ok(())
        }
    }
}

fn check_command(field: &str, command: &str) -> Result<(), Problem> {
    if command.len() > MAX_COMMAND_BYTES || command.contains('\0') {
        let accepted = format!("at most {MAX_COMMAND_BYTES} bytes without a NUL are accepted");
        return Err(Problem::invalid(field, accepted));
    }
    Ok(())
}

/// Checks the name of a team's template and takes white space off its ends (`spec/rest-api.md` §10.3).
///
/// # Errors
/// A `bad_request` problem.
pub fn template_name(name: &str) -> Result<String, Problem> {
    let name = name.trim();
    let bytes = name.as_bytes();
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let inner = bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._/-".contains(b));
    if bytes.len() > MAX_TEMPLATE_NAME_BYTES || !edge(bytes.first()) || !edge(bytes.last()) || !inner {
        let accepted = format!(
            "1 to {MAX_TEMPLATE_NAME_BYTES} lower-case letters, digits, `.`, `_`, `/`, `-`, beginning and ending with a \
             letter or digit"
        );
        return Err(Problem::invalid("name", accepted));
    }
    if name.starts_with(RESERVED_TEMPLATE_PREFIX) {
        let accepted =
            format!("names below `{RESERVED_TEMPLATE_PREFIX}` are the platform's own; choose another");
        return Err(Problem::invalid("name", accepted));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_spec(from: &str, steps: Vec<BuildStep>) -> Result<BuildSpec, String> {
        BuildSpec::new(from, steps, None, Some(" ".to_owned())).map_err(|problem| problem.to_string())
    }

    #[test]
    fn images_that_cannot_work_are_refused_at_once() {
        assert_eq!(check_spec(" debian:12 ", Vec::new()).unwrap().from(), "debian:12");
        assert_eq!(check_spec("debian:12", Vec::new()).unwrap().ready_cmd(), None);
        for bad in ["", "python:3.11-alpine", "Alpine", "gcr.io/distroless/base", "a\nb"] {
            assert!(check_spec(bad, Vec::new()).unwrap_err().contains("build_spec.from"), "{bad:?}");
        }
    }

    #[test]
    fn steps_are_named_in_refusals() {
        let user = |name: &str| BuildStep::User { name: name.to_owned(), sudo: false };
        let env = |key: &str| BuildStep::Env { key: key.to_owned(), value: "v".to_owned() };
        for good in [user("a"), user("_x-9"), env("A"), BuildStep::Workdir("a/b".into())] {
            assert!(check_spec("x", vec![good.clone()]).is_ok(), "{good:?}");
        }
        let long = "a".repeat(32);
        for (bad, field) in [
            (user(""), "user.name"),
            (user("9a"), "user.name"),
            (user("a b"), "user.name"),
            (user(&long), "user.name"),
            (env(""), "env"),
            (env("A=B"), "env"),
            (BuildStep::Workdir(String::new()), "workdir"),
            (BuildStep::Run(" ".into()), "run"),
            (BuildStep::Run("a".repeat(MAX_COMMAND_BYTES + 1)), "run"),
        ] {
            let told = check_spec("x", vec![BuildStep::Run("true".into()), bad]).unwrap_err();
            assert!(told.contains(&format!("build_spec.steps[1].{field}")), "{told}");
        }
        assert!(check_spec("x", vec![BuildStep::Run("true".into()); MAX_BUILD_STEPS + 1]).is_err());
    }

    #[test]
    fn template_names() {
        assert_eq!(template_name(" my/app-1.2_x ").unwrap(), "my/app-1.2_x");
        for bad in ["", "A", "-a", "a-", "a b", "superserve/x", &"a".repeat(129), "é"] {
            assert!(template_name(bad).is_err(), "{bad:?}");
        }
    }
}
