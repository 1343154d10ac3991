//! Stand-ins for values, in the headers of one request (`spec/semantics.md` §6.3). Plain data in, plain data out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::{
    AuthScheme, BoundSecret, Credentials, NoValue, SandboxId, Secret, SecretId, StandIn, VALUE_PLACE,
};
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use crate::name::Name;

/// Longest header value that is looked at for stand-ins of others; tokens are shorter.
const MAX_TOKEN: usize = 1_024;

/// A value that a request carries.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) secret: SecretId,
    stand_in: StandIn,
    value: Secret,
}

/// Why a request is not sent (`spec/semantics.md` §6.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) status: StatusCode,
    /// Whose stand-in it was.
    pub(super) secret: Option<SecretId>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, reason: &'static str) -> Self {
        Self { reason, status, secret: None }
    }

    fn of(secret: SecretId, status: StatusCode, reason: &'static str) -> Self {
        Self { reason, status, secret: Some(secret) }
    }
}

/// Puts values where stand-ins are. On a refusal nothing of the request may be sent.
pub(super) fn swap(
    headers: &mut HeaderMap,
    host: &Name,
    sandbox: SandboxId,
    credentials: &dyn Credentials,
) -> Result<Vec<Used>, Refusal> {
    let bound = credentials.bound(sandbox);
    refuse_strangers(headers, sandbox, credentials)?;
    let mut used = Vec::new();
    for bound in bound.iter() {
        if !is_in(headers, bound.stand_in.as_str()) {
            continue;
        }
        let Some(scheme) = bound.policy.scheme_for(host.as_str()) else {
            return Err(Refusal::of(bound.secret, StatusCode::FORBIDDEN, "credential_host_mismatch"));
        };
        let places = places(headers, scheme, bound.stand_in.as_str());
        if places.is_empty() {
            continue;
        }
        let value = value(bound, credentials)?;
        for (name, at, form) in places {
            let text = form.with(value.expose_secret());
            let Ok(mut new) = HeaderValue::from_str(&text) else {
                return Err(Refusal::of(bound.secret, StatusCode::BAD_GATEWAY, "inject_error"));
            };
            new.set_sensitive(true);
            if let Some(place) = headers.get_all_mut(&name).nth(at) {
                *place = new;
            }
        }
        used.push(Used { secret: bound.secret, stand_in: bound.stand_in.clone(), value });
    }
    Ok(used)
}

fn value(bound: &BoundSecret, credentials: &dyn Credentials) -> Result<Secret, Refusal> {
    let refusal = |reason| Refusal::of(bound.secret, StatusCode::SERVICE_UNAVAILABLE, reason);
    if bound.revoked {
        return Err(refusal("credential_revoked"));
    }
    credentials.value(bound).map_err(|why| {
        refusal(match why {
            NoValue::Revoked => "credential_revoked",
            NoValue::Unavailable => "policy_unavailable",
        })
    })
}

/// Puts stand-ins back where an answer's headers repeat a value.
pub(super) fn scrub(headers: &mut HeaderMap, used: &[Used]) {
    for header in headers.values_mut() {
        for used in used {
            let value = used.value.expose_secret();
            let Ok(text) = header.to_str() else { continue };
            if value.is_empty() || !text.contains(value) {
                continue;
            }
            let text = text.replace(value, used.stand_in.as_str());
            *header = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("removed"));
        }
    }
}

/// Stand-ins of other sandboxes mean nothing here, and whoever has one should not.
fn refuse_strangers(
    headers: &HeaderMap,
    sandbox: SandboxId,
    credentials: &dyn Credentials,
) -> Result<(), Refusal> {
    for value in headers.values().filter(|value| value.len() <= MAX_TOKEN) {
        let Ok(text) = value.to_str() else { continue };
        let last = text.rsplit(' ').next().unwrap_or(text);
        let password = basic(text).map(|(_, password)| password);
        for token in [Some(text), Some(last), password.as_deref()].into_iter().flatten() {
            if let Some(bound) = credentials.find(token)
                && bound.sandbox != sandbox
            {
                return Err(Refusal::of(bound.secret, StatusCode::FORBIDDEN, "credential_host_mismatch"));
            }
        }
    }
    Ok(())
}

/// Whether a stand-in is anywhere in the headers, in plain or as a Basic password.
fn is_in(headers: &HeaderMap, stand_in: &str) -> bool {
    headers.values().any(|value| {
        let Ok(text) = value.to_str() else { return false };
        text.contains(stand_in)
            || basic(text).is_some_and(|(user, password)| password == stand_in || user == stand_in)
    })
}

/// What the new value of a header is, but for the secret's.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    Around { before: String, after: String },
    Basic { user: String },
}

impl Form {
    fn with(&self, value: &str) -> String {
        match self {
            Self::Around { before, after } => format!("{before}{value}{after}"),
            Self::Basic { user } => format!("Basic {}", STANDARD.encode(format!("{user}:{value}"))),
        }
    }
}

/// Where the scheme recognises the stand-in: header, which one of that name, and what it becomes.
fn places(headers: &HeaderMap, scheme: &AuthScheme, stand_in: &str) -> Vec<(HeaderName, usize, Form)> {
    let around =
        |before: &str, after: &str| Form::Around { before: before.to_owned(), after: after.to_owned() };
    let find = |name: &HeaderName, form: &dyn Fn(&str) -> Option<Form>| -> Vec<(HeaderName, usize, Form)> {
        let values = headers.get_all(name).into_iter().enumerate();
        values.filter_map(|(at, value)| Some((name.clone(), at, form(value.to_str().ok()?)?))).collect()
    };
    match scheme {
        AuthScheme::Bearer => find(&AUTHORIZATION, &|text| {
            let (kind, token) = text.split_once(' ')?;
            let ours = kind.eq_ignore_ascii_case("bearer") && token.trim() == stand_in;
            ours.then(|| around("Bearer ", ""))
        }),
        AuthScheme::Basic { username } => find(&AUTHORIZATION, &|text| {
            let (user, password) = basic(text)?;
            let user = username.clone().unwrap_or(if user.is_empty() { "x".to_owned() } else { user });
            (password == stand_in).then_some(Form::Basic { user })
        }),
        AuthScheme::ApiKey { header, prefix } => {
            let Ok(name) = header.parse::<HeaderName>() else { return Vec::new() };
            let prefix = prefix.as_deref().unwrap_or_default();
            find(&name, &|text| {
                let ours = text == stand_in || text.strip_prefix(prefix) == Some(stand_in);
                ours.then(|| around(prefix, ""))
            })
        }
        AuthScheme::Custom { headers: templates } => templates
            .iter()
            .filter_map(|(header, template)| {
                Some((header.parse::<HeaderName>().ok()?, template.split_once(VALUE_PLACE)?))
            })
            .flat_map(|(name, (before, after))| {
                find(&name, &|text| {
                    let inner = text.strip_prefix(before)?.strip_suffix(after)?;
                    (inner == stand_in).then(|| around(before, after))
                })
            })
            .collect(),
    }
}

/// User and password of a Basic credential.
fn basic(text: &str) -> Option<(String, String)> {
    let (kind, encoded) = text.split_once(' ')?;
    if !kind.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// `get_all` with writing.
trait GetAllMut {
    fn get_all_mut<'a>(&'a mut self, name: &'a HeaderName) -> impl Iterator<Item = &'a mut HeaderValue>;
}

impl GetAllMut for HeaderMap {
    fn get_all_mut<'a>(&'a mut self, name: &'a HeaderName) -> impl Iterator<Item = &'a mut HeaderValue> {
        self.iter_mut().filter(move |(key, _)| *key == name).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests;
