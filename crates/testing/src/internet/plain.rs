//! Services without a protocol of their own, each on one port of every address.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::Arrivals;

/// What a service does with a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Behaviour {
    /// Says everything again, and ends when the other side has.
    Echo,
    /// Speaks first, then echoes.
    Greet,
    /// Reads to the end, and only then says how much it was.
    Count,
    /// Reads a byte, then resets.
    Reset,
    /// Ends its side at once, then reads to the end.
    EndFirst,
}

/// Ports and behaviours.
pub(super) const BEHAVIOURS: &[(u16, Behaviour)] = &[
    (22, Behaviour::Greet),
    (7000, Behaviour::Echo),
    (7001, Behaviour::Greet),
    (7002, Behaviour::Count),
    (7003, Behaviour::Reset),
    (7004, Behaviour::EndFirst),
    // DNS over TLS and over TCP of others.
    (853, Behaviour::Echo),
];
/// No test's connection lasts longer.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) async fn serve(listener: TcpListener, behaviour: Behaviour, arrivals: Arrivals) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        if let Ok(to) = stream.local_addr() {
            arrivals.add(to);
        }
        connections.spawn(tokio::time::timeout(LIMIT, talk(stream, behaviour)));
    }
}

async fn talk(mut stream: TcpStream, behaviour: Behaviour) -> std::io::Result<()> {
    match behaviour {
        Behaviour::Echo | Behaviour::Greet => {
            if matches!(behaviour, Behaviour::Greet) {
                stream.write_all(b"220 greetings\r\n").await?;
            }
            let (mut from, mut to) = stream.split();
            tokio::io::copy(&mut from, &mut to).await?;
            to.shutdown().await
        }
        Behaviour::Count => {
            let count = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
            stream.write_all(format!("{count}\n").as_bytes()).await?;
            stream.shutdown().await
        }
        Behaviour::Reset => {
            stream.read_u8().await?;
            stream.set_zero_linger()
        }
        Behaviour::EndFirst => {
            stream.write_all(b"bye\n").await?;
            stream.shutdown().await?;
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map(drop)
        }
    }
}
