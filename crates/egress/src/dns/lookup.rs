//! The gateway's own look-ups. What is found is dialled, and nothing else, so an answer that changes changes nothing.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::message::Question;
use super::upstream::Upstreams;
use crate::name::Name;

/// Names that are remembered; a busy host uses some hundred.
const MAX_NAMES: usize = 2_048;
/// No name is remembered longer, whatever its owner says: services move.
const MAX_AGE: Duration = Duration::from_secs(30);

/// Looks up names.
#[derive(Debug)]
pub(crate) struct Lookup {
    upstreams: Arc<Upstreams>,
    known: Mutex<HashMap<Name, Found>>,
}

/// What was found, and until when that holds.
type Found = (Arc<[Ipv4Addr]>, Instant);

/// Why a name has no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAddress {
    /// It does not exist, or has no IPv4 address.
    NoSuchName,
    /// No resolver answered.
    NoAnswer,
}

impl Lookup {
    pub(crate) fn new(upstreams: Arc<Upstreams>) -> Self {
        Self { upstreams, known: Mutex::default() }
    }

    /// The IPv4 addresses of a name; at least one.
    pub(crate) async fn addresses(&self, name: &Name) -> Result<Arc<[Ipv4Addr]>, NoAddress> {
        if let Some(addresses) = self.remembered(name) {
            return Ok(addresses);
        }
        let question = Question::address_of(name);
        let mut answer = self.upstreams.ask(&question, false).await.ok_or(NoAddress::NoAnswer)?;
        if answer.is_truncated() {
            answer = self.upstreams.ask(&question, true).await.ok_or(NoAddress::NoAnswer)?;
        }
        let (addresses, ttl) = answer.addresses(name);
        let addresses: Arc<[Ipv4Addr]> = addresses.into();
        match answer.code() {
            0 | 3 if addresses.is_empty() => Err(NoAddress::NoSuchName),
            0 => {
                self.remember(name, &addresses, ttl);
                Ok(addresses)
            }
            _ => Err(NoAddress::NoAnswer),
        }
    }

    fn remembered(&self, name: &Name) -> Option<Arc<[Ipv4Addr]>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (addresses, until) = known.get(name)?;
        (Instant::now() < *until).then(|| Arc::clone(addresses))
    }

    fn remember(&self, name: &Name, addresses: &Arc<[Ipv4Addr]>, ttl: u32) {
        let age = Duration::from_secs(u64::from(ttl)).min(MAX_AGE);
        if age.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_NAMES {
            known.retain(|_, (_, until)| now < *until);
        }
        if known.len() >= MAX_NAMES {
            known.clear();
        }
        known.insert(name.clone(), (Arc::clone(addresses), now + age));
    }
}
