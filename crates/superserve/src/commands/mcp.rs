//! `superserve mcp`: MCP over stdio, where stdout belongs to the protocol and everything else goes to stderr; or over HTTP.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use mcp::{HttpConfig, HttpServer, McpConfig};

use crate::output::{Failure, Outcome};

/// Calls may still end this long after the stop was asked for (`spec/mcp.md` §B.6); then they are cancelled.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// Serve over HTTP, for several users who each send their key; ADDR is HOST:PORT, by default from the variables HOST and
    /// PORT, else 127.0.0.1:8080
    #[arg(long, value_name = "ADDR", num_args = 0..=1)]
    #[expect(clippy::option_option, reason = "clap's form of a flag with an optional value")]
    http: Option<Option<SocketAddr>>,
}

pub(crate) fn run(args: &McpArgs) -> Outcome {
    match args.http {
        None => stdio(),
        Some(listen) => http(listen),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn stdio() -> Outcome {
    match McpConfig::from_vars(variable) {
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

/// A call takes two descriptors, and many systems give a process 1,024 unless it asks for more.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _the_usual_number_serves_fewer = setrlimit(Resource::Nofile, limit);
}

/// The endpoint that `up` has at `/mcp`; it calls the platform as any client does.
pub(crate) fn mounted(
    listen: SocketAddr,
    base_url: &str,
    oauth: Option<&crate::oauth::Oauth>,
) -> Result<HttpServer, Failure> {
    let failed = |error: mcp::StartupError| Failure::new(error.to_string());
    let mut config = HttpConfig::mounted(variable, listen, base_url).map_err(failed)?;
    if let Some(oauth) = oauth {
        config.allow_host(oauth.url.host()).map_err(failed)?;
        config.authorization = Some(oauth.authorization());
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    HttpServer::new(config).map_err(|error| Failure::new(error.to_string()))
}
