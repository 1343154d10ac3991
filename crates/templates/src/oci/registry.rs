//! Speaks the distribution protocol with one registry about one repository. The registry is not trusted: every answer
//! is bounded in size and time, and whatever has a digest is compared with it.
//!
//! Written on the platform's own HTTP client, not on an existing registry client: those found read manifests, tokens and
//! refusals of any length into memory and send credentials wherever the registry points.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION, WWW_AUTHENTICATE,
};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::auth::{self, Challenge, Credentials};
use super::guard::Guard;
use super::manifest::{self, Descriptor, Digest};
use super::trouble::{Again, Patience, Trouble};
use super::{Access, Reference};
use crate::error::TemplateError;

/// Longest time until a connection stands, TLS included: a machine that does not reach the registry learns it soon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence within an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest exchange about a small document.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes a second at which a layer must arrive at least.
const SLOWEST_UPLOAD: u64 = 256 * 1024;
/// Largest manifest or configuration: what the distribution specification demands of registries.
const MAX_DOCUMENT: u64 = 4 * 1024 * 1024;
/// Largest token answer; tokens with many claims have a few KiB.
const MAX_TOKEN: u64 = 64 * 1024;
/// Redirects to where blobs really are: one is usual, two occur.
const MAX_REDIRECTS: usize = 5;

pub(super) struct Registry {
    http: Client,
    guard: Guard,
    reference: Reference,
    credentials: Option<Credentials>,
    /// What a token is asked for.
    actions: &'static str,
    /// What the registry wanted to see last.
    authorization: Mutex<Option<HeaderValue>>,
}

impl Registry {
    pub(super) fn new(reference: Reference, access: &Access) -> Result<Self, TemplateError> {
        Self::with(reference, access, "pull", Some(READ_TIMEOUT))
    }

    fn with(
        reference: Reference,
        access: &Access,
        actions: &'static str,
        silence: Option<Duration>,
    ) -> Result<Self, TemplateError> {
        let credentials = match &access.auth_file {
            Some(file) => auth::credentials(file, reference.host())?,
            None => None,
        };
        let guard = Guard::of(&reference, access);
        let http = client(reference.is_plain(), silence, guard.clone()).map_err(|reason| {
            TemplateError::Registry {
                registry: reference.host().to_owned(),
                reason: format!("cannot set up HTTP: {reason}"),
            }
        })?;
        Ok(Self { http, guard, reference, credentials, actions, authorization: Mutex::new(None) })
    }

    /// For sending an image.
    pub(super) fn for_push(reference: Reference, access: &Access) -> Result<Self, TemplateError> {
        // A registry is silent while it is sent a layer: the whole exchange has a limit instead.
        Self::with(reference, access, "pull,push", None)
    }

    /// Sends a blob out of a file, unless it is there.
    pub(super) async fn push_file(&self, file: &Path, digest: &str, size: u64) -> Result<(), TemplateError> {
        let content =
            tokio::fs::File::open(file).await.map_err(TemplateError::io("cannot read a packed layer"))?;
        let push = async {
            let Some(to) = self.begin_upload(digest).await? else { return Ok(()) };
            let request = self.http.put(to).header(CONTENT_LENGTH, size);
            self.finish_upload(request.body(reqwest::Body::from(content))).await
        };
        self.within(DOCUMENT_TIMEOUT + Duration::from_secs(size / SLOWEST_UPLOAD), push).await
    }

    /// Sends a small blob, unless it is there.
    pub(super) async fn push_bytes(&self, digest: &str, bytes: Vec<u8>) -> Result<(), TemplateError> {
        let push = async {
            match self.begin_upload(digest).await? {
                Some(to) => self.finish_upload(self.http.put(to).body(bytes)).await,
                None => Ok(()),
            }
        };
        self.within(DOCUMENT_TIMEOUT, push).await
    }

    /// Writes the manifest under the reference's tag.
    pub(super) async fn push_manifest(&self, kind: &str, bytes: Vec<u8>) -> Result<(), TemplateError> {
        let push = async {
            let url = format!("{}/manifests/{}", self.reference.url(), self.reference.version());
            let request = || self.http.put(&url).header(CONTENT_TYPE, kind).body(bytes.clone());
            let response = self.asked(request).await?;
            if response.status().is_success() { Ok(()) } else { Err(Trouble::unexpected(&response)) }
        };
        self.within(DOCUMENT_TIMEOUT, push).await
    }

