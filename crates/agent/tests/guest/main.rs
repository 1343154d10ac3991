//! The real agent binary, as root, over its Unix socket.

mod exec;
mod files;
mod harness;
mod limits;
mod protocol;
mod stream;
mod tree;
