//! Random texts in the shape of a credential.

use domain::StandIn;

use crate::SecretsError;
use crate::provider::{Alphabet, Provider};

/// What begins a stand-in of a secret without a provider, and how much follows.
const OWN_PREFIX: &str = "ssrv_proxy_";
const OWN_LENGTH: usize = 43;

/// A new stand-in.
pub(crate) fn generate(provider: Option<&Provider>) -> Result<StandIn, SecretsError> {
    let (prefix, length, alphabet) = match provider {
        Some(provider) => (provider.prefix, provider.length, provider.alphabet),
        None => (OWN_PREFIX, OWN_LENGTH, Alphabet::Base64Url),
    };
    let letters = alphabet.letters();
    // The largest multiple of the alphabet's size: what is beyond would prefer some letters.
    let fair = 256 - 256 % letters.len();
    let mut text = prefix.to_owned();
    let mut random = [0_u8; 64];
    while text.len() < prefix.len() + length {
        getrandom::fill(&mut random).map_err(SecretsError::Random)?;
        let left = prefix.len() + length - text.len();
        let usable = random.iter().map(|byte| usize::from(*byte)).filter(|byte| *byte < fair);
        text.extend(usable.take(left).map(|byte| char::from(letters[byte % letters.len()])));
    }
    Ok(StandIn::new(text))
}
