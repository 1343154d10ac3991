//! Caps per client address (`spec/data-plane.md` §2.1): a connection that has not shown a valid token yet is one of few,
//! one that has is one of many.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a connection waits for others of its address to show their token. A burst of honest clients passes well
/// within this; an attacker gains a queue of bounded length.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);

/// How many of what the edge serves at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections of one address without a valid token so far.
    pub per_client: usize,
    /// Connections of one address in all.
    pub per_client_authenticated: usize,
    /// Requests and sessions of one sandbox.
    pub per_sandbox: usize,
    /// Requests and sessions of one previewed port.
    pub per_preview_port: usize,
    /// Requests a second of one previewed port; unlimited when unset.
    pub preview_requests_per_second: Option<u32>,
    /// Bytes of one body of a preview, either way; unlimited when unset. WebSockets are no bodies.
    pub preview_body_bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            per_client: 100,
            per_client_authenticated: 1024,
            per_sandbox: 200,
            per_preview_port: 256,
            preview_requests_per_second: None,
            preview_body_bytes: None,
        }
    }
}

/// All addresses with open connections.
#[derive(Debug)]
pub(crate) struct Clients {
    limits: Limits,
    open: Mutex<HashMap<IpAddr, Client>>,
}

#[derive(Debug)]
struct Client {
    connections: usize,
    unknown: Arc<Semaphore>,
}

/// One connection's place among those of its address.
#[derive(Debug)]
pub(crate) struct Place {
    clients: Arc<Clients>,
    address: IpAddr,
    unknown: Arc<Semaphore>,
    turn: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Clients {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, open: Mutex::default() }
    }

    /// Counts a new connection; `None` when its address has too many.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = group(address);
        let mut open = lock(&self.open);
        let client = open.entry(address).or_insert_with(|| Client {
            connections: 0,
            unknown: Arc::new(Semaphore::new(self.limits.per_client)),
        });
        if client.connections >= self.limits.per_client_authenticated {
            return None;
        }
        client.connections += 1;
        let unknown = Arc::clone(&client.unknown);
        Some(Place { clients: Arc::clone(self), address, unknown, turn: Mutex::new(None) })
    }
}

impl Place {
    /// Waits until the connection may be served; false when others without a token hold all places.
    pub(crate) async fn turn(&self) -> bool {
        let permit = tokio::time::timeout(TURN_TIMEOUT, Arc::clone(&self.unknown).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return false };
        *lock(&self.turn) = Some(permit);
        true
    }

    /// A valid token came over this connection: it no longer counts as unknown.
    pub(crate) fn authenticated(&self) {
        lock(&self.turn).take();
    }

    /// Whether a valid token came over this connection.
    pub(crate) fn is_authenticated(&self) -> bool {
        lock(&self.turn).is_none()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.clients.open);
        if let Some(client) = open.get_mut(&self.address) {
            client.connections -= 1;
            if client.connections == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// A provider gives a whole /64 to one customer, so its addresses count as one.
fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
    }
}

/// The data under these locks is plain counters and lists that no panic can leave half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn places_without_a_token_are_few() {
        let limits = Limits { per_client: 2, per_client_authenticated: 4, ..Limits::default() };
        let clients = Arc::new(Clients::new(limits));
        let address = "127.0.0.1".parse().unwrap();
        let places: Vec<_> = (0..4).map(|_| clients.enter(address).unwrap()).collect();
        assert!(clients.enter(address).is_none(), "all places are taken");
        assert!(clients.enter("127.0.0.2".parse().unwrap()).is_some(), "another address has its own");
        assert!(places[0].turn().await);
        assert!(places[1].turn().await);
        assert!(!places[2].turn().await, "two are unknown already");
        assert!(!places[0].is_authenticated());
        places[0].authenticated();
        assert!(places[0].is_authenticated());
        assert!(places[2].turn().await);
        drop(places);
        assert!(lock(&clients.open).is_empty());
    }

    #[test]
    fn a_prefix_counts_as_one_client() {
        let one = |a: &str| group(a.parse().unwrap());
        assert_eq!(one("2001:db8::1"), one("2001:db8::ffff:1"));
        assert_ne!(one("2001:db8::1"), one("2001:db8:0:1::1"));
        assert_eq!(one("::ffff:10.0.0.1"), one("10.0.0.1"));
    }
}
