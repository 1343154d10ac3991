//! Where outgoing sockets come from: the server's own network namespace, or one that an operator names.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::sync::{mpsc, oneshot};

use crate::error::EgressError;
use crate::route::Routes;
use crate::sys;

/// Sockets that wait to be made, which takes some microseconds each.
const QUEUE: usize = 64;

/// Makes outgoing sockets, and knows which addresses are this host's own.
#[derive(Debug)]
pub(crate) struct Outlet {
    elsewhere: Option<mpsc::Sender<Wanted>>,
    routes: Mutex<Routes>,
}

#[derive(Debug)]
struct Wanted {
    family: AddressFamily,
    kind: SocketType,
    reply: oneshot::Sender<io::Result<OwnedFd>>,
}

impl Outlet {
    /// Opens the way out.
    pub(crate) fn open(uplink: Option<&Path>) -> Result<Self, EgressError> {
        let Some(path) = uplink else {
            let routes = Routes::open().map_err(EgressError::Route)?;
            return Ok(Self { elsewhere: None, routes: Mutex::new(routes) });
        };
        let failed = |source| EgressError::Uplink { path: path.to_owned(), source };
        let namespace = File::open(path).map_err(failed)?;
        let routes = sys::inside(namespace.as_fd(), Routes::open).map_err(failed)?;
        let (sender, wanted) = mpsc::channel(QUEUE);
        // It ends when nobody is left who could want a socket.
        std::thread::Builder::new()
            .name("uplink".to_owned())
            .spawn(move || make_sockets(&namespace, wanted))
            .map_err(failed)?;
        Ok(Self { elsewhere: Some(sender), routes: Mutex::new(routes) })
    }

    /// A socket that does not block.
    pub(crate) async fn socket(&self, family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
        let Some(elsewhere) = &self.elsewhere else { return make(family, kind) };
        let (reply, made) = oneshot::channel();
        let gone = || io::Error::other("the thread of the uplink namespace has ended");
        elsewhere.send(Wanted { family, kind, reply }).await.map_err(|_| gone())?;
        made.await.map_err(|_| gone())?
    }

    /// Whether packets to this address would end on this host, or on several.
    pub(crate) fn is_local(&self, address: Ipv4Addr) -> io::Result<bool> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner).is_local(address)
    }
}

fn make_sockets(namespace: &File, mut wanted: mpsc::Receiver<Wanted>) {
    let entered = sys::enter(namespace.as_fd());
    while let Some(wanted) = wanted.blocking_recv() {
        // A socket of another namespace would be a way around all of this.
        let made = match &entered {
            Ok(()) => make(wanted.family, wanted.kind),
            Err(error) => Err(io::Error::new(error.kind(), "the uplink namespace cannot be entered")),
        };
        let _nobody_waits_any_more = wanted.reply.send(made);
    }
}

fn make(family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}
