//! Asking the host's resolvers: one socket per question, so that nobody can answer for them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout, timeout_at};

use super::message::{Answer, MAX_UDP, Question};
use crate::connect;
use crate::outlet::Outlet;

/// One resolver has this long, then the next one is asked: lost packets are common, slow resolvers are not.
const ONE: Duration = Duration::from_millis(1_500);
/// All of them together. Programs in the sandbox ask again after 5 s.
const ALL: Duration = Duration::from_millis(4_500);
/// Each resolver is asked this often.
const ROUNDS: usize = 2;
/// Answers to other questions that are read past before a socket is given up.
const STRANGERS: usize = 16;
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Resolvers the C library looks at.
const MAX_RESOLVERS: usize = 3;

/// Who is asked.
#[derive(Debug)]
pub(crate) struct Upstreams {
    outlet: Arc<Outlet>,
    configured: Vec<SocketAddr>,
}

impl Upstreams {
    pub(crate) fn new(outlet: Arc<Outlet>, configured: Vec<SocketAddr>) -> Self {
        Self { outlet, configured }
    }

    /// Asks until somebody answers. `whole` for whoever wants the whole answer, however large.
    pub(super) async fn ask(&self, question: &Question, whole: bool) -> Option<Answer> {
        let until = Instant::now() + ALL;
        let resolvers = self.resolvers();
        for _ in 0..ROUNDS {
            for resolver in &resolvers {
                match timeout_at(until, timeout(ONE, self.ask_one(*resolver, question, whole))).await {
                    Ok(Ok(Ok(answer))) => return Some(answer),
                    Ok(Ok(Err(error))) => tracing::debug!(%resolver, %error, "a resolver cannot be asked"),
                    Ok(Err(_)) => {}
                    Err(_) => return None,
                }
            }
        }
        None
    }

    fn resolvers(&self) -> Vec<SocketAddr> {
        if !self.configured.is_empty() {
            return self.configured.clone();
        }
        // Read each time: it is a small file, and changes when the host moves to another network.
        parse(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default())
    }

    async fn ask_one(&self, resolver: SocketAddr, question: &Question, whole: bool) -> io::Result<Answer> {
        let mut number = [0; 2];
        getrandom::fill(&mut number).map_err(io::Error::other)?;
        let id = u16::from_ne_bytes(number);
        if whole {
            self.over_tcp(resolver, question, id).await
        } else {
            self.over_udp(resolver, question, id).await
        }
    }

    async fn over_udp(&self, resolver: SocketAddr, question: &Question, id: u16) -> io::Result<Answer> {
        let socket = self.socket(resolver, SocketType::DGRAM).await?;
        rustix::net::connect(&socket, &resolver)?;
        let socket = UdpSocket::from_std(socket.into())?;
        socket.send(&question.write(id)).await?;
        let mut buffer = vec![0; usize::from(MAX_UDP)];
        for _ in 0..STRANGERS {
            let read = socket.recv(&mut buffer).await?;
            if let Some(answer) = question.answered(id, buffer[..read].to_vec()) {
                return Ok(answer);
            }
        }
        Err(io::Error::other("only answers to other questions"))
    }

    async fn over_tcp(&self, resolver: SocketAddr, question: &Question, id: u16) -> io::Result<Answer> {
        let socket = self.socket(resolver, SocketType::STREAM).await?;
        let mut stream = connect::finish(connect::begin(socket, resolver)?).await?;
        let message = question.write(id);
        let length = u16::try_from(message.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes()[..], &message].concat()).await?;
        let mut answer = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut answer).await?;
        question.answered(id, answer).ok_or_else(|| io::Error::other("an answer to another question"))
    }

    async fn socket(&self, resolver: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
        let family = if resolver.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        self.outlet.socket(family, kind).await
    }
}

fn parse(resolv_conf: &str) -> Vec<SocketAddr> {
    resolv_conf
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok())
        .map(|address| SocketAddr::new(address, 53))
        .take(MAX_RESOLVERS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_hosts_resolvers() {
        let text = "# comment\nsearch example\nnameserver 10.0.0.2\n nameserver\t2001:db8::1 \nnameserver x\noptions edns0\n";
        let found: Vec<String> = parse(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.2:53", "[2001:db8::1]:53"]);
    }
}
