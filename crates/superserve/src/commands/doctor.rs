//! `superserve doctor`.

use std::process::ExitCode;

use crate::config::PlatformArgs;
use crate::doctor::{self, Outcome as Found};
use crate::output::{Outcome, print};
use crate::{platform, state_dir};

pub(crate) fn run(args: PlatformArgs, json: bool) -> Outcome {
    let config = args.load()?;
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
