//! What is written: one server, as each client wants it said.

use std::path::{Path, PathBuf};

use domain::Secret;

use super::clients::{McpClient, Place};
use super::{InstallArgs, InstallTarget};
use crate::error::CliError;

const KEY_VARIABLE: &str = "SUPERSERVE_API_KEY";
const BASE_URL_VARIABLE: &str = "SUPERSERVE_BASE_URL";
/// The question that VS Code asks for the key.
pub(super) const INPUT_ID: &str = "superserve-key";
/// A command may run for 600 s, and clients that can be told so should wait for it.
const TOOL_TIMEOUT_S: i64 = 620;
/// Keys have some 50 bytes.
const MAX_KEY_FILE_BYTES: u64 = 4096;

/// A server to be installed.
#[derive(Debug)]
pub(super) struct Wanted {
    server: Server,
    key: Key,
}

#[derive(Debug)]
enum Server {
    Local { program: String, base_url: Option<String> },
    Hosted { url: String },
}

/// Where the client has the key from.
#[derive(Debug)]
enum Key {
    Copied(Secret),
    File(String),
    /// Its own environment.
    Environment,
    /// Its user, once.
    Asked,
}

/// A value of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Field {
    Text(String),
    Number(i64),
    List(Vec<String>),
    Map(Vec<(&'static str, String)>),
}

/// Names end up in paths, and clients have their own ideas of what else they may be.
pub(super) fn check_name(name: &str) -> Result<(), CliError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=64).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(CliError::new("--name takes 1 to 64 letters, digits, hyphens and underscores"))
}

impl Wanted {
    pub(super) fn new(args: &InstallArgs, target: &InstallTarget, place: &Place) -> Result<Self, CliError> {
        let client = args.client;
        let server = match &args.url {
            None => {
                let program = utf8(&target.program)?;
                Server::Local { program, base_url: target.base_url.clone() }
            }
            Some(_) if client == McpClient::ClaudeDesktop => {
                return Err(CliError::new("Claude Desktop cannot send a key to a server over HTTP")
                    .hint("leave --url out: it can start a server on this machine"));
            }
            Some(url) => Server::Hosted { url: checked_url(url)? },
        };
        let key = match (&server, &args.key_file) {
            _ if args.key_env && client == McpClient::ClaudeDesktop => {
                return Err(CliError::new("Claude Desktop does not pass on variables of its environment")
                    .hint("use --key-file"));
            }
            (Server::Local { .. }, Some(file)) => Key::File(utf8(&checked_key_file(file)?.0)?),
            (Server::Hosted { .. }, Some(_)) if client == McpClient::Codex => {
                return Err(CliError::new("Codex takes the key of such a server from its environment only")
                    .hint("leave --key-file out and set SUPERSERVE_API_KEY where Codex is started"));
            }
            (Server::Hosted { .. }, Some(file)) => Key::Copied(checked_key_file(file)?.1),
            _ if args.key_env || client == McpClient::Codex => Key::Environment,
            _ if client == McpClient::VsCode => Key::Asked,
            (server, None) => Key::Copied(key_for(server, target)?),
        };
        if matches!(key, Key::Copied(_)) && !place.private {
            return Err(CliError::new(
                "a file of a project is no place for a key, because others get to see it",
            )
            .hint("use --key-env or, without --url, --key-file; or leave --project out"));
        }
        Ok(Self { server, key })
    }

    /// The key, if the file will hold it.
    pub(super) fn copied_key(&self) -> Option<String> {
        match &self.key {
            Key::Copied(key) => Some(key.expose_secret().to_owned()),
            _ => None,
        }
    }

    /// Whether VS Code has to be given its question.
    pub(super) fn asks(&self) -> bool {
        matches!(self.key, Key::Asked)
    }

