//! The platform's own templates (`spec/semantics.md` §9.3), as files in `curated/`. They are listed from the start and built
//! when somebody asks for it. Each begins with an image; where its registry cannot be reached, it begins with
//! `superserve/base`, which is made of Debian packages, and its steps install the rest.

use domain::{BuildSpec, BuildStep, Problem, Shape, template_name};
use serde::Deserialize;

const FILES: [(&str, &str); 8] = [
    ("python-3.11", include_str!("../curated/python-3.11.toml")),
    ("node-22", include_str!("../curated/node-22.toml")),
    ("python-ml", include_str!("../curated/python-ml.toml")),
    ("code-interpreter", include_str!("../curated/code-interpreter.toml")),
    ("claude-code", include_str!("../curated/claude-code.toml")),
    ("openclaw", include_str!("../curated/openclaw.toml")),
    ("hermes", include_str!("../curated/hermes.toml")),
    ("desktop", include_str!("../curated/desktop.toml")),
];

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Curated {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) spec: BuildSpec,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    from: String,
    vcpu: u32,
    memory_mib: u32,
    disk_mib: u32,
    #[serde(default)]
    steps: Vec<wire::rest::BuildStep>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

/// What a curated template begins with when its image cannot be had.
pub(crate) fn instead(name: &str) -> Option<&'static str> {
    let short = name.strip_prefix(domain::RESERVED_TEMPLATE_PREFIX)?;
    FILES.iter().any(|(known, _)| *known == short).then_some(domain::DEFAULT_TEMPLATE)
}

/// All of them.
pub(crate) fn all() -> Result<Vec<Curated>, Problem> {
    FILES.iter().map(|(short, text)| read(short, text)).collect()
}

fn read(short: &str, text: &str) -> Result<Curated, Problem> {
    let file: File = toml::from_str(text)
        .map_err(|error| Problem::internal(format!("the curated template {short} cannot be read"), error))?;
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
    let steps = steps.collect::<Result<_, _>>()?;
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
        assert_eq!(instead("superserve/base"), None);
        assert_eq!(instead("my/desktop"), None);
    }
}
