//! Results and failures as a model reads them: what happened, and which tool to call next, in one to three sentences.
//! One table by platform code and tool (`spec/mcp.md` §D). Never a raw body, a key, a token, a URL query, or the name of
//! a tool that is not listed.

use std::time::Duration;

use client::{ClientError, Plane};
use jiff::Timestamp;
use rmcp::model::ContentBlock;
use serde_json::{Map, Value};

use crate::config::{API_KEY_VAR, BASE_URL_VAR, CONSOLE_URL, KEY_PREFIX};
use crate::tools;

/// A successful call, in both forms: some clients show the model only one of them.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// For the model.
    pub(crate) text: String,
    /// For the model, after the text: what is no text.
    pub(crate) more: Vec<ContentBlock>,
    /// For programs. Left out beside an image, because some clients then show the model this instead.
    pub(crate) structured: Map<String, Value>,
    /// For programs, beside an image.
    pub(crate) meta: Map<String, Value>,
    /// For a failure that has more than text to show: its class for the log.
    pub(crate) fault: Option<&'static str>,
}

impl Outcome {
    /// `structured` must be an object.
    pub(crate) fn new(text: impl Into<String>, structured: Value) -> Self {
        let Value::Object(structured) = structured else { panic!("structured content is not an object") };
        Self { text: text.into(), more: Vec::new(), structured, meta: Map::new(), fault: None }
    }
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// For the model.
    pub(crate) text: String,
    /// For the log: a platform code or a word of ours.
    pub(crate) class: String,
}

impl Failure {
    /// A refusal of our own.
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self { text: text.into(), class: "refused".to_owned() }
    }

    /// Arguments that do not pass the check.
    pub(crate) fn validation(tool: &str, problems: &[String]) -> Self {
        let text =
            format!("Input validation error: invalid arguments for `{tool}`: {}.", problems.join("; "));
        Self { text, class: "validation".to_owned() }
    }

    /// A defect here; details are on stderr.
    pub(crate) fn unexpected() -> Self {
        Self { text: "Unexpected error.".to_owned(), class: "unexpected".to_owned() }
    }
}

/// What a tool was about to do, as far as its failures are concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    /// What a plain 404 means.
    pub(crate) target: Target<'a>,
    /// What may be said about repeating a call that may have got through.
    pub(crate) repeat: Repeat,
}

/// What a call is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    /// No single thing.
    Team,
    /// A sandbox that is being made, so what can be missing is its template or snapshot.
    NewSandbox,
    /// A template that is being made: what can be in the way is one of the same name.
    NewTemplate,
    /// A sandbox.
    Sandbox(&'a str),
    /// A path in a sandbox.
    Path { sandbox: &'a str, path: &'a str },
}

/// Whether a call that failed half-way may simply be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// A read, or a write that ends in the same state.
    Safe,
    /// It may have happened; look before repeating, in this way.
    LookFirst(&'static str),
}

/// RFC 3339, UTC, milliseconds (`spec/mcp.md` §C.0).
pub(crate) fn timestamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

/// A time of the platform in our form; what is no time is passed on.
pub(crate) fn normalise_time(text: &str) -> String {
    text.parse().map_or_else(|_| client::quote(text), timestamp)
}

/// The failure a model reads for `error`.
pub(crate) fn explain(error: &ClientError, about: About<'_>) -> Failure {
    let (class, text) = match error {
        ClientError::Api(api) => {
            let class = if api.code.is_empty() { api.status.to_string() } else { client::quote(&api.code) };
            (class, refusal(api, about))
        }
        ClientError::Timeout { what, after, may_have_taken_effect } => (
            "timeout".to_owned(),
            format!(
                "{} timed out after {} s. {}",
                capital(what),
                after.as_secs(),
                half_way(*may_have_taken_effect, about.repeat)
            ),
        ),
        ClientError::Connect { host, reason } => (
            "network".to_owned(),
            format!(
                "Cannot reach the Superserve API at {}: {}. Check the network, the proxy settings and `{BASE_URL_VAR}`.",
                client::quote(host),
                client::quote(reason)
            ),
        ),
        ClientError::Interrupted { what, may_have_taken_effect } => (
            "network".to_owned(),
            format!("The connection broke during {what}. {}", half_way(*may_have_taken_effect, about.repeat)),
        ),
        ClientError::TooLarge { what, limit } => (
            "too_large".to_owned(),
            format!(
                "{} is larger than {limit} bytes, more than this server takes. Ask for less, or use the SDK or the CLI.",
                capital(what)
            ),
        ),
        ClientError::Invalid { field, accepted } => {
            ("invalid".to_owned(), format!("Invalid {field}: {}.", client::quote(accepted)))
        }
        ClientError::Protocol { what, may_have_taken_effect, .. } => (
            "protocol".to_owned(),
            format!(
                "The platform sent an unexpected answer to {what}. {} If it happens again, check `{BASE_URL_VAR}`.",
                half_way(*may_have_taken_effect, about.repeat)
            ),
        ),
        ClientError::Local(_) => ("local".to_owned(), Failure::unexpected().text),
    };
    Failure { text, class }
}

