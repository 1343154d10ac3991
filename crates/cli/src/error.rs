//! Failures as a person at a terminal sees them: `error:` says what happened, `hint:` what to type next.

use std::io::{self, Write};

use client::{ClientError, Plane};

/// Exit code of an ordinary failure.
const FAILURE: u8 = 1;
/// Exit code of `sandbox exec` when the command's own code is not known, as container runtimes do.
pub(crate) const NOT_RUN: u8 = 125;

/// Exit code after Ctrl-C, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;

/// A failed command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// What happened, without a full stop.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
    /// Machine-readable code of the platform, for `--json`.
    pub code: Option<String>,
    /// What the process should exit with.
    pub exit_code: u8,
}

impl CliError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, code: None, exit_code: FAILURE }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn exit_code(mut self, code: u8) -> Self {
        self.exit_code = code;
        self
    }

    /// Writes the failure to standard error; as one JSON object when `json`.
    pub fn report(&self, json: bool) {
        // Nobody is left to tell when standard error is gone.
        let _ = self.write(&mut io::stderr().lock(), json);
    }

    fn write(&self, to: &mut impl Write, json: bool) -> io::Result<()> {
        if json {
            let mut detail = serde_json::json!({ "message": self.message });
            for (key, value) in [("code", &self.code), ("hint", &self.hint)] {
                if let Some(value) = value {
                    detail[key] = value.as_str().into();
                }
            }
            return writeln!(to, "{}", serde_json::json!({ "error": detail }));
        }
        writeln!(to, "error: {}", self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| writeln!(to, "hint: {hint}"))
    }

    /// A failed call about a sandbox.
    pub(crate) fn of_sandbox(error: &ClientError, id: &str) -> Self {
        let shown = Self::from(error.clone());
        let Some(api) = error.api() else { return shown };
        match (api.status, api.plane, api.code.as_str()) {
            (404, Plane::Control, _) | (404, Plane::Data, "sandbox_route_stale") => {
                Self { message: format!("sandbox {id} not found"), ..shown }.hint("superserve sandbox list")
            }
            (409, ..) | (503, Plane::Data, _) => shown.hint(format!("superserve sandbox info {id}")),
            (507, ..) => shown.hint(format!("superserve sandbox exec {id} -- df -h")),
            _ => shown,
        }
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let mut shown = Self::new(error.to_string());
        shown.code = error.api().map(|api| api.code.clone()).filter(|code| !code.is_empty());
        let hint = match &error {
            ClientError::Connect { .. } => {
                Some("is it running? Start it with `superserve up`, or set SUPERSERVE_BASE_URL")
            }
            ClientError::Api(api) => match (api.status, api.code.as_str()) {
                (401 | 403, _) => {
                    Some("set SUPERSERVE_API_KEY to a valid key; `superserve key create` makes one")
                }
                (429, "too_many_sandboxes") => {
                    Some("superserve sandbox pause <ID>, or superserve sandbox kill <ID>")
                }
                (429, _) => Some("wait a moment and try again"),
                _ => None,
            },
            ClientError::Protocol { .. } => {
                Some("check that SUPERSERVE_BASE_URL names a Superserve control plane")
            }
            _ if error.may_have_taken_effect() => {
                Some("it may have happened all the same; look with `superserve sandbox list`")
            }
            _ => None,
        };
        shown.hint = hint.map(str::to_owned);
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::ApiError;

    fn api(status: u16, code: &str, message: &str) -> ClientError {
        ClientError::Api(ApiError {
            plane: Plane::Control,
            status,
            code: code.to_owned(),
            message: message.to_owned(),
            retry_after: None,
            request_id: None,
            may_have_taken_effect: false,
        })
    }

    fn render(error: &CliError, json: bool) -> String {
        let mut out = Vec::new();
        error.write(&mut out, json).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn texts() {
        let mut all = String::new();
        for error in [
            CliError::from(api(401, "auth_failed", "unknown key")),
            CliError::from(api(429, "too_many_sandboxes", "50 sandboxes are active")),
            CliError::of_sandbox(&api(404, "not_found", "no"), "abc"),
            CliError::of_sandbox(&api(409, "conflict", "it is pausing"), "abc"),
            CliError::of_sandbox(&api(507, "sandbox_storage_full", "the disk is full"), "abc"),
            ClientError::Connect { host: "127.0.0.1:1".into(), reason: "Connection refused".into() }.into(),
        ] {
            all += &render(&error, false);
        }
        all += &render(&CliError::of_sandbox(&api(404, "not_found", "no"), "abc"), true);
        expect_test::expect![[r#"
            error: unknown key
            hint: set SUPERSERVE_API_KEY to a valid key; `superserve key create` makes one
            error: 50 sandboxes are active
            hint: superserve sandbox pause <ID>, or superserve sandbox kill <ID>
            error: sandbox abc not found
            hint: superserve sandbox list
            error: it is pausing
            hint: superserve sandbox info abc
            error: the disk is full
            hint: superserve sandbox exec abc -- df -h
            error: cannot reach 127.0.0.1:1: Connection refused
            hint: is it running? Start it with `superserve up`, or set SUPERSERVE_BASE_URL
            {"error":{"code":"not_found","hint":"superserve sandbox list","message":"sandbox abc not found"}}
        "#]]
        .assert_eq(&all);
    }
}
