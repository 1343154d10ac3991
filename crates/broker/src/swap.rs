//! From a stand-in to a value: which stand-ins a request carries, whether they may be used here, and the request with the
//! values in place. Judging is pure; values are only asked for when nothing is refused.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::{AuthScheme, BoundSecret, Credentials, NoValue, SandboxId, Secret, SecretId, VALUE_PLACE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::reason::{Reason, Refused};

/// What needs no escape in a URL (RFC 3986 §2.3).
pub(crate) const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Lengths of what could be a stand-in of another sandbox: the shortest form has 26 characters, the longest 85.
const STAND_IN_LENGTH: std::ops::RangeInclusive<usize> = 20..=128;
/// So many of them are looked up for one request; more are no credentials.
const MAX_CANDIDATES: usize = 64;
/// Schemes of `Authorization` that are one token. `token` is the other name GitHub's clients use.
const TOKEN_SCHEMES: [(&str, &str); 2] = [("bearer", "Bearer "), ("token", "token ")];
/// What stands in place of a password when the token is the user name.
const NO_PASSWORD: [&str; 2] = ["", "x-oauth-basic"];

/// What is done with a request.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    uses: Vec<Use>,
}

/// A stand-in at a place where its value goes.
#[derive(Debug)]
struct Use {
    bound: BoundSecret,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// The header at this position of the map.
    Header(usize, Form),
    /// Everywhere in the query.
    Query,
}

/// How a header's value is made of a secret's.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    /// This, then the value.
    After(String),
    /// `Basic`, with this user.
    Basic { user: String },
    /// `Basic`, with the value as user and this password.
    BasicUser { password: String },
    /// The value at its place in this.
    Template(String),
}

/// A value that has been put into a request, and in which form.
pub(crate) struct Used {
    pub(crate) bound: BoundSecret,
    pub(crate) value: Secret,
    /// What went out as `Basic` credentials, and what had come in.
    pub(crate) basic: Option<(Secret, String)>,
}

impl Judgement {
    /// The secrets whose values will be used, each once.
    pub(crate) fn secrets(&self) -> Vec<SecretId> {
        let mut all = Vec::new();
        for one in &self.uses {
            if !all.contains(&one.bound.secret) {
                all.push(one.bound.secret);
            }
        }
        all
    }
}

/// Finds all stand-ins of a request to `host` and says whether they may be used.
pub(crate) fn judge(
    parts: &Parts,
    host: &str,
    sandbox: SandboxId,
    bound: &[BoundSecret],
    credentials: &dyn Credentials,
) -> Result<Judgement, Refused> {
    let mut judgement = Judgement::default();
    // A guest makes many headers of few bytes, so each is taken apart once.
    let decoded: Vec<String> =
        parts.headers.values().filter_map(basic_of).flat_map(|(user, password)| [user, password]).collect();
    for one in bound {
        let stand_in = one.stand_in.as_str();
        let in_query =
            one.policy.options.in_query && parts.uri.query().is_some_and(|query| query.contains(stand_in));
        let mentioned = parts.headers.values().any(|value| contains(value.as_bytes(), stand_in.as_bytes()))
            || decoded.iter().any(|text| text.contains(stand_in));
        if !in_query && !mentioned {
            continue;
        }
        let scheme = scheme_of(one, sandbox, host)?;
        let forms = parts.headers.iter().enumerate().filter_map(|(at, (name, value))| {
            recognise(scheme, name, value, stand_in).map(|form| Place::Header(at, form))
        });
        let places = forms.chain(in_query.then_some(Place::Query));
        judgement.uses.extend(places.map(|place| Use { bound: one.clone(), place }));
    }
    for candidate in candidates(&parts.headers) {
        if bound.iter().any(|one| one.stand_in.as_str() == candidate) {
            continue;
        }
        if let Some(stranger) = credentials.find(&candidate) {
            // One of this sandbox that was bound a moment ago goes the usual way with the next request.
            scheme_of(&stranger, sandbox, host)?;
        }
    }
    Ok(judgement)
}

/// How a stand-in is used at this host by this sandbox.
fn scheme_of<'a>(one: &'a BoundSecret, sandbox: SandboxId, host: &str) -> Result<&'a AuthScheme, Refused> {
    let refused = |reason, detail: &str| Err(Refused::new(reason, detail).about(one.secret));
    if one.sandbox != sandbox {
        return refused(Reason::SandboxRevoked, "it carries the stand-in token of another sandbox");
    }
    if one.revoked {
        return refused(
            Reason::CredentialRevoked,
            "it carries the stand-in token of a secret that was deleted or is no longer bound to this sandbox",
        );
    }
    if !one.policy.covers(host) {
        return refused(
            Reason::CredentialHostMismatch,
            "it carries the stand-in token of a secret that may not be sent to this host",
        );
    }
    match one.policy.scheme_for(host) {
        Some(scheme) => Ok(scheme),
        None => refused(Reason::UnmatchedHostDenied, "the secret has no rule for this host"),
    }
}

pub(crate) fn contains(bytes: &[u8], text: &[u8]) -> bool {
    !text.is_empty() && memchr::memmem::find(bytes, text).is_some()
}

/// What could be somebody's stand-in: words of headers, and the parts of `Basic` credentials. It need not find all, since
/// nothing but this sandbox's own is ever exchanged.
fn candidates(headers: &HeaderMap) -> Vec<String> {
    let mut found = Vec::new();
    let mut take = |text: &str| {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        for word in words.filter(|word| STAND_IN_LENGTH.contains(&word.len())) {
            if found.len() < MAX_CANDIDATES {
                found.push(word.to_owned());
            }
        }
    };
    // First where credentials are.
    let (likely, others): (Vec<_>, Vec<_>) =
        headers.iter().partition(|(name, _)| *name == header::AUTHORIZATION);
    for (_, value) in likely.into_iter().chain(others) {
        if let Some((user, password)) = basic_of(value) {
            take(&user);
            take(&password);
        } else if let Ok(text) = value.to_str() {
            take(text);
        }
    }
    found
}

