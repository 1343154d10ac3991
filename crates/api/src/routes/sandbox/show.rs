//! From rows to the published objects (§3).

use domain::{EgressRules, SandboxState, format_timestamp};
use lifecycle::Opened;
use secrets::ShownBinding;
use store::SandboxSummary;
use wire::rest::{NetworkLists, Sandbox, SandboxListItem, SecretBinding};

/// A row of the list: neither token nor bindings.
pub(crate) fn item(summary: SandboxSummary) -> SandboxListItem {
    let paused = summary.state == SandboxState::Paused;
    SandboxListItem {
        id: summary.id.to_string(),
        name: summary.name,
        status: summary.state.to_string(),
        vcpu_count: summary.shape.vcpu,
        memory_mib: summary.shape.memory_mib,
        created_at: format_timestamp(summary.created_at),
        metadata: summary.metadata.into_map(),
        preview_access: summary.preview_access.to_string(),
        snapshot_id: summary.checkpoint.map(|id| id.to_string()),
        source_snapshot_id: summary.source_snapshot.map(|id| id.to_string()),
        timeout_seconds: summary.timeouts.timeout_seconds,
        auto_delete_seconds: summary.timeouts.auto_delete_seconds,
        auto_delete_at: summary.auto_delete_at.filter(|_| paused).map(format_timestamp),
        network: network(&summary.network),
        isolation: Some(summary.engine.to_string()),
    }
}

/// The whole object, with its token.
pub(crate) fn sandbox(opened: &Opened) -> Sandbox {
    Sandbox {
        item: item(opened.row.summary.clone()),
        access_token: opened.token.expose_secret().to_owned(),
        secrets: opened.secrets.iter().map(binding).collect(),
    }
}

fn binding(binding: &ShownBinding) -> SecretBinding {
    let ShownBinding { env_key, secret_name, revoked } = binding.clone();
    SecretBinding { env_key, secret_name, revoked }
}

fn network(rules: &EgressRules) -> Option<NetworkLists> {
    let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
    let lists = NetworkLists {
        allow_out: some(rules.allow_out()),
        deny_out: some(rules.deny_out()),
        strict: rules.strict.then_some(true),
    };
    (!rules.is_empty()).then_some(lists)
}
