//! From rows to the published objects (§11).

use std::collections::BTreeMap;

use domain::{Auth, AuthScheme, DomainPattern, SecretPolicy, format_timestamp};
use serde_json::{Map, Value, json};
use store::{AuditRow, BoundSandbox, SecretRow};
use wire::rest::{Provider, Secret, SecretAuditEvent, SecretSandbox};

pub(crate) fn secret(row: SecretRow) -> Secret {
    Secret {
        id: row.id.to_string(),
        name: row.name,
        auth_type: row.policy.auth_type().to_string(),
        auth_config: config(&row.policy),
        hosts: names(&row.policy.hosts),
        provider_shortcut: row.provider,
        created_at: format_timestamp(row.created_at),
        updated_at: format_timestamp(row.updated_at),
        last_used_at: row.last_used_at.map(format_timestamp),
        scrub_bodies: row.policy.options.scrub_bodies,
        in_query: row.policy.options.in_query,
    }
}

pub(crate) fn provider(provider: &secrets::Provider) -> Provider {
    let policy = provider.policy();
    Provider {
        name: provider.name.to_owned(),
        display: provider.display.to_owned(),
        auth_type: policy.auth_type().to_string(),
        auth_config: config(&policy),
        hosts: names(&policy.hosts),
        token_shape: format!("{}...", provider.prefix),
    }
}

pub(crate) fn audit(row: AuditRow) -> SecretAuditEvent {
    SecretAuditEvent {
        id: row.id,
        ts: format_timestamp(row.at),
        sandbox_id: row.sandbox.to_string(),
        sandbox_name: row.sandbox_name,
        secret_id: Some(row.secret.to_string()),
        method: row.method,
        host: row.host,
        path: row.path,
        status: row.status,
        upstream_status: row.upstream_status,
        latency_ms: Some(row.latency_ms),
        error_code: row.error,
    }
}

pub(crate) fn sandbox(row: BoundSandbox) -> SecretSandbox {
    SecretSandbox {
        sandbox_id: row.sandbox.to_string(),
        sandbox_name: row.name,
        env_key: row.env_key,
        status: row.state.to_string(),
    }
}

fn names(hosts: &[DomainPattern]) -> Vec<String> {
    hosts.iter().map(ToString::to_string).collect()
}

fn config(policy: &SecretPolicy) -> Value {
    match &policy.auth {
        Auth::Same(scheme) => Value::Object(fields(scheme)),
        Auth::PerHost(rules) => {
            let rules = rules.iter().map(|rule| {
                let mut shown = fields(&rule.scheme);
                shown.insert("hosts".to_owned(), names(&rule.hosts).into());
                shown.insert("type".to_owned(), rule.scheme.auth_type().as_str().into());
                Value::Object(shown)
            });
            json!({ "per_host": rules.collect::<Vec<_>>() })
        }
    }
}

fn fields(scheme: &AuthScheme) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    match scheme {
        AuthScheme::Bearer => {}
        AuthScheme::Basic { username } => add("username", username.as_deref().map(Value::from)),
        AuthScheme::ApiKey { header, prefix } => {
            add("header", Some(header.as_str().into()));
            add("prefix", prefix.as_deref().map(Value::from));
        }
        AuthScheme::Custom { headers } => {
            let headers: BTreeMap<_, _> = headers.iter().cloned().collect();
            add("headers", Some(json!(headers)));
        }
    }
    fields
}
