//! `superserve doctor`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::config::{Settings, StateDirArg};
use crate::doctor::{self, Outcome as Found};
use crate::output::{Outcome, print};
use crate::{platform, state_dir};

/// The same settings as `up`, because the answer depends on them.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    state: StateDirArg,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(args: DoctorArgs, json: bool) -> Outcome {
    let state_dir = args.state.state_dir;
    let file = Settings::from_file(args.config.as_deref(), &state_dir)?;
    let config = args.settings.over(file, state_dir.clone())?;
    let own_server = state_dir::read_server_info(&state_dir).is_ok_and(|info| {
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
