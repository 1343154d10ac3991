//! How a credential is used: into which header it goes, and at which hosts (`spec/semantics.md` §6). And what the broker
//! asks of whoever keeps them: a sandbox holds stand-ins, the values stay outside, and each is handed out for one request.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

use crate::id::{SandboxId, SecretId};
use crate::network::DomainPattern;
use crate::sandbox::{UnknownName, names};
use crate::secret::Secret;

/// In a template of a custom header, where the value goes.
pub const VALUE_PLACE: &str = "{{ value }}";

names!(
    /// The kind of [`AuthScheme`], as it is published.
    AuthType {
        /// `Authorization: Bearer …`.
        Bearer = "bearer",
        /// `Authorization: Basic …`.
        Basic = "basic",
        /// One header.
        ApiKey = "api-key",
        /// Several headers with templates.
        Custom = "custom",
        /// Another one for each group of hosts.
        PerHost = "per_host",
    }
);

/// Where a credential stands in a request, and in which form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthScheme {
    /// `Authorization: Bearer <value>`; the scheme's case does not matter on the way in.
    Bearer,
    /// `Authorization: Basic base64(user:value)`.
    Basic {
        /// The user; else the one the request has, else `x`.
        username: Option<String>,
    },
    /// `<header>: <prefix><value>`; recognised with or without the prefix.
    ApiKey {
        /// Header name, as it was written.
        header: String,
        /// What stands before the value.
        prefix: Option<String>,
    },
    /// Each header is its template with the value in place of [`VALUE_PLACE`].
    Custom {
        /// Header names and templates.
        headers: Vec<(String, String)>,
    },
}

/// A scheme for some hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthRule {
    /// Where it applies.
    pub hosts: Vec<DomainPattern>,
    /// How.
    pub scheme: AuthScheme,
}

/// How a secret may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretPolicy {
    /// Where its value may be sent to, and nowhere else.
    pub hosts: Vec<DomainPattern>,
    /// What is done there.
    pub auth: Auth,
    /// What the owner has asked for beyond that.
    pub options: SecretOptions,
}

/// What the broker does for a secret only when its owner asks for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SecretOptions {
    /// Textual bodies of answers that repeat the value get the stand-in instead, as headers always do. Answers are asked
    /// for uncompressed then.
    pub scrub_bodies: bool,
    /// The value is also put in place of the stand-in in a URL's query, for services that want it there.
    pub in_query: bool,
}

/// One scheme everywhere, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// At every host.
    Same(AuthScheme),
    /// The first rule that has the host.
    PerHost(Vec<AuthRule>),
}

impl SecretPolicy {
    /// Whether the value may be sent to this host at all.
    #[must_use]
    pub fn covers(&self, host: &str) -> bool {
        self.hosts.iter().any(|pattern| pattern.matches(host))
    }

    /// How the value is sent to this host; `None` when it may not be.
    #[must_use]
    pub fn scheme_for(&self, host: &str) -> Option<&AuthScheme> {
        if !self.covers(host) {
            return None;
        }
        match &self.auth {
            Auth::Same(scheme) => Some(scheme),
            Auth::PerHost(rules) => {
                let rule = rules.iter().find(|rule| rule.hosts.iter().any(|pattern| pattern.matches(host)));
                rule.map(|rule| &rule.scheme)
            }
        }
    }

    /// The published kind.
    #[must_use]
    pub fn auth_type(&self) -> AuthType {
        match &self.auth {
            Auth::Same(scheme) => scheme.auth_type(),
            Auth::PerHost(_) => AuthType::PerHost,
        }
    }
}

impl AuthScheme {
    /// The published kind.
    #[must_use]
    pub fn auth_type(&self) -> AuthType {
        match self {
            Self::Bearer => AuthType::Bearer,
            Self::Basic { .. } => AuthType::Basic,
            Self::ApiKey { .. } => AuthType::ApiKey,
            Self::Custom { .. } => AuthType::Custom,
        }
    }
}

/// What a sandbox has instead of a secret's value. Worth nothing outside, but it says which credential is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundSecret {
    /// This binding; a detached and attached one is another.
    pub binding: Uuid,
    /// Whose value is meant.
    pub secret: SecretId,
    /// The sandbox that has it.
    pub sandbox: SandboxId,
    /// The text the sandbox sees.
    pub stand_in: StandIn,
    /// How the value may be used.
    pub policy: Arc<SecretPolicy>,
    /// The secret was deleted or the binding removed: it is recognised in order to be refused (`credential_revoked`).
    pub revoked: bool,
}

/// The text of a stand-in. It does not print: what looks like a key should not be in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct StandIn(Arc<str>);

impl StandIn {
    /// Wraps the text.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StandIn(****)")
    }
}

/// Why there is no value for a stand-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoValue {
    /// The secret was deleted or the binding removed, perhaps a moment ago.
    #[error("the secret was deleted or is no longer bound to this sandbox")]
    Revoked,
    /// It cannot be decrypted here.
    #[error("the value cannot be read")]
    Unavailable,
}

/// Where the broker finds what stand-ins mean. All answers come from memory, at once, and are of this moment: nothing may
/// be kept across requests but the policy of a connection that is being judged.
pub trait Credentials: fmt::Debug + Send + Sync {
    /// Everything bound to a sandbox, revoked ones included: their hosts are the ones whose TLS is opened.
    fn bound(&self, sandbox: SandboxId) -> Arc<[BoundSecret]>;

    /// The binding this text is the stand-in of, whichever sandbox has it: one of another sandbox must be refused.
    fn find(&self, text: &str) -> Option<BoundSecret>;

    /// The value, for one request that is being written.
    ///
    /// # Errors
    /// [`NoValue`]; the request is refused then.
    fn value(&self, bound: &BoundSecret) -> Result<Secret, NoValue>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(list: &[&str]) -> Vec<DomainPattern> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_first_rule_with_the_host_decides_within_the_hosts() {
        let basic = AuthScheme::Basic { username: Some("x-access-token".to_owned()) };
        let rule =
            |hosts: &[&str], scheme: &AuthScheme| AuthRule { hosts: patterns(hosts), scheme: scheme.clone() };
        let policy = SecretPolicy {
            hosts: patterns(&["api.github.com", "github.com", "*.example.com"]),
            auth: Auth::PerHost(vec![
                rule(&["api.github.com"], &AuthScheme::Bearer),
                rule(&["*.com", "github.com"], &basic),
            ]),
            options: SecretOptions::default(),
        };
        assert_eq!(policy.scheme_for("API.github.com"), Some(&AuthScheme::Bearer));
        assert_eq!(policy.scheme_for("github.com"), Some(&basic));
        assert_eq!(policy.scheme_for("a.example.com"), Some(&basic));
        assert_eq!(policy.scheme_for("evil.com"), None, "a rule alone opens nothing");
        assert_eq!(policy.auth_type(), AuthType::PerHost);
        let same = SecretPolicy {
            hosts: patterns(&["a.example"]),
            auth: Auth::Same(AuthScheme::Bearer),
            options: SecretOptions::default(),
        };
        assert_eq!(
            (same.scheme_for("a.example."), same.scheme_for("b.example")),
            (Some(&AuthScheme::Bearer), None)
        );
    }

    #[test]
    fn stand_ins_do_not_print() {
        assert!(!format!("{:?}", StandIn::new("sk-proj-x")).contains("sk-proj"));
    }
}
