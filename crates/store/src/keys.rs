//! API keys as text: `ss_live_` and 32 characters. Only a hash is ever stored; 192 random bits need no slow hash.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::Secret;
use sha2::{Digest, Sha256};

use crate::StoreError;

/// Random bytes of a key: 24 make exactly 32 characters of base64.
const RANDOM_BYTES: usize = 24;
/// Characters of a key that may be shown to tell keys apart: the fixed prefix and four more.
const SHOWN: usize = 12;

/// A key that has just been made; the only moment its text is known.
#[derive(Debug)]
pub struct NewKey {
    /// The key itself, to be shown once.
    pub key: Secret,
    /// What is stored.
    pub hash: String,
    /// The part that may be shown later.
    pub prefix: String,
}

/// Makes a key.
///
/// # Errors
/// [`StoreError::Random`] when the operating system has no random bytes.
pub fn generate() -> Result<NewKey, StoreError> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(StoreError::Random)?;
    let text = format!("ss_live_{}", URL_SAFE_NO_PAD.encode(random));
    let prefix = text[..SHOWN].to_owned();
    Ok(NewKey { hash: hash(&text), prefix, key: Secret::new(text) })
}

/// The stored form of a key: SHA-256 in hexadecimal.
#[must_use]
pub fn hash(key: &str) -> String {
    Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_published_form() {
        let made = generate().unwrap();
        let text = made.key.expose_secret();
        let rest = text.strip_prefix("ss_live_").unwrap();
        assert_eq!(rest.len(), 32);
        assert!(rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
        assert_eq!(made.hash, hash(text));
        assert!(text.starts_with(&made.prefix) && made.prefix.len() == 12);
        assert!(!format!("{made:?}").contains(rest));
        assert_ne!(text, generate().unwrap().key.expose_secret());
        assert_eq!(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
