//! From bodies to a policy that cannot be wrong (§11.1).

use std::collections::{BTreeMap, BTreeSet};

use domain::{
    Auth, AuthRule, AuthScheme, DomainPattern, Problem, Secret, SecretOptions, SecretPolicy, VALUE_PLACE,
};
use secrets::{NewSecret, Provider, check_host, check_name, check_value};
use wire::rest::{CreateSecret, SecretAuth};

/// Most hosts of a secret, and of a rule.
const MAX_HOSTS: usize = 16;
/// Most rules of `per_host`.
const MAX_RULES: usize = 16;
/// Most headers of `custom`.
const MAX_HEADERS: usize = 8;
/// Longest header name, prefix or user name.
const MAX_WORD: usize = 256;
/// Longest template.
const MAX_TEMPLATE: usize = 1_024;
/// Headers that say where a message ends or who speaks to whom: a credential there would break the request.
const NO_CREDENTIAL: &[&str] = &[
    "connection",
    "content-length",
    "content-encoding",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

pub(crate) fn value(text: String) -> Result<Secret, Problem> {
    let value = Secret::new(text);
    check_value(&value)?;
    Ok(value)
}

pub(crate) fn create(body: CreateSecret) -> Result<NewSecret, Problem> {
    let value = value(body.value)?;
    check_name(&body.name)?;
    let (provider, mut policy) = match (body.provider, body.auth, body.hosts) {
        (Some(name), None, None) => {
            let provider = Provider::find(&name).ok_or_else(unknown_provider)?;
            (Some(provider), provider.policy())
        }
        (Some(_), ..) => {
            return Err(Problem::invalid("provider", "give either provider, or auth and hosts"));
        }
        (None, Some(auth), Some(hosts)) => (None, policy(auth, &hosts)?),
        (None, None, _) => return Err(Problem::invalid("auth", "give provider, or auth and hosts")),
        (None, Some(_), None) => {
            return Err(Problem::invalid("hosts", "required with auth: where the value may be sent to"));
        }
    };
    policy.options = SecretOptions {
        scrub_bodies: body.scrub_bodies.unwrap_or_default(),
        in_query: body.in_query.unwrap_or_default(),
    };
    Ok(NewSecret { name: body.name, value, provider, policy })
}

fn unknown_provider() -> Problem {
    let names: Vec<_> = secrets::PROVIDERS.iter().map(|provider| provider.name).collect();
    Problem::invalid("provider", format!("accepted are {}; for others give auth and hosts", names.join(", ")))
}

fn policy(auth: SecretAuth, hosts: &[String]) -> Result<SecretPolicy, Problem> {
    let hosts = read_hosts("hosts", hosts)?;
    if auth.hosts.is_some() {
        return Err(Problem::invalid(
            "auth.hosts",
            "only rules of per_host have hosts; these are beside auth",
        ));
    }
    let auth = match auth {
        SecretAuth { per_host: Some(rules), kind, header, prefix, username, headers, .. } => {
            let others = [&kind, &header, &prefix, &username].into_iter().any(Option::is_some);
            if others || headers.is_some() {
                return Err(Problem::invalid("auth", "give either type or per_host"));
            }
            Auth::PerHost(read_rules(rules, &hosts)?)
        }
        auth => Auth::Same(scheme("auth", auth)?),
    };
    Ok(SecretPolicy { hosts, auth, options: SecretOptions::default() })
}

fn read_rules(rules: Vec<SecretAuth>, all: &[DomainPattern]) -> Result<Vec<AuthRule>, Problem> {
    if rules.is_empty() || rules.len() > MAX_RULES {
        return Err(Problem::invalid("auth.per_host", format!("1 to {MAX_RULES} rules are accepted")));
    }
    let mut seen = BTreeSet::new();
    let mut read = Vec::new();
    for (place, mut rule) in rules.into_iter().enumerate() {
        let field = format!("auth.per_host[{place}]");
        let hosts = rule.hosts.take().unwrap_or_default();
        let hosts = read_hosts(&format!("{field}.hosts"), &hosts)?;
        for host in &hosts {
            if !all.iter().any(|pattern| covers(pattern, host)) {
                return Err(Problem::invalid(field, format!("`{host}` is not among hosts")));
            }
            if !seen.insert(host.clone()) {
                return Err(Problem::invalid(field, format!("`{host}` is in two rules")));
            }
        }
        read.push(AuthRule { hosts, scheme: scheme(&field, rule)? });
    }
    Ok(read)
}

/// Whether everything the second one stands for is covered by the first.
fn covers(pattern: &DomainPattern, host: &DomainPattern) -> bool {
    pattern == host
        || pattern.matches(host.as_str().strip_prefix("*.").unwrap_or(host.as_str()))
            && pattern.as_str().starts_with("*.")
}

fn read_hosts(field: &str, hosts: &[String]) -> Result<Vec<DomainPattern>, Problem> {
    if hosts.is_empty() || hosts.len() > MAX_HOSTS {
        return Err(Problem::invalid(field, format!("1 to {MAX_HOSTS} hosts are accepted")));
    }
    let mut read: Vec<DomainPattern> = Vec::new();
    for host in hosts {
        let host = check_host(field, host)?;
        if !read.contains(&host) {
            read.push(host);
        }
    }
    Ok(read)
}

fn scheme(field: &str, auth: SecretAuth) -> Result<AuthScheme, Problem> {
    let SecretAuth { kind, header, prefix, username, headers, per_host, hosts } = auth;
    let given = [
        ("header", header.is_some()),
        ("prefix", prefix.is_some()),
        ("username", username.is_some()),
        ("headers", headers.is_some()),
        ("per_host", per_host.is_some()),
        ("hosts", hosts.is_some()),
    ];
    let belongs: &[&str] = match kind.as_deref() {
        Some("bearer") => &[],
        Some("basic") => &["username"],
        Some("api-key") => &["header", "prefix"],
        Some("custom") => &["headers"],
        _ => {
            let accepted = "accepted are bearer, basic, api-key, custom";
            return Err(Problem::invalid(format!("{field}.type"), accepted));
        }
    };
    if let Some((name, _)) = given.iter().find(|(name, given)| *given && !belongs.contains(name)) {
        let kind = kind.unwrap_or_default();
        return Err(Problem::invalid(
            format!("{field}.{name}"),
            format!("it does not belong to type {kind}"),
        ));
    }
    Ok(match belongs {
        ["username"] => AuthScheme::Basic { username: username.map(|name| user(field, name)).transpose()? },
        ["header", "prefix"] => AuthScheme::ApiKey {
            header: header_name(&format!("{field}.header"), header.unwrap_or_default())?,
            prefix: prefix.map(|prefix| word(&format!("{field}.prefix"), prefix, MAX_WORD)).transpose()?,
        },
        ["headers"] => AuthScheme::Custom { headers: templates(field, headers.unwrap_or_default())? },
        _ => AuthScheme::Bearer,
    })
}

fn templates(field: &str, headers: BTreeMap<String, String>) -> Result<Vec<(String, String)>, Problem> {
    let field = format!("{field}.headers");
    if headers.is_empty() || headers.len() > MAX_HEADERS {
        return Err(Problem::invalid(field, format!("1 to {MAX_HEADERS} headers are accepted")));
    }
    let mut seen = BTreeSet::new();
    let mut read = Vec::new();
    for (name, template) in headers {
        let name = header_name(&field, name)?;
        if !seen.insert(name.to_ascii_lowercase()) {
            return Err(Problem::invalid(field, format!("`{name}` is given twice")));
        }
        if !template.contains(VALUE_PLACE) {
            let accepted = format!("the template of `{name}` must contain {VALUE_PLACE}");
            return Err(Problem::invalid(field, accepted));
        }
        read.push((name, word(&field, template, MAX_TEMPLATE)?));
    }
    Ok(read)
}

/// A header name as RFC 9110 has it.
fn header_name(field: &str, name: String) -> Result<String, Problem> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > MAX_WORD || !name.bytes().all(token) {
        return Err(Problem::invalid(field, "the name of an HTTP header is required"));
    }
    if NO_CREDENTIAL.contains(&name.to_ascii_lowercase().as_str()) {
        return Err(Problem::invalid(field, format!("`{name}` cannot carry a credential")));
    }
    Ok(name)
}

fn user(field: &str, name: String) -> Result<String, Problem> {
    let field = format!("{field}.username");
    if name.contains(':') {
        return Err(Problem::invalid(field, "a user name has no colon"));
    }
    word(&field, name, MAX_WORD)
}

/// Something that stands in a header.
fn word(field: &str, text: String, most: usize) -> Result<String, Problem> {
    if text.is_empty() || text.len() > most || !text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return Err(Problem::invalid(field, format!("1 to {most} printable ASCII characters are accepted")));
    }
    Ok(text)
}
