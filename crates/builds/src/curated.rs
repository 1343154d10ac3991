//! The platform's own templates (`spec/semantics.md` §9.3), as files in `curated/`. They are listed from the start and built
//! when somebody asks for it. Each begins with an image. Where its registry cannot be reached, it is made of the Debian packages
//! its file names; one that names none begins with `superserve/base`, and its steps install the rest.

use std::collections::BTreeMap;

use domain::{BuildSpec, BuildStep, Problem, RuntimeDefaults, Shape, template_name};
use serde::Deserialize;
use templates::{Layer, LayerStore, Phase, Recipe, TemplateError};

const PYTHON: &str = include_str!("../curated/python.sh");

/// Name, description, and what is run in it when its Debian packages are installed.
const FILES: [(&str, &str, Option<&str>); 8] = [
    ("python-3.11", include_str!("../curated/python-3.11.toml"), Some(PYTHON)),
    ("node-22", include_str!("../curated/node-22.toml"), None),
    ("python-ml", include_str!("../curated/python-ml.toml"), Some(PYTHON)),
    ("code-interpreter", include_str!("../curated/code-interpreter.toml"), Some(PYTHON)),
    ("claude-code", include_str!("../curated/claude-code.toml"), None),
    ("openclaw", include_str!("../curated/openclaw.toml"), None),
    ("hermes", include_str!("../curated/hermes.toml"), None),
    ("desktop", include_str!("../curated/desktop.toml"), Some(include_str!("../curated/desktop.sh"))),
];

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Curated {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) spec: BuildSpec,
}

/// How one comes into being where its image cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Instead {
    /// Begins with this template; the steps are the same.
    Template(&'static str),
    /// Is made of packages, and has no steps.
    Debian { recipe: Recipe, defaults: RuntimeDefaults },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    from: String,
    vcpu: u32,
    memory_mib: u32,
    disk_mib: u32,
    /// Over the image. Without any, the packages of `debian` are installed in it.
    #[serde(default)]
    steps: Vec<wire::rest::BuildStep>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
    debian: Option<Debian>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Debian {
    packages: Vec<String>,
    user: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

impl Debian {
    /// The same over an image.
    fn steps(&self, script: Option<&str>) -> Vec<BuildStep> {
        let install = format!(
            "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {} && rm -rf \
             /var/lib/apt/lists/*",
            self.packages.join(" ")
        );
        let env =
            self.env.iter().map(|(key, value)| BuildStep::Env { key: key.clone(), value: value.clone() });
        let user = self.user.iter().map(|name| BuildStep::User { name: name.clone(), sudo: true });
        let script = script.map(|script| BuildStep::Run(script.to_owned()));
        [BuildStep::Run(install)].into_iter().chain(script).chain(env).chain(user).collect()
    }
}

/// What a curated template is made of when its image cannot be had.
pub(crate) fn instead(name: &str) -> Option<Instead> {
    let short = name.strip_prefix(domain::RESERVED_TEMPLATE_PREFIX)?;
    let (short, text, script) = FILES.iter().find(|(known, ..)| *known == short)?;
    // A test reads them all.
    let Some(debian) = parse(short, text).ok()?.debian else {
        return Some(Instead::Template(domain::DEFAULT_TEMPLATE));
    };
    let Debian { packages, user, env } = debian;
    let recipe = Recipe { name: (*short).to_owned(), packages, script: script.map(str::to_owned) };
    let defaults = RuntimeDefaults { env, user, ..RuntimeDefaults::default() };
    Some(Instead::Debian { recipe, defaults })
}

/// Makes the layer of a curated template out of Debian packages, or finds the one made before.
///
/// # Errors
/// As [`templates::bootstrap`]; `Unsupported` when the template is not made of packages.
pub async fn make_curated_layer(
    layers: &LayerStore,
    short: &str,
    progress: impl Fn(Phase) + Send + Sync + 'static,
) -> Result<Layer, TemplateError> {
    match instead(&format!("{}{short}", domain::RESERVED_TEMPLATE_PREFIX)) {
        Some(Instead::Debian { recipe, .. }) => templates::bootstrap(layers, &recipe, progress).await,
        _ => Err(TemplateError::Unsupported { reason: format!("{short} is not made of Debian packages") }),
    }
}

/// All of them.
pub(crate) fn all() -> Result<Vec<Curated>, Problem> {
    FILES.iter().map(|(short, text, script)| read(short, text, *script)).collect()
}

fn parse(short: &str, text: &str) -> Result<File, Problem> {
    toml::from_str(text)
        .map_err(|error| Problem::internal(format!("the curated template {short} cannot be read"), error))
}

fn read(short: &str, text: &str, script: Option<&str>) -> Result<Curated, Problem> {
    let file = parse(short, text)?;
    let steps = file.steps.into_iter().map(|step| {
        let wire::rest::BuildStep { run, env, workdir, user } = step;
        let found = [
            run.map(BuildStep::Run),
            env.map(|env| BuildStep::Env { key: env.key, value: env.value }),
            workdir.map(BuildStep::Workdir),
            user.map(|user| BuildStep::User { name: user.name, sudo: user.sudo.unwrap_or_default() }),
        ];
        found.into_iter().flatten().next().ok_or_else(|| Problem::invalid(short, "a step is empty"))
    });
    let mut steps: Vec<BuildStep> = steps.collect::<Result<_, _>>()?;
    if let Some(debian) = file.debian.filter(|_| steps.is_empty()) {
        steps = debian.steps(script);
    }
    Ok(Curated {
        // Its own part of the name follows the same rules as everybody's.
        name: format!("{}{}", domain::RESERVED_TEMPLATE_PREFIX, template_name(short)?),
        shape: Shape { vcpu: file.vcpu, memory_mib: file.memory_mib, disk_mib: file.disk_mib },
        spec: BuildSpec::new(&file.from, steps, file.start_cmd, file.ready_cmd)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_templates() {
        let all = all().unwrap();
        assert_eq!(all.len(), FILES.len());
        for curated in all {
            assert!(instead(&curated.name).is_some());
            assert!((1..=domain::MAX_VCPU).contains(&curated.shape.vcpu), "{}", curated.name);
            assert!(domain::MEMORY_MIB.contains(&curated.shape.memory_mib), "{}", curated.name);
            assert!(domain::DISK_MIB.contains(&curated.shape.disk_mib), "{}", curated.name);
        }
        assert_eq!(instead("superserve/node-22"), Some(Instead::Template("superserve/base")));
        assert!(matches!(instead("superserve/desktop"), Some(Instead::Debian { .. })));
        assert_eq!(instead("superserve/base"), None);
        assert_eq!(instead("my/desktop"), None);
    }
}
