//! A client per key, so that data-plane tokens survive from one call to the next. Bounded in number and time, found by a
//! hash of the key, and never the reason why a call means something else.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use client::{Client, ClientConfig, ClientError, resolve_base_url};
use domain::Secret;
use sha2::{Digest, Sha256};

use super::config::HttpConfig;

/// Keys remembered at once; the one unused for longest goes first.
const CAPACITY: usize = 256;
/// How long an unused key is remembered.
const LIFETIME: Duration = Duration::from_secs(10 * 60);

/// SHA-256 of a key.
pub(super) type Hash = [u8; 32];

pub(super) fn hash(key: &Secret) -> Hash {
    Sha256::digest(key.expose_secret().as_bytes()).into()
}

/// See the module.
#[derive(Debug)]
pub(super) struct Keys {
    base_url: Option<String>,
    config: ClientConfig,
    /// By base URL: the given one, or the vendor's, of which there are two. They own the connections.
    platforms: Mutex<HashMap<String, Client>>,
    known: Mutex<HashMap<Hash, Known>>,
}

#[derive(Debug)]
struct Known {
    client: Client,
    used: Instant,
}

impl Keys {
    pub(super) fn new(config: &HttpConfig) -> Result<Self, ClientError> {
        let nobody = Secret::new("none");
        let base_url = resolve_base_url(config.base_url.as_deref(), &nobody);
        let mut base = ClientConfig::new(&base_url, nobody);
        base.user_agent = concat!("superserve-mcp/", env!("CARGO_PKG_VERSION")).to_owned();
        base.ca_file.clone_from(&config.ca_file);
        let platforms = HashMap::from([(base_url, Client::new(base.clone())?)]);
        Ok(Self {
            base_url: config.base_url.clone(),
            config: base,
            platforms: Mutex::new(platforms),
            known: Mutex::default(),
        })
    }

    /// The client for a key.
    pub(super) fn client(&self, key: &Secret, hash: Hash) -> Result<Client, ClientError> {
        let now = Instant::now();
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&hash) {
            known.used = now;
            return Ok(known.client.clone());
        }
        let client = self.platform(key)?.with_key(key)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, known| now.duration_since(known.used) < LIFETIME);
        if known.len() >= CAPACITY {
            let oldest = known.iter().min_by_key(|(_, known)| known.used).map(|(hash, _)| *hash);
            oldest.and_then(|hash| known.remove(&hash));
        }
        known.insert(hash, Known { client: client.clone(), used: now });
        Ok(client)
    }

    fn platform(&self, key: &Secret) -> Result<Client, ClientError> {
        let base_url = resolve_base_url(self.base_url.as_deref(), key);
        let mut platforms = self.platforms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = platforms.get(&base_url) {
            return Ok(client.clone());
        }
        let client = Client::new(ClientConfig { base_url: base_url.clone(), ..self.config.clone() })?;
        platforms.insert(base_url, client.clone());
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_by_region() {
        let keys = Keys::new(&HttpConfig::default()).unwrap();
        for n in 0..CAPACITY + 10 {
            let key = Secret::new(format!("ss_live_{n}"));
            keys.client(&key, hash(&key)).unwrap();
        }
        assert_eq!(keys.known.lock().unwrap().len(), CAPACITY);
        let key = Secret::new(format!("ss_live_usw_{}", "x".repeat(32)));
        assert_eq!(keys.client(&key, hash(&key)).unwrap().base_url(), "https://api-usw.superserve.ai");
        assert_eq!(keys.platforms.lock().unwrap().len(), 2);
        let own = HttpConfig { base_url: Some("http://127.0.0.1:1".to_owned()), ..HttpConfig::default() };
        let keys = Keys::new(&own).unwrap();
        assert_eq!(keys.client(&key, hash(&key)).unwrap().base_url(), "http://127.0.0.1:1");
        assert_eq!(keys.platforms.lock().unwrap().len(), 1);
        assert!(!format!("{keys:?}").contains("usw_"));
    }
}
