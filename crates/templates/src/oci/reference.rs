//! The name of an image, and where it leads.

use std::fmt;

use oci_spec::distribution;

use super::registry::is_loopback;
use super::{Access, manifest};
use crate::error::TemplateError;

/// What a reference without a registry means.
const DEFAULT_REGISTRY: &str = "docker.io";

/// A checked reference: `[registry/]repository[:tag][@digest]`, with Docker's defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    parsed: distribution::Reference,
    /// Who is asked instead of the reference's own registry.
    mirror: Option<String>,
    plain: bool,
}

impl Reference {
    pub(crate) fn parse(text: &str, access: &Access) -> Result<Self, TemplateError> {
        let bad = |reason: &str| TemplateError::BadReference {
            reference: text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect(),
            reason: reason.to_owned(),
        };
        let parsed: distribution::Reference =
            text.parse().map_err(|_| bad("it should be such as registry.example/team/image:tag"))?;
        if let Some(digest) = parsed.digest() {
            manifest::Digest::try_from(digest.to_owned()).map_err(|_| bad("its digest is no sha256"))?;
        }
        let plain = is_plain(parsed.resolve_registry(), access);
        Ok(Self { parsed, mirror: None, plain })
    }

    /// The same image at the mirrors of the default registry, if it is an image of that.
    pub(crate) fn mirrored(&self, access: &Access) -> Vec<Self> {
        if self.parsed.registry() != DEFAULT_REGISTRY {
            return Vec::new();
        }
        let at = |mirror: &String| Self {
            parsed: self.parsed.clone(),
            mirror: Some(mirror.clone()),
            plain: is_plain(mirror, access),
        };
        access.mirrors.iter().map(at).collect()
    }

    /// Host and port requests go to.
    pub(crate) fn host(&self) -> &str {
        self.mirror.as_deref().unwrap_or_else(|| self.parsed.resolve_registry())
    }

    pub(crate) fn repository(&self) -> &str {
        self.parsed.repository()
    }

    /// Whether the registry is spoken to without TLS.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// The digest, which says exactly what is meant, or the tag.
    pub(crate) fn version(&self) -> &str {
        // The parser puts `latest` where there is neither.
        self.parsed.digest().or(self.parsed.tag()).unwrap_or("latest")
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.plain { "http" } else { "https" };
        format!("{scheme}://{}/v2/{}", self.host(), self.repository())
    }
}

fn is_plain(host: &str, access: &Access) -> bool {
    is_loopback(host) || access.plain_http.iter().any(|plain| plain == host)
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parsed.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_for_the_default_registry_only() {
        let access = Access { mirrors: vec!["127.0.0.1:5000".into(), "m.lan".into()], ..Access::default() };
        let urls = |text: &str| -> Vec<String> {
            let reference = Reference::parse(text, &access).unwrap();
            reference.mirrored(&access).iter().map(Reference::url).collect()
        };
        let expected = ["http://127.0.0.1:5000/v2/library/python", "https://m.lan/v2/library/python"];
        assert_eq!(urls("python:3.11"), expected);
        assert_eq!(urls("docker.io/library/python"), expected);
        assert!(urls("ghcr.io/a/b").is_empty());
    }

    #[test]
    fn references_lead_where_docker_s_do() {
        let access = Access { plain_http: vec!["registry.lan:5000".to_owned()], ..Access::default() };
        let check = |text: &str, url: &str, version: &str| {
            let reference = Reference::parse(text, &access).unwrap();
            assert_eq!((reference.url().as_str(), reference.version()), (url, version), "{text}");
        };
        check("debian", "https://index.docker.io/v2/library/debian", "latest");
        check("me/tool:3", "https://index.docker.io/v2/me/tool", "3");
        check("ghcr.io/a/b/c:v1", "https://ghcr.io/v2/a/b/c", "v1");
        check("127.0.0.1:5000/x:1", "http://127.0.0.1:5000/v2/x", "1");
        check("localhost/x", "http://localhost/v2/x", "latest");
        check("registry.lan:5000/x", "http://registry.lan:5000/v2/x", "latest");
        check("registry.lan/x", "https://registry.lan/v2/x", "latest");
        check("127.0.0.1.example.org/x", "https://127.0.0.1.example.org/v2/x", "latest");
        let digest = format!("sha256:{}", "a".repeat(64));
        check(&format!("ghcr.io/a/b:1@{digest}"), "https://ghcr.io/v2/a/b", &digest);
        for bad in
            ["", "A/B", "https://ghcr.io/a", "a b", "x:1\n", "x/../y", "user:pass@host/x", "x@sha512:0"]
        {
            assert!(Reference::parse(bad, &access).is_err(), "{bad:?}");
        }
    }
}
