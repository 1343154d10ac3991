//! Which platform a command speaks to: the environment's, else the one that runs on this machine.

use std::path::Path;

use client::{ClientConfig, resolve_base_url};
use domain::Secret;

use crate::config::env;
use crate::output::Failure;
use crate::state_dir;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The platform that `SUPERSERVE_API_KEY` and `SUPERSERVE_BASE_URL` name; without a key, the server of this state directory.
///
/// The local key never goes to an address from the environment: whoever names another server brings a key for it.
pub(crate) fn config(state_dir: &Path) -> Result<ClientConfig, Failure> {
    let base_url = variable(env::BASE_URL);
    Ok(match (variable(env::API_KEY), &base_url) {
        (Some(key), _) => {
            let key = Secret::new(key);
            ClientConfig::new(resolve_base_url(base_url.as_deref(), &key), key)
        }
        (None, Some(url)) => {
            return Err(Failure::new(format!(
                "{} names {url}, but {} is not set",
                env::BASE_URL,
                env::API_KEY
            ))
            .hint(format!(
                "set {} to a key of that server, or unset {} to use the local one",
                env::API_KEY,
                env::BASE_URL
            )));
        }
        (None, None) => local(state_dir)?,
    })
}

fn local(state_dir: &Path) -> Result<ClientConfig, Failure> {
    let info = state_dir::read_server_info(state_dir)?;
    let key = state_dir::read_api_key(state_dir)?;
    Ok(ClientConfig::new(info.base_url, key))
}
