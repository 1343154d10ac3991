//! `superserve mcp`: MCP over stdio, where stdout belongs to the protocol and everything else goes to stderr; or over HTTP.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use domain::Secret;
use mcp::{HttpConfig, HttpServer, McpConfig};

use crate::config::StateDirArg;
use crate::output::{Failure, Outcome};
use crate::state_dir;

/// Calls may still end this long after the stop was asked for (`spec/mcp.md` §B.6); then they are cancelled.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    command: Option<McpCommand>,
    /// Serve over HTTP, for several users who each send their key; ADDR is HOST:PORT, by default from the variables HOST and
    /// PORT, else 127.0.0.1:8080
    #[arg(long, value_name = "ADDR", num_args = 0..=1)]
    #[expect(clippy::option_option, reason = "clap's form of a flag with an optional value")]
    http: Option<Option<SocketAddr>>,
    /// Read the API key from this file instead of SUPERSERVE_API_KEY; over stdio only
    #[arg(long, value_name = "FILE", conflicts_with = "http")]
    key_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    /// Write this server into the configuration of an MCP client; shows the change and asks first
    Install {
        #[command(flatten)]
        state: StateDirArg,
        #[command(flatten)]
        args: cli::InstallArgs,
    },
}

pub(crate) fn run(args: &McpArgs, json: bool) -> Outcome {
    match (&args.command, args.http) {
        (Some(McpCommand::Install { state, args }), _) => install(&state.state_dir, args, json),
        (None, None) => stdio(args.key_file.as_deref()),
        (None, Some(listen)) => http(listen),
    }
}

fn install(state_dir: &Path, args: &cli::InstallArgs, json: bool) -> Outcome {
    let home = cli::McpHome::from_vars(|name| std::env::var_os(name)).ok_or_else(|| {
        Failure::new("HOME is not set, so it is not known where the client keeps its files")
    })?;
    let given = |name| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let (base_url, key) = (given(mcp::BASE_URL_VAR), given(mcp::API_KEY_VAR).map(Secret::new));
    // Who names neither means the platform on this machine, if there is one that may be read.
    let key_is_local = base_url.is_none() && key.is_none();
    let target = if key_is_local {
        cli::InstallTarget {
            program: std::env::current_exe()?,
            base_url: state_dir::read_server_info(state_dir).ok().map(|info| info.base_url),
            key: state_dir::read_api_key(state_dir).ok(),
            key_is_local,
        }
    } else {
        cli::InstallTarget { program: std::env::current_exe()?, base_url, key, key_is_local }
    };
    Ok(super::sandbox::finish(cli::run_install(args, &target, &home, json), json))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn stdio(key_file: Option<&Path>) -> Outcome {
    let key = match key_file.map(mcp::read_key_file).transpose() {
        Ok(key) => key,
        Err(error) => return Ok(refused(&error)),
    };
    let get = |name: &str| match &key {
        Some(key) if name == mcp::API_KEY_VAR => Some(key.expose_secret().to_owned()),
        _ => variable(name),
    };
    match McpConfig::from_vars(get) {
        Ok(config) => Ok(mcp::run_stdio(&config)),
        // The line is fixed by `spec/mcp.md` §A.4.
        Err(error) => Ok(refused(&error)),
    }
}

/// The error carries its own prefix.
fn refused(error: &mcp::StartupError) -> ExitCode {
    let _nobody_left_to_tell = writeln!(std::io::stderr(), "{error}");
    ExitCode::FAILURE
}

fn http(listen: Option<SocketAddr>) -> Outcome {
    let config = match HttpConfig::from_vars(variable, listen) {
        Ok(config) => config,
        Err(error) => return Ok(refused(&error)),
    };
    mcp::set_panic_hook();
    mcp::set_log(config.log);
    for warning in &config.warnings {
        mcp::say(warning);
    }
    raise_descriptor_limit();
    let address = config.listen;
    let server = HttpServer::new(config).map_err(|error| Failure::new(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = super::up::stop_signals()?;
        let listener = tokio::net::TcpListener::bind(address).await.map_err(|error| {
            Failure::new(format!("cannot listen on {address}: {error}"))
                .hint("free the address, or choose another with --http ADDR or PORT")
        })?;
        let bound = listener.local_addr()?;
        let reach = if bound.ip().is_loopback() {
            "reachable from this machine only; HOST=0.0.0.0 opens it"
        } else {
            "reachable from other machines"
        };
        mcp::say(&format!("{} ready on http://{bound}/mcp ({reach})", env!("CARGO_PKG_VERSION")));
        crate::http::serve(listener, server.router(), stop, GRACE).await;
        server.close().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// A call, or a connection out of a sandbox, takes two descriptors, and many systems give a process 1,024 unless it asks for
/// more. Sandboxes inherit it, and programs there that close all descriptors they might have must not take for ever.
pub(super) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    const ENOUGH: u64 = 65_536;
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    limit.current = limit.current.map(|current| current.max(wanted));
    let _the_usual_number_serves_fewer = setrlimit(Resource::Nofile, limit);
}

/// The settings of the endpoint that `up` has at `/mcp`; it calls the platform as any client does.
pub(crate) fn mounted_config(listen: SocketAddr, base_url: &str) -> Result<HttpConfig, Failure> {
    HttpConfig::mounted(variable, listen, base_url).map_err(|error| Failure::new(error.to_string()))
}

/// That endpoint, with OAuth beside keys where there is OAuth.
pub(crate) fn mounted(
    mut config: HttpConfig,
    oauth: Option<&crate::oauth::Oauth>,
) -> Result<HttpServer, Failure> {
    if let Some(oauth) = oauth {
        config.allow_host(oauth.url.host()).map_err(|error| Failure::new(error.to_string()))?;
        config.authorization = Some(oauth.authorization());
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    HttpServer::new(config).map_err(|error| Failure::new(error.to_string()))
}
