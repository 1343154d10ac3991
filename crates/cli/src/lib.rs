//! Everyday use from a terminal: `superserve sandbox …`, `superserve secret …`, `superserve snapshot …`, `superserve template list`, `superserve bench`. It reaches the
//! platform through `client` alone. Results go to standard output, everything else to standard error, and a reader that
//! closed the pipe has had enough: that is a quiet success.

mod archive;
mod args;
mod avi;
mod bench;
mod copy;
mod create;
mod desktop;
mod dockerfile;
mod error;
mod escape;
mod exec;
mod input;
mod install;
mod interactive;
mod interrupt;
mod network;
mod out;
mod place;
mod preview;
mod sandbox;
mod secret;
mod shell;
mod snapshot;
mod table;
mod template;
mod terminal;

pub use args::{
    BenchArgs, BuildArgs, CopyArgs, CreateArgs, ExecArgs, ForkArgs, ListArgs, NetworkArgs, NewSecretArgs,
    RecordArgs, RulesArgs, SandboxCommand, ScreenshotArgs, SecretCommand, SessionAction, ShellArgs,
    SnapshotCommand, TemplateCommand,
};
pub use bench::{BenchTarget, run_bench};
pub use error::CliError;
pub use install::{InstallArgs, InstallTarget, McpClient, McpHome, run_install};
pub use sandbox::run_sandbox;
pub use secret::run_secret;
pub use snapshot::run_snapshot;
pub use template::run_template;
