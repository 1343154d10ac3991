//! §7: preview ports and their tokens, and, beyond it, what happens at them.

use serde::{Deserialize, Serialize};

/// A published port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewPort {
    /// 1024 to 65535, not 49983.
    pub port: u16,
    /// `domain::PreviewAccess` by name.
    pub access: String,
    /// At least 1; grows with everything that ends earlier tokens.
    pub token_version: u64,
}

/// Answer of `GET …/preview-ports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewPorts {
    /// Default of ports published later.
    #[serde(default = "super::sandbox::legacy_public")]
    pub preview_access: String,
    /// Sorted by port.
    pub ports: Vec<PreviewPort>,
}

/// Body of `POST …/preview-ports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishPort {
    /// Checked later, so that a refusal says what is accepted.
    pub port: i64,
    /// `public` or `private`; the sandbox's default, or what the port has, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
}

/// Body of `POST …/token`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MintPreviewToken {
    /// 1 to 604800; without an end when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<i64>,
}

/// Answer of `POST …/token` and `POST …/token/rotate`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewToken {
    /// A secret.
    pub token: String,
    /// Which port it opens.
    pub port: u16,
    /// Header that carries it.
    pub header: String,
    /// Parameter of the query that carries it.
    pub query_param: String,
    /// The generation it belongs to.
    pub token_version: u64,
    /// `private`.
    pub access: String,
    /// Default of ports published later.
    pub preview_access: String,
    /// RFC 3339; only when it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

impl std::fmt::Debug for PreviewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreviewToken")
            .field("port", &self.port)
            .field("token_version", &self.token_version)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// One row of `GET /previews`: a published port of any sandbox, and its traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preview {
    /// Lowercase UUID.
    pub sandbox_id: String,
    /// Its name.
    pub sandbox_name: String,
    /// `domain::SandboxState` by name.
    pub sandbox_status: String,
    /// The port.
    #[serde(flatten)]
    pub port: PreviewPort,
    /// Since the server started.
    pub traffic: PreviewTraffic,
}

/// What has happened at a port since the server started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewTraffic {
    /// Let in.
    pub requests: u64,
    /// Not let in.
    pub refused: u64,
    /// Open now.
    pub open: u64,
    /// Bytes from visitors.
    pub bytes_in: u64,
    /// Bytes to visitors.
    pub bytes_out: u64,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_request_at: Option<String>,
}

/// One row of `GET …/preview-ports/{port}/requests`, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewRequest {
    /// What the log calls it.
    pub id: String,
    /// RFC 3339.
    pub ended_at: String,
    /// Shortened.
    pub method: String,
    /// Without the query, shortened.
    pub path: String,
    /// 0 when the visitor left before there was one.
    pub status: u16,
    /// `answered`, `refused`, `agent_failed` or `cut`.
    pub outcome: String,
    /// Bytes from the visitor.
    pub bytes_in: u64,
    /// Bytes to the visitor.
    pub bytes_out: u64,
    /// From its head to its end.
    pub duration_ms: u64,
    /// Address.
    pub client: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_do_not_print_and_bodies_are_strict() {
        let token = PreviewToken {
            token: "hunter2".into(),
            port: 3000,
            header: "h".into(),
            query_param: "q".into(),
            token_version: 1,
            access: "private".into(),
            preview_access: "public".into(),
            expires_at: None,
        };
        assert!(!format!("{token:?}").contains("hunter2"));
        assert!(!serde_json::to_string(&token).unwrap().contains("expires_at"), "left out, never null");
        assert!(serde_json::from_str::<PublishPort>(r#"{"port":3000,"mode":"x"}"#).is_err());
        assert!(serde_json::from_str::<PublishPort>(r#"{"port":3000.5}"#).is_err());
        assert!(serde_json::from_str::<MintPreviewToken>(r#"{"expires":1}"#).is_err());
    }

    #[test]
    fn a_preview_is_flat() {
        let port = PreviewPort { port: 3000, access: "public".into(), token_version: 2 };
        let preview = Preview {
            sandbox_id: "i".into(),
            sandbox_name: "n".into(),
            sandbox_status: "active".into(),
            port,
            traffic: PreviewTraffic::default(),
        };
        let value = serde_json::to_value(&preview).unwrap();
        assert_eq!((&value["port"], &value["access"]), (&3000.into(), &"public".into()));
        assert_eq!(serde_json::from_value::<Preview>(value).unwrap(), preview);
    }
}
