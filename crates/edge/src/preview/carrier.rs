//! Where a visitor may show a preview token, and what is left of a request once it is taken out again (`spec/data-plane.md`
//! §9). Pure. What does not carry a token is left as it is, byte for byte.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;

/// Header that carries a token.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-superserve-preview-token");
/// Parameter of the query that carries a token.
const PARAM: &str = "superserve_preview_token";
/// Cookie that carries a token. The prefix makes browsers see to it that no other host can set it.
pub(super) const COOKIE: &str = "__Host-superserve_preview_token";
/// The same without TLS, which browsers permit on this machine only; the prefix needs TLS.
pub(super) const PLAIN_COOKIE: &str = "superserve_preview_token";
/// Tokens of one request that are looked at. Honest visitors show one or two; pages of other sandboxes may add cookies
/// without prefix to a request, which must not push the good one out.
const MAX_TOKENS: usize = 64;

/// Everything that looked like a token, by carrier.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// In the query: an address that should not stay in the browser's history.
    pub(super) query: Vec<String>,
    /// In the header or a cookie.
    pub(super) elsewhere: Vec<String>,
    /// The path and query without it; unset when the query has none.
    pub(super) clean: Option<String>,
}

/// Reads the tokens of a request. `plain_cookie` says whether the cookie without prefix counts here.
pub(super) fn tokens(target: Option<&PathAndQuery>, headers: &HeaderMap, plain_cookie: bool) -> Tokens {
    let mut tokens = Tokens::default();
    if let Some((path, query)) = target.and_then(|target| Some((target.path(), target.query()?))) {
        let mut kept = Vec::new();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if decoded(name) == PARAM {
                tokens.query.push(decoded(value));
            } else {
                kept.push(pair);
            }
        }
        if !tokens.query.is_empty() {
            let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
            tokens.clean = Some(format!("{path}{query}"));
        }
    }
    let values = headers.get_all(HEADER).iter().filter_map(|value| value.to_str().ok());
    tokens.elsewhere.extend(values.map(str::to_owned));
    for cookies in headers.get_all(header::COOKIE) {
        for cookie in cookies.as_bytes().split(|byte| *byte == b';') {
            let Ok(cookie) = std::str::from_utf8(cookie) else { continue };
            match cookie.trim().split_once('=') {
                Some((COOKIE, value)) => tokens.elsewhere.push(value.to_owned()),
                Some((PLAIN_COOKIE, value)) if plain_cookie => tokens.elsewhere.push(value.to_owned()),
                _ => {}
            }
        }
    }
    tokens.query.truncate(MAX_TOKENS);
    tokens.elsewhere.truncate(MAX_TOKENS);
    tokens
}

/// Takes the header and the cookies out. The other cookies become one line, which is what HTTP/1.1 wants and HTTP/2
/// may have split.
pub(super) fn strip(headers: &mut HeaderMap) {
    headers.remove(HEADER);
    let carries = |cookie: &[u8]| {
        let name = cookie.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
        name == COOKIE.as_bytes() || name == PLAIN_COOKIE.as_bytes()
    };
    let lines: Vec<HeaderValue> = headers.get_all(header::COOKIE).iter().cloned().collect();
    let segments = || lines.iter().map(|line| line.as_bytes().split(|byte| *byte == b';'));
    let touched = lines.len() > 1 || segments().flatten().any(carries);
    if !touched {
        return;
    }
    headers.remove(header::COOKIE);
    let kept = segments().filter_map(|line| {
        let kept: Vec<&[u8]> = line.filter(|cookie| !carries(cookie)).collect();
        let line = kept.join(&b';');
        (!line.trim_ascii().is_empty()).then(|| line.trim_ascii().to_vec())
    });
    let kept = kept.collect::<Vec<_>>().join(&b"; "[..]);
    if let Ok(value) = HeaderValue::from_bytes(&kept)
        && !value.is_empty()
    {
        headers.insert(header::COOKIE, value);
    }
}

/// A name or value of a query, decoded as servers decode it. What is no UTF-8 is no token either.
fn decoded(text: &str) -> String {
    let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, tail @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    bytes.push(high << 4 | low);
                    rest = tail;
                }
                _ => bytes.push(b'%'),
            },
            (other, _) => bytes.push(*other),
        }
    }
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_keeps_everything_else() {
        let check = |target: &str, found: &[&str], clean: Option<&str>| {
            let tokens = tokens(Some(&target.parse().unwrap()), &HeaderMap::new(), false);
            assert_eq!(tokens.query, found, "{target}");
            assert_eq!(tokens.clean.as_deref(), clean, "{target}");
        };
        check("/", &[], None);
        check("/?", &[], None);
        check("/a%2Fb?x=1&x=2&&y=%26+%2f", &[], None);
        check("/?superserve_preview_token=t", &["t"], Some("/"));
        check(
            "/a%2Fb//c?x=1&superserve_preview_token=t&x=1&&y=%26+%2f;z",
            &["t"],
            Some("/a%2Fb//c?x=1&x=1&&y=%26+%2f;z"),
        );
        check("/?superserve_preview_token=a&b&superserve_preview_token=c", &["a", "c"], Some("/?b"));
        check("/?superserve%5fpreview%5Ftoken=%74", &["t"], Some("/"));
        check("/?superserve_preview_token", &[""], Some("/"));
        check("/?Superserve_Preview_Token=t&xsuperserve_preview_token=t", &[], None);
        check("/?superserve_preview_token=%ff%zz%", &[""], Some("/"));
        let many = "superserve_preview_token=t&".repeat(100);
        let found = tokens(Some(&format!("/?{many}x").parse().unwrap()), &HeaderMap::new(), false);
        assert_eq!(
            (found.query.len(), found.clean.as_deref()),
            (MAX_TOKENS, Some("/?x")),
            "all go, few are tried"
        );
    }

    #[test]
    fn only_the_cookie_that_carries_goes() {
        let check = |lines: &[&str], found: &[&str], left: Option<&str>| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
            }
            headers.append(HEADER, HeaderValue::from_static("h"));
            let tokens = tokens(None, &headers, true);
            assert_eq!(tokens.elsewhere[1..], *found, "{lines:?}");
            strip(&mut headers);
            let got: Vec<_> = headers.get_all(header::COOKIE).iter().collect();
            assert_eq!(got, left.into_iter().collect::<Vec<_>>(), "{lines:?}");
            assert!(!headers.contains_key(HEADER));
        };
        check(&["a=1;  b=\"x y\" ;c"], &[], Some("a=1;  b=\"x y\" ;c"));
        check(&["__Host-superserve_preview_token=t"], &["t"], None);
        check(&["a=1; __Host-superserve_preview_token=t; b==2"], &["t"], Some("a=1; b==2"));
        check(&["superserve_preview_token=p; a=1"], &["p"], Some("a=1"));
        check(&["a=1", "__Host-superserve_preview_token=t", "b=2"], &["t"], Some("a=1; b=2"));
        check(
            &["x__Host-superserve_preview_token=t; a=\u{e9}"],
            &[],
            Some("x__Host-superserve_preview_token=t; a=\u{e9}"),
        );
    }

    #[test]
    fn the_plain_cookie_counts_on_this_machine_only() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("superserve_preview_token=p"));
        assert!(tokens(None, &headers, false).elsewhere.is_empty());
        strip(&mut headers);
        assert!(headers.is_empty());
    }
}
