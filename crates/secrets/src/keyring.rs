//! Envelope encryption: each value is sealed with a key of its own, which is sealed with the platform's. Both seals are tied
//! to the secret they belong to, so that rows cannot be exchanged in the database. Replacing the platform's key seals the
//! small keys anew and leaves the values alone.

use std::fmt;

use domain::{Secret, SecretId};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use store::Sealed;
use uuid::Uuid;
use zeroize::{Zeroize, Zeroizing};

use crate::SecretsError;

/// Length of a key.
pub const KEY_BYTES: usize = 32;
const VALUE_PURPOSE: &[u8] = b"superserve secret value v1";
const KEY_PURPOSE: &[u8] = b"superserve secret key v1";

/// The platform's keys by name: the first seals, all open.
pub struct Keyring(Vec<(String, LessSafeKey)>);

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Keyring {
    /// Takes keys, the one that seals first.
    ///
    /// # Errors
    /// [`SecretsError::Empty`] without any.
    pub fn new(keys: &[(String, Zeroizing<[u8; KEY_BYTES]>)]) -> Result<Self, SecretsError> {
        if keys.is_empty() {
            return Err(SecretsError::Empty);
        }
        let key = |(name, bytes): &(String, Zeroizing<[u8; KEY_BYTES]>)| Ok((name.clone(), cipher(bytes)?));
        keys.iter().map(key).collect::<Result<_, _>>().map(Self)
    }

    /// Whether what this key sealed can be opened.
    #[must_use]
    pub fn knows(&self, by: &str) -> bool {
        self.0.iter().any(|(name, _)| name == by)
    }

    /// Seals a value with a new key of its own.
    ///
    /// # Errors
    /// Without random bytes.
    pub fn seal(&self, id: SecretId, value: &Secret) -> Result<Sealed, SecretsError> {
        let mut own = Zeroizing::new([0_u8; KEY_BYTES]);
        getrandom::fill(&mut *own).map_err(SecretsError::Random)?;
        let sealed = seal(&cipher(&own)?, VALUE_PURPOSE, id, value.expose_secret().as_bytes())?;
        let (by, key) = &self.0[0];
        Ok(Sealed { by: by.clone(), key: seal(key, KEY_PURPOSE, id, &*own)?, value: sealed })
    }

    /// Opens a value.
    ///
    /// # Errors
    /// [`SecretsError::NoKey`], [`SecretsError::Damaged`].
    pub fn open(&self, id: SecretId, sealed: &Sealed) -> Result<Secret, SecretsError> {
        let own = self.own_key(id, sealed)?;
        let bytes = open(&cipher(&own)?, VALUE_PURPOSE, id, &sealed.value)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Secret::new(text)),
            Err(_) => Err(SecretsError::Damaged),
        }
    }

    /// The same value, its key sealed with the key that seals now.
    ///
    /// # Errors
    /// As [`Keyring::open`].
    pub fn rewrap(&self, id: SecretId, sealed: &Sealed) -> Result<Sealed, SecretsError> {
        let own = self.own_key(id, sealed)?;
        let (by, key) = &self.0[0];
        Ok(Sealed { by: by.clone(), key: seal(key, KEY_PURPOSE, id, &*own)?, value: sealed.value.clone() })
    }

    fn own_key(&self, id: SecretId, sealed: &Sealed) -> Result<Zeroizing<[u8; KEY_BYTES]>, SecretsError> {
        let key = self.0.iter().find(|(name, _)| *name == sealed.by);
        let (_, key) = key.ok_or_else(|| SecretsError::NoKey { by: sealed.by.clone() })?;
        let bytes = open(key, KEY_PURPOSE, id, &sealed.key)?;
        let mut own = Zeroizing::new([0_u8; KEY_BYTES]);
        if bytes.len() != own.len() {
            return Err(SecretsError::Damaged);
        }
        own.copy_from_slice(&bytes);
        Ok(own)
    }
}

fn cipher(key: &[u8; KEY_BYTES]) -> Result<LessSafeKey, SecretsError> {
    UnboundKey::new(&AES_256_GCM, key).map(LessSafeKey::new).map_err(|_| SecretsError::Damaged)
}