    /// Where a blob is to be sent; `None` when the registry has it.
    async fn begin_upload(&self, digest: &str) -> Result<Option<Url>, Trouble> {
        let there = format!("{}/blobs/{digest}", self.reference.url());
        if self.asked(|| self.http.head(&there)).await?.status().is_success() {
            return Ok(None);
        }
        let uploads = format!("{}/blobs/uploads/", self.reference.url());
        let response = self.asked(|| self.http.post(&uploads).header(CONTENT_LENGTH, 0)).await?;
        if response.status() != StatusCode::ACCEPTED {
            return Err(match response.status() {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Trouble::Refused(
                    "the registry does not take it from the configured user (registry_auth_file)".to_owned(),
                ),
                _ => Trouble::unexpected(&response),
            });
        }
        let odd = || Trouble::Refused("the registry does not say where to send a layer".to_owned());
        let location =
            response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).ok_or_else(odd)?;
        let mut url = response.url().join(location).map_err(|_| odd())?;
        if url.scheme() != "https" && !self.reference.is_plain() {
            return Err(Trouble::Refused(
                "the registry wants a layer sent to a place that is not https".to_owned(),
            ));
        }
        url.query_pairs_mut().append_pair("digest", digest);
        Ok(Some(url))
    }

    async fn finish_upload(&self, request: RequestBuilder) -> Result<(), Trouble> {
        let response = self.send(self.authorized(request)).await?;
        if response.status().is_success() { Ok(()) } else { Err(Trouble::unexpected(&response)) }
    }

    /// The one place from which requests leave.
    async fn send(&self, request: RequestBuilder) -> Result<Response, Trouble> {
        let request = request.build().map_err(|error| Trouble::of(&error))?;
        self.guard.check(request.url()).map_err(|internal| Trouble::Refused(internal.to_string()))?;
        self.http.execute(request).await.map_err(|error| Trouble::of(&error))
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        let authorization = self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match authorization {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        }
    }

    /// One request, repeated once when the registry wants to know who asks.
    async fn asked(&self, request: impl Fn() -> RequestBuilder) -> Result<Response, Trouble> {
        let response = self.send(self.authorized(request())).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        let header = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let challenge = header
            .and_then(Challenge::parse)
            .ok_or_else(|| Trouble::Refused("the registry demands a login of an unknown kind".to_owned()))?;
        let value = self.authorize(challenge).await?;
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.send(self.authorized(request())).await
    }

    pub(super) fn reference(&self) -> &Reference {
        &self.reference
    }

    /// Fetches a manifest or index by tag or digest, and says what its digest is.
    pub(super) async fn manifest(&self, name: &str) -> Result<(Vec<u8>, Digest), TemplateError> {
        let path = format!("manifests/{name}");
        let get = || async {
            let mut response = self.get(&path, |request| request.header(ACCEPT, manifest::ACCEPT)).await?;
            let told = response.headers().get("docker-content-digest").cloned();
            let body = read(&mut response, MAX_DOCUMENT).await?;
            let digest = digest_of(&body);
            let wanted = [told.as_ref().and_then(|value| value.to_str().ok()), Some(name)];
            for wanted in wanted.into_iter().flatten().filter(|text| text.starts_with("sha256:")) {
                if wanted != digest.with_algorithm() {
                    return Err(Trouble::Refused("a manifest is not what its digest says".to_owned()));
                }
            }
            Ok((body, digest))
        };
        self.patiently(get).await
    }

    /// Fetches a small blob into memory.
    pub(super) async fn document(&self, of: &Descriptor) -> Result<Vec<u8>, TemplateError> {
        let path = format!("blobs/{}", of.digest.with_algorithm());
        let get = || async {
            let mut response = self.get(&path, |request| request).await?;
            let body = read(&mut response, MAX_DOCUMENT).await?;
            if digest_of(&body) != of.digest {
                return Err(Trouble::Refused("its configuration is not what its digest says".to_owned()));
            }
            Ok(body)
        };
        self.patiently(get).await
    }

    /// Repeats what may do better at once, each time with the time limit of a document.
    async fn patiently<T, F: Future<Output = Result<T, Trouble>>>(
        &self,
        work: impl Fn() -> F,
    ) -> Result<T, TemplateError> {
        let mut patience = Patience::short();
        loop {
            let trouble = match in_time(DOCUMENT_TIMEOUT, work()).await {
                Ok(done) => return Ok(done),
                Err(trouble) => trouble,
            };
            let wait = patience.next(trouble).map_err(|trouble| self.about(trouble))?;
            tokio::time::sleep(wait).await;
        }
    }

    async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, TemplateError> {
        in_time(limit, work).await.map_err(|trouble| self.about(trouble))
    }

    pub(super) fn about(&self, trouble: Trouble) -> TemplateError {
        match trouble {
            Trouble::Silent { reason, .. } => {
                TemplateError::Registry { registry: self.reference.host().to_owned(), reason }
            }
            Trouble::Refused(reason) => {
                TemplateError::Image { reference: self.reference.to_string(), reason }
            }
        }
    }

    /// Asks for something.
    pub(super) async fn get(
        &self,
        path: &str,
        dressed: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, Trouble> {
        let url = format!("{}/{path}", self.reference.url());
        let response = self.asked(|| dressed(self.http.get(&url))).await?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            StatusCode::NOT_FOUND => Err(Trouble::Refused("the registry does not have it".to_owned())),
            // Asked for the rest of a layer, of which there is none.
            StatusCode::RANGE_NOT_SATISFIABLE => {
                Err(Trouble::Refused("a layer is shorter than its manifest says".to_owned()))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(Trouble::Refused(match &self.credentials {
                    Some(_) => "the registry does not give it to the configured user".to_owned(),
                    None => {
                        "the registry does not give it to an anonymous user; name a file with credentials \
                         (registry_auth_file)"
                            .to_owned()
                    }
                }))
            }
            _ => Err(Trouble::unexpected(&response)),
        }
    }

    /// Answers a challenge.
    async fn authorize(&self, challenge: Challenge) -> Result<HeaderValue, Trouble> {
        let (realm, service, scope) = match challenge {
            Challenge::Basic => {
                let credentials = self.credentials.as_ref().ok_or_else(|| {
                    Trouble::Refused(
                        "the registry demands a login; name a file with credentials (registry_auth_file)"
                            .to_owned(),
                    )
                })?;
                return private(&format!("Basic {}", basic(credentials)));
            }
            Challenge::Bearer { realm, service, scope } => (realm, service, scope),
        };
        let mut url = Url::parse(&realm)
            .ok()
            .filter(|url| url.scheme() == "https" || (self.reference.is_plain() && url.scheme() == "http"))
            .ok_or_else(|| {
                Trouble::Refused("the registry sends to a place for tokens that is not https".to_owned())
            })?;
        let scope =
            scope.unwrap_or_else(|| format!("repository:{}:{}", self.reference.repository(), self.actions));
        url.query_pairs_mut().append_pair("scope", &scope);
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", &service);
        }
        let mut request = self.http.get(url);
        if let Some(credentials) = &self.credentials {
            request = request.header(AUTHORIZATION, private(&format!("Basic {}", basic(credentials)))?);
        }
        let mut response = self.send(request).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
                return Err(Trouble::Refused("the registry gives no token for it".to_owned()));
            }
            _ => return Err(Trouble::unexpected(&response)),
        }
        #[derive(Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let body = read(&mut response, MAX_TOKEN).await?;
        let unreadable = || Trouble::Refused("the registry's token cannot be read".to_owned());
        // The parser's own words could quote the token.
        let token: Token = serde_json::from_slice(&body).map_err(|_| unreadable())?;
        let token = token.token.or(token.access_token).ok_or_else(unreadable)?;
        private(&format!("Bearer {token}"))
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("reference", &self.reference).finish_non_exhaustive()
    }
}

