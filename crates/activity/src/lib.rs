//! The logs the platform keeps for its users. The activity log: who did what to which sandbox, when, and how it ended.
//! The network log: what sandboxes did on the network. Parts of the platform hand what happened to [`Recorder`] or
//! [`NetworkLog`], which never make them wait; one task each writes it to the database and removes old rows.
//!
//! An entry must never hold a command, a path inside a sandbox, content of a file, a variable, a token, a key or a query.

mod action;
mod entry;
mod network;
mod queue;
mod recorder;
#[cfg(test)]
mod tests;

pub use action::Action;
pub use entry::{Actor, Caller, Entry};
pub use network::NetworkLog;
pub use queue::{Stats, Writer};
pub use recorder::{Recorder, Retention};
pub use store::NetworkRetention;
