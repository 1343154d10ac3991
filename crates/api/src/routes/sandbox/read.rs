//! From request bodies and queries to types that cannot be wrong (§4.4–4.6).

use std::collections::BTreeMap;

use domain::{
    DEFAULT_TEMPLATE, EgressRules, Engine, EnvVars, MAX_AUTO_DELETE_SECONDS, MAX_NAME_BYTES,
    MAX_TIMEOUT_SECONDS, Metadata, PreviewAccess, Problem, SandboxState, Timeouts,
};
use lifecycle::{NetworkPatch, NewSandbox, Origin, Patch};
use secrets::{MAX_BINDINGS, check_env_key};
use store::{SandboxFilter, SandboxSort};
use wire::rest::{CreateSandbox, NetworkLists, PatchSandbox};

use crate::query::Query;

/// Body of a create.
pub(crate) fn create(body: CreateSandbox) -> Result<NewSandbox, Problem> {
    if body.name.is_empty() || body.name.len() > MAX_NAME_BYTES {
        return Err(Problem::invalid("name", format!("1 to {MAX_NAME_BYTES} bytes are accepted")));
    }
    let env = EnvVars::new(body.env_vars.unwrap_or_default())?;
    Ok(NewSandbox {
        name: body.name,
        origin: origin(body.from_template, body.from_snapshot)?,
        engine: body.isolation.as_deref().map(isolation).transpose()?,
        timeouts: Timeouts {
            timeout_seconds: body.timeout_seconds.map(timeout).transpose()?,
            auto_delete_seconds: body.auto_delete_seconds.map(auto_delete).transpose()?,
        },
        metadata: Metadata::new(body.metadata.unwrap_or_default())?,
        secrets: secrets(body.secrets.unwrap_or_default(), &env)?,
        env,
        network: body.network.map(network).transpose()?,
        preview_access: body.preview_access.as_deref().map_or(Ok(PreviewAccess::Public), preview)?,
    })
}

/// The name of an engine; whether it is offered is said later.
pub(crate) fn isolation(name: &str) -> Result<Engine, Problem> {
    name.parse().map_err(|_| {
        let names: Vec<&str> = Engine::ALL.iter().map(|engine| engine.as_str()).collect();
        Problem::invalid("isolation", format!("{} are accepted", names.join(", ")))
    })
}

fn origin(template: Option<String>, snapshot: Option<String>) -> Result<Origin, Problem> {
    match (template, snapshot) {
        (Some(_), Some(_)) => {
            Err(Problem::invalid("from_snapshot", "give either from_template or from_snapshot"))
        }
        (None, Some(id)) => {
            let id = id.parse().map_err(|_| Problem::invalid("from_snapshot", "a UUID is expected"))?;
            Ok(Origin::Snapshot(id))
        }
        (template, None) => Ok(Origin::Template(template.unwrap_or_else(|| DEFAULT_TEMPLATE.to_owned()))),
    }
}

/// Variables to names of secrets; whether these exist is said later.
fn secrets(secrets: BTreeMap<String, String>, env: &EnvVars) -> Result<BTreeMap<String, String>, Problem> {
    if secrets.len() > MAX_BINDINGS {
        return Err(Problem::invalid("secrets", format!("at most {MAX_BINDINGS} are accepted")));
    }
    for key in secrets.keys() {
        check_env_key("secrets", key)?;
        if env.as_map().contains_key(key) {
            return Err(Problem::invalid("secrets", format!("`{key}` is also in env_vars; use it once")));
        }
    }
    Ok(secrets)
}

/// Body of a patch.
pub(crate) fn patch(body: PatchSandbox) -> Result<Patch, Problem> {
    let patch = Patch {
        metadata: body.metadata.map(Metadata::new).transpose()?,
        network: body.network.map(network).transpose()?,
        preview_access: body.preview_access.as_deref().map(preview).transpose()?,
        timeout_seconds: body.timeout_seconds.map(|n| n.map(timeout).transpose()).transpose()?,
        auto_delete_seconds: body.auto_delete_seconds.map(|n| n.map(auto_delete).transpose()).transpose()?,
    };
    if patch == Patch::default() {
        let fields =
            "give at least one of network, metadata, auto_delete_seconds, timeout_seconds, preview_access";
        return Err(Problem::invalid("body", fields));
    }
    Ok(patch)
}

/// Query of the list.
pub(crate) fn filter(query: &Query) -> Result<SandboxFilter, Problem> {
    let sorts = [
        ("created_at", SandboxSort::CreatedAt),
        ("name", SandboxSort::Name),
        ("status", SandboxSort::Status),
    ];
    Ok(SandboxFilter {
        metadata: Metadata::new(query.below("metadata."))?.into_map(),
        query: query.get("q").map(str::to_owned),
        states: query.get("status").map(states).transpose()?,
        sort: query.one_of("sort", &sorts)?,
        ascending: query.one_of("order", &[("desc", false), ("asc", true)])?,
        limit: query.limit()?,
        offset: query.offset()?,
    })
}

/// A comma-separated list; `migrating` is a known name that no sandbox here ever has.
fn states(text: &str) -> Result<Vec<SandboxState>, Problem> {
    let names = text.split(',').map(str::trim).filter(|name| *name != "migrating");
    let parsed: Result<Vec<SandboxState>, _> = names.map(str::parse).collect();
    parsed.map_err(|unknown| Problem::invalid("status", unknown.to_string()))
}

fn network(lists: NetworkLists) -> Result<NetworkPatch, Problem> {
    let rules =
        EgressRules::parse(&lists.allow_out.unwrap_or_default(), &lists.deny_out.unwrap_or_default())?;
    Ok(NetworkPatch { rules, strict: lists.strict })
}

fn preview(text: &str) -> Result<PreviewAccess, Problem> {
    text.parse()
        .map_err(|unknown: domain::UnknownName| Problem::invalid("preview_access", unknown.to_string()))
}

fn timeout(seconds: i64) -> Result<u32, Problem> {
    seconds_between("timeout_seconds", seconds, 1, MAX_TIMEOUT_SECONDS)
}

fn auto_delete(seconds: i64) -> Result<u32, Problem> {
    seconds_between("auto_delete_seconds", seconds, 0, MAX_AUTO_DELETE_SECONDS)
}

fn seconds_between(field: &str, seconds: i64, least: u32, most: u32) -> Result<u32, Problem> {
    let fitting = u32::try_from(seconds).ok().filter(|n| (least..=most).contains(n));
    fitting.ok_or_else(|| Problem::invalid(field, format!("{least} to {most} seconds are accepted")))
}
