//! What clients find out by themselves: RFC 9728 for the MCP endpoint, RFC 8414 for this server.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::Server;
use crate::server::{AUTHORIZE, OFFLINE, REGISTER, REVOKE, SCOPE, TOKEN};

pub(crate) const SERVER: &str = "/.well-known/oauth-authorization-server";
pub(crate) const RESOURCE: &str = "/.well-known/oauth-protected-resource";
pub(crate) const RESOURCE_MCP: &str = "/.well-known/oauth-protected-resource/mcp";

pub(crate) async fn server(State(server): State<Server>) -> Json<Value> {
    let issuer = server.inner.url.origin();
    Json(json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}{AUTHORIZE}"),
        "token_endpoint": format!("{issuer}{TOKEN}"),
        "registration_endpoint": format!("{issuer}{REGISTER}"),
        "revocation_endpoint": format!("{issuer}{REVOKE}"),
        "scopes_supported": [SCOPE, OFFLINE],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": true,
    }))
}

/// The resource in a document is always the one that its own address was made of (RFC 9728 §3.3).
pub(crate) async fn resource(State(server): State<Server>) -> Json<Value> {
    Json(of(&server, &server.inner.resource()))
}

pub(crate) async fn resource_root(State(server): State<Server>) -> Json<Value> {
    Json(of(&server, server.inner.url.origin()))
}

fn of(server: &Server, resource: &str) -> Value {
    json!({
        "resource": resource,
        "authorization_servers": [server.inner.url.origin()],
        "scopes_supported": [SCOPE],
        "bearer_methods_supported": ["header"],
        "resource_name": "Superserve",
    })
}
