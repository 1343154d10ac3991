//! The key of a request. Only its form is judged here; whether it works shows at the first call (`spec/mcp.md` §B.3).

use domain::Secret;
use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::refusal::Refusal;

/// No key is nearly as long; a longer text is a mistake or an attack.
const MAX_TOKEN_BYTES: usize = 4096;

/// The bearer token.
pub(super) fn token(headers: &HeaderMap) -> Result<Secret, Refusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(Refusal::NoKey) };
    // Not `to_str`: that a token is not ASCII is to be told from that there is none.
    let value = value.as_bytes().trim_ascii();
    let Some(split) = value.iter().position(|byte| matches!(byte, b' ' | b'\t')) else {
        return Err(Refusal::NoKey);
    };
    let (scheme, token) = value.split_at(split);
    let token = token.trim_ascii();
    if !scheme.eq_ignore_ascii_case(b"bearer") || token.is_empty() {
        return Err(Refusal::NoKey);
    }
    match std::str::from_utf8(token) {
        Ok(text) if token.len() <= MAX_TOKEN_BYTES && token.iter().all(u8::is_ascii_graphic) => {
            Ok(Secret::new(text))
        }
        _ => Err(Refusal::UnusableKey),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn parse(value: &[u8]) -> Result<String, Refusal> {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap())]);
        token(&headers).map(|token| token.expose_secret().to_owned())
    }

    #[test]
    fn forms() {
        for good in ["Bearer k", "bearer k", "BEARER  \t k", "  Bearer k  ", "Bearer\tk"] {
            assert_eq!(parse(good.as_bytes()), Ok("k".to_owned()), "{good:?}");
        }
        for none in ["", "Basic a2s=", "Bearer", "Bearer   ", "Bearerk", "k", "Bearers k"] {
            assert_eq!(parse(none.as_bytes()), Err(Refusal::NoKey), "{none:?}");
        }
        assert_eq!(token(&HeaderMap::new()).unwrap_err(), Refusal::NoKey);
        let long = format!("Bearer {}", "k".repeat(MAX_TOKEN_BYTES + 1));
        for bad in [&b"Bearer k\xc3\xbc"[..], b"Bearer \xff", b"Bearer a b", b"Bearer a\tb", long.as_bytes()]
        {
            assert_eq!(parse(bad), Err(Refusal::UnusableKey), "{bad:?}");
        }
        assert!(parse(&long.as_bytes()[..long.len() - 1]).is_ok());
        let mut two = HeaderMap::new();
        two.append(AUTHORIZATION, HeaderValue::from_static("Bearer a"));
        two.append(AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        assert_eq!(token(&two).unwrap_err(), Refusal::NoKey);
    }
}
