//! `sandbox_create` (`spec/mcp.md` §C.1).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use client::{CreateSandbox, NetworkLists, Sandbox};
use domain::{MAX_AUTO_DELETE_SECONDS, MAX_TIMEOUT_SECONDS};
use serde_json::json;

use super::{Call, Hints, Tool};
use crate::args::Args;
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_create",
    title: "Create a sandbox",
    description: "Start a new isolated Linux sandbox. It is ready when the call returns; pass the returned id as sandbox_id to \
        every other tool. Set auto_delete_seconds (and pause or kill when done) so that nothing is left behind. Plain \
        configuration goes into env_vars, credentials only into secrets.",
    hints: Hints::WRITE,
    params: &[
        Param::optional(
            "name",
            Kind::Text { min: 1 },
            "Label, up to 64 characters; generated when left out.",
        ),
        Param::optional(
            "from_template",
            Kind::Text { min: 1 },
            "Name or id of a ready template; do not guess. It decides CPU, memory and disk. Default: superserve/base.",
        ),
        Param::optional(
            "from_snapshot",
            Kind::Text { min: 1 },
            "Saved snapshot to continue from (not with from_template): its files, rules and secrets. Processes run on only \
             where the engine keeps memory; else start_cmd starts again.",
        ),
        Param::optional(
            "timeout_seconds",
            TIMEOUT,
            "Auto-pause after this many seconds of running time (max 7 days).",
        ),
        Param::optional(
            "auto_delete_seconds",
            AUTO_DELETE,
            "Delete after being paused this long without a break (max 30 days); 0 = as soon as it pauses; resuming stops \
             the countdown. Left out: kept.",
        ),
        Param::optional("metadata", Kind::Map, METADATA),
        Param::optional(
            "env_vars",
            Kind::Map,
            "Environment variables, plain values only. No credentials: use secrets.",
        ),
        Param::optional(
            "secrets",
            Kind::Map,
            "Environment variable to name of a stored secret (secret_list shows them). The sandbox sees a stand-in; the real \
             value is put in only on the way out to the secret's hosts.",
        ),
        Param::optional("allow_out", Kind::List, super::sandbox_update::ALLOW_OUT),
        Param::optional("deny_out", Kind::List, super::sandbox_update::DENY_OUT),
        Param::optional(
            "preview_access",
            Kind::Choice { of: super::sandbox_update::ACCESS, default: Some("public") },
            "Default access of ports published later; only published ports are reachable.",
        ),
    ],
    check,
    run: |call| Box::pin(run(call)),
};

const TIMEOUT: Kind = Kind::Integer { min: 1, max: Some(MAX_TIMEOUT_SECONDS as i64), default: None };
const AUTO_DELETE: Kind = Kind::Integer { min: 0, max: Some(MAX_AUTO_DELETE_SECONDS as i64), default: None };
const METADATA: &str = "Tags (string to string); sandbox_list can filter by them.";

fn check(args: &Args, problems: &mut Vec<String>) {
    if args.has("from_template") && args.has("from_snapshot") {
        problems.push("`from_template` and `from_snapshot` exclude each other".to_owned());
    }
}

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let body = body(&mut call.args);
    let sandbox = create(&call, body).await?;
    let item = &sandbox.item;
    Ok(Outcome::new(
        format!("created sandbox {} ({}), status {}", line(&item.id), line(&item.name), line(&item.status)),
        json!({
            "id": item.id,
            "name": item.name,
            "status": item.status,
            "metadata": item.metadata,
            "previewAccess": item.preview_access,
        }),
    ))
}

fn body(args: &mut Args) -> CreateSandbox {
    let (allow_out, deny_out) = (args.list("allow_out"), args.list("deny_out"));
    let network = (allow_out.is_some() || deny_out.is_some()).then_some(NetworkLists {
        allow_out,
        deny_out,
        strict: None,
    });
    CreateSandbox {
        name: args.text("name").unwrap_or_else(generated_name),
        from_template: args.text("from_template"),
        from_snapshot: args.text("from_snapshot"),
        timeout_seconds: args.integer("timeout_seconds"),
        auto_delete_seconds: args.integer("auto_delete_seconds"),
        metadata: args.map("metadata"),
        env_vars: args.map("env_vars"),
        network,
        secrets: args.map("secrets"),
        preview_access: Some(args.text("preview_access").unwrap_or_else(|| "public".to_owned())),
        isolation: None,
    }
}

/// Creates in the background, so that a cancelled call does not leave a sandbox nobody knows of: its id goes to the log.
async fn create(call: &Call, body: CreateSandbox) -> Result<Sandbox, Failure> {
    let guard = Abandon::default();
    let abandoned = Arc::clone(&guard.0);
    let client = call.client.clone();
    let created = call.background.spawn(async move {
        let created = client.create_sandbox(&body).await;
        if abandoned.load(Ordering::Acquire) {
            match &created {
                Ok(sandbox) => tracing::warn!(
                    sandbox = %line(&sandbox.item.id),
                    "a cancelled sandbox_create has made a sandbox; it is in sandbox_list"
                ),
                Err(_) => tracing::info!("a cancelled sandbox_create has failed"),
            }
        }
        created
    });
    let created = created.await.map_err(|_| Failure::unexpected())?;
    created.map_err(|error| {
        let about = About {
            target: Target::NewSandbox,
            repeat: Repeat::LookFirst("look for the sandbox with sandbox_list"),
        };
        explain(&error, about)
    })
}

/// Notes that nobody waits any more.
#[derive(Default)]
struct Abandon(Arc<AtomicBool>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// `sandbox-` and the time in base 36, with a random tail, because parallel calls share a millisecond.
fn generated_name() -> String {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    // Keys of the standard hasher are random; a label needs no better randomness.
    let random = RandomState::new().build_hasher().finish();
    let tail = base36(u128::from(random % 36_u64.pow(4)));
    format!("sandbox-{}-{tail:0>4}", base36(millis))
}

fn base36(mut number: u128) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut digits = Vec::new();
    loop {
        let digit = usize::try_from(number % 36).unwrap_or_default();
        digits.insert(0, char::from(DIGITS[digit]));
        number /= 36;
        if number == 0 {
            return digits.into_iter().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_differ_and_fit() {
        let names: std::collections::BTreeSet<String> = (0..50).map(|_| generated_name()).collect();
        assert!(names.len() > 45, "{names:?}");
        assert!(names.iter().all(|name| name.len() <= 64 && name.starts_with("sandbox-")));
        assert_eq!(base36(0), "0");
        assert_eq!(base36(36 * 36 - 1), "zz");
    }
}
