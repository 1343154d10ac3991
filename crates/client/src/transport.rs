//! One HTTP exchange: connection, time limit, size limit, and what a failure of it means. Repeating is decided above.
//!
//! HTTP/1.1 only, so that dropping an answer closes its connection: that is how a sandbox learns that nobody waits for
//! a command any more. Trust roots are read from disk only when an `https` URL is used: a process that talks to a
//! platform on the same machine stays small and starts at once.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::{Client, Request, Response, Url};

use crate::error::{ApiError, ClientError, Plane};
use crate::quote::quote;

/// Longest time until a connection stands, TLS included: a machine that is there answers in far less.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections are dropped after this; servers commonly close after 60 s and more.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(50);
/// Idle connections kept per host: enough for a burst of calls, few enough to stay small.
const POOL_MAX_IDLE: usize = 16;
/// Most bytes of a refusal that are read.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Longest wait that a platform may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// What an exchange is, for its errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    /// A noun phrase, e.g. `the command`.
    pub(crate) what: &'static str,
    pub(crate) plane: Plane,
    /// Whether it changes anything at the other side.
    pub(crate) mutating: bool,
    /// Longest time until the head of the answer, or, where a whole answer is read, until its end.
    pub(crate) timeout: Duration,
}

/// Both HTTP clients, made on first use.
pub(crate) struct Transport {
    user_agent: String,
    ca_file: Option<PathBuf>,
    plain: OnceLock<Client>,
    tls: OnceLock<Client>,
}

impl Transport {
    pub(crate) fn new(user_agent: String, ca_file: Option<PathBuf>) -> Self {
        Self { user_agent, ca_file, plain: OnceLock::new(), tls: OnceLock::new() }
    }

    /// Builds a request without sending it.
    pub(crate) fn request(
        &self,
        method: http::Method,
        url: Url,
    ) -> Result<reqwest::RequestBuilder, ClientError> {
        Ok(self.client(&url)?.request(method, url))
    }

