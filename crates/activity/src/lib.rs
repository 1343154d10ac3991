//! The activity log: who did what to which sandbox, when, and how it ended. Parts of the platform hand an [`Entry`] to
//! the [`Recorder`], which never makes them wait; one task writes them to the database and removes old ones.
//!
//! An entry must never hold a command, a path inside a sandbox, content of a file, a variable, a token, a key or a query.

mod action;
mod entry;
mod recorder;
#[cfg(test)]
mod tests;

pub use action::Action;
pub use entry::{Actor, Caller, Entry};
pub use recorder::{Recorder, Retention, Stats, Writer};
