//! One request: judged, changed, sent, and its answer.

use std::sync::{Arc, Mutex, PoisonError};

use domain::{BoundSecret, Credentials, NetworkSink, NoValue, SandboxId};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use crate::audit::Row;
use crate::body::{Body, Expected, Scrubbed, Trailers};
use crate::head;
use crate::reason::{Reason, Refused};
use crate::scrub::{self, Scrubber};
use crate::swap::{self, Used};
use crate::tasks::Tasks;
use crate::tls::Protocol;
use crate::upstream::Upstream;

/// What all requests of one connection share.
pub(crate) struct Session {
    pub(crate) sandbox: SandboxId,
    pub(crate) host: String,
    pub(crate) protocol: Protocol,
    pub(crate) upstream: Upstream,
    pub(crate) credentials: Arc<dyn Credentials>,
    pub(crate) sink: Arc<dyn NetworkSink>,
    /// Connections that speak something else now.
    pub(crate) tunnels: Tasks,
}

impl Session {
    /// Answers a request.
    pub(crate) async fn answer(&self, mut request: Request<Incoming>) -> Response<Body> {
        let upgrade = hyper::upgrade::on(&mut request);
        let (parts, body) = request.into_parts();
        let mut row = Row::new(&self.sink, self.sandbox, &self.host, &parts);
        let passed = self.pass(&mut row, parts, body, upgrade).await;
        passed.unwrap_or_else(|refused| {
            row.refused(refused.reason, refused.secret);
            tracing::debug!(sandbox = %self.sandbox, host = self.host, reason = refused.reason.as_str(), "request refused");
            refused.answer()
        })
    }

    async fn pass(
        &self,
        row: &mut Row,
        mut parts: Parts,
        body: Incoming,
        upgrade: OnUpgrade,
    ) -> Result<Response<Body>, Refused> {
        head::check(&parts, self.protocol)?;
        let bound = self.credentials.bound(self.sandbox);
        let judgement = swap::judge(&parts, &self.host, self.sandbox, &bound, &*self.credentials)?;
        let secrets = judgement.secrets();
        if !head::names(&parts, &self.host) {
            return Err(match secrets.first() {
                Some(secret) => Refused::new(
                    Reason::CredentialHostMismatch,
                    "it carries a stand-in token and names another host than its connection",
                )
                .about(*secret),
                None => Refused::new(Reason::HostNotAllowed, "it names another host than its connection"),
            });
        }
        // The service would answer with the request itself, value and all.
        if let (Some(secret), "TRACE" | "TRACK") = (secrets.first(), parts.method.as_str()) {
            return Err(Refused::new(Reason::BuildRequest, "its method would send the credential back")
                .about(*secret));
        }
        row.concerns(secrets);
        let upgraded = head::wants_upgrade(&parts, self.protocol);
        // The judgement counts headers: first these, then what removes some.
        let used = swap::apply(&mut parts, judgement, &*self.credentials)?;
        let unusable = || Refused::new(Reason::BuildRequest, "its head cannot be passed on");
        head::forward(&mut parts, self.protocol, upgraded).ok_or_else(unusable)?;
        let guarded = self.guarded(&bound, &used)?;
        if !guarded.is_empty() {
            // Nothing can be found in what is compressed.
            parts.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            // Nor in what comes in parts.
            parts.headers.remove(header::RANGE);
            parts.headers.remove(header::IF_RANGE);
        }

        let is_head = parts.method == Method::HEAD;
        let request = expecting(parts, body);
        let mut response = self.upstream.send(request).await?;
        let service = hyper::upgrade::on(&mut response);
        let (mut parts, body) = response.into_parts();
        // Free text, which HTTP/1 would carry on.
        parts.extensions.remove::<hyper::ext::ReasonPhrase>();
        row.answered(parts.status.as_u16());
        head::give_back(&mut parts, self.protocol);
        Scrubber::new(used.iter().chain(&guarded)).headers(&mut parts.headers);
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            if !upgraded {
                return Err(Refused::new(
                    Reason::UpstreamUnreachable,
                    "the service changed the protocol unasked",
                ));
            }
            self.tunnels.spawn(tunnel(upgrade, service));
            return Ok(Response::from_parts(parts, body.boxed()));
        }
        let scrubber = Scrubber::new(&guarded);
        if scrubber.is_empty() || is_head || !scrub::is_text(&parts.headers) {
            let trailers = Scrubber::new(used.iter().chain(&guarded));
            return Ok(Response::from_parts(parts, Trailers::new(body, trailers).boxed()));
        }
        let coded = parts.headers.get(header::CONTENT_ENCODING);
        if coded.is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            let detail = "the service compressed its answer though it was asked not to, so that the secret's value \
                          cannot be kept out of it";
            return Err(Refused::new(Reason::InjectError, detail));
        }
        parts.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(parts, Scrubbed::new(body, scrubber).boxed()))
    }

    /// The values that must not be in the answer's body, whether this request carries them or another one did.
    fn guarded(&self, bound: &[BoundSecret], used: &[Used]) -> Result<Vec<Used>, Refused> {
        let asked = |one: &&BoundSecret| {
            one.policy.options.scrub_bodies && !one.revoked && one.policy.covers(&self.host)
        };
        let mut guarded = Vec::new();
        for one in bound.iter().filter(asked) {
            let basic = used
                .iter()
                .find(|used| used.bound.binding == one.binding)
                .and_then(|used| used.basic.clone());
            match self.credentials.value(one) {
                Ok(value) => guarded.push(Used { bound: one.clone(), value, basic }),
                Err(NoValue::Revoked) => {}
                Err(NoValue::Unavailable) => {
                    let detail = "the value that must be kept out of the answer cannot be read";
                    return Err(Refused::new(Reason::InjectError, detail).about(one.secret));
                }
            }
        }
        Ok(guarded)
    }
}

/// The request for the service. A body that waits for a "continue" begins when the service has said it.
fn expecting(parts: Parts, body: Incoming) -> Request<Body> {
    let expects = parts.headers.get(header::EXPECT);
    if !expects.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Request::from_parts(parts, body.boxed());
    }
    let (go, wait) = oneshot::channel();
    let mut request = Request::from_parts(parts, Expected::new(body, wait).boxed());
    let go = Mutex::new(Some(go));
    hyper::ext::on_informational(&mut request, move |response| {
        if response.status() == StatusCode::CONTINUE
            && let Some(go) = go.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            let _nobody_waits = go.send(());
        }
    });
    request
}

/// Bytes of another protocol, both ways.
async fn tunnel(guest: OnUpgrade, service: OnUpgrade) {
    if let (Ok(guest), Ok(service)) = tokio::join!(guest, service) {
        let _ended =
            tokio::io::copy_bidirectional(&mut TokioIo::new(guest), &mut TokioIo::new(service)).await;
    }
}
