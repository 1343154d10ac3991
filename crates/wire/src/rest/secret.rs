//! §8, §11: secrets, what they are bound to, and providers. No answer has a value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Body of `POST /secrets`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSecret {
    /// Unique among the team's secrets.
    pub name: String,
    /// The credential; a secret.
    pub value: String,
    /// A provider of the catalogue; exclusive with the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// How the value is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<SecretAuth>,
    /// Where the value may be sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// Ours: textual bodies of answers that repeat the value get the stand-in instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub_bodies: Option<bool>,
    /// Ours: the value is also put in place of the stand-in in a URL's query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_query: Option<bool>,
}

impl std::fmt::Debug for CreateSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Body of `PATCH /secrets/{name}`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotateSecret {
    /// The new credential; a secret.
    pub value: String,
}

impl std::fmt::Debug for RotateSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RotateSecret(****)")
    }
}

/// `auth` of a create, and each rule of `per_host`: either `type` with the fields that belong to it, or `per_host`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretAuth {
    /// `bearer`, `basic`, `api-key`, `custom`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `api-key`: header name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// `api-key`: what stands before the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// `basic`: user name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// `custom`: header names and templates with `{{ value }}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// Another `auth` for each group of hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_host: Option<Vec<SecretAuth>>,
    /// Within `per_host`: where the rule applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
}

/// One secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// UUID.
    pub id: String,
    /// Unique among the team's secrets.
    pub name: String,
    /// `domain::AuthType` by name.
    pub auth_type: String,
    /// The fields of the type.
    #[serde(default)]
    pub auth_config: Value,
    /// Where the value may be sent to.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// The provider it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_shortcut: Option<String>,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339; when it last got a value.
    pub updated_at: String,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<String>,
    /// Ours; only when it is so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scrub_bodies: bool,
    /// Ours; only when it is so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_query: bool,
}

/// One row of `GET /secrets/{name}/audit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretAuditEvent {
    /// Counts upwards.
    pub id: i64,
    /// RFC 3339.
    pub ts: String,
    /// UUID.
    pub sandbox_id: String,
    /// `null` when the sandbox is gone.
    #[serde(default)]
    pub sandbox_name: Option<String>,
    /// UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_id: Option<String>,
    /// HTTP method.
    pub method: String,
    /// Where to.
    pub host: String,
    /// Without a query.
    pub path: String,
    /// What the sandbox got.
    pub status: u16,
    /// What the service gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_status: Option<u16>,
    /// Until the head of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

/// One row of `GET /secrets/{name}/sandboxes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretSandbox {
    /// UUID.
    pub sandbox_id: String,
    /// Not unique.
    pub sandbox_name: String,
    /// The variable.
    pub env_key: String,
    /// `domain::SandboxState` by name.
    pub status: String,
}

/// One row of `GET /providers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provider {
    /// What a create calls it.
    pub name: String,
    /// For people.
    pub display: String,
    /// `domain::AuthType` by name.
    pub auth_type: String,
    /// The fields of the type.
    #[serde(default)]
    pub auth_config: Value,
    /// Where it is used.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// What its credentials begin with, and `...`.
    pub token_shape: String,
}

/// Body and answer of `POST /sandboxes/{id}/secrets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachSecret {
    /// The variable.
    pub env_key: String,
    /// The secret's name.
    pub secret_name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_print() {
        let create = r#"{"name":"a","value":"hunter2","provider":"openai"}"#;
        let create: CreateSecret = serde_json::from_str(create).unwrap();
        let rotate: RotateSecret = serde_json::from_str(r#"{"value":"hunter2"}"#).unwrap();
        assert!(!format!("{create:?} {rotate:?}").contains("hunter2"));
    }

    #[test]
    fn the_typescript_form_of_per_host_is_read() {
        let auth = r#"{"per_host":[{"hosts":["a.test"],"type":"basic","username":"u"},{"hosts":["b.test"],"type":"bearer"}]}"#;
        let auth: SecretAuth = serde_json::from_str(auth).unwrap();
        assert_eq!(auth.per_host.unwrap()[0].username.as_deref(), Some("u"));
        assert!(serde_json::from_str::<SecretAuth>(r#"{"type":"bearer","token":"x"}"#).is_err());
    }
}
