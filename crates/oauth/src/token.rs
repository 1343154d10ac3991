//! Codes and tokens. Each is derived from a grant, a generation and an end, with a MAC that also covers its kind and the
//! audience: nothing that opens anything has to be stored, and a token of another kind, server or audience is not one.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::Secret;
use hmac::{Hmac, Mac};
use jiff::Timestamp;
use sha2::Sha256;
use uuid::Uuid;

/// What every text made here begins with, so that it is never taken for a key.
pub const PREFIX: &str = "ss_oauth_";
const BODY_BYTES: usize = 1 + 16 + 4 + 8;
const MAC_BYTES: usize = 32;
/// Base64 of both.
const TEXT_CHARS: usize = (BODY_BYTES + MAC_BYTES).div_ceil(3) * 4;

/// What a text is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Becomes the first pair of tokens, once.
    Code = 1,
    /// Opens the MCP endpoint.
    Access = 2,
    /// Becomes the next pair of tokens.
    Refresh = 3,
    /// Stands for the grant's key inside this process; no client ever has one.
    Delegation = 4,
}

/// One of them, opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) grant: Uuid,
    pub(crate) generation: u32,
    /// Seconds since 1970.
    pub(crate) ends: i64,
}

impl Token {
    pub(crate) fn expired(&self, now: Timestamp) -> bool {
        self.ends <= now.as_second()
    }
}

/// Makes and opens them, for one audience.
#[derive(Clone)]
pub(crate) struct Mint {
    key: [u8; 32],
    audience: String,
}

impl std::fmt::Debug for Mint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mint").field("audience", &self.audience).finish_non_exhaustive()
    }
}

impl Mint {
    pub(crate) fn new(key: [u8; 32], audience: &str) -> Self {
        Self { key, audience: audience.to_owned() }
    }

    fn mac(&self, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length");
        mac.update(body);
        mac.update(self.audience.as_bytes());
        mac
    }

    pub(crate) fn make(&self, token: &Token) -> Secret {
        let mut bytes = Vec::with_capacity(BODY_BYTES + MAC_BYTES);
        bytes.push(token.kind as u8);
        bytes.extend_from_slice(token.grant.as_bytes());
        bytes.extend_from_slice(&token.generation.to_be_bytes());
        bytes.extend_from_slice(&token.ends.to_be_bytes());
        let mac = self.mac(&bytes).finalize().into_bytes();
        bytes.extend_from_slice(&mac);
        Secret::new(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// `None` unless it was made here, for this audience, as one of this kind.
    pub(crate) fn open(&self, text: &str, kind: Kind) -> Option<Token> {
        let text = text.strip_prefix(PREFIX).filter(|text| text.len() <= TEXT_CHARS)?;
        let bytes = URL_SAFE_NO_PAD.decode(text).ok().filter(|b| b.len() == BODY_BYTES + MAC_BYTES)?;
        let (body, mac) = bytes.split_at(BODY_BYTES);
        // Constant time.
        self.mac(body).verify_slice(mac).ok()?;
        let (first, rest) = body.split_first()?;
        let (grant, rest) = rest.split_at(16);
        let (generation, ends) = rest.split_at(4);
        (*first == kind as u8).then_some(Token {
            kind,
            grant: Uuid::from_slice(grant).ok()?,
            generation: u32::from_be_bytes(generation.try_into().ok()?),
            ends: i64::from_be_bytes(ends.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_for_one_purpose_and_one_audience() {
        let mint = Mint::new([1; 32], "https://a.example/mcp");
        let token = Token { kind: Kind::Access, grant: Uuid::new_v4(), generation: 7, ends: 1_000 };
        let made = mint.make(&token);
        let text = made.expose_secret();
        assert_eq!(mint.open(text, Kind::Access), Some(token));
        for kind in [Kind::Code, Kind::Refresh, Kind::Delegation] {
            assert_eq!(mint.open(text, kind), None);
        }
        assert_eq!(Mint::new([1; 32], "https://b.example/mcp").open(text, Kind::Access), None);
        assert_eq!(Mint::new([2; 32], "https://a.example/mcp").open(text, Kind::Access), None);
        for (at, _) in text.char_indices() {
            let mut other = text.to_owned();
            let new = if &other[at..=at] == "A" { "B" } else { "A" };
            other.replace_range(at..=at, new);
            // The last character has bits that base64 does not use; a decoder that ignored them would accept two texts.
            assert_eq!(mint.open(&other, Kind::Access), None, "changed at {at}");
        }
        for bad in
            ["", PREFIX, "ss_live_x", &text[..text.len() - 1], &format!("{text}A"), &format!("{text}=")]
        {
            assert_eq!(mint.open(bad, Kind::Access), None, "{bad}");
        }
        assert!(!format!("{mint:?}{made:?}").contains("[1, 1"));
        assert!(!token.expired(Timestamp::from_second(999).unwrap()));
        assert!(token.expired(Timestamp::from_second(1_000).unwrap()));
    }
}
