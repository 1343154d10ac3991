//! Where the platform is and how to prove who is asking.

use std::path::PathBuf;

use domain::Secret;

/// Control plane of the hosted service, region `use`.
pub const PRODUCTION_URL: &str = "https://api.superserve.ai";
/// Control plane of the hosted service, region `usw`.
const USW_URL: &str = "https://api-usw.superserve.ai";

/// Everything a [`crate::Client`] needs. `Debug` masks the key.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Control-plane base URL, `http` or `https`; a trailing slash is tolerated.
    pub base_url: String,
    /// Team API key.
    pub api_key: Secret,
    /// Data-plane base URL, when it is not to be discovered.
    pub data_plane: Option<String>,
    /// `User-Agent` of every request, e.g. `superserve-cli/0.1.0`.
    pub user_agent: String,
    /// PEM file of certificate authorities to trust besides the system's, for a platform's own CA.
    pub ca_file: Option<PathBuf>,
}

impl ClientConfig {
    /// A configuration that discovers everything else.
    #[must_use]
    pub fn new(base_url: impl Into<String>, api_key: Secret) -> Self {
        Self {
            base_url: base_url.into(),
            api_key,
            data_plane: None,
            user_agent: concat!("superserve/", env!("CARGO_PKG_VERSION")).to_owned(),
            ca_file: None,
        }
    }
}

/// The base URL that the official clients would use (`spec/data-plane.md` §1.1): the given one unless blank, else that
/// of the region inside the key, else production.
#[must_use]
pub fn resolve_base_url(explicit: Option<&str>, api_key: &Secret) -> String {
    if let Some(url) = explicit.map(str::trim).filter(|url| !url.is_empty()) {
        return url.to_owned();
    }
    match key_region(api_key.expose_secret()) {
        Some("usw") => USW_URL.to_owned(),
        _ => PRODUCTION_URL.to_owned(),
    }
}

/// The region of a key `ss_live_<region>_<32 characters>`. The random part may itself contain `_`.
fn key_region(key: &str) -> Option<&str> {
    const RANDOM_LEN: usize = 32;
    let rest = key.strip_prefix("ss_live_")?;
    let split = rest.len().checked_sub(RANDOM_LEN + 1)?;
    let (region, random) = (rest.get(..split)?, rest.get(split..)?.strip_prefix('_')?);
    let region_ok = (1..=17).contains(&region.len())
        && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let random_ok = random.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    (region_ok && random_ok).then_some(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_url_precedence() {
        let random = "a_b-".repeat(8);
        let check = |explicit, key: String, expected| {
            assert_eq!(resolve_base_url(explicit, &Secret::new(key)), expected);
        };
        check(Some(" http://127.0.0.1:1 "), format!("ss_live_usw_{random}"), "http://127.0.0.1:1");
        check(Some("  "), format!("ss_live_usw_{random}"), USW_URL);
        check(None, format!("ss_live_use_{random}"), PRODUCTION_URL);
        check(None, format!("ss_live_{random}"), PRODUCTION_URL);
        check(None, format!("ss_live_USW_{random}"), PRODUCTION_URL);
        check(None, format!("ss_live_usw_{}", &random[1..]), PRODUCTION_URL);
        check(None, "anything".to_owned(), PRODUCTION_URL);
        check(None, "ss_live_ü".to_owned(), PRODUCTION_URL);
    }
}
