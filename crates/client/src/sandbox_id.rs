//! A sandbox id as it goes into URLs and headers. Looser than `domain::SandboxId`, because other deployments tag theirs
//! differently, and strict enough that no id can change the shape of a URL.

use crate::error::ClientError;

/// Longest id, bytes.
const MAX_LEN: usize = 128;

/// Checks `^[A-Za-z0-9-]{1,128}$`.
pub(crate) fn check(id: &str) -> Result<&str, ClientError> {
    let ok = (1..=MAX_LEN).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if ok {
        return Ok(id);
    }
    Err(ClientError::Invalid {
        field: "sandbox id",
        accepted: format!("1 to {MAX_LEN} letters, digits and hyphens are accepted"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_ids_passes() {
        for good in ["a", "sb-usw-0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b", &"a".repeat(128)] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["", "a/b", "..", "a?b", "a b", "ä", "a\n", "%2e", &"a".repeat(129)] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
