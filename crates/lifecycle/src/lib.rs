//! The life of a sandbox: one table of what may follow what, one task per sandbox that writes its intent to the database
//! and then acts, two clocks, and the comparison of database and machine after a restart.
//!
//! ```text
//! caller ── request ──▶ owner task ── next(state, input) ──▶ table
//!                          │  1. intent: compare-and-set in the store
//!                          │  2. effect: node::Host
//!                          ╰  3. outcome: the table again, the store again, then the answer
//! ```
//!
//! Nothing outside this crate changes a state, and nothing in it acts before the intent is on disk. A caller that goes
//! away changes nothing: operations run in the owner task, never in the caller's future.

mod table;
mod timers;
mod tokens;
mod transition;

mod machine;
mod origin;
mod owner;
mod preview;
mod problem;
mod reconcile;

mod service;
mod snapshot;
#[cfg(test)]
mod tests;

pub use origin::Origin;
pub use preview::{PreviewAdmission, PreviewOf, PreviewToken};
pub use service::{Lifecycle, LifecycleConfig, NewSandbox, Opened, PauseOutcome};
pub use snapshot::{NewSnapshot, Saved};
pub use table::{Effect, Event, Input, Operation, Step, Verdict, next, recover, while_saved};
pub use transition::{NetworkPatch, Patch};
