//! The data plane's calling convention: token, sandbox header, and self-healing. A call that meets a stale token, a
//! moved route or a sandbox that does not run activates the sandbox and is repeated, exactly once.

use std::borrow::Cow;

use bytes::Bytes;
use domain::Secret;
use http::header::{
    CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Method, StatusCode};
use reqwest::{Response, Url};
use wire::data_plane::{ACCESS_TOKEN_HEADER, SANDBOX_ID_HEADER};

use crate::control::Client;
use crate::error::ClientError;
use crate::files::UploadBody;
use crate::retry::{self, Repeat};
use crate::sandbox_id;
use crate::transport::{Exchange, refusal};
use crate::websocket::Handshake;

/// One data-plane call.
pub(crate) struct DataCall<'a> {
    pub(crate) exchange: Exchange,
    pub(crate) method: Method,
    pub(crate) path: Cow<'static, str>,
    pub(crate) query: Vec<(&'static str, &'a str)>,
    pub(crate) body: DataBody,
}

pub(crate) enum DataBody {
    None,
    Json(Bytes),
    /// None, but the connection is to become a WebSocket.
    Upgrade(Handshake),
    Upload(UploadBody),
}

impl DataBody {
    fn repeatable(&self) -> bool {
        !matches!(self, Self::Upload(UploadBody::Once { .. }))
    }
}

impl Client {
    /// Makes a call and returns the head of a success; wakes a paused sandbox.
    pub(crate) async fn data_call(&self, id: &str, call: DataCall<'_>) -> Result<Response, ClientError> {
        self.data_call_healed(id, call, heals).await
    }

    /// As [`Client::data_call`], but what is paused stays paused: only a stale token is renewed.
    pub(crate) async fn data_call_asleep(
        &self,
        id: &str,
        call: DataCall<'_>,
    ) -> Result<Response, ClientError> {
        self.data_call_healed(id, call, stale).await
    }

    async fn data_call_healed(
        &self,
        id: &str,
        mut call: DataCall<'_>,
        mended: fn(&ClientError) -> bool,
    ) -> Result<Response, ClientError> {
        sandbox_id::check(id)?;
        let base = self.data_plane().await?;
        if !call.body.repeatable() {
            // What can be sent only once must not meet a paused sandbox.
            self.activate_sandbox(id).await?;
        }
        let token = self.token(id, None).await?;
        let error = match self.attempts(base, id, &token, &mut call).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        if !mended(&error) {
            return Err(error);
        }
        if !call.body.repeatable() {
            self.inner.tokens.forget(id);
            return Err(error);
        }
        tracing::debug!(
            what = call.exchange.what,
            status = error.status(),
            "activating the sandbox and repeating"
        );
        let token = self.token(id, Some(&token)).await?;
        let answer = self.attempts(base, id, &token, &mut call).await;
        if answer.as_ref().is_err_and(heals) {
            self.inner.tokens.forget(id);
        }
        answer
    }

    /// The token to use, other than `stale`. Whoever comes first activates; the others take what that brought.
    async fn token(&self, id: &str, stale: Option<&Secret>) -> Result<Secret, ClientError> {
        let usable = || self.inner.tokens.get(id).filter(|token| Some(token) != stale);
        if let Some(token) = usable() {
            return Ok(token);
        }
        let lock = self.inner.tokens.refresh_lock(id);
        let _turn = lock.lock().await;
        if let Some(token) = usable() {
            return Ok(token);
        }
        Ok(Secret::new(self.activate_sandbox(id).await?.access_token))
    }

    /// Ordinary repetition: reads freely, the rest when nothing was sent. 503 is left to healing.
    async fn attempts(
        &self,
        base: &str,
        id: &str,
        token: &Secret,
        call: &mut DataCall<'_>,
    ) -> Result<Response, ClientError> {
        let free = matches!(call.method, Method::GET | Method::DELETE);
        let repeat = if free { Repeat::Freely } else { Repeat::OnlyUnsent };
        let mut attempt = 1;
        loop {
            let error = match self.data_attempt(base, id, token, call).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let wait = retry::wait_before_next(repeat, attempt, &error);
            let Some(wait) = wait.filter(|_| !heals(&error) && call.body.repeatable()) else {
                return Err(error);
            };
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn data_attempt(
        &self,
        base: &str,
        id: &str,
        token: &Secret,
        call: &mut DataCall<'_>,
    ) -> Result<Response, ClientError> {
        let local = |text: &str| ClientError::Local(text.to_owned());
        let mut url =
            Url::parse(&format!("{base}{}", call.path)).map_err(|_| local("cannot build the URL"))?;
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let mut token = http::HeaderValue::from_str(token.expose_secret())
            .map_err(|_| call.exchange.protocol("its access token is no header value"))?;
        token.set_sensitive(true);
        let mut request = self
            .inner
            .transport
            .request(call.method.clone(), url)?
            .header(ACCESS_TOKEN_HEADER, token)
            .header(SANDBOX_ID_HEADER, id);
        match &mut call.body {
            DataBody::None => {}
            DataBody::Json(body) => {
                request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
            }
            DataBody::Upgrade(handshake) => {
                request = request
                    .header(CONNECTION, "Upgrade")
                    .header(UPGRADE, "websocket")
                    .header(SEC_WEBSOCKET_VERSION, "13")
                    .header(SEC_WEBSOCKET_KEY, &handshake.key)
                    .header(SEC_WEBSOCKET_PROTOCOL, handshake.protocol);
            }
            DataBody::Upload(body) => {
                request = body.attach(request.header(CONTENT_TYPE, "application/octet-stream")).await?;
            }
        }
        let request = request.build().map_err(|_| local("cannot build the request"))?;
        let response = self.inner.transport.send(call.exchange, request).await?;
        if response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        Err(refusal(call.exchange, response).await)
    }
}

/// The token is not valid any more.
fn stale(error: &ClientError) -> bool {
    matches!(error.status(), Some(401 | 403))
}

/// Refusals that a fresh activation may mend (`spec/data-plane.md` §2.2).
fn heals(error: &ClientError) -> bool {
    error.api().is_some_and(|api| match api.status {
        401 | 403 | 503 => true,
        404 => api.code == "sandbox_route_stale",
        _ => false,
    })
}
