//! Data-plane tokens (`spec/data-plane.md` §2): `<epoch>-<issued ms>-<HMAC>`, all hexadecimal, so that a token is legal
//! inside `Sec-WebSocket-Protocol`. Nothing but two numbers is stored; the text is derived when it is asked for.
//!
//! A token opens its sandbox while its epoch is the current one (each resume begins a new one) and it is the newest or
//! younger than an hour.

use domain::{SandboxId, Secret};
use hmac::{Hmac, Mac};
use jiff::Timestamp;
use sha2::Sha256;
use store::TokenNumbers;
use subtle::ConstantTimeEq;

/// How long a token is good after a newer one was issued (`spec/data-plane.md` §11.4).
const OVERLAP_MS: i64 = 3_600_000;
/// Longer texts are no tokens: 16 + 1 + 16 + 1 + 64 characters at most.
const LONGEST: usize = 98;

/// The key tokens are derived with; it never prints.
#[derive(Clone)]
pub(crate) struct TokenKey([u8; 32]);

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey(****)")
    }
}

impl TokenKey {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    fn mac(&self, id: SandboxId, numbers: TokenNumbers) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(format!("{id}|{}|{}", numbers.epoch, numbers.issued_ms).as_bytes());
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The token these numbers stand for.
    pub(crate) fn token(&self, id: SandboxId, numbers: TokenNumbers) -> Secret {
        let TokenNumbers { epoch, issued_ms } = numbers;
        Secret::new(format!("{epoch:x}-{issued_ms:x}-{}", self.mac(id, numbers)))
    }

    /// Whether a text opens the sandbox whose newest token has these numbers.
    pub(crate) fn admits(&self, id: SandboxId, newest: TokenNumbers, text: &str, now: Timestamp) -> bool {
        let Some((numbers, mac)) = parse(text) else { return false };
        let genuine = bool::from(self.mac(id, numbers).as_bytes().ct_eq(mac.as_bytes()));
        let fresh = numbers.issued_ms == newest.issued_ms
            || now.as_millisecond().saturating_sub(numbers.issued_ms) < OVERLAP_MS;
        genuine && numbers.epoch == newest.epoch && fresh
    }
}

fn parse(text: &str) -> Option<(TokenNumbers, &str)> {
    if text.len() > LONGEST {
        return None;
    }
    let (epoch, rest) = text.split_once('-')?;
    let (issued, mac) = rest.split_once('-')?;
    let issued_ms = i64::from_str_radix(issued, 16).ok()?;
    Some((TokenNumbers { epoch: u64::from_str_radix(epoch, 16).ok()?, issued_ms }, mac))
}

/// Numbers of the next token of the same epoch; later than the last even when the clock stood still or went back.
pub(crate) fn reissued(last: TokenNumbers, now: Timestamp) -> TokenNumbers {
    TokenNumbers { issued_ms: now.as_millisecond().max(last.issued_ms + 1), ..last }
}

/// Numbers of the first token of the next epoch.
pub(crate) fn next_epoch(last: TokenNumbers, now: Timestamp) -> TokenNumbers {
    TokenNumbers { epoch: last.epoch + 1, ..reissued(last, now) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + ms).unwrap()
    }

    #[test]
    fn tokens_live_as_long_as_they_should() {
        let (key, id) = (TokenKey::new([7; 32]), SandboxId::new());
        let first = next_epoch(TokenNumbers { epoch: 0, issued_ms: 0 }, at(0));
        let text = key.token(id, first);
        let text = text.expose_secret();
        assert!(text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') && text.len() <= LONGEST, "{text}");
        // The newest has no end of its own.
        assert!(key.admits(id, first, text, at(0)));
        assert!(key.admits(id, first, text, at(OVERLAP_MS * 50)));
        // An older one has its hour.
        let second = reissued(first, at(0));
        assert_ne!(second, first, "two tokens within a millisecond differ");
        assert!(key.admits(id, second, text, at(OVERLAP_MS - 1)));
        assert!(!key.admits(id, second, text, at(OVERLAP_MS)));
        // A resume ends them all.
        assert!(!key.admits(id, next_epoch(first, at(1)), text, at(1)));
        // Another sandbox, another key, another text.
        assert!(!key.admits(SandboxId::new(), first, text, at(0)));
        assert!(!TokenKey::new([8; 32]).admits(id, first, text, at(0)));
        let forged = TokenNumbers { issued_ms: first.issued_ms + 5, ..first };
        let forged =
            format!("{:x}-{:x}-{}", forged.epoch, forged.issued_ms, text.rsplit('-').next().unwrap());
        for bad in [
            "",
            "-",
            "--",
            "1-2-3",
            &forged,
            &format!("{text}0"),
            &"a".repeat(5000),
            "é-1-2",
            &text.to_uppercase(),
        ] {
            assert!(!key.admits(id, first, bad, at(0)), "{bad}");
        }
    }
}
