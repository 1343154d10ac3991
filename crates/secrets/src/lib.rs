//! Credentials a sandbox can use and never read. Values are sealed, each with a key of its own, and these with a key that is
//! not in the database; a value is opened for one request that is being written, and for nothing else. Sandboxes get
//! stand-ins: random texts in the shape the provider's clients expect.
//!
//! ```text
//! api ── create, rotate, delete ──▶ Secrets ── sealed ──▶ store
//! lifecycle ── bind, variables ──────▶│
//! broker ── whose stand-in? value? ───╯ (from memory)
//! ```
//!
//! Nothing here logs, prints or returns a value, except [`Secrets::value`] to the broker.

mod error;
mod keyring;
mod names;
mod problem;
mod provider;
mod registry;
mod service;
mod stand_in;
#[cfg(test)]
mod tests;

pub use error::SecretsError;
pub use keyring::{KEY_BYTES, Keyring};
pub use names::{check_env_key, check_host, check_name, check_value};
pub use provider::{PROVIDERS, Provider};
pub use registry::ShownBinding;
pub use service::{MAX_BINDINGS, NewSecret, Secrets, rewrap_all};
