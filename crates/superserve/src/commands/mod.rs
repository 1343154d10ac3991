//! One file per subcommand.

pub(crate) mod activity;
pub(crate) mod client_env;
pub(crate) mod connect;
pub(crate) mod doctor;
pub(crate) mod key;
pub(crate) mod mcp;
pub(crate) mod reset;
pub(crate) mod sandbox;
pub(crate) mod secret;
pub(crate) mod setup;
pub(crate) mod snapshot;
pub(crate) mod template;
pub(crate) mod up;
