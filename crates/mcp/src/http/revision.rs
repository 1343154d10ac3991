//! Revisions of the protocol over HTTP (`spec/mcp.md` §B.4). The older ones are told by a header at most; the newest repeats
//! parts of the message in headers, so that what stands between can route without reading, and both must agree.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode};
use rmcp::model::{ErrorCode, ProtocolVersion};
use serde_json::{Value, json};

use super::refusal::ProtocolError;
use crate::text::line;

const VERSION_HEADER: &str = "mcp-protocol-version";
const METHOD_HEADER: &str = "mcp-method";
const NAME_HEADER: &str = "mcp-name";
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// Which rules an answer follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// Up to 2025-11-25: errors are ordinary answers.
    Handshake,
    /// From 2026-07-28: some errors have a status.
    Stateless,
}

impl Era {
    /// The HTTP status of an error that a call gave.
    pub(super) fn status(self, code: i32) -> StatusCode {
        let (Self::Stateless, code) = (self, ErrorCode(code)) else { return StatusCode::OK };
        match code {
            ErrorCode::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
            ErrorCode::HEADER_MISMATCH
            | ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY
            | ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
            | ErrorCode::INVALID_REQUEST => StatusCode::BAD_REQUEST,
            _ => StatusCode::OK,
        }
    }
}

/// Every revision this server speaks, oldest first.
pub(super) fn supported() -> &'static [ProtocolVersion] {
    ProtocolVersion::known_up_to(&ProtocolVersion::V_2026_07_28)
}

fn known(version: &str) -> bool {
    supported().iter().any(|known| known.as_str() == version)
}

/// Judges the headers of a message that [`super::body::parse`] let through.
pub(super) fn check(headers: &HeaderMap, message: &Value) -> Result<Era, ProtocolError> {
    let refuse = |code: ErrorCode, message_text: String, data: Option<Value>| ProtocolError {
        id: message.get("id").cloned(),
        status: StatusCode::BAD_REQUEST,
        code: code.0,
        message: message_text,
        data,
    };
    let mismatch = |text: String| refuse(ErrorCode::HEADER_MISMATCH, text, None);
    let header = |name: &'static str| single(headers, name).map_err(mismatch);
    let unsupported = |version: &str| {
        let supported: Vec<&str> = supported().iter().map(ProtocolVersion::as_str).collect();
        let requested = short(version);
        let text = format!("Unsupported protocol version {requested}. Supported: {}.", supported.join(", "));
        let data = json!({"supported": supported, "requested": requested});
        refuse(ErrorCode::UNSUPPORTED_PROTOCOL_VERSION, text, Some(data))
    };

    let method = message.get("method").and_then(Value::as_str);
    let named = header(VERSION_HEADER)?;
    let meta = message.get("params").and_then(|params| params.get("_meta"));
    let told = meta.and_then(|meta| meta.get(VERSION_KEY)).and_then(Value::as_str);
    let newest = ProtocolVersion::V_2026_07_28.as_str();
    // The handshake names the version in its own parameters, and exists only before the newest revision.
    if method == Some("initialize") && told != Some(newest) {
        return match named {
            Some(version) if !known(&version) => Err(unsupported(&version)),
            _ => Ok(Era::Handshake),
        };
    }
    match (&named, told) {
        (None, Some(_)) => {
            return Err(mismatch("The MCP-Protocol-Version header is missing.".to_owned()));
        }
        (Some(named), Some(told)) if named != told => {
            let text = format!(
                "The MCP-Protocol-Version header ({}) differs from the version in _meta ({}).",
                short(named),
                short(told)
            );
            return Err(mismatch(text));
        }
        _ => {}
    }
    match &named {
        Some(version) if !known(version) => return Err(unsupported(version)),
        Some(version) if version == newest => {}
        // Without the header the request is of 2025-03-26, except that this method exists in the newest revision only.
        _ if method == Some("server/discover") => {
            return Err(mismatch("server/discover needs the MCP-Protocol-Version header.".to_owned()));
        }
        _ => return Ok(Era::Handshake),
    }

    let Some(method) = method else { return Ok(Era::Stateless) };
    if message.get("id").is_some() {
        let capabilities = meta.and_then(|meta| meta.get(CAPABILITIES_KEY)).is_some_and(Value::is_object);
        if told.is_none() || !capabilities {
            let text = format!("Invalid params: _meta needs {VERSION_KEY} and {CAPABILITIES_KEY}.");
            return Err(refuse(ErrorCode::INVALID_PARAMS, text, None));
        }
    }
    match header(METHOD_HEADER)? {
        Some(named) if named == method => {}
        Some(named) => {
            let text = format!(
                "The Mcp-Method header ({}) differs from the method ({}).",
                short(&named),
                short(method)
            );
            return Err(mismatch(text));
        }
        None => return Err(mismatch("The Mcp-Method header is missing.".to_owned())),
    }
    let key = match method {
        "initialize" => {
            let gone = "Unknown method `initialize`: this revision has no handshake.".to_owned();
            let error = refuse(ErrorCode::METHOD_NOT_FOUND, gone, None);
            return Err(ProtocolError { status: StatusCode::NOT_FOUND, ..error });
        }
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return Ok(Era::Stateless),
    };
    let target = message["params"].get(key).and_then(Value::as_str);
    match (header(NAME_HEADER)?, target) {
        // Parameters without a name are refused for what they are.
        (_, None) => Ok(Era::Stateless),
        (Some(named), Some(target)) if named == target => Ok(Era::Stateless),
        (Some(named), Some(target)) => {
            let text = format!(
                "The Mcp-Name header ({}) differs from params.{key} ({}).",
                short(&named),
                short(target)
            );
            Err(mismatch(text))
        }
        (None, Some(_)) => Err(mismatch("The Mcp-Name header is missing.".to_owned())),
    }
}

/// The value of a header that may come once, decoded.
fn single(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, String> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(format!("The {name} header came more than once."));
    }
    let unreadable = || format!("The {name} header is not readable.");
    let text = value.to_str().map_err(|_| unreadable())?.trim();
    let Some(encoded) = text.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Ok(Some(text.to_owned()));
    };
    let bytes = STANDARD.decode(encoded).map_err(|_| unreadable())?;
    String::from_utf8(bytes).map(Some).map_err(|_| unreadable())
}

/// Foreign text, fit for a message.
fn short(text: &str) -> String {
    line(text).chars().take(64).collect()
}
