//! Why an exchange with a registry failed, before it is said about which image, and whether it is worth another try.

use std::error::Error;
use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};

use super::guard::Internal;

/// Before the second try; doubled before each further one.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Longest time that one exchange waits in all because a registry asks it to. Limits are by the minute where they pass at
/// all, and somebody looks at the build's log.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The other side cannot be reached, or is not able to answer now.
    Silent { reason: String, again: Again },
    /// It has answered, and trying again would not help.
    Refused(String),
}

/// When another try may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// There is nobody, or nobody who speaks: this took long enough.
    Later,
    /// It broke off, or is overloaded.
    Soon,
    /// As the registry says.
    After(Duration),
}

impl Trouble {
    pub(super) fn silent(reason: impl Into<String>, again: Again) -> Self {
        Self::Silent { reason: reason.into(), again }
    }

    pub(super) fn of(error: &reqwest::Error) -> Self {
        // The innermost cause says it best; the outer ones repeat the URL, which may hold a signature.
        let mut cause: &dyn Error = error;
        let mut internal = cause.is::<Internal>();
        while let Some(next) = cause.source() {
            cause = next;
            internal |= cause.is::<Internal>();
        }
        let reason = if error.is_timeout() { "no answer in time".to_owned() } else { cause.to_string() };
        if error.is_redirect() || internal {
            Self::Refused(reason)
        } else if error.is_connect() || error.is_timeout() {
            Self::silent(reason, Again::Later)
        } else {
            Self::silent(reason, Again::Soon)
        }
    }

    /// Of an answer that nobody asked for.
    pub(super) fn unexpected(response: &Response) -> Self {
        let status = response.status();
        let reason = format!("it answers with {status}");
        // Overload and faults pass; everything else stays.
        if !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS {
            return Self::Refused(format!("the registry does not give it: {reason}"));
        }
        let again = retry_after(response.headers()).map_or(Again::Soon, Again::After);
        Self::Silent { reason, again }
    }
}

/// Seconds; a date is not worth the reading, since registries send none.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// How often, and for how long, an exchange is repeated.
#[derive(Debug)]
pub(super) struct Patience {
    tries: u32,
    most: u32,
    /// Whether it is worth it to ask again where nobody answered.
    insists: bool,
    waited: Duration,
}

impl Patience {
    /// For the first thing a registry is asked: whether there is one is learnt soon.
    pub(super) fn short() -> Self {
        Self { tries: 0, most: 2, insists: false, waited: Duration::ZERO }
    }

    /// For what has been begun already.
    pub(super) fn long() -> Self {
        Self { tries: 0, most: 4, insists: true, waited: Duration::ZERO }
    }

    /// The last try got on: what counts is how often in succession nothing comes.
    pub(super) fn renew(&mut self) {
        self.tries = 0;
    }

    /// How long to wait before another try.
    ///
    /// # Errors
    /// The trouble, when there should be none.
    pub(super) fn next(&mut self, trouble: Trouble) -> Result<Duration, Trouble> {
        let Trouble::Silent { reason, again } = trouble else { return Err(trouble) };
        if self.tries >= self.most || (again == Again::Later && !self.insists) {
            return Err(Trouble::Silent { reason, again });
        }
        let wait = match again {
            Again::Soon | Again::Later => FIRST_WAIT * (1 << self.tries),
            Again::After(wait) if self.waited + wait > LONGEST_WAIT => {
                let reason = format!("{reason} and asks to come back in {} s", wait.as_secs());
                return Err(Trouble::Silent { reason, again });
            }
            Again::After(wait) => {
                self.waited += wait;
                // Whoever asks for no wait at all shall not be asked without an end.
                wait.max(FIRST_WAIT)
            }
        };
        self.tries += 1;
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(mut patience: Patience, again: Again) -> Vec<u128> {
        let mut found = Vec::new();
        while let Ok(wait) = patience.next(Trouble::silent("x", again)) {
            found.push(wait.as_millis());
            assert!(found.len() < 100);
        }
        found
    }

    #[test]
    fn patience_ends() {
        assert_eq!(waits(Patience::short(), Again::Soon), [200, 400]);
        assert_eq!(waits(Patience::short(), Again::Later), [0; 0]);
        assert_eq!(waits(Patience::long(), Again::Later), [200, 400, 800, 1600]);
        let after = |seconds| Again::After(Duration::from_secs(seconds));
        assert_eq!(waits(Patience::long(), after(25)), [25_000, 25_000]);
        assert_eq!(waits(Patience::long(), after(0)), [200; 4]);
        assert_eq!(waits(Patience::long(), after(61)), [0; 0]);
        let told = Patience::long().next(Trouble::silent("429", after(3600))).unwrap_err();
        assert_eq!(told, Trouble::silent("429 and asks to come back in 3600 s", after(3600)));
        let mut patience = Patience::long();
        for _ in 0..20 {
            patience.next(Trouble::silent("x", Again::Soon)).unwrap();
            patience.renew();
        }
        assert!(patience.next(Trouble::Refused("x".into())).is_err());
    }
}
