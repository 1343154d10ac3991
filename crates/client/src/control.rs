//! The client value and the control plane's calling convention: key, body rules, attempts, refusals.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::Secret;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use reqwest::{Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

use crate::config::ClientConfig;
use crate::discovery::DataPlane;
use crate::error::{ClientError, Plane};
use crate::retry::{self, Repeat};
use crate::tokens::Tokens;
use crate::transport::{Exchange, Transport, read_all, refusal};

/// Longest control-plane call, as in the official clients.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest control-plane answer: a list of some ten thousand sandboxes.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// A client of one platform with one key. Cheap to clone; clones share connections and tokens. Making one does no I/O.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) transport: Arc<Transport>,
    base: String,
    api_key: HeaderValue,
    pub(crate) data_plane: Arc<OnceCell<DataPlane>>,
    pub(crate) tokens: Tokens,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("transport", &self.transport)
            .field("data_plane", &self.data_plane)
            .finish_non_exhaustive()
    }
}

/// One control-plane call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) what: &'static str,
    pub(crate) method: Method,
    /// Begins with `/`; segments are encoded already.
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) body: Option<Bytes>,
    pub(crate) respond_async: bool,
    pub(crate) timeout: Duration,
}

impl Call {
    pub(crate) fn new(what: &'static str, method: Method, path: impl Into<String>) -> Self {
        Self {
            what,
            method,
            path: path.into(),
            query: Vec::new(),
            body: None,
            respond_async: false,
            timeout: CALL_TIMEOUT,
        }
    }

    pub(crate) fn json(mut self, body: &impl Serialize) -> Result<Self, ClientError> {
        let body = serde_json::to_vec(body)
            .map_err(|error| ClientError::Local(format!("cannot write the request: {error}")))?;
        self.body = Some(body.into());
        Ok(self)
    }

    pub(crate) fn exchange(&self) -> Exchange {
        Exchange {
            what: self.what,
            plane: Plane::Control,
            mutating: self.method != Method::GET,
            timeout: self.timeout,
        }
    }

    fn repeat(&self) -> Repeat {
        if matches!(self.method, Method::GET | Method::DELETE) { Repeat::Freely } else { Repeat::OnlyUnsent }
    }
}

/// A successful answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Bytes,
    exchange: Exchange,
}

impl Answer {
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        // serde's text may quote the body, which may hold a token: only the place is named.
        serde_json::from_slice(&self.body).map_err(|error| {
            self.exchange.protocol(format!("not the expected JSON at column {}", error.column()))
        })
    }
}

impl Client {
    /// A client for the platform at `config.base_url`.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] when a URL or the key cannot be used.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let base = parse_base_url("base URL", &config.base_url)?;
        let data_plane = match &config.data_plane {
            Some(url) => OnceCell::new_with(Some(DataPlane { base: parse_base_url("data plane URL", url)? })),
            None => OnceCell::new(),
        };
        let api_key = key_header(&config.api_key)?;
        let transport = Arc::new(Transport::new(config.user_agent, config.ca_file));
        let data_plane = Arc::new(data_plane);
        Ok(Self {
            inner: Arc::new(Inner { transport, base, api_key, data_plane, tokens: Tokens::default() }),
        })
    }

    /// The same platform with another key. Connections are shared, data-plane tokens are not.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] when the key cannot be used.
    pub fn with_key(&self, api_key: &Secret) -> Result<Self, ClientError> {
        Ok(Self {
            inner: Arc::new(Inner {
                transport: Arc::clone(&self.inner.transport),
                base: self.inner.base.clone(),
                api_key: key_header(api_key)?,
                data_plane: Arc::clone(&self.inner.data_plane),
                tokens: Tokens::default(),
            }),
        })
    }

    /// The control-plane base URL, without a trailing slash.
    #[must_use]
    pub fn base_url(&self) -> &str {
        &self.inner.base
    }

    /// Makes a call, repeats it where that is safe, and returns a success.
    pub(crate) async fn call(&self, call: &Call) -> Result<Answer, ClientError> {
        self.call_counted(call).await.0
    }

    /// The same, with the number of attempts it took: the answer to a repeated delete means something else.
    pub(crate) async fn call_counted(&self, call: &Call) -> (Result<Answer, ClientError>, u32) {
        let mut attempt = 1;
        loop {
            let error = match self.attempt(call).await {
                Ok(answer) => return (Ok(answer), attempt),
                Err(error) => error,
            };
            let Some(wait) = retry::wait_before_next(call.repeat(), attempt, &error) else {
                return (Err(error), attempt);
            };
            tracing::debug!(what = call.what, attempt, ?wait, "repeating a control-plane call");
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, call: &Call) -> Result<Answer, ClientError> {
        let exchange = call.exchange();
        let response = self.open(call).await?;
        let status = response.status();
        let headers = response.headers().clone();
        let body = read_all(exchange, response, MAX_ANSWER_BYTES).await?;
        Ok(Answer { status, headers, body, exchange })
    }

    /// Makes a call once and returns the head of a success; its body is the caller's to read.
    pub(crate) async fn open(&self, call: &Call) -> Result<Response, ClientError> {
        let exchange = call.exchange();
        let url = format!("{}{}", self.inner.base, call.path);
        let mut url = Url::parse(&url).map_err(|_| ClientError::Local("cannot build the URL".to_owned()))?;
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let mut request = self
            .inner
            .transport
            .request(call.method.clone(), url)?
            .header("x-api-key", self.inner.api_key.clone());
        if call.respond_async {
            request = request.header("prefer", "respond-async");
        }
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        } else if call.method == Method::POST {
            request = request.header(http::header::CONTENT_LENGTH, "0");
        }
        let request =
            request.build().map_err(|_| ClientError::Local("cannot build the request".to_owned()))?;
        let response = self.inner.transport.send(exchange, request).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(refusal(exchange, response).await);
        }
        Ok(response)
    }
}

fn key_header(api_key: &Secret) -> Result<HeaderValue, ClientError> {
    let mut header =
        HeaderValue::from_str(api_key.expose_secret().trim()).map_err(|_| ClientError::Invalid {
            field: "API key",
            accepted: "only printable ASCII characters are accepted".to_owned(),
        })?;
    header.set_sensitive(true);
    Ok(header)
}

/// An `http` or `https` URL as it is prefixed to paths: no trailing slash, no query.
pub(crate) fn parse_base_url(field: &'static str, text: &str) -> Result<String, ClientError> {
    let invalid = || ClientError::Invalid {
        field,
        accepted: "an http:// or https:// URL without query or user name is accepted".to_owned(),
    };
    let url = Url::parse(text.trim()).map_err(|_| invalid())?;
    let plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !plain {
        return Err(invalid());
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}
