//! Which failures are worth another attempt, and when. Pure.

use std::time::Duration;

use crate::error::ClientError;

/// Attempts of one call in total, as the official clients do.
pub(crate) const ATTEMPTS: u32 = 3;
/// First pause between attempts; doubles each time.
const BASE: Duration = Duration::from_millis(100);

/// How far a call may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Reads and deletes.
    Freely,
    /// Everything else: only when it is certain that nothing was done, because nothing was sent or the platform turned
    /// the request away at the door.
    OnlyUnsent,
}

/// How long to wait before attempt `attempt + 1`, or `None` when the failure is final.
pub(crate) fn wait_before_next(repeat: Repeat, attempt: u32, error: &ClientError) -> Option<Duration> {
    if attempt >= ATTEMPTS {
        return None;
    }
    let usual = with_jitter(BASE * 2u32.pow(attempt - 1));
    match error {
        ClientError::Connect { .. } => Some(usual),
        ClientError::Interrupted { .. } if repeat == Repeat::Freely => Some(usual),
        ClientError::Api(refusal) if refusal.code == "rate_limited" => {
            Some(refusal.retry_after.unwrap_or(usual))
        }
        ClientError::Api(refusal) if repeat == Repeat::Freely => match refusal.status {
            429 | 503 => Some(refusal.retry_after.unwrap_or(usual)),
            502 | 504 => Some(usual),
            _ => None,
        },
        _ => None,
    }
}

/// The time, give or take a fifth, so that callers that failed together do not return together.
pub(crate) fn with_jitter(time: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    time.mul_f64(0.8 + 0.4 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ApiError, Plane};

    fn api(status: u16, retry_after: Option<u64>) -> ClientError {
        coded(status, "", retry_after)
    }

    fn coded(status: u16, code: &str, retry_after: Option<u64>) -> ClientError {
        ClientError::Api(ApiError {
            plane: Plane::Control,
            status,
            code: code.to_owned(),
            message: String::new(),
            retry_after: retry_after.map(Duration::from_secs),
            request_id: None,
            may_have_taken_effect: false,
        })
    }

    #[test]
    fn only_what_is_safe_is_repeated() {
        let connect = ClientError::Connect { host: "h".into(), reason: "r".into() };
        let broken = ClientError::Interrupted { what: "x", may_have_taken_effect: false };
        assert!(wait_before_next(Repeat::OnlyUnsent, 1, &connect).is_some());
        assert!(wait_before_next(Repeat::OnlyUnsent, 1, &broken).is_none());
        assert!(wait_before_next(Repeat::Freely, 1, &broken).is_some());
        for status in [429, 502, 503, 504] {
            assert!(wait_before_next(Repeat::Freely, 2, &api(status, None)).is_some(), "{status}");
            assert!(wait_before_next(Repeat::OnlyUnsent, 1, &api(status, None)).is_none(), "{status}");
        }
        for status in [400, 404, 409, 500, 501] {
            assert!(wait_before_next(Repeat::Freely, 1, &api(status, None)).is_none(), "{status}");
        }
        assert!(wait_before_next(Repeat::OnlyUnsent, 1, &coded(429, "rate_limited", None)).is_some());
        assert!(
            wait_before_next(Repeat::OnlyUnsent, 1, &coded(429, "too_many_sandboxes", Some(1))).is_none()
        );
        assert!(wait_before_next(Repeat::Freely, ATTEMPTS, &api(503, None)).is_none());
        assert_eq!(wait_before_next(Repeat::Freely, 1, &api(429, Some(7))), Some(Duration::from_secs(7)));
    }

    #[test]
    fn pauses_grow_and_jitter_by_a_fifth() {
        for (attempt, low, high) in [(1, 80, 120), (2, 160, 240)] {
            let wait = wait_before_next(Repeat::Freely, attempt, &api(502, None)).unwrap();
            assert!((low..=high).contains(&wait.as_millis()), "{wait:?}");
        }
    }
}
