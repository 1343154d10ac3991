//! The providers whose credentials are known by name (`spec/rest-api.md` §11.2): where they are used, how, and what they
//! look like, since clients check the shape before they send anything.

use domain::{Auth, AuthRule, AuthScheme, SecretOptions, SecretPolicy};

use Alphabet::{Alphanumeric as An, Base64Url as B64};
use Scheme::{Bearer, GitHub, Header};

/// The letters of a stand-in's random part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alphabet {
    /// Letters and digits.
    Alphanumeric,
    /// Letters, digits, `-` and `_`.
    Base64Url,
}

impl Alphabet {
    pub(crate) fn letters(self) -> &'static [u8] {
        let all = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        match self {
            Self::Alphanumeric => &all[..62],
            Self::Base64Url => all,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Scheme {
    Bearer,
    Header(&'static str),
    /// Its REST API takes tokens, git over HTTPS takes them as passwords.
    GitHub,
}

/// One provider.
#[derive(Debug, Clone, Copy)]
pub struct Provider {
    /// What a create calls it.
    pub name: &'static str,
    /// For people.
    pub display: &'static str,
    /// What its credentials begin with.
    pub prefix: &'static str,
    scheme: Scheme,
    hosts: &'static [&'static str],
    pub(crate) length: usize,
    pub(crate) alphabet: Alphabet,
}

const fn provider(
    (name, display): (&'static str, &'static str),
    scheme: Scheme,
    hosts: &'static [&'static str],
    prefix: &'static str,
    (length, alphabet): (usize, Alphabet),
) -> Provider {
    Provider { name, display, prefix, scheme, hosts, length, alphabet }
}

/// All of them, by name.
#[rustfmt::skip]
pub const PROVIDERS: &[Provider] = &[
    provider(("anthropic", "Anthropic"), Header("x-api-key"), &["api.anthropic.com"], "sk-ant-api03-", (48, An)),
    provider(("asana", "Asana"), Bearer, &["app.asana.com"], "", (32, An)),
    provider(("cloudflare", "Cloudflare"), Bearer, &["api.cloudflare.com"], "", (40, An)),
    provider(("exa", "Exa"), Header("x-api-key"), &["api.exa.ai"], "", (32, An)),
    provider(("firecrawl", "Firecrawl"), Bearer, &["api.firecrawl.dev"], "fc-", (36, An)),
    provider(("gemini", "Google Gemini"), Header("x-goog-api-key"), &["generativelanguage.googleapis.com"], "AIza", (35, B64)),
    provider(("github", "GitHub"), GitHub, &["api.github.com", "github.com"], "ghp_", (36, An)),
    provider(("gitlab", "GitLab"), Header("PRIVATE-TOKEN"), &["gitlab.com"], "glpat-", (20, An)),
    provider(("linear", "Linear"), Header("Authorization"), &["api.linear.app"], "lin_api_", (32, An)),
    provider(("notion", "Notion"), Bearer, &["api.notion.com"], "ntn_", (43, An)),
    provider(("openai", "OpenAI"), Bearer, &["api.openai.com"], "sk-proj-", (64, An)),
    provider(("openrouter", "OpenRouter"), Bearer, &["openrouter.ai"], "sk-or-v1-", (64, An)),
    provider(("perplexity", "Perplexity"), Bearer, &["api.perplexity.ai"], "pplx-", (48, An)),
    provider(("resend", "Resend"), Bearer, &["api.resend.com"], "re_", (24, An)),
    provider(("sentry", "Sentry"), Bearer, &["sentry.io"], "sntrys_", (32, An)),
    provider(("slack", "Slack"), Bearer, &["slack.com"], "xoxb-", (43, B64)),
    provider(("stripe", "Stripe"), Bearer, &["api.stripe.com"], "sk_test_", (24, An)),
    provider(("vercel", "Vercel"), Bearer, &["api.vercel.com"], "vcp_", (24, An)),
    provider(("xai", "xAI"), Bearer, &["api.x.ai"], "xai-", (80, An)),
];

impl Provider {
    /// The provider of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| provider.name == name)
    }

    /// How its credentials are used.
    #[must_use]
    pub fn policy(&self) -> SecretPolicy {
        let host = |host: &&str| host.parse().expect("the hosts of the table are host names");
        let auth = match self.scheme {
            Scheme::Bearer => Auth::Same(AuthScheme::Bearer),
            Scheme::Header(header) => {
                Auth::Same(AuthScheme::ApiKey { header: header.to_owned(), prefix: None })
            }
            Scheme::GitHub => {
                let username = Some("x-access-token".to_owned());
                Auth::PerHost(vec![
                    AuthRule { hosts: vec![host(&"api.github.com")], scheme: AuthScheme::Bearer },
                    AuthRule { hosts: vec![host(&"github.com")], scheme: AuthScheme::Basic { username } },
                ])
            }
        };
        SecretPolicy { hosts: self.hosts.iter().map(host).collect(), auth, options: SecretOptions::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::stand_in::generate;

    #[test]
    fn the_table_is_complete_and_in_order() {
        let names: Vec<_> = PROVIDERS.iter().map(|provider| provider.name).collect();
        assert_eq!(names.len(), 19);
        assert!(names.is_sorted());
        for provider in PROVIDERS {
            let policy = provider.policy();
            assert!(
                policy.hosts.iter().all(|host| policy.scheme_for(host.as_str()).is_some()),
                "{}",
                provider.name
            );
        }
        let github = Provider::find("github").unwrap().policy();
        assert_eq!(github.scheme_for("api.github.com"), Some(&AuthScheme::Bearer));
        assert!(matches!(github.scheme_for("github.com"), Some(AuthScheme::Basic { username: Some(_) })));
        assert!(Provider::find("nobody").is_none());
    }

    #[test]
    fn stand_ins_have_the_shape_and_are_never_the_same() {
        let all: BTreeSet<_> = (0..200).map(|_| generate(None).unwrap().as_str().to_owned()).collect();
        assert_eq!(all.len(), 200);
        assert!(all.iter().all(|text| text.starts_with("ssrv_proxy_") && text.len() == 11 + 43));
        for provider in PROVIDERS {
            let text = generate(Some(provider)).unwrap();
            let random = text.as_str().strip_prefix(provider.prefix).unwrap();
            assert_eq!(random.len(), provider.length, "{}", provider.name);
            assert!(random.bytes().all(|b| provider.alphabet.letters().contains(&b)), "{}", provider.name);
        }
    }
}
