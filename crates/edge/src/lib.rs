//! The edge: the front door of the data plane. It takes TLS, plain HTTP and CONNECT on one port, finds the sandbox a
//! request is for, checks its token and relays to the guest agent, or to a published port. It never interprets commands or files, never
//! resumes a sandbox, never shows a token to a guest or a log, and is never an open proxy.

mod agents;
mod answer;
mod ca;
mod directory;
mod headers;
mod hosts;
mod limits;
mod observe;
mod preview;
mod relay;
mod serve;
mod service;
mod stall;
mod tls;

pub use ca::{Ca, CaError};
pub use directory::{Admission, ByteStream, DialError, Directory, PreviewAdmission};
pub use hosts::{BadHostName, DEFAULT_HOSTS, Hosts};
pub use limits::Limits;
pub use observe::{Event, Kind, Observer, Outcome};
pub use preview::{PortTraffic, Traffic, Visit};
pub use serve::{Drained, Edge, EdgeConfig};
pub use tls::{server_config, server_config_with_own};