/// The platform's text. Ours writes "what happened; next step" with the next step in terms of REST: where the table has a
/// next step of its own that half is dropped. What is wrong with a request stands in the second half.
pub(crate) fn said(api: &client::ApiError) -> String {
    let said = client::quote(&api.message);
    let half = match (said.split_once("; "), api.status) {
        (Some(("invalid request", field)), _) => field,
        (Some(_), 400 | 422) if api.code != "secret_not_found" => &said,
        (Some((what, _next)), _) => what,
        (None, _) => &said,
    };
    half.to_owned()
}

/// How our platform begins what it says of a snapshot.
const A_SNAPSHOT: &str = "snapshot ";
/// No tool saves sandboxes.
const SNAPSHOTS: &str = "from_snapshot takes the id of a snapshot that is ready; whoever saved it knows it, and \
    `superserve snapshot list` or the SDK shows those of a sandbox.";

/// The table: platform code first, then status.
fn refusal(api: &client::ApiError, about: About<'_>) -> String {
    let said = said(api);
    let reason = if said.is_empty() { format!("status {}", api.status) } else { said.clone() };
    if let (Plane::Data, "forbidden", Target::Path { path, .. }) =
        (api.plane, api.code.as_str(), about.target)
    {
        return format!(
            "Permission denied: {}. The file tools act as the sandbox's default user; use sandbox_exec with sudo.",
            line(path)
        );
    }
    match (api.code.as_str(), api.status) {
        ("unauthorized" | "auth_failed" | "forbidden", _) | (_, 401 | 403) => authentication(),
        ("secret_not_found", _) => sentence(
            format!("Invalid request: {reason}"),
            if tools::listed("secret_list") {
                "Call secret_list to see the secrets that exist."
            } else {
                "The names in `secrets` must be those of secrets stored on the platform."
            },
        ),
        ("too_many_sandboxes", _) => {
            "Sandbox quota reached. Pause or kill a sandbox, or retry later: sandbox_list shows \
            them, sandbox_pause and sandbox_kill free the quota."
                .to_owned()
        }
        ("too_many_builds", _) => {
            let how =
                if tools::listed("sandbox_template_list") { " (see sandbox_template_list)" } else { "" };
            format!("Too many template builds are running. Wait until one of them ends{how}, then try again.")
        }
        ("too_many_templates", _) => {
            format!(
                "The team's template quota is used up. Somebody must delete a template, with `superserve template \
                 delete` or in the console: {CONSOLE_URL}."
            )
        }
        (_, 429) => match api.retry_after {
            Some(wait) => format!("Too many requests. Wait {} s, then try again.", seconds(wait)),
            None => "Too many requests. Wait a few seconds, then try again.".to_owned(),
        },
        ("snapshot_in_progress", _) => {
            "The sandbox is being saved. Try again in a few seconds; its network rules and secrets can be changed then."
                .to_owned()
        }
        ("sandbox_pausing", _) => {
            "The sandbox is still pausing. Try again in a few seconds; sandbox_info shows its state."
                .to_owned()
        }
        ("sandbox_route_stale", _) => missing(Target::Sandbox(sandbox_of(about.target)), ""),
        (_, 404) => match (api.plane, about.target) {
            // The control plane knows nothing of paths: there it is the sandbox that is missing.
            (Plane::Control, Target::Path { sandbox, .. }) => missing(Target::Sandbox(sandbox), &said),
            (_, target) => missing(target, &said),
        },
        (_, 410) => "The sandbox is gone: it was deleted. Create a new one with sandbox_create.".to_owned(),
        ("conflict", _) | (_, 409) => match about.target {
            Target::NewTemplate => sentence(
                capital(&reason),
                "Use the template that exists (sandbox_template_list), or choose another name.",
            ),
            Target::NewSandbox if reason.starts_with(A_SNAPSHOT) => sentence(capital(&reason), SNAPSHOTS),
            Target::NewSandbox => sentence(
                capital(&reason),
                "Poll sandbox_template_list until it is ready, or use another template.",
            ),
            _ => sentence(
                format!("The sandbox is in a conflicting state: {reason}"),
                "Re-check it with sandbox_info.",
            ),
        },
        ("too_large", _) | (_, 413) => {
            "The platform refused it as too large. Send large files with the SDK or the CLI.".to_owned()
        }
        ("sandbox_storage_full", _) | (_, 507) => {
            "The sandbox's disk is full. Free space with sandbox_exec (`df -h`, then \
            remove files), or use a template with a larger disk."
                .to_owned()
        }
        ("sandbox_unavailable" | "host_state_missing", _) => {
            "The sandbox is temporarily unavailable. Check it with sandbox_info and retry later.".to_owned()
        }
        ("sandbox_filesystem_error", _) => sentence(
            format!("The file operation failed inside the sandbox: {reason}"),
            "Look at it with sandbox_exec.",
        ),
        (_, 400 | 422) => invalid(&reason, api.plane, about.target),
        ("not_implemented", _) | (_, 501) => "The platform does not support this.".to_owned(),
        (_, 500..=599) => {
            let effect = if api.may_have_taken_effect || about.repeat == Repeat::Safe {
                half_way(true, about.repeat)
            } else {
                "Nothing was done; retry later.".to_owned()
            };
            let which = match &api.request_id {
                Some(id) => format!(" (request {})", client::quote(id)),
                None => String::new(),
            };
            format!("Server-side error{which}: {reason}. This is usually transient. {effect}")
        }
        _ => match &api.request_id {
            Some(id) => format!("Unexpected error. Request id: {}.", client::quote(id)),
            None => "Unexpected error.".to_owned(),
        },
    }
}

