//! `superserve mcp`: MCP over stdio. stdout belongs to the protocol; everything else goes to stderr.

use std::io::Write;
use std::process::ExitCode;

use mcp::McpConfig;

use crate::output::Outcome;

pub(crate) fn run() -> Outcome {
    match McpConfig::from_vars(|name| std::env::var(name).ok()) {
        Ok(config) => Ok(mcp::run_stdio(&config)),
        Err(error) => {
            // The line is fixed by `spec/mcp.md` §A.4 and carries its own prefix.
            let _nobody_left_to_tell = writeln!(std::io::stderr(), "{error}");
            Ok(ExitCode::FAILURE)
        }
    }
}
