//! `superserve client-env`: everything an unmodified official client needs to reach the server on this machine.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::client_env::{ClientEnv, Format, render, write_files};
use crate::config::StateDirArg;
use crate::output::{Failure, Outcome, print};
use crate::state_dir::{self, client_dir, tls_dir};

#[derive(Debug, Args)]
pub(crate) struct ClientEnvArgs {
    #[command(flatten)]
    state: StateDirArg,
    /// How to print the variables
    #[arg(long, value_enum, default_value_t = FormatArg::Shell)]
    format: FormatArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    /// Lines for `eval "$(superserve client-env)"`
    Shell,
    /// One object
    Json,
}

pub(crate) fn run(args: &ClientEnvArgs, json: bool) -> Outcome {
    let root = &args.state.state_dir;
    let info = state_dir::read_server_info(root)?;
    let api_key = state_dir::read_api_key(root)?;
    let hosts = edge::Hosts::new(&info.sandbox_hosts)?;
    let ca = edge::Ca::open(&tls_dir(root), &hosts)?;
    let dir = client_dir(root);
    std::fs::create_dir_all(&dir)
        .map_err(|error| Failure::new(format!("cannot make {}: {error}", dir.display())))?;
    let roots = std::env::var_os("SSL_CERT_FILE");
    let files = write_files(&dir, ca.pem(), roots.as_deref().map(Path::new))
        .map_err(|error| Failure::new(format!("cannot write the client files: {error}")))?;
    let node_options = std::env::var("NODE_OPTIONS").ok();
    let format = if json || args.format == FormatArg::Json { Format::Json } else { Format::Shell };
    let env = ClientEnv {
        api_key: &api_key,
        base_url: &info.base_url,
        edge: info.edge,
        hosts: &hosts,
        files: &files,
        node_options: node_options.as_deref(),
    };
    print(render(&env, format).trim_end());
    Ok(ExitCode::SUCCESS)
}