fn authentication() -> String {
    format!(
        "Authentication failed. Check that `{API_KEY_VAR}` holds a valid API key (they begin with `{KEY_PREFIX}`); \
         create one at {CONSOLE_URL}, or with `superserve key create` on your own platform."
    )
}

fn invalid(reason: &str, plane: Plane, target: Target<'_>) -> String {
    let lower = reason.to_ascii_lowercase();
    let hint = match target {
        // What does not have the form of an id cannot exist.
        Target::Sandbox(id) | Target::Path { sandbox: id, .. } if lower.contains("sandbox id") => {
            return missing(Target::Sandbox(id), "");
        }
        Target::Path { path, .. } if plane == Plane::Data && lower.contains("is a directory") => {
            return format!(
                "{} is a directory. Use sandbox_files_list to see what is in it, or sandbox_files_download_dir.",
                line(path)
            );
        }
        Target::Sandbox(_) if plane == Plane::Data && lower.contains("dir") => {
            "Check `cwd` with sandbox_files_list."
        }
        _ if plane == Plane::Data => "",
        _ if lower.contains("deny_out") && !lower.contains("cidr") => {
            "deny_out takes IPv4 addresses and CIDRs only, no domains."
        }
        _ if lower.contains("ipv6") => "Egress rules take IPv4 only.",
        _ if lower.contains("metadata") => {
            "metadata: at most 64 keys of 256 bytes, values of 2 KiB, 16 KiB in all; keys must not begin with superserve."
        }
        _ if lower.contains("env") => {
            "env_vars: at most 64 keys, values of 8 KiB, 64 KiB in all, and no name that is also in `secrets`."
        }
        _ => "",
    };
    sentence(format!("Invalid request: {reason}"), hint)
}

/// Something does not exist: what, and how to find what does.
fn missing(target: Target<'_>, said: &str) -> String {
    match target {
        Target::Sandbox(id) => {
            let what = if said.to_ascii_lowercase().contains("not found") {
                said.to_owned()
            } else if id.is_empty() {
                "sandbox not found".to_owned()
            } else {
                format!("sandbox {id} not found")
            };
            sentence(
                capital(&what),
                "Call sandbox_list to see existing sandboxes, or sandbox_create for a new one.",
            )
        }
        Target::NewSandbox => {
            let what =
                if said.is_empty() { "Template or snapshot not found".to_owned() } else { capital(said) };
            sentence(
                what,
                if said.starts_with(A_SNAPSHOT) {
                    SNAPSHOTS
                } else if tools::listed("sandbox_template_list") {
                    "Call sandbox_template_list to see the templates that exist."
                } else {
                    "Leave `from_template` out to use the default template, or name one that exists."
                },
            )
        }
        Target::Path { path, .. } => sentence(
            format!("No such file or directory: {}", line(path)),
            "Check the parent directory with sandbox_files_list.",
        ),
        Target::Team | Target::NewTemplate => sentence(
            if said.is_empty() { "Not found".to_owned() } else { capital(said) },
            "Check SUPERSERVE_BASE_URL: the address does not look like a Superserve API.",
        ),
    }
}

/// What may be said after a call that got no answer.
fn half_way(may_have_taken_effect: bool, repeat: Repeat) -> String {
    match repeat {
        Repeat::Safe => "It is safe to retry.".to_owned(),
        Repeat::LookFirst(how) if may_have_taken_effect => {
            format!("It may have taken effect: {how} before deciding whether to repeat it.")
        }
        Repeat::LookFirst(_) => "Nothing was done; retry later.".to_owned(),
    }
}

fn sandbox_of(target: Target<'_>) -> &str {
    match target {
        Target::Sandbox(id) | Target::Path { sandbox: id, .. } => id,
        Target::Team | Target::NewSandbox | Target::NewTemplate => "",
    }
}

/// A name, path or other value as it is shown: on one line, bounded. The longest path Linux takes is 4096 bytes.
pub(crate) fn line(value: &str) -> String {
    const MAX: usize = 4096;
    let mut shown: String = value.chars().map(|c| if c.is_control() { '?' } else { c }).take(MAX).collect();
    if value.chars().nth(MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// Whole seconds, rounded up.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Two sentences; the first may or may not have its full stop.
fn sentence(first: impl Into<String>, second: &str) -> String {
    let first = first.into();
    let first = first.trim_end_matches(['.', ' ']);
    if second.is_empty() { format!("{first}.") } else { format!("{first}. {second}") }
}

#[cfg(test)]
mod tests;