    pub(super) fn fields(&self, client: McpClient) -> Vec<(&'static str, Field)> {
        // What stands for the key where a text is wanted.
        let key = match &self.key {
            Key::Copied(key) => Some(key.expose_secret().to_owned()),
            Key::Asked => Some(format!("${{input:{INPUT_ID}}}")),
            Key::Environment => client.variable(KEY_VARIABLE),
            Key::File(_) => None,
        };
        let text = |text: &str| Field::Text(text.to_owned());
        let mut fields = Vec::new();
        match &self.server {
            Server::Local { program, base_url } => {
                if matches!(client, McpClient::ClaudeCode | McpClient::VsCode) {
                    fields.push(("type", text("stdio")));
                }
                let mut args = vec!["mcp".to_owned()];
                if let Key::File(file) = &self.key {
                    args.extend(["--key-file".to_owned(), file.clone()]);
                }
                let mut env: Vec<(&'static str, String)> = Vec::new();
                env.extend(key.map(|key| (KEY_VARIABLE, key)));
                env.extend(base_url.clone().map(|url| (BASE_URL_VARIABLE, url)));
                fields.extend([("command", text(program)), ("args", Field::List(args))]);
                if client == McpClient::Codex && matches!(self.key, Key::Environment) {
                    fields.push(("env_vars", Field::List(vec![KEY_VARIABLE.to_owned()])));
                }
                if !env.is_empty() {
                    fields.push(("env", Field::Map(env)));
                }
            }
            Server::Hosted { url } => {
                if matches!(client, McpClient::ClaudeCode | McpClient::VsCode) {
                    fields.push(("type", text("http")));
                }
                let name = if client == McpClient::Windsurf { "serverUrl" } else { "url" };
                fields.push((name, text(url)));
                match key {
                    Some(key) => {
                        fields
                            .push(("headers", Field::Map(vec![("Authorization", format!("Bearer {key}"))])));
                    }
                    None => fields.push(("bearer_token_env_var", text(KEY_VARIABLE))),
                }
            }
        }
        if client == McpClient::Codex {
            fields.push(("tool_timeout_sec", Field::Number(TOOL_TIMEOUT_S)));
        }
        fields
    }
}

/// The key to be copied.
fn key_for(server: &Server, target: &InstallTarget) -> Result<Secret, CliError> {
    let own = target.base_url.as_deref().map(|base| base.trim_end_matches('/'));
    let goes_there = match server {
        // Without an address it would go to the vendor's.
        Server::Local { .. } => !target.key_is_local || own.is_some(),
        // The key of the platform on this machine goes to no address but its own.
        Server::Hosted { url } => {
            !target.key_is_local
                || own
                    .and_then(|own| url.strip_prefix(own))
                    .is_some_and(|rest| matches!(rest, "" | "/" | "/mcp" | "/mcp/"))
        }
    };
    match &target.key {
        Some(key) if goes_there => Ok(key.clone()),
        _ => Err(CliError::new("there is no key to install").hint(
            "set SUPERSERVE_API_KEY for this command, or use --key-file FILE; never put a key on a command line",
        )),
    }
}

/// The file's absolute path and the key in it.
fn checked_key_file(path: &Path) -> Result<(PathBuf, Secret), CliError> {
    use std::io::Read;
    let failed = |error: std::io::Error| CliError::new(format!("cannot read {}: {error}", path.display()));
    let path = std::path::absolute(path).map_err(failed)?;
    let file = std::fs::File::open(&path).map_err(failed)?;
    let mut text = String::new();
    file.take(MAX_KEY_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    let key = text.trim();
    if key.is_empty()
        || text.len() as u64 > MAX_KEY_FILE_BYTES
        || !key.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(CliError::new(format!("{} does not hold a key and nothing else", path.display())));
    }
    Ok((path, Secret::new(key)))
}

fn checked_url(url: &str) -> Result<String, CliError> {
    let parsed: http::Uri =
        url.parse().map_err(|_| CliError::new("--url takes an http:// or https:// address"))?;
    let local = matches!(parsed.host(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match (parsed.scheme_str(), parsed.host()) {
        (Some("https"), Some(_)) => {}
        (Some("http"), Some(_)) if local => {}
        (Some("http"), Some(_)) => {
            return Err(CliError::new("the key would go over the network in the clear")
                .hint("use an https:// address; http:// is for this machine only"));
        }
        _ => return Err(CliError::new("--url takes an http:// or https:// address")),
    }
    if parsed.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(CliError::new("--url takes an address without a user name"));
    }
    Ok(url.to_owned())
}

fn utf8(path: &Path) -> Result<String, CliError> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        CliError::new(format!("{} is not UTF-8, which configuration files have to be", path.display()))
    })
}
