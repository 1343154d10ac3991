//! `superserve doctor`.

use std::process::ExitCode;

use clap::Args;
use domain::Engine;
use store::Store;

use crate::auto::{self, CANDIDATES};
use crate::config::{Config, PlatformArgs};
use crate::doctor::{self, Outcome as Found};
use crate::output::{Failure, Outcome, print};
use crate::state_dir::{self, StateDirError, database_path};
use crate::{logging, platform};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    platform: PlatformArgs,
    /// Try each isolation engine on a real machine first, whatever is known; running sandboxes are not touched
    #[arg(long)]
    probe: bool,
}

pub(crate) fn run(args: DoctorArgs, json: bool) -> Outcome {
    let config = args.platform.load()?;
    // As the server has it: what belongs to a state directory is named after its whole path, and so is what was found out.
    let config = match config.state_dir.canonicalize() {
        Ok(state_dir) => config.in_state_dir(state_dir),
        Err(_) => config,
    };
    if args.probe {
        probe(&config)?;
    }
    let own_server = state_dir::read_server_info(&config.state_dir).is_ok_and(|info| {
        info.edge == config.edge_listen && std::path::Path::new(&format!("/proc/{}", info.pid)).exists()
    });
    let checks = doctor::examine(&config, platform::base_layer_exists(&config), own_server);
    if json {
        print(serde_json::to_string_pretty(&checks).expect("plain data serialises"));
    } else {
        for check in &checks {
            print(check);
        }
    }
    let fails = checks.iter().any(|check| check.outcome == Found::Missing);
    if !json {
        print(if fails {
            "superserve up would fail until the lines marked MISSING are mended."
        } else {
            "superserve up will work here."
        });
    }
    Ok(ExitCode::from(u8::from(fails)))
}

/// Tries all engines, whatever is known of them.
fn probe(config: &Config) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("--probe starts machines, which needs root").hint("run it with sudo"));
    }
    let database = database_path(&config.state_dir);
    if !database.exists() {
        return Err(StateDirError::NeverStarted { path: config.state_dir.clone() }.into());
    }
    logging::start(config.log_format);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let stop = super::up::stop_signals()?;
        // Its server may run, and may be another release's.
        let store = Store::open_as_it_is(&database).await?;
        let layers = platform::base_layers(&store).await;
        store.close().await;
        let engines: Vec<Engine> = CANDIDATES.into_iter().chain([Engine::Container]).collect();
        auto::try_out(config, &engines, &layers?, &stop).await.map_err(Failure::new)
    })
}
