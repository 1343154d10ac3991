//! How often one address may ask: a number of tries that fills up again with time. Bounded in memory.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Addresses remembered at once. Beyond that the ones that asked longest ago are forgotten.
const CAPACITY: usize = 4_096;

/// See the module.
#[derive(Debug)]
pub(crate) struct Limiter {
    tries: u32,
    within: Duration,
    known: Mutex<HashMap<IpAddr, Tries>>,
}

#[derive(Debug, Clone, Copy)]
struct Tries {
    used: f64,
    at: Instant,
}

impl Limiter {
    /// Allows `tries` at once, and as many again `within` this time.
    pub(crate) fn new(tries: u32, within: Duration) -> Self {
        Self { tries, within, known: Mutex::default() }
    }

    fn rest(&self, tries: Tries, now: Instant) -> f64 {
        let paid = now.duration_since(tries.at).as_secs_f64() / self.within.as_secs_f64();
        (tries.used - paid * f64::from(self.tries)).max(0.0)
    }

    /// Whether there is a try left; takes none.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let now = Instant::now();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let used = known.get(&network(address)).map_or(0.0, |tries| self.rest(*tries, now));
        used + 1.0 <= f64::from(self.tries)
    }

    /// Takes one try, if there is one.
    pub(crate) fn take(&self, address: IpAddr) -> bool {
        self.take_at(address, Instant::now())
    }

    fn take_at(&self, address: IpAddr, now: Instant) -> bool {
        let address = network(address);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let used = known.get(&address).map_or(0.0, |tries| self.rest(*tries, now));
        if used + 1.0 > f64::from(self.tries) {
            return false;
        }
        if known.len() >= CAPACITY && !known.contains_key(&address) {
            known.retain(|_, tries| self.rest(*tries, now) > 0.0);
            if known.len() >= CAPACITY {
                let oldest = known.iter().min_by_key(|(_, tries)| tries.at).map(|(address, _)| *address);
                oldest.and_then(|address| known.remove(&address));
            }
        }
        known.insert(address, Tries { used: used + 1.0, at: now });
        true
    }
}

/// Whoever has one IPv6 address usually has 2^64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_come_back_and_memory_is_bounded() {
        let limiter = Limiter::new(2, Duration::from_secs(20));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (a, b): (IpAddr, IpAddr) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        assert!(limiter.take_at(a, at(0)) && limiter.take_at(b, at(0)) && !limiter.take_at(a, at(0)));
        assert!(limiter.take_at("198.51.100.1".parse().unwrap(), at(0)));
        assert!(!limiter.take_at("2001:db8::3".parse().unwrap(), at(9)) && limiter.take_at(a, at(10)));
        assert!(!limiter.take_at(a, at(11)) && limiter.take_at(a, at(60)) && limiter.take_at(a, at(60)));
        for n in 0..u32::try_from(CAPACITY).unwrap() + 100 {
            assert!(limiter.take_at(IpAddr::from((n + (10 << 24)).to_be_bytes()), at(61)));
        }
        assert!(limiter.known.lock().unwrap().len() <= CAPACITY);
    }
}
