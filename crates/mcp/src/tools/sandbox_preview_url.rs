//! `sandbox_preview_url` (`spec/mcp.md` §C.13). The mode of the port decides whether the link is signed, never the default
//! of the sandbox. Nothing here resumes a sandbox or looks whether anything listens.

use domain::{CONTROL_PORT, FIRST_PREVIEW_PORT, MAX_PREVIEW_TOKEN_SECONDS};
use serde_json::json;

use super::{Call, Hints, Tool};
use crate::args::Args;
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, normalise_time};

/// Seconds a signed link is good when nobody says otherwise.
const DEFAULT_SECONDS: i64 = 3_600;

/// Publishes, so it is a write.
pub(super) const TOOL: Tool = Tool {
    name: "sandbox_preview_url",
    title: "Publish a port and get its preview URL",
    description: "Publish a port of a server in the sandbox and get the URL that opens it in a browser; for a private port the \
        link is signed and expires. Start the server first, in the background and bound to 0.0.0.0: nothing here checks \
        that it listens, or wakes the sandbox.",
    hints: Hints::WRITE_ONCE,
    params: &[
        Param::sandbox_id(),
        Param::required("port", PORT, "Port the server listens on; not 49983."),
        Param::optional(
            "expires_in_seconds",
            Kind::Integer {
                min: 1,
                max: Some(MAX_PREVIEW_TOKEN_SECONDS as i64),
                default: Some(DEFAULT_SECONDS),
            },
            "How long the signed link of a private port is good; ignored for public ports.",
        ),
    ],
    check,
    run: |call| Box::pin(run(call)),
};

const PORT: Kind = Kind::Integer { min: FIRST_PREVIEW_PORT as i64, max: Some(65_535), default: None };

fn check(args: &Args, problems: &mut Vec<String>) {
    if args.is_integer("port", CONTROL_PORT.into()) {
        problems
            .push(format!("`port` {CONTROL_PORT} is reserved for sandbox control traffic; use another one"));
    }
}

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let port = call.args.integer("port").and_then(|port| u16::try_from(port).ok());
    let Some(port) = port else { return Err(Failure::unexpected()) };
    let seconds = call.args.integer("expires_in_seconds").unwrap_or(DEFAULT_SECONDS);
    let about = About { target: Target::Sandbox(&id), repeat: Repeat::Safe };
    let failed = |error| explain(&error, about);
    let client = &call.client;
    let published = client.publish_port(&id, port, None).await.map_err(failed)?;
    let private = match published.access.as_str() {
        "private" => true,
        "public" => false,
        _ => return Err(Failure::unexpected()),
    };
    let default = match client.list_ports(&id).await {
        Ok(ports) => ports.preview_access,
        // A public port has its address without it.
        Err(_) if !private => published.access.clone(),
        Err(error) => return Err(failed(error)),
    };
    let token = match private {
        true => Some(client.preview_token(&id, port, Some(seconds)).await.map_err(failed)?),
        false => None,
    };
    let url = client.preview_url(&id, port, token.as_ref()).await.map_err(failed)?;
    let mut structured = json!({
        "sandbox_id": id,
        "port": port,
        "url": url,
        "access": published.access,
        "previewAccess": default,
        "authenticated": private,
    });
    if let Some(ends) = token.and_then(|token| token.expires_at) {
        structured["expires_at"] = normalise_time(&ends).into();
    }
    Ok(Outcome::new(url, structured))
}
