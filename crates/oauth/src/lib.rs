//! The OAuth 2.1 authorization server for MCP clients that cannot send a key of their own (docs/decisions/oauth.md). The
//! holder of a key types it into a page of ours, once; the client gets a code, and for the code tokens that stand for the
//! key at the MCP endpoint and nowhere else.
//!
//! ```text
//! register ─▶ GET authorize ─▶ page ─▶ POST authorize (key) ─▶ code ─▶ token ─▶ access token ─▶ /mcp ─▶ delegation ─▶ key
//! ```
//!
//! Clients, redirect URIs and all parameters are a stranger's. Nothing is sent to a redirect URI that the client did not
//! register, and no browser is sent to another site before the holder of a key has decided. Codes, tokens and keys are never
//! stored, logged, or put into a URL of ours; the database has only which generation of a grant is the current one.

mod address;
mod authorize;
mod consent;
mod delegation;
mod form;
mod limiter;
mod metadata;
mod observe;
mod page;
mod redirect;
mod register;
mod reply;
mod revoke;
mod server;
mod sweep;
mod token;
mod token_endpoint;
mod url;

pub use delegation::Delegation;
pub use observe::{Event, Observer, Reason, Subject};
pub use server::{OauthConfig, Server, StartError};
pub use sweep::Sweeper;
pub use token::PREFIX;
pub use url::{BadUrl, PublicUrl};

#[cfg(test)]
mod tests;
