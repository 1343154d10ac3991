//! Logs go to stderr, as text or JSON lines; `SUPERSERVE_LOG` filters them (`info`, `debug`, `edge=trace`, …).

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, env};

/// Installs the subscriber of this process.
pub(crate) fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env(env::LOG).unwrap_or_else(|_| EnvFilter::new("info"));
    // The MCP library logs whole requests, which hold commands and file contents.
    let filter = filter.add_directive("rmcp=off".parse().expect("a directive"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
