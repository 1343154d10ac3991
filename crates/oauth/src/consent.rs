//! What a consent page carries from the request that showed it to the answer of whoever sees it: the whole request, sealed,
//! and bound to a cookie of that browser. A form that another site made, and one that was changed or is old, does not open.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use http::HeaderMap;
use http::header::COOKIE;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use uuid::Uuid;

/// Long enough to fetch a key from somewhere.
pub(crate) const LIFE: SignedDuration = SignedDuration::from_mins(15);
const NONCE_BYTES: usize = 32;

/// A request that may be shown and answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) client: Uuid,
    pub(crate) redirect_uri: String,
    pub(crate) state: Option<String>,
    pub(crate) challenge: String,
    /// Seconds since 1970.
    pub(crate) ends: i64,
}

/// A random value that only one browser has.
pub(crate) type Nonce = [u8; NONCE_BYTES];

/// Seals and opens.
pub(crate) struct Consent {
    key: [u8; 32],
}

impl std::fmt::Debug for Consent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consent").finish_non_exhaustive()
    }
}

impl Consent {
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        Ok(Self { key })
    }

    fn mac(&self, nonce: &Nonce, payload: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length");
        mac.update(nonce);
        mac.update(payload);
        mac
    }

    pub(crate) fn seal(&self, ask: &Ask, nonce: &Nonce) -> String {
        let payload = serde_json::to_vec(ask).expect("plain strings and numbers serialise");
        let mac = self.mac(nonce, &payload).finalize().into_bytes();
        format!("{}.{}", URL_SAFE_NO_PAD.encode(payload), URL_SAFE_NO_PAD.encode(mac))
    }

    pub(crate) fn open(&self, sealed: &str, nonce: &Nonce, now: Timestamp) -> Option<Ask> {
        let (payload, mac) = sealed.split_once('.')?;
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        self.mac(nonce, &payload).verify_slice(&mac).ok()?;
        serde_json::from_slice(&payload).ok().filter(|ask: &Ask| now.as_second() < ask.ends)
    }
}

/// The name says to browsers that no other host or port without TLS may set it.
fn cookie_name(https: bool) -> &'static str {
    if https { "__Host-superserve-consent" } else { "superserve-consent" }
}

pub(crate) fn fresh_nonce() -> Result<Nonce, getrandom::Error> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce)?;
    Ok(nonce)
}

/// The header that gives a browser its nonce. Lax: links of other sites find it, so that several pages share it; forms of
/// theirs do not send it.
pub(crate) fn set_cookie(nonce: &Nonce, https: bool) -> String {
    let (name, value, life) = (cookie_name(https), URL_SAFE_NO_PAD.encode(nonce), LIFE.as_secs());
    let secure = if https { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; Max-Age={life}; HttpOnly; SameSite=Lax{secure}")
}

/// The nonce that a browser has; several pages of one browser share it.
pub(crate) fn nonce(headers: &HeaderMap, https: bool) -> Option<Nonce> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut named = cookies
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| *name == cookie_name(https));
    let (_, value) = named.next()?;
    URL_SAFE_NO_PAD.decode(value).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_for_one_browser_unchanged_and_in_time() {
        let consent = Consent::new().unwrap();
        let ask = Ask {
            client: Uuid::new_v4(),
            redirect_uri: "https://a.example/cb".to_owned(),
            state: Some("x".to_owned()),
            challenge: "c".to_owned(),
            ends: 100,
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let sealed = consent.seal(&ask, &[1; 32]);
        assert_eq!(consent.open(&sealed, &[1; 32], at(99)).as_ref(), Some(&ask));
        assert_eq!(consent.open(&sealed, &[2; 32], at(99)), None);
        assert_eq!(consent.open(&sealed, &[1; 32], at(100)), None);
        assert_eq!(Consent::new().unwrap().open(&sealed, &[1; 32], at(99)), None);
        let other = consent.seal(&Ask { redirect_uri: "https://b.example/cb".to_owned(), ..ask }, &[2; 32]);
        let spliced = format!("{}.{}", other.split_once('.').unwrap().0, sealed.split_once('.').unwrap().1);
        for bad in ["", ".", "a.b", &sealed[1..], &spliced] {
            assert_eq!(consent.open(bad, &[1; 32], at(99)), None, "{bad}");
        }
        let mut headers = HeaderMap::new();
        let cookie = set_cookie(&[7; 32], true);
        headers.append(COOKIE, format!("a=b; {}", cookie.split_once(';').unwrap().0).parse().unwrap());
        assert_eq!((nonce(&headers, true), nonce(&headers, false)), (Some([7; 32]), None));
    }
}
