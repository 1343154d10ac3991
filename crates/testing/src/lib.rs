//! A running platform for tests: the real program, the real engine, an own state directory and free ports. Nothing here
//! knows how the platform works inside; tests see what a user of the machine sees.

mod internet;
mod leaks;
mod platform;
mod wait;

pub use internet::{Capture, Internet, Packet};
pub use leaks::Remains;
pub use platform::{Answer, Platform, isolation};
pub use wait::wait_for;
