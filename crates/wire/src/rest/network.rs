//! §9: the network log. `dns` and `packet` rows and the fields below the line in [`NetworkEvent`] are additions of this
//! platform; `dns` and `packet` come only when `kinds` asks for them, since older clients know two kinds.

use serde::{Deserialize, Serialize};

/// Answer of `GET /sandboxes/{id}/network`, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPage {
    /// The rows.
    #[serde(default)]
    pub data: Vec<NetworkEvent>,
    /// What to pass as `before` for the next page.
    #[serde(default)]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    #[serde(default)]
    pub has_more: bool,
}

/// One row; which fields are set depends on the kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkEvent {
    /// `domain::NetworkKind` by name.
    pub kind: String,
    /// Unique per kind.
    pub id: i64,
    /// RFC 3339; when it was over.
    pub ts: String,
    /// The name the connection claimed, the request's host, or the name that was looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Where the sandbox wanted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_ip: Option<String>,
    /// The port there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<u16>,
    /// `domain::NetworkVerdict` by name; not on requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// `domain::MatchRule` by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_rule: Option<String>,
    /// Bytes from the sandbox; left out when 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    /// Bytes to the sandbox; left out when 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_recv: Option<u64>,
    /// HTTP method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Without a query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What the sandbox got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What the service gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_status: Option<u16>,
    /// Until the head of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// UUID of the secret whose stand-in was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_id: Option<String>,
    /// Why it failed or was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// How long a connection was open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// `dns`: the type of record; `packet`: the protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// `packet`: how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_set_is_sent_but_the_envelope_is_whole() {
        let event = NetworkEvent { kind: "connection".into(), id: 7, ts: "t".into(), ..Default::default() };
        let page = NetworkPage { data: vec![event], next_cursor: None, has_more: false };
        assert_eq!(
            serde_json::to_string(&page).unwrap(),
            r#"{"data":[{"kind":"connection","id":7,"ts":"t"}],"next_cursor":null,"has_more":false}"#
        );
        assert_eq!(serde_json::from_str::<NetworkPage>("{}").unwrap().data, []);
    }
}
