//! Why a request is refused, as the sandbox and the log see it (`spec/semantics.md` §6.4).

use bytes::Bytes;
use domain::SecretId;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};

use crate::body::Body;

const ERROR_HEADER: HeaderName = HeaderName::from_static("x-superserve-proxy-error");
const REASON_HEADER: HeaderName = HeaderName::from_static("x-superserve-proxy-reason");

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A stand-in was sent to a host that is not its secret's.
    CredentialHostMismatch,
    /// The request names another host than the connection.
    HostNotAllowed,
    /// The secret covers the host but says nothing about how it is used there.
    UnmatchedHostDenied,
    /// The sandbox's network rules refuse the host.
    EgressBlocked,
    /// The stand-in is not this sandbox's.
    SandboxRevoked,
    /// The secret was deleted, or the binding removed.
    CredentialRevoked,
    /// The value cannot be put into the request.
    InjectError,
    /// The service cannot be reached, or is not who it claims to be.
    UpstreamUnreachable,
    /// The request is none that can be passed on.
    BuildRequest,
}

impl Reason {
    /// As it is published.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CredentialHostMismatch => "credential_host_mismatch",
            Self::HostNotAllowed => "host_not_allowed",
            Self::UnmatchedHostDenied => "unmatched_host_denied",
            Self::EgressBlocked => "egress_blocked",
            Self::SandboxRevoked => "sandbox_revoked",
            Self::CredentialRevoked => "credential_revoked",
            Self::InjectError => "inject_error",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::BuildRequest => "build_request",
        }
    }

    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::CredentialHostMismatch
            | Self::HostNotAllowed
            | Self::UnmatchedHostDenied
            | Self::EgressBlocked
            | Self::SandboxRevoked => StatusCode::FORBIDDEN,
            Self::CredentialRevoked => StatusCode::SERVICE_UNAVAILABLE,
            Self::InjectError | Self::UpstreamUnreachable => StatusCode::BAD_GATEWAY,
            Self::BuildRequest => StatusCode::BAD_REQUEST,
        }
    }

    /// What to do about it.
    fn next(self) -> &'static str {
        match self {
            Self::CredentialHostMismatch => {
                "Send it only to the hosts of its secret (secret_list or superserve secret list shows them)."
            }
            Self::HostNotAllowed => "Send requests for another host over a connection to that host.",
            Self::UnmatchedHostDenied => "Add a rule for this host to the secret.",
            Self::EgressBlocked => {
                "To permit it, add the host to allow_out in the sandbox's network rules (sandbox_update)."
            }
            Self::SandboxRevoked => "Use the variable that this sandbox has for the secret.",
            Self::CredentialRevoked => {
                "Bind a secret again (sandbox_attach_secret) and use its variable in a new process."
            }
            Self::InjectError => "Set the secret's value again, or ask the operator of this platform.",
            Self::UpstreamUnreachable => {
                "Try again later; if it goes on, check the host's name and certificate."
            }
            Self::BuildRequest => "Correct the request.",
        }
    }
}

/// A refusal, and what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: Reason,
    /// Whose stand-in was recognised.
    pub(crate) secret: Option<SecretId>,
    /// Never has a stand-in or a value in it.
    pub(crate) detail: String,
}

impl Refused {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, secret: None, detail: detail.into() }
    }

    pub(crate) fn about(mut self, secret: SecretId) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The answer the sandbox gets.
    pub(crate) fn answer(&self) -> Response<Body> {
        let text =
            format!("Superserve did not pass this request on: {}.\n{}\n", self.detail, self.reason.next());
        let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed();
        let mut response = Response::new(body);
        *response.status_mut() = self.reason.status();
        let headers = response.headers_mut();
        headers.insert(ERROR_HEADER, HeaderValue::from_static("true"));
        headers.insert(REASON_HEADER, HeaderValue::from_static(self.reason.as_str()));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
