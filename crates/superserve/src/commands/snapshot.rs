//! `superserve snapshot …`: everyday use over the public API.

use client::Client;

use crate::commands::connect;
use crate::commands::sandbox::{block_on, finish};
use crate::config::StateDirArg;
use crate::output::Outcome;

pub(crate) fn run(state: &StateDirArg, command: cli::SnapshotCommand, json: bool) -> Outcome {
    let client = Client::new(connect::config(&state.state_dir)?)?;
    Ok(finish(block_on(cli::run_snapshot(command, &client, json))?, json))
}
