//! Preview ports: which ones there are, and what is known of a published one (`spec/rest-api.md` §7).

use crate::limits::{CONTROL_PORT, FIRST_PREVIEW_PORT};
use crate::{PreviewAccess, Problem};

/// A port of a sandbox that may be published: 1024 to 65535, and not the one of the guest agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PreviewPort(u16);

impl PreviewPort {
    /// Checks a number.
    ///
    /// # Errors
    /// `bad_request`, naming the field `port` and what is accepted.
    pub fn new(number: i64) -> Result<Self, Problem> {
        match u16::try_from(number) {
            Ok(CONTROL_PORT) => Err(Problem::invalid(
                "port",
                format!("{CONTROL_PORT} is reserved for sandbox control traffic; serve on another port"),
            )),
            Ok(port) if port >= FIRST_PREVIEW_PORT => Ok(Self(port)),
            _ => Err(Problem::invalid("port", format!("{FIRST_PREVIEW_PORT} to 65535 are accepted"))),
        }
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }
}

impl std::fmt::Display for PreviewPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// How a port is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Who may come in.
    pub access: PreviewAccess,
    /// Grows with everything that ends earlier tokens: rotation, another mode, being published again.
    pub generation: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_user_ports() {
        for bad in [i64::MIN, -1, 0, 80, 1023, 49_983, 65_536, i64::MAX] {
            let problem = PreviewPort::new(bad).unwrap_err();
            assert_eq!(problem.code, crate::Code::BadRequest, "{bad}");
        }
        for good in [1024, 3000, 49_982, 49_984, 65_535] {
            assert_eq!(i64::from(PreviewPort::new(good).unwrap().get()), good);
        }
        assert!(PreviewPort::new(49_983).unwrap_err().to_string().contains("reserved"));
    }
}