    /// Sends and returns the head, whatever its status.
    pub(crate) async fn send(&self, exchange: Exchange, request: Request) -> Result<Response, ClientError> {
        let host = host_of(request.url());
        let client = self.client(request.url())?;
        match tokio::time::timeout(exchange.timeout, client.execute(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(failure(exchange, host, &error)),
            Err(_) => Err(exchange.timed_out()),
        }
    }

    fn client(&self, url: &Url) -> Result<&Client, ClientError> {
        let cell = if url.scheme() == "https" { &self.tls } else { &self.plain };
        if let Some(client) = cell.get() {
            return Ok(client);
        }
        let roots = if url.scheme() == "https" {
            trust_roots(self.ca_file.as_deref())?
        } else {
            rustls::RootCertStore::empty()
        };
        let local =
            |error: &dyn std::fmt::Display| ClientError::Local(format!("cannot set up HTTP: {error}"));
        let provider = rustls::crypto::ring::default_provider();
        let tls = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .map_err(|error| local(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut builder = Client::builder()
            .tls_backend_preconfigured(tls)
            .http1_only()
            .user_agent(&self.user_agent)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .pool_max_idle_per_host(POOL_MAX_IDLE)
            .tcp_nodelay(true)
            .retry(reqwest::retry::never());
        if url.scheme() == "http" {
            // Plain HTTP is for the same machine or a private network: a proxy of the environment is not meant for it.
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| local(&error))?;
        Ok(cell.get_or_init(|| client))
    }
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").field("ca_file", &self.ca_file).finish_non_exhaustive()
    }
}

impl Exchange {
    pub(crate) fn timed_out(self) -> ClientError {
        ClientError::Timeout { what: self.what, after: self.timeout, may_have_taken_effect: self.mutating }
    }

    pub(crate) fn interrupted(self) -> ClientError {
        ClientError::Interrupted { what: self.what, may_have_taken_effect: self.mutating }
    }

    pub(crate) fn protocol(self, detail: impl Into<String>) -> ClientError {
        ClientError::Protocol { what: self.what, detail: detail.into(), may_have_taken_effect: self.mutating }
    }
}

/// Reads a whole answer of at most `limit` bytes within the exchange's time.
pub(crate) async fn read_all(
    exchange: Exchange,
    response: Response,
    limit: usize,
) -> Result<Bytes, ClientError> {
    tokio::time::timeout(exchange.timeout, read_up_to(exchange, response, limit))
        .await
        .unwrap_or_else(|_| Err(exchange.timed_out()))
}

async fn read_up_to(exchange: Exchange, mut response: Response, limit: usize) -> Result<Bytes, ClientError> {
    let too_large = || match exchange.mutating {
        // What was asked has been done; only its answer is of no use.
        true => exchange.protocol(format!("it is larger than {limit} bytes")),
        false => ClientError::TooLarge { what: exchange.what, limit: limit as u64 },
    };
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| exchange.interrupted())? {
        if body.len() + chunk.len() > limit {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Turns an answer that is no success into an error. A body that cannot be read only costs the message.
pub(crate) async fn refusal(exchange: Exchange, response: Response) -> ClientError {
    let status = response.status().as_u16();
    let header =
        |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let retry_after = header("retry-after").and_then(|text| parse_retry_after(&text));
    let request_id = header("x-request-id").map(|id| quote(&id));
    let body = read_all(exchange, response, MAX_REFUSAL_BYTES).await.unwrap_or_default();
    let (code, message) = parse_refusal(&body);
    let may_have_taken_effect = exchange.mutating && !proves_nothing_happened(status, &code);
    ClientError::Api(ApiError {
        plane: exchange.plane,
        status,
        code,
        message,
        retry_after,
        request_id,
        may_have_taken_effect,
    })
}

/// A refusal with 4xx, and the codes that are answered before anything is done.
fn proves_nothing_happened(status: u16, code: &str) -> bool {
    status < 500 || matches!(code, "sandbox_unavailable" | "host_capacity" | "host_not_ready")
}

/// Understands `{"error": {"code", "message"}}`, `{"error": "text"}` and `{"code", "message"}`; other bodies are
/// reduced to the status.
fn parse_refusal(body: &[u8]) -> (String, String) {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) else {
        return legacy_text(body);
    };
    let text =
        |value: Option<&serde_json::Value>| value.and_then(|v| v.as_str()).unwrap_or_default().to_owned();
    let detail = match value.get("error") {
        Some(serde_json::Value::String(message)) => return (String::new(), quote(message)),
        Some(nested) => nested,
        None => &value,
    };
    let code = text(detail.get("code"));
    let code_ok = code.len() <= 64 && code.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (if code_ok { code } else { String::new() }, quote(&text(detail.get("message"))))
}

/// The two plain texts of older edges that mean `sandbox_unavailable` (`spec/data-plane.md` §2.1).
fn legacy_text(body: &[u8]) -> (String, String) {
    match body {
        b"sandbox is paused\n" | b"sandbox is stopped\n" => {
            ("sandbox_unavailable".to_owned(), quote(&String::from_utf8_lossy(body)))
        }
        _ => (String::new(), String::new()),
    }
}

/// Seconds, whole or not, or an HTTP date; bounded.
fn parse_retry_after(text: &str) -> Option<Duration> {
    let seconds = match text.trim().parse::<f64>() {
        Ok(seconds) => seconds,
        Err(_) => {
            let then = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
            then.duration_since(jiff::Timestamp::now()).as_secs_f64()
        }
    };
    seconds.is_finite().then(|| Duration::from_secs_f64(seconds.clamp(0.0, MAX_RETRY_AFTER.as_secs_f64())))
}

fn failure(exchange: Exchange, host: String, error: &reqwest::Error) -> ClientError {
    if error.is_connect() {
        return ClientError::Connect { host, reason: quote(&root_cause(error)) };
    }
    if error.is_builder() {
        return ClientError::Local("cannot build the request".to_owned());
    }
    exchange.interrupted()
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Host and port, the only parts of a URL that an error may show.
pub(crate) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or("?");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The system's roots, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`, and the given file on top.
fn trust_roots(ca_file: Option<&std::path::Path>) -> Result<rustls::RootCertStore, ClientError> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let loaded = rustls_native_certs::load_certs_from_paths(Some(path), None);
        let (added, _) = roots.add_parsable_certificates(loaded.certs);
        if added == 0 {
            return Err(ClientError::Local(format!("no certificate can be read from {}", path.display())));
        }
    }
    if roots.is_empty() {
        return Err(ClientError::Local(
            "no trusted certificate authorities found; install ca-certificates or set SSL_CERT_FILE"
                .to_owned(),
        ));
    }
    Ok(roots)
}
