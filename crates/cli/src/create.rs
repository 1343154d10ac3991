//! `sandbox create`: from arguments to the request.

use client::{CreateSandbox, NetworkLists};

use crate::args::CreateArgs;

pub(crate) fn request(args: CreateArgs) -> CreateSandbox {
    let some = |map: Vec<(String, String)>| (!map.is_empty()).then(|| map.into_iter().collect());
    let list = |list: Vec<String>| (!list.is_empty()).then_some(list);
    let network = NetworkLists {
        allow_out: list(args.allow_out),
        deny_out: list(args.deny_out),
        strict: args.strict.then_some(true),
    };
    CreateSandbox {
        name: args.name.unwrap_or_else(made_up_name),
        from_template: args.template,
        from_snapshot: args.from_snapshot,
        timeout_seconds: args.timeout,
        auto_delete_seconds: args.auto_delete,
        metadata: some(args.metadata),
        env_vars: some(args.env),
        secrets: some(args.secret),
        network: (network != NetworkLists::default()).then_some(network),
        preview_access: args.preview_access,
        isolation: args.isolation,
    }
}

/// Names need not be unique; this one only has to be told apart in a list.
fn made_up_name() -> String {
    format!("sandbox-{:06x}", getrandom::u32().unwrap_or_default() >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_given_is_sent() {
        let request = request(CreateArgs { name: Some("a".into()), ..CreateArgs::default() });
        assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"name":"a"}"#);
        let named =
            super::request(CreateArgs { deny_out: vec!["0.0.0.0/0".into()], ..CreateArgs::default() });
        assert!(named.name.starts_with("sandbox-") && named.name.len() == 14, "{}", named.name);
        assert_eq!(named.network.unwrap().deny_out.unwrap(), ["0.0.0.0/0"]);
    }
}