/// User and password.
fn basic_of(value: &HeaderValue) -> Option<(String, String)> {
    let (scheme, rest) = value.to_str().ok()?.trim().split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?;
    decoded.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
}

/// Whether this header is the scheme's, with the stand-in in the form it asks for.
fn recognise(scheme: &AuthScheme, name: &HeaderName, value: &HeaderValue, stand_in: &str) -> Option<Form> {
    let named = |wanted: &str| name.as_str().eq_ignore_ascii_case(wanted);
    let text = value.to_str().ok()?.trim();
    match scheme {
        AuthScheme::Bearer => {
            let (word, token) = (*name == header::AUTHORIZATION).then(|| text.split_once(' ')).flatten()?;
            let (_, sent) = TOKEN_SCHEMES.iter().find(|(known, _)| word.eq_ignore_ascii_case(known))?;
            (token.trim() == stand_in).then(|| Form::After((*sent).to_owned()))
        }
        AuthScheme::Basic { username } => {
            let (user, password) = (*name == header::AUTHORIZATION).then(|| basic_of(value)).flatten()?;
            if password == stand_in {
                let own = username.clone().or(Some(user).filter(|user| !user.is_empty()));
                return Some(Form::Basic { user: own.unwrap_or_else(|| "x".to_owned()) });
            }
            if user != stand_in || !NO_PASSWORD.contains(&password.as_str()) {
                return None;
            }
            Some(match username {
                Some(own) => Form::Basic { user: own.clone() },
                None => Form::BasicUser { password },
            })
        }
        AuthScheme::ApiKey { header, prefix } => {
            let prefix = prefix.as_deref().unwrap_or_default();
            let token = text.strip_prefix(prefix.trim_start()).filter(|token| *token == stand_in);
            (named(header) && (token.is_some() || text == stand_in)).then(|| Form::After(prefix.to_owned()))
        }
        AuthScheme::Custom { headers } => {
            let mut templates =
                headers.iter().filter(|(header, _)| named(header)).map(|(_, template)| template);
            let found = templates.find(|template| template.replace(VALUE_PLACE, stand_in).trim() == text)?;
            Some(Form::Template(found.clone()))
        }
    }
}

/// Puts the values in. On an error the request must not be sent.
pub(crate) fn apply(
    parts: &mut Parts,
    judgement: Judgement,
    credentials: &dyn Credentials,
) -> Result<Vec<Used>, Refused> {
    let mut all: Vec<Used> = Vec::new();
    for Use { bound, place } in judgement.uses {
        let secret = bound.secret;
        let value = value_of(&bound, credentials)?;
        let basic = match place {
            Place::Header(at, form) => put(&mut parts.headers, at, &form, &value),
            Place::Query => put_query(&mut parts.uri, bound.stand_in.as_str(), &value).map(|()| None),
        };
        let basic = basic.ok_or_else(|| {
            Refused::new(Reason::InjectError, "the secret's value cannot stand in a request").about(secret)
        })?;
        all.push(Used { bound, value, basic });
    }
    Ok(all)
}

/// The value behind a stand-in, now.
pub(crate) fn value_of(bound: &BoundSecret, credentials: &dyn Credentials) -> Result<Secret, Refused> {
    credentials.value(bound).map_err(|why| {
        let (reason, detail) = match why {
            NoValue::Revoked => {
                (Reason::CredentialRevoked, "the secret was deleted or is no longer bound to this sandbox")
            }
            NoValue::Unavailable => (Reason::InjectError, "the secret's value cannot be read"),
        };
        Refused::new(reason, detail).about(bound.secret)
    })
}

type Basic = Option<(Secret, String)>;

fn put(headers: &mut HeaderMap, at: usize, form: &Form, value: &Secret) -> Option<Basic> {
    let header = headers.iter_mut().nth(at)?.1;
    let value = value.expose_secret();
    let encode = |user: &str, password: &str| STANDARD.encode(format!("{user}:{password}"));
    let (text, basic) = match form {
        Form::After(prefix) => (format!("{prefix}{value}"), None),
        Form::Template(template) => (template.replace(VALUE_PLACE, value), None),
        Form::Basic { user } => (encode(user, value), Some(())),
        Form::BasicUser { password } => (encode(value, password), Some(())),
    };
    let basic = basic.map(|()| {
        let came = header.to_str().ok().and_then(|text| text.trim().split_once(' '));
        (Secret::new(text.clone()), came.map(|(_, came)| came.trim().to_owned()).unwrap_or_default())
    });
    let text = if basic.is_some() { format!("Basic {text}") } else { text };
    let mut new = HeaderValue::from_bytes(text.as_bytes()).ok()?;
    // Keeps it out of the tables by which HTTP/2 compresses headers, and out of `Debug`.
    new.set_sensitive(true);
    *header = new;
    Some(basic)
}

fn put_query(uri: &mut Uri, stand_in: &str, value: &Secret) -> Option<()> {
    let escaped = utf8_percent_encode(value.expose_secret(), ESCAPED).to_string();
    let query = uri.query()?.replace(stand_in, &escaped);
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{}?{query}", uri.path())).ok()?);
    *uri = Uri::from_parts(parts).ok()?;
    Some(())
}

#[cfg(test)]
mod tests;
