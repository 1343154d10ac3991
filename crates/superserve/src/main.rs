//! `superserve`: the whole platform in one program. This crate reads the configuration and wires the parts together;
//! it decides nothing that a part could decide.

mod auto;
mod client_env;
mod commands;
mod config;
mod directory;
mod doctor;
mod egress_config;
mod engine;
mod firecracker;
mod http;
mod logging;
mod metrics;
mod oauth;
mod observe;
mod output;
mod platform;
mod proof;
mod state_dir;
mod template_limits;
mod verdict;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::StateDirArg;

#[derive(Debug, Parser)]
#[command(
    name = "superserve",
    version,
    about = "Computers for AI agents, on your own machine",
    max_term_width = 100
)]
struct Cli {
    /// Print JSON instead of text, where a command prints results
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the whole platform: control plane, edge and sandboxes
    Up(config::PlatformArgs),
    /// Serve MCP over stdio (SUPERSERVE_API_KEY, SUPERSERVE_BASE_URL) or over HTTP, or install it into a client
    Mcp(commands::mcp::McpArgs),
    /// Print what an official client needs to reach this server
    ClientEnv(commands::client_env::ClientEnvArgs),
    /// Say what works on this machine and how to mend what does not
    Doctor(commands::doctor::DoctorArgs),
    /// Create, list and revoke API keys
    Key {
        #[command(flatten)]
        state: StateDirArg,
        #[command(subcommand)]
        command: commands::key::KeyCommand,
    },
    /// List templates, or import one from an archive
    Template {
        #[command(flatten)]
        state: StateDirArg,
        #[command(subcommand)]
        command: commands::template::TemplateCommand,
    },
    /// Create and use sandboxes
    Sandbox {
        #[command(flatten)]
        state: StateDirArg,
        #[command(subcommand)]
        command: cli::SandboxCommand,
    },
    /// Store credentials that sandboxes can use and never read
    Secret {
        #[command(flatten)]
        state: StateDirArg,
        #[command(subcommand)]
        command: commands::secret::SecretCommand,
    },
    /// Save sandboxes as they are, to make others from them
    Snapshot {
        #[command(flatten)]
        state: StateDirArg,
        #[command(subcommand)]
        command: cli::SnapshotCommand,
    },
    /// Show who did what, when, and how it ended
    Activity {
        #[command(flatten)]
        state: StateDirArg,
        #[command(flatten)]
        args: commands::activity::ActivityArgs,
    },
    /// Install what the platform does not bring along
    #[command(subcommand)]
    Setup(commands::setup::SetupCommand),
    /// Measure this server
    Bench {
        #[command(flatten)]
        state: StateDirArg,
        #[command(flatten)]
        args: cli::BenchArgs,
    },
    /// Remove every sandbox of a stopped server and everything it left on this machine
    Reset(commands::reset::ResetArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Up(args) => commands::up::run(args),
        Command::Mcp(args) => commands::mcp::run(&args, cli.json),
        Command::ClientEnv(args) => commands::client_env::run(&args, cli.json),
        Command::Doctor(args) => commands::doctor::run(args, cli.json),
        Command::Key { state, command } => commands::key::run(&state, command, cli.json),
        Command::Template { state, command } => commands::template::run(&state, command, cli.json),
        Command::Sandbox { state, command } => commands::sandbox::run(&state, command, cli.json),
        Command::Secret { state, command } => commands::secret::run(&state, command, cli.json),
        Command::Snapshot { state, command } => commands::snapshot::run(&state, command, cli.json),
        Command::Activity { state, args } => commands::activity::run(&state, args, cli.json),
        Command::Setup(command) => commands::setup::run(command, cli.json),
        Command::Bench { state, args } => commands::sandbox::bench(&state, args, cli.json),
        Command::Reset(args) => commands::reset::run(&args),
    };
    result.unwrap_or_else(|failure| failure.report())
}