async fn in_time<T>(limit: Duration, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let late = || format!("no complete answer within {} s", limit.as_secs());
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(Trouble::silent(late(), Again::Later)))
}

/// Reads a whole answer of at most `limit` bytes.
async fn read(response: &mut Response, limit: u64) -> Result<Vec<u8>, Trouble> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| Trouble::of(&error))? {
        if (body.len() + chunk.len()) as u64 > limit {
            return Err(Trouble::Refused(format!(
                "the registry sends a document of more than {limit} bytes"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn basic(credentials: &Credentials) -> String {
    use base64::Engine;
    let pair = format!("{}:{}", credentials.name, credentials.password.expose_secret());
    base64::prelude::BASE64_STANDARD.encode(pair)
}

/// A header value that no log of the HTTP client shows.
fn private(text: &str) -> Result<HeaderValue, Trouble> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Trouble::Refused("the registry's token cannot be sent".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

pub(super) fn digest_of(body: &[u8]) -> Digest {
    let hex = hex(Sha256::new_with_prefix(body));
    Digest::try_from(format!("sha256:{hex}")).expect("a SHA-256 has 64 hex digits")
}

pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn client(plain: bool, silence: Option<Duration>, guard: Guard) -> Result<Client, String> {
    let mut roots = rustls::RootCertStore::empty();
    if !plain {
        // What cannot be read is reported by the handshake that would have needed it.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = rustls::crypto::ring::default_provider();
    let tls = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let checked = guard.clone();
    let redirects = reqwest::redirect::Policy::custom(move |attempt| {
        if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("the registry redirects without end")
        } else if !plain && attempt.url().scheme() != "https" {
            attempt.error("the registry redirects to a place that is not https")
        } else {
            match checked.check(attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(internal) => attempt.error(internal),
            }
        }
    });
    let mut builder = Client::builder()
        .tls_backend_preconfigured(tls)
        .http1_only()
        .user_agent(concat!("superserve/", env!("CARGO_PKG_VERSION")))
        .redirect(redirects)
        .dns_resolver(guard)
        .connect_timeout(CONNECT_TIMEOUT)
        .retry(reqwest::retry::never());
    if let Some(silence) = silence {
        builder = builder.read_timeout(silence);
    }
    if plain {
        // A registry on this machine or a private network: a proxy of the environment is not meant for it.
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| error.to_string())
}

/// Whether a registry's host is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
