//! §10: templates and their builds.

use serde::{Deserialize, Serialize};

/// One row of `GET /templates`, and `GET /templates/{name_or_id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// UUID.
    pub id: String,
    /// Owner; curated templates carry the system team's id.
    pub team_id: String,
    /// Unique among the team's live templates.
    pub name: String,
    /// `domain::TemplateStatus` by name.
    pub status: String,
    /// Processors.
    pub vcpu: u32,
    /// MiB.
    pub memory_mib: u32,
    /// MiB.
    pub disk_mib: u32,
    /// RFC 3339.
    pub created_at: String,
    /// Bytes of the layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Why the build failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_at: Option<String>,
    /// What its sandboxes run on, when that is not the server's default. An addition to the published API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
}

/// Answer of `POST /templates`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedTemplate {
    /// The template.
    #[serde(flatten)]
    pub template: Template,
    /// Its first build.
    pub build_id: String,
}

/// Body of `POST /templates` (§10.3).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateTemplate {
    /// Lower-case letters, digits, `.`, `_`, `/`, `-`.
    pub name: String,
    /// Processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<i64>,
    /// MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
    /// MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<i64>,
    /// `domain::Engine` by name: what its sandboxes run on; what the server says, by default. An addition to the published API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// How it is built.
    pub build_spec: BuildSpec,
}

/// `build_spec` of a create.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildSpec {
    /// Image reference.
    pub from: String,
    /// In order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<BuildStep>>,
    /// Runs in every sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_cmd: Option<String>,
    /// Succeeds once `start_cmd` serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_cmd: Option<String>,
    /// Without a `start_cmd`, the image's own `ENTRYPOINT` and `CMD` run in every sandbox. An addition to the published API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_cmd: Option<bool>,
}

/// One step; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildStep {
    /// A shell command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// A variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<EnvStep>,
    /// A directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// A user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserStep>,
}

/// `env` of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvStep {
    /// Not empty.
    pub key: String,
    /// Anything.
    pub value: String,
}

/// `user` of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserStep {
    /// Made where there is none.
    pub name: String,
    /// Passwordless `sudo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sudo: Option<bool>,
}

/// One build (§10.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateBuild {
    /// UUID.
    pub id: String,
    /// UUID.
    pub template_id: String,
    /// `domain::BuildStatus` by name.
    pub status: String,
    /// SHA-256 of the canonical spec, 64 hex digits.
    pub build_spec_hash: String,
    /// RFC 3339.
    pub created_at: String,
    /// `<code>: <detail>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finalized_at: Option<String>,
}

/// One `data:` record of a build's log (§10.4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildLogEvent {
    /// RFC 3339.
    pub timestamp: String,
    /// Who printed it.
    pub stream: LogSource,
    /// A piece, with its line ends.
    #[serde(default)]
    pub text: String,
    /// On the last event.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finished: bool,
    /// How the build ended, on the last event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

/// Who printed a piece of a build's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogSource {
    /// A command.
    Stdout,
    /// A command.
    Stderr,
    /// The platform.
    System,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_the_server_does_not_know_is_refused() {
        let read = |text: &str| serde_json::from_str::<CreateTemplate>(text);
        let whole = r#"{"name":"a","build_spec":{"from":"x","steps":[{"run":"a"},{"user":{"name":"u","sudo":false}}]}}"#;
        assert_eq!(read(whole).unwrap().build_spec.steps.unwrap().len(), 2);
        for bad in [
            r#"{"name":"a","build_spec":{"from":"x","steps":[{"copy":{"src":"a","dst":"b"}}]}}"#,
            r#"{"name":"a","build_spec":{"from":"x","nonsense":1}}"#,
            r#"{"name":"a"}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn events_that_are_not_the_last_say_nothing_of_the_end() {
        let event = BuildLogEvent {
            timestamp: "t".into(),
            stream: LogSource::Stdout,
            text: "x\n".into(),
            finished: false,
            status: None,
        };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"timestamp":"t","stream":"stdout","text":"x\n"}"#);
    }
}
