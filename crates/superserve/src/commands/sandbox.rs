//! `superserve sandbox …` and `superserve bench`: everyday use over the public API.

use std::process::ExitCode;

use crate::commands::connect;
use crate::config::StateDirArg;
use crate::output::{Failure, Outcome};

/// One thread is plenty for a command that waits.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(work))
}

pub(crate) fn run(state: &StateDirArg, command: cli::SandboxCommand) -> Outcome {
    let client = connect::client(&state.state_dir)?;
    match block_on(cli::run_sandbox(command, &client))? {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(error) => Ok(ExitCode::from(cli::report(&error))),
    }
}

pub(crate) fn bench(state: &StateDirArg, args: cli::BenchArgs) -> Outcome {
    let client = connect::client(&state.state_dir)?;
    match block_on(cli::run_bench(args, &client))? {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(error) => Ok(ExitCode::from(cli::report(&error))),
    }
}
