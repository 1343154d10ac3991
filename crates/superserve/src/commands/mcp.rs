//! `superserve mcp`: MCP over stdio. stdout belongs to the protocol; everything else goes to stderr.

use std::process::ExitCode;

use crate::output::Outcome;

pub(crate) fn run() -> Outcome {
    Ok(ExitCode::from(mcp::run_stdio()))
}
