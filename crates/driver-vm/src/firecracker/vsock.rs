//! The way to the agent of a guest that listens on a vsock port: Firecracker makes a connection in the guest of each of ours to
//! its socket, and nobody but the host can be heard on it.

use std::io;

use async_trait::async_trait;
use driver::{BoxStream, DriverError};
use driver_port::Dial;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use wire::agent::vm::VSOCK_PORT;

use super::{AGENT_SOCKET, Inhabited};

/// `OK`, a number of ten digits at most, and the line's end.
const MAX_WELCOME: u64 = 16;

/// The agent's port in the guest of a jailed process.
#[derive(Debug)]
pub(crate) struct Vsock(pub(crate) Inhabited);

#[async_trait]
impl Dial for Vsock {
    async fn dial(&self) -> Result<BoxStream, DriverError> {
        let stream = self.0.connect(AGENT_SOCKET).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => DriverError::Gone,
            _ => DriverError::io("connect to the guest's port")(error),
        })?;
        Ok(Box::new(call(stream).await?))
    }
}

/// Has Firecracker connect to the agent's port in the guest; without a listener it hangs up.
async fn call(stream: UnixStream) -> Result<BufReader<UnixStream>, DriverError> {
    let lost = || DriverError::io("call the guest");
    let mut stream = BufReader::new(stream);
    stream.write_all(format!("CONNECT {VSOCK_PORT}\n").as_bytes()).await.map_err(lost())?;
    let mut welcome = Vec::new();
    (&mut stream).take(MAX_WELCOME).read_until(b'\n', &mut welcome).await.map_err(lost())?;
    if welcome.is_empty() {
        return Err(lost()(io::ErrorKind::UnexpectedEof.into()));
    }
    let number = welcome.strip_prefix(b"OK ").and_then(|rest| rest.strip_suffix(b"\n"));
    if number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit)) {
        return Ok(stream);
    }
    let detail = "Firecracker does not speak of the guest's port as it should".to_owned();
    Err(DriverError::Engine { what: "talking to the guest", detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a Firecracker that says something makes us think of the guest.
    async fn welcomed(says: &[u8]) -> Result<Vec<u8>, DriverError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let says = says.to_vec();
        let talking = tokio::spawn(async move {
            let mut asked = [0; 13];
            theirs.read_exact(&mut asked).await.unwrap();
            assert_eq!(&asked, b"CONNECT 1010\n");
            let _ = theirs.write_all(&says).await;
        });
        let mut stream = call(ours).await?;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        talking.await.unwrap();
        Ok(rest)
    }

    #[tokio::test]
    async fn firecracker_speaks_of_the_guest_as_it_should_or_not_at_all() {
        assert_eq!(welcomed(b"OK 1073741824\nPRI").await.unwrap(), b"PRI", "what follows is the guest's");
        // Nobody listens yet: asked again.
        let why = welcomed(b"").await.unwrap_err();
        assert!(
            matches!(&why, DriverError::Io { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof)
        );
        let flood = [b'1'; 64 * 1024];
        for says in [
            &b"OK \n"[..],
            b"OK x\n",
            b"OK -1\n",
            b"OK 1",
            b"ok 1\n",
            b"\n",
            b"NO\n",
            b"OK 1 \n",
            &[b"OK ", &flood[..]].concat(),
            &flood,
        ] {
            let why = welcomed(says).await.unwrap_err().to_string();
            assert!(why.contains("as it should"), "{why}");
        }
    }
}
