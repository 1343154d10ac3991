//! What a registry wants to see before it answers: the challenge of a refusal, and the credentials of a
//! `config.json` as `docker login`, `podman login` and `skopeo login` write it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use domain::Secret;
use serde::Deserialize;

use crate::error::TemplateError;

/// The file is small; a larger one is a mistake.
const MAX_FILE: u64 = 1024 * 1024;

/// Name and password for one registry.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    pub(crate) name: String,
    pub(crate) password: Secret,
}

/// How a registry wants to be asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    /// With a token from this place.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Challenge {
    /// Reads a `WWW-Authenticate` header; `None` when there is nothing in it that is understood.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let challenges = http_auth::parse_challenges(header).ok()?;
        let bearer = challenges.iter().find(|c| c.scheme.eq_ignore_ascii_case("Bearer")).and_then(|c| {
            let value = |wanted: &str| {
                let found = c.params.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
                found.map(|(_, value)| value.to_unescaped())
            };
            Some(Self::Bearer { realm: value("realm")?, service: value("service"), scope: value("scope") })
        });
        let basic = || challenges.iter().any(|c| c.scheme.eq_ignore_ascii_case("Basic"));
        bearer.or_else(|| basic().then_some(Self::Basic))
    }
}

/// Looks a registry up in a credentials file. No part of the file is ever in an error.
pub(crate) fn credentials(file: &Path, registry: &str) -> Result<Option<Credentials>, TemplateError> {
    #[derive(Deserialize)]
    struct Contents {
        #[serde(default)]
        auths: BTreeMap<String, Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        auth: Option<String>,
    }
    let bad = || TemplateError::Credentials { file: file.to_owned() };
    let mut text = String::new();
    let opened = File::open(file).map_err(|_| bad())?;
    opened.take(MAX_FILE).read_to_string(&mut text).map_err(|_| bad())?;
    let contents: Contents = serde_json::from_str(&text).map_err(|_| bad())?;
    let entry = contents.auths.into_iter().find(|(name, _)| host_of(name) == registry);
    let Some(auth) = entry.and_then(|(_, entry)| entry.auth) else { return Ok(None) };
    let decoded = BASE64_STANDARD.decode(auth.trim()).map_err(|_| bad())?;
    let decoded = String::from_utf8(decoded).map_err(|_| bad())?;
    let (name, password) = decoded.split_once(':').ok_or_else(bad)?;
    Ok(Some(Credentials { name: name.to_owned(), password: Secret::new(password) }))
}

/// Keys of the file are hosts, or URLs for historic reasons.
fn host_of(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let host = key.split('/').next().unwrap_or(key);
    // The reference's host is the one requests go to.
    if matches!(host, "docker.io" | "registry-1.docker.io") { "index.docker.io" } else { host }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let bearer = Challenge::parse(
            r#"Bearer realm="https://auth.example.org/token",service="r.example.org",scope="repository:a/b:pull""#,
        );
        let Some(Challenge::Bearer { realm, service, scope }) = bearer else { panic!("{bearer:?}") };
        assert_eq!(realm, "https://auth.example.org/token");
        assert_eq!(service.as_deref(), Some("r.example.org"));
        assert_eq!(scope.as_deref(), Some("repository:a/b:pull"));
        assert_eq!(Challenge::parse(r#"Basic realm="x""#), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("Bearer service=x"), None);
        assert_eq!(Challenge::parse("Negotiate"), None);
        assert_eq!(Challenge::parse("\"\"=,"), None);
    }

    #[test]
    fn credentials_are_those_of_the_registry_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        let auth = BASE64_STANDARD.encode("me:pass:word");
        let text = format!(
            r#"{{"auths":{{"https://index.docker.io/v1/":{{"auth":"{auth}"}},"other.example:5000":{{}}}}}}"#
        );
        std::fs::write(&file, text).unwrap();
        let found = credentials(&file, "index.docker.io").unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.password.expose_secret()), ("me", "pass:word"));
        assert!(!format!("{found:?}").contains("pass:word"));
        assert!(credentials(&file, "other.example:5000").unwrap().is_none());
        assert!(credentials(&file, "docker.io.evil.example").unwrap().is_none());
        std::fs::write(&file, r#"{"auths":{"a":"hush-hush"}}"#).unwrap();
        let error = credentials(&file, "a").unwrap_err().to_string();
        assert!(error.contains("config.json") && !error.contains("hush"), "{error}");
    }
}
