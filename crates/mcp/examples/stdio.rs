//! The MCP server alone, as `superserve mcp` runs it: for driving it with a foreign client during development.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match mcp::McpConfig::from_vars(|name| std::env::var(name).ok()) {
        Ok(config) => mcp::run_stdio(&config),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}
