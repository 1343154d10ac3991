//! How a secret may be used, as two JSON columns: `hosts`, and `auth` with the type's name and the options in it.

use domain::{Auth, AuthRule, AuthScheme, DomainPattern, SecretOptions, SecretPolicy};
use serde_json::{Map, Value, json};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::StoreError;

pub(crate) fn hosts_text(policy: &SecretPolicy) -> String {
    Value::from(names(&policy.hosts)).to_string()
}

pub(crate) fn auth_text(policy: &SecretPolicy) -> String {
    let mut text = match &policy.auth {
        Auth::Same(scheme) => shown(scheme),
        Auth::PerHost(rules) => {
            let rules = rules.iter().map(|rule| {
                let mut shown = shown(&rule.scheme);
                shown["hosts"] = names(&rule.hosts).into();
                shown
            });
            json!({ "type": "per_host", "rules": rules.collect::<Vec<_>>() })
        }
    };
    let SecretOptions { scrub_bodies, in_query } = policy.options;
    for (name, set) in [("scrub_bodies", scrub_bodies), ("in_query", in_query)] {
        if set {
            text[name] = true.into();
        }
    }
    text.to_string()
}

fn names(hosts: &[DomainPattern]) -> Vec<String> {
    hosts.iter().map(ToString::to_string).collect()
}

fn shown(scheme: &AuthScheme) -> Value {
    let name = scheme.auth_type().as_str();
    match scheme {
        AuthScheme::Bearer => json!({ "type": name }),
        AuthScheme::Basic { username } => json!({ "type": name, "username": username }),
        AuthScheme::ApiKey { header, prefix } => json!({ "type": name, "header": header, "prefix": prefix }),
        AuthScheme::Custom { headers } => json!({ "type": name, "headers": headers }),
    }
}

pub(crate) fn read(row: &SqliteRow) -> Result<SecretPolicy, StoreError> {
    let bad = |column| StoreError::Corrupt { column, found: "no policy of a secret".to_owned() };
    let json = |column: &'static str| {
        serde_json::from_str::<Value>(row.try_get::<&str, _>(column)?).map_err(|_| bad(column))
    };
    let hosts = hosts(&json("hosts")?).ok_or_else(|| bad("hosts"))?;
    let text = json("auth")?;
    let auth = auth(&text).ok_or_else(|| bad("auth"))?;
    let set = |name: &str| text.get(name).and_then(Value::as_bool).unwrap_or_default();
    let options = SecretOptions { scrub_bodies: set("scrub_bodies"), in_query: set("in_query") };
    Ok(SecretPolicy { hosts, auth, options })
}

fn hosts(value: &Value) -> Option<Vec<DomainPattern>> {
    value.as_array()?.iter().map(|host| host.as_str()?.parse().ok()).collect()
}

fn auth(value: &Value) -> Option<Auth> {
    let value = value.as_object()?;
    if value.get("type")? == "per_host" {
        let rules = value.get("rules")?.as_array()?.iter().map(|rule| {
            let rule = rule.as_object()?;
            Some(AuthRule { hosts: hosts(rule.get("hosts")?)?, scheme: scheme(rule)? })
        });
        return rules.collect::<Option<Vec<_>>>().map(Auth::PerHost);
    }
    scheme(value).map(Auth::Same)
}

fn scheme(value: &Map<String, Value>) -> Option<AuthScheme> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    Some(match value.get("type")?.as_str()? {
        "bearer" => AuthScheme::Bearer,
        "basic" => AuthScheme::Basic { username: text("username") },
        "api-key" => AuthScheme::ApiKey { header: text("header")?, prefix: text("prefix") },
        "custom" => {
            let headers = value.get("headers")?.as_array()?.iter().map(|pair| {
                let [name, template] = pair.as_array()?.as_slice() else { return None };
                Some((name.as_str()?.to_owned(), template.as_str()?.to_owned()))
            });
            AuthScheme::Custom { headers: headers.collect::<Option<_>>()? }
        }
        _ => return None,
    })
}
