//! MCP over stdio and HTTP: the tools of the platform for AI agents (`spec/mcp.md`).
//!
//! It reaches the platform through `client` alone, keeps nothing between calls, and never lets a key, a data-plane token,
//! a secret value, file content or command output reach stderr. Standard output carries JSON-RPC and nothing else.
//!
//! ```text
//! stdin ─▶ transport ─▶ rmcp ─▶ server ─▶ args ─▶ tools/* ─▶ client ─▶ platform
//! stdout ◀─ transport ◀─ rmcp ◀─ text (results and failures as a model reads them) ◀─┘
//! POST ─▶ http ─▶ rmcp ─▶ (the same, for one message)
//! ```

mod args;
mod base64;
mod command;
mod config;
mod http;
mod instructions;
mod listing;
mod params;
mod path;
mod process;
mod progress;
mod server;
mod stdio;
mod text;
mod tools;
mod transport;
mod truncate;

pub use config::{API_KEY_VAR, BASE_URL_VAR, CA_FILE_VAR, LOG_VAR, McpConfig, StartupError, read_key_file};
pub use http::{Authorization, Exchange, HttpConfig, HttpServer, Limits, NoExchange};
pub use process::{say, set_log, set_panic_hook};
pub use stdio::{ServeError, run_stdio, serve_stdio};
