//! The life of a sandbox.