fn tied_to(purpose: &[u8], id: SecretId) -> Aad<Vec<u8>> {
    Aad::from([purpose, Uuid::from(id).as_bytes()].concat())
}

/// The nonce, then what is sealed. A key of a value seals once; the platform's seals some thousand times with random nonces,
/// far below where two would meet.
fn seal(key: &LessSafeKey, purpose: &[u8], id: SecretId, plain: &[u8]) -> Result<Vec<u8>, SecretsError> {
    let mut nonce = [0_u8; NONCE_LEN];
    getrandom::fill(&mut nonce).map_err(SecretsError::Random)?;
    // Room for the tag, so that the plain text is never moved and left behind.
    let mut text = Vec::with_capacity(plain.len() + AES_256_GCM.tag_len());
    text.extend_from_slice(plain);
    let sealing =
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), tied_to(purpose, id), &mut text);
    if sealing.is_err() {
        text.zeroize();
        return Err(SecretsError::Damaged);
    }
    Ok([&nonce[..], &text].concat())
}

fn open(
    key: &LessSafeKey,
    purpose: &[u8],
    id: SecretId,
    sealed: &[u8],
) -> Result<Zeroizing<Vec<u8>>, SecretsError> {
    let (nonce, text) = sealed.split_at_checked(NONCE_LEN).ok_or(SecretsError::Damaged)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SecretsError::Damaged)?;
    let mut text = Zeroizing::new(text.to_vec());
    let length = key
        .open_in_place(nonce, tied_to(purpose, id), text.as_mut_slice())
        .map_err(|_| SecretsError::Damaged)?
        .len();
    text.truncate(length);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &[(&str, u8)]) -> Keyring {
        let keys: Vec<_> =
            names.iter().map(|(name, byte)| ((*name).to_owned(), Zeroizing::new([*byte; 32]))).collect();
        Keyring::new(&keys).unwrap()
    }

    #[test]
    fn only_the_right_key_opens_and_only_for_the_right_secret() {
        let (ring, id) = (keys(&[("a", 1)]), SecretId::new());
        let value = Secret::new("hunter2 ü");
        let sealed = ring.seal(id, &value).unwrap();
        assert_eq!(ring.open(id, &sealed).unwrap(), value);
        assert_ne!(ring.seal(id, &value).unwrap().value, sealed.value, "never the same twice");
        let hidden = [sealed.key.clone(), sealed.value.clone()].concat();
        assert!(!hidden.windows(4).any(|part| part == b"hunt"));
        assert!(matches!(ring.open(SecretId::new(), &sealed), Err(SecretsError::Damaged)));
        assert!(matches!(keys(&[("b", 1)]).open(id, &sealed), Err(SecretsError::NoKey { .. })));
        assert!(matches!(keys(&[("a", 2)]).open(id, &sealed), Err(SecretsError::Damaged)));
        for part in 0..sealed.value.len() {
            let mut changed = sealed.clone();
            changed.value[part] ^= 1;
            assert!(matches!(ring.open(id, &changed), Err(SecretsError::Damaged)), "{part}");
        }
        for bytes in [Vec::new(), vec![0; 12], vec![0; 40]] {
            let cut = Sealed { value: bytes.clone(), ..sealed.clone() };
            assert!(ring.open(id, &cut).is_err());
            assert!(ring.open(id, &Sealed { key: bytes, ..sealed.clone() }).is_err());
        }
    }

    #[test]
    fn a_new_key_seals_what_the_old_one_opens() {
        let (old, id) = (keys(&[("old", 1)]), SecretId::new());
        let value = Secret::new("hunter2");
        let sealed = old.seal(id, &value).unwrap();
        let both = keys(&[("new", 2), ("old", 1)]);
        let anew = both.rewrap(id, &sealed).unwrap();
        assert_eq!((anew.by.as_str(), &anew.value), ("new", &sealed.value));
        assert_eq!(keys(&[("new", 2)]).open(id, &anew).unwrap(), value);
        assert!(old.open(id, &anew).is_err());
        assert!(!format!("{both:?}").contains('2'), "names only");
    }
}
