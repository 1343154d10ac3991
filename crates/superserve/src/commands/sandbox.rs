//! `superserve sandbox …` and `superserve bench`: everyday use over the public API.

use std::process::ExitCode;

use client::Client;

use crate::commands::connect;
use crate::config::StateDirArg;
use crate::output::{Failure, Outcome};

/// One thread is plenty for a command that waits.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // A read of stdin that nobody waits for any more would hold the process.
    runtime.shutdown_background();
    Ok(done)
}

/// Shows an error of the command line the way it wants to be shown.
pub(crate) fn finish(done: Result<u8, cli::CliError>, json: bool) -> ExitCode {
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            error.report(json);
            ExitCode::from(error.exit_code)
        }
    }
}

pub(crate) fn run(state: &StateDirArg, command: cli::SandboxCommand, json: bool) -> Outcome {
    let client = Client::new(connect::config(&state.state_dir)?)?;
    Ok(finish(block_on(cli::run_sandbox(command, &client, json))?, json))
}

pub(crate) fn bench(state: &StateDirArg, args: cli::BenchArgs, json: bool) -> Outcome {
    let target =
        cli::BenchTarget { config: connect::config(&state.state_dir)?, superserve: std::env::current_exe()? };
    Ok(finish(block_on(cli::run_bench(args, &target, json))?, json))
}
