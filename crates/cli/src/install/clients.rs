//! The clients: where each keeps its configuration, in which format and under which name, and what it can do with a key.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::entry::Wanted;
use super::{json, toml};
use crate::error::CliError;

/// An MCP client that keeps its servers in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum McpClient {
    /// Claude Code
    ClaudeCode,
    /// Claude Desktop
    ClaudeDesktop,
    /// Cursor
    Cursor,
    /// Visual Studio Code
    #[value(name = "vscode")]
    VsCode,
    /// Windsurf
    Windsurf,
    /// Codex
    Codex,
}

/// Where a user's files are.
#[derive(Debug, Clone)]
pub struct McpHome {
    /// `HOME`.
    pub home: PathBuf,
    /// `XDG_CONFIG_HOME`, or what stands for it.
    pub config: PathBuf,
    /// `XDG_STATE_HOME`, or what stands for it.
    pub state: PathBuf,
    /// `CLAUDE_CONFIG_DIR`.
    pub claude: Option<PathBuf>,
    /// `CODEX_HOME`.
    pub codex: Option<PathBuf>,
}

impl McpHome {
    /// Reads the variables through `get`; `None` without `HOME`.
    pub fn from_vars(get: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<Self> {
        let absolute = |name| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = absolute("HOME")?;
        let config = if cfg!(target_os = "macos") { "Library/Application Support" } else { ".config" };
        Some(Self {
            config: absolute("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(config)),
            state: absolute("XDG_STATE_HOME").unwrap_or_else(|| home.join(".local/state")),
            claude: absolute("CLAUDE_CONFIG_DIR"),
            codex: absolute("CODEX_HOME"),
            home,
        })
    }

    /// Where it is remembered what was written into `file` as `name`. Every path has a name of its own: what is no letter or
    /// digit is written in hexadecimal.
    pub(super) fn record(&self, file: &Path, name: &str) -> PathBuf {
        use std::fmt::Write;
        use std::os::unix::ffi::OsStrExt;
        let mut spelled = String::new();
        for byte in file.as_os_str().as_bytes() {
            if byte.is_ascii_alphanumeric() {
                spelled.push(char::from(*byte));
            } else {
                let _strings_take_everything = write!(spelled, "_{byte:02x}");
            }
        }
        // A file name has 255 bytes at most; the end of a path tells more than its beginning.
        let start = spelled.len().saturating_sub(150);
        let length = spelled.len();
        self.state.join("superserve/mcp-install").join(format!("{name}-{length}-{}.json", &spelled[start..]))
    }
}

/// A file, and how servers are written in it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) client: McpClient,
    pub(super) path: PathBuf,
    /// The user's own, and not part of a project that others see.
    pub(super) private: bool,
}

impl McpClient {
    /// The client's name.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code",
            Self::ClaudeDesktop => "Claude Desktop",
            Self::Cursor => "Cursor",
            Self::VsCode => "VS Code",
            Self::Windsurf => "Windsurf",
            Self::Codex => "Codex",
        }
    }

    /// How its configuration names a variable of its environment.
    pub(super) fn variable(self, name: &str) -> Option<String> {
        match self {
            Self::ClaudeCode => Some(format!("${{{name}}}")),
            Self::Cursor | Self::VsCode | Self::Windsurf => Some(format!("${{env:{name}}}")),
            Self::ClaudeDesktop | Self::Codex => None,
        }
    }

    pub(super) fn what_next(self, undone: bool) -> &'static str {
        match (self, undone) {
            (_, true) => "Done. Restart the client, or have it read its MCP servers again.",
            (Self::ClaudeCode, _) => {
                "Done. `claude mcp list` shows the server; running sessions must be restarted."
            }
            (Self::ClaudeDesktop, _) => "Done. Quit Claude Desktop and start it again.",
            (Self::Cursor, _) => "Done. Switch the server on in Cursor's settings, under MCP.",
            (Self::VsCode, _) => {
                "Done. VS Code asks for the key when it first starts the server, unless a file or a variable holds it."
            }
            (Self::Windsurf, _) => "Done. Press refresh in Windsurf's list of MCP servers.",
            (Self::Codex, _) => {
                "Done. Codex takes SUPERSERVE_API_KEY from the environment it is started in, unless a file holds the key."
            }
        }
    }

    pub(super) fn place(self, project: Option<&Path>, home: &McpHome) -> Result<Place, CliError> {
        let path = match project {
            None => self.user_file(home),
            Some(project) => {
                let name = self.project_file().ok_or_else(|| {
                    CliError::new(format!("{} has no configuration of a project", self.label()))
                        .hint("leave --project out to install for the user")
                })?;
                let project = std::path::absolute(project)
                    .map_err(|error| CliError::new(format!("cannot use {}: {error}", project.display())))?;
                project.join(name)
            }
        };
        Ok(Place { client: self, path, private: project.is_none() })
    }

    fn user_file(self, home: &McpHome) -> PathBuf {
        match self {
            Self::ClaudeCode => home.claude.as_ref().unwrap_or(&home.home).join(".claude.json"),
            Self::ClaudeDesktop => home.config.join("Claude/claude_desktop_config.json"),
            Self::Cursor => home.home.join(".cursor/mcp.json"),
            Self::VsCode => home.config.join("Code/User/mcp.json"),
            Self::Windsurf => home.home.join(".codeium/windsurf/mcp_config.json"),
            Self::Codex => home.codex.clone().unwrap_or_else(|| home.home.join(".codex")).join("config.toml"),
        }
    }

    fn project_file(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some(".mcp.json"),
            Self::Cursor => Some(".cursor/mcp.json"),
            Self::VsCode => Some(".vscode/mcp.json"),
            Self::Codex => Some(".codex/config.toml"),
            Self::ClaudeDesktop | Self::Windsurf => None,
        }
    }

    /// The property that holds the servers.
    pub(super) fn container(self) -> &'static str {
        match self {
            Self::VsCode => "servers",
            Self::Codex => "mcp_servers",
            _ => "mcpServers",
        }
    }

    /// Whether it reads comments and trailing commas in JSON.
    pub(super) fn reads_comments(self) -> bool {
        matches!(self, Self::VsCode | Self::Cursor)
    }
}

impl Place {
    /// `text` with the server in it.
    pub(super) fn set(&self, text: &str, name: &str, wanted: &Wanted) -> Result<String, CliError> {
        let edited = match self.client {
            McpClient::Codex => toml::set(text, name, wanted),
            client => json::set(text, client, name, wanted),
        };
        edited.map_err(|problem| self.unusable(&problem))
    }

    /// `text` without the server, or with the one that `original` has under this name.
    pub(super) fn unset(&self, text: &str, name: &str, original: &str) -> Result<String, CliError> {
        let edited = match self.client {
            McpClient::Codex => toml::unset(text, name, original),
            client => json::unset(text, client, name, original),
        };
        edited.map_err(|problem| self.unusable(&problem))
    }

    fn unusable(&self, problem: &str) -> CliError {
        CliError::new(format!("{} was left alone: {problem}", self.path.display()))
            .hint("mend the file, or have the client write it anew, and try again")
    }
}
