//! Preview tokens (`spec/data-plane.md` §9): `spv1-<generation>-<end>-<nonce>-<HMAC>`, all hexadecimal, so that a token
//! is legal in a query and in a header. Nothing is stored: sandbox and port are named by whoever shows the token, the
//! generation is the port's, and the end is seconds since 1970 (0 for never). The nonce makes each token a new one.

use domain::{PreviewPort, Published, SandboxId, Secret};
use hmac::{Hmac, Mac};
use jiff::Timestamp;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// First part of every token.
const VERSION: &str = "spv1";
/// Longer texts are no tokens: 4 + 16 + 16 + 32 + 64 characters and four dashes.
const LONGEST: usize = 136;

/// What a preview token is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviewAdmission {
    /// It opens the port, until then if it ends by itself.
    Granted(Option<Timestamp>),
    /// It did, until its end came.
    Expired,
    /// It does not.
    Denied,
}

/// The key preview tokens are derived with; it never prints.
#[derive(Clone)]
pub(crate) struct PreviewKey([u8; 32]);

impl std::fmt::Debug for PreviewKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PreviewKey(****)")
    }
}

impl PreviewKey {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    fn mac(&self, id: SandboxId, port: PreviewPort, signed: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(format!("{id}|{port}|{signed}").as_bytes());
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A new token of this generation, which ends at a whole second or never.
    pub(crate) fn token(
        &self,
        id: SandboxId,
        port: PreviewPort,
        generation: u64,
        end: Option<Timestamp>,
    ) -> Secret {
        let end = end.map_or(0, Timestamp::as_second);
        let signed = format!("{VERSION}-{generation:x}-{end:x}-{}", Uuid::new_v4().simple());
        Secret::new(format!("{signed}-{}", self.mac(id, port, &signed)))
    }

    /// What a text is worth at a port that is published like this.
    pub(crate) fn admits(
        &self,
        id: SandboxId,
        port: PreviewPort,
        published: Published,
        text: &str,
        now: Timestamp,
    ) -> PreviewAdmission {
        let Some((signed, mac)) = Some(text).filter(|t| t.len() <= LONGEST).and_then(|t| t.rsplit_once('-'))
        else {
            return PreviewAdmission::Denied;
        };
        if !bool::from(self.mac(id, port, signed).as_bytes().ct_eq(mac.as_bytes())) {
            return PreviewAdmission::Denied;
        }
        // From here on it is a text of ours.
        let Some((generation, end)) = parse(signed) else { return PreviewAdmission::Denied };
        if generation != published.generation {
            return PreviewAdmission::Denied;
        }
        match end {
            0 => PreviewAdmission::Granted(None),
            end if now.as_second() >= end => PreviewAdmission::Expired,
            end => PreviewAdmission::Granted(Timestamp::from_second(end).ok()),
        }
    }
}

fn parse(signed: &str) -> Option<(u64, i64)> {
    let mut parts = signed.split('-');
    let version = parts.next()?;
    let generation = u64::from_str_radix(parts.next()?, 16).ok()?;
    let end = i64::from_str_radix(parts.next()?, 16).ok()?;
    (version == VERSION).then_some((generation, end))
}

#[cfg(test)]
mod tests {
    use domain::PreviewAccess;

    use super::*;

    #[test]
    fn a_token_is_for_one_port_one_generation_and_one_time() {
        let (key, id) = (PreviewKey::new([7; 32]), SandboxId::new());
        let port = |number| PreviewPort::new(number).unwrap();
        let at = |second| Timestamp::from_second(1_700_000_000 + second).unwrap();
        let published = |generation| Published { access: PreviewAccess::Private, generation };
        let token = key.token(id, port(3000), 4, Some(at(60)));
        let text = token.expose_secret();
        assert!(
            text.len() <= LONGEST && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
            "{text}"
        );
        let check = |key: &PreviewKey, id, number, generation, text: &str, now| {
            key.admits(id, port(number), published(generation), text, at(now))
        };
        assert_eq!(check(&key, id, 3000, 4, text, 59), PreviewAdmission::Granted(Some(at(60))));
        assert_eq!(check(&key, id, 3000, 4, text, 60), PreviewAdmission::Expired);
        // Whoever may not come in any more for another reason is not told that the time was over.
        for (wrong_id, number, generation) in
            [(SandboxId::new(), 3000, 4), (id, 3001, 4), (id, 3000, 3), (id, 3000, 5)]
        {
            for now in [59, 60] {
                assert_eq!(check(&key, wrong_id, number, generation, text, now), PreviewAdmission::Denied);
            }
        }
        assert_eq!(check(&PreviewKey::new([8; 32]), id, 3000, 4, text, 0), PreviewAdmission::Denied);
        let later =
            text.replacen(&format!("{:x}", at(60).as_second()), &format!("{:x}", at(99).as_second()), 1);
        assert_ne!(later, text);
        let long = "a".repeat(5000);
        for bad in
            ["", "-", "spv1", "spv1-4-0-", &later, &format!("{text}0"), &text.to_uppercase(), &long, "é-1"]
        {
            assert_eq!(check(&key, id, 3000, 4, bad, 0), PreviewAdmission::Denied, "{bad}");
        }
        let forever = key.token(id, port(3000), 4, None);
        assert_eq!(
            check(&key, id, 3000, 4, forever.expose_secret(), i64::from(u32::MAX)),
            PreviewAdmission::Granted(None)
        );
        assert_ne!(
            key.token(id, port(3000), 4, None).expose_secret(),
            forever.expose_secret(),
            "each is new"
        );
    }
}
