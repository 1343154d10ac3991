//! The real agent binary, as root, over its Unix socket.

#[cfg(test)]
mod desktop;
#[cfg(test)]
mod exec;
#[cfg(test)]
mod files;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod session;
#[cfg(test)]
mod stream;
#[cfg(test)]
mod tree;
