//! `superserve reset`: the way back. Removes every sandbox and all that they made on this machine; keys, templates and
//! settings stay, and snapshots of disks.

use std::process::ExitCode;

use clap::Args;

use crate::config::{Settings, StateDirArg};
use crate::output::{Failure, Outcome, print};
use crate::platform;
use crate::state_dir::{StateDir, StateDirError};

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    state: StateDirArg,
    /// Really do it: the files and processes of all sandboxes are lost, and all snapshots with memory
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &ResetArgs) -> Outcome {
    if !args.yes {
        return Err(Failure::new(
            "this deletes every sandbox with its files and processes, and every snapshot that holds memory",
        )
        .hint("repeat with --yes; snapshots of disks, templates and keys stay"));
    }
    if !args.state.state_dir.exists() {
        return Err(StateDirError::NeverStarted { path: args.state.state_dir.clone() }.into());
    }
    let state = StateDir::open(&args.state.state_dir)?;
    let file = Settings::from_file(None, state.root())?;
    let config = Settings::default().over(file, state.root().to_path_buf())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let removed = runtime.block_on(platform::reset(&config))?;
    let platform::Removed { sandboxes, snapshots } = removed;
    print(format!("removed {sandboxes} sandboxes and {snapshots} snapshots with memory"));
    Ok(ExitCode::SUCCESS)
}
