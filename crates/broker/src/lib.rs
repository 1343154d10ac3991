//! Lets a sandbox use credentials it never has. Connections to the hosts of a secret that is bound to a sandbox come here
//! instead of passing as they are:
//!
//! ```text
//! guest ══ TLS with a leaf of our authority ══▶ broker ══ TLS, public roots ══▶ service
//!            Authorization: Bearer <stand-in>     │         Authorization: Bearer <value>
//!                                  whose? which host? value ── a row for each use and each refusal
//! ```
//!
//! Requests are parsed and written anew, so what is judged is what is sent. Bodies are not looked at, unless a secret's
//! owner asks for that. A value is asked for when a request is about to be written, and is in no log, error or answer.

mod audit;
mod body;
mod broker;
mod ca;
mod head;
mod reason;
mod scrub;
mod session;
mod swap;
mod tasks;
mod tls;
mod upstream;

pub use broker::{Broker, BrokerError};
pub use ca::{Ca, CaError};
pub use reason::Reason;
