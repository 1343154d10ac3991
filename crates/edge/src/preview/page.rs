//! What the edge says at a preview host: a page for browsers, a line of text for everybody else. Nothing a visitor sent is
//! repeated.

use bytes::Bytes;
use domain::{PreviewPort, SandboxState};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;

use crate::answer::{self, Body};

const POLICY: HeaderName = header::CONTENT_SECURITY_POLICY;
/// Seconds a visitor of a sandbox that does not run should wait (`spec/data-plane.md` §9).
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");

/// An answer in both forms.
struct Say {
    status: StatusCode,
    text: String,
    title: &'static str,
    /// Sentences for people, one a paragraph. Our own HTML.
    help: String,
    /// The page looks again by itself.
    again: bool,
}

impl Say {
    fn new(
        status: StatusCode,
        text: impl Into<String>,
        title: &'static str,
        help: impl Into<String>,
    ) -> Self {
        Self { status, text: text.into(), title, help: help.into(), again: false }
    }

    fn to(self, visitor: &HeaderMap) -> Response<Body> {
        let html = visitor
            .get_all(header::ACCEPT)
            .iter()
            .any(|value| value.to_str().is_ok_and(|accept| accept.contains("text/html")));
        let mut response = answer::empty(self.status);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let (kind, body) = if html {
            headers.insert(POLICY, HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"));
            ("text/html; charset=utf-8", self.page())
        } else {
            ("text/plain; charset=utf-8", self.text)
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        *response.body_mut() = Body::Own(Full::new(Bytes::from(body)));
        response
    }

    fn page(&self) -> String {
        let again = if self.again { "<meta http-equiv=\"refresh\" content=\"3\">" } else { "" };
        let help: String = self.help.lines().map(|line| format!("<p>{line}</p>")).collect();
        format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>{again}<meta \
             name=\"viewport\" content=\"width=device-width\"><style>body{{font:16px/1.5 system-ui,sans-serif;\
             max-width:36rem;margin:15vh auto;padding:0 1rem;color:#222;background:#fafafa}}code{{background:#eee;\
             padding:.1em .3em;border-radius:.2em}}@media(prefers-color-scheme:dark){{body{{color:#ddd;\
             background:#181818}}code{{background:#333}}}}</style></head><body><h1>{title}</h1>{help}</body></html>",
            title = self.title,
        )
    }
}

/// The port is not published, whatever the sandbox does.
pub(super) fn not_published(visitor: &HeaderMap, port: PreviewPort) -> Response<Body> {
    let help = format!(
        "Port {port} of this sandbox is not published.\nTo publish it: <code>superserve sandbox preview ID {port}</code>, \
         or the tool <code>sandbox_preview_url</code>."
    );
    Say::new(StatusCode::NOT_FOUND, "this port is not published", "Nothing to see at this address", help)
        .to(visitor)
}

/// Nobody may come in without a token.
pub(super) fn private(visitor: &HeaderMap) -> Response<Body> {
    let help = "This preview opens with a signed link only.\nAsk whoever sent you here for a new one. If you had one, \
                it may have been revoked, or your browser may not have kept its cookie.";
    let text = "this preview is private: a valid preview token is needed";
    Say::new(StatusCode::UNAUTHORIZED, text, "This preview is private", help).to(visitor)
}

/// The token was good until its time was over.
pub(super) fn expired(visitor: &HeaderMap) -> Response<Body> {
    let help = "Signed links end after a while, and this one has.\nAsk whoever sent it to you for a new one: \
                <code>superserve sandbox preview ID PORT</code>, or the tool <code>sandbox_preview_url</code>.";
    Say::new(StatusCode::UNAUTHORIZED, "the preview token has expired", "This link has expired", help)
        .to(visitor)
}

/// Previews never wake a sandbox.
pub(super) fn not_running(visitor: &HeaderMap, state: SandboxState) -> Response<Body> {
    let help = format!(
        "The sandbox behind this preview is {state}, and visitors do not wake it.\nIts owner can: <code>superserve \
         sandbox resume ID</code>. Then load this page again."
    );
    let text = format!("sandbox is {state}");
    let mut response =
        Say::new(StatusCode::SERVICE_UNAVAILABLE, text, "This sandbox is not running", help).to(visitor);
    response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    response
}

/// The sandbox runs, and nothing in it listens on the port.
pub(super) fn nothing_listens(visitor: &HeaderMap, port: PreviewPort) -> Response<Body> {
    let help = format!(
        "Nothing in the sandbox listens on port {port} yet.\nStart a server there in the background, on any address \
         (<code>0.0.0.0</code>, <code>127.0.0.1</code> or <code>localhost</code>), for example: <code>nohup python3 -m \
         http.server {port} &gt;server.log 2&gt;&amp;1 &amp;</code>\nThis page looks again every few seconds."
    );
    let text = format!("nothing listens on port {port} in the sandbox; start a server there");
    Say { again: true, ..Say::new(StatusCode::BAD_GATEWAY, text, "Nothing is listening here yet", help) }
        .to(visitor)
}

/// A server is there and did not answer as one should.
pub(super) fn bad_answer(visitor: &HeaderMap, port: PreviewPort, text: &'static str) -> Response<Body> {
    let help = format!(
        "The server on port {port} of the sandbox took the connection but did not answer in HTTP.\nIts own log says \
         more. A server that speaks TLS itself cannot be previewed: let it speak plain HTTP, visitors get TLS here."
    );
    Say::new(StatusCode::BAD_GATEWAY, text, "The server did not answer", help).to(visitor)
}

/// A cap of the operator, or too much at once.
pub(super) fn too_many(visitor: &HeaderMap, text: &'static str) -> Response<Body> {
    let help = "More requests came than this preview takes. Wait a moment and load the page again.";
    let mut response = Say::new(StatusCode::TOO_MANY_REQUESTS, text, "Too many requests", help).to(visitor);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The operator's cap on bodies.
pub(super) fn too_large(visitor: &HeaderMap) -> Response<Body> {
    let help = "The operator of this server limits how much one request to a preview may send or fetch.";
    let text = "larger than this server permits for previews";
    Say::new(StatusCode::PAYLOAD_TOO_LARGE, text, "Too large", help).to(visitor)
}
