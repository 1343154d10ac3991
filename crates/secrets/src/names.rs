//! What names, values and hosts of secrets may be (`spec/rest-api.md` §4.5, §11.1).

use domain::{DomainPattern, Problem, Secret};

/// Longest name of a secret.
const MAX_NAME: usize = 128;
/// Longest value, bytes.
const MAX_VALUE: usize = 8_192;
/// Longest name of a variable.
const MAX_ENV_KEY: usize = 256;

/// Checks the name of a secret.
///
/// # Errors
/// `bad_request`.
pub fn check_name(name: &str) -> Result<(), Problem> {
    let mut bytes = name.bytes();
    let first_ok = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    let rest_ok = bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if first_ok && rest_ok && name.len() <= MAX_NAME {
        return Ok(());
    }
    let accepted = "1 to 128 letters, digits, `_` and `-`, beginning with a letter or `_`";
    Err(Problem::invalid("name", accepted))
}

/// Checks a value; what is refused is never repeated.
///
/// # Errors
/// `bad_request`.
pub fn check_value(value: &Secret) -> Result<(), Problem> {
    let text = value.expose_secret();
    if text.is_empty() || text.len() > MAX_VALUE {
        return Err(Problem::invalid("value", format!("1 to {MAX_VALUE} bytes are accepted")));
    }
    // It goes into a header.
    if text.chars().any(|c| c.is_control() && c != '\t') {
        return Err(Problem::invalid("value", "line breaks and other control characters are not accepted"));
    }
    if text.trim() != text {
        return Err(Problem::invalid("value", "it must not begin or end with a space"));
    }
    Ok(())
}

/// Checks the name of a variable that is to hold a stand-in.
///
/// # Errors
/// `bad_request`.
pub fn check_env_key(field: &str, key: &str) -> Result<(), Problem> {
    let mut bytes = key.bytes();
    let first_ok = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if first_ok && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') && key.len() <= MAX_ENV_KEY {
        return Ok(());
    }
    Err(Problem::invalid(
        field,
        "a variable name is expected: letters, digits and `_`, not beginning with a digit",
    ))
}

/// Reads a host a value may be sent to. A `*.` must not stand for a whole registry of strangers.
///
/// # Errors
/// `bad_request`.
pub fn check_host(field: &str, text: &str) -> Result<DomainPattern, Problem> {
    let shown: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    let pattern: DomainPattern = text.parse().map_err(|_| {
        let accepted = format!("`{shown}` is no host name such as api.example.com or *.example.com");
        Problem::invalid(field, accepted)
    })?;
    if let Some(below) = pattern.as_str().strip_prefix("*.")
        && psl::suffix_str(below).is_none_or(|suffix| suffix == below)
    {
        let accepted =
            format!("`{shown}` would match hosts of anybody; name a domain that is yours or the service's");
        return Err(Problem::invalid(field, accepted));
    }
    Ok(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stop_at_public_suffixes() {
        for good in [
            "api.example.com",
            "*.example.com",
            "*.example.co.uk",
            "localhost",
            "github.io",
            "*.me.github.io",
        ] {
            assert!(check_host("hosts", good).is_ok(), "{good}");
        }
        for bad in [
            "*.com",
            "*.co.uk",
            "*.github.io",
            "*.internal",
            "*",
            "",
            "a b",
            "1.2.3.4",
            "https://a.b",
            "a.b:443",
            "a.b/c",
        ] {
            assert!(check_host("hosts", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn refusals_never_repeat_a_value() {
        for bad in [
            String::new(),
            "hunter2\n".to_owned(),
            " hunter2".to_owned(),
            "hunter2\0".to_owned(),
            "hunter2".repeat(2_000),
        ] {
            let refusal = check_value(&Secret::new(bad.clone())).unwrap_err().to_string();
            assert!(refusal.contains("value") && !refusal.contains("hunter2"), "{refusal}");
        }
        assert!(check_value(&Secret::new("x".repeat(8_192))).is_ok());
        assert!(check_value(&Secret::new("пароль with spaces")).is_ok());
    }

    #[test]
    fn names() {
        for good in ["a", "_a-B9", &"a".repeat(128)] {
            assert!(check_name(good).is_ok());
        }
        for bad in ["", "-a", "9a", "a b", "a.b", "ä", &"a".repeat(129)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_env_key("secrets", "API_KEY").is_ok());
        for bad in ["", "9A", "A-B", "A=B", "A B", "Ä"] {
            assert!(check_env_key("secrets", bad).is_err(), "{bad}");
        }
    }
}
