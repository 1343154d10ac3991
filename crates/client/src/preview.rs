//! Preview ports (`spec/rest-api.md` §7), and the addresses people open. None of it resumes a sandbox.

use http::Method;
use reqwest::Url;
use wire::rest::{
    MintPreviewToken, Preview, PreviewPort, PreviewPorts, PreviewRequest, PreviewToken, PublishPort,
};

use crate::control::{Call, Client};
use crate::discovery::vendor_preview_host;
use crate::error::ClientError;
use crate::sandbox_id;

impl Client {
    /// Publishes a port, or changes its mode, which ends its tokens. Without a mode a new port takes the sandbox's default
    /// and a published one stays as it is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn publish_port(
        &self,
        id: &str,
        port: u16,
        access: Option<&str>,
    ) -> Result<PreviewPort, ClientError> {
        let body = PublishPort { port: port.into(), access: access.map(str::to_owned) };
        self.call(&Call::new("the preview port", Method::POST, path(id, "")?).json(&body)?).await?.json()
    }

    /// The published ports of a sandbox, and the default of those published later.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_ports(&self, id: &str) -> Result<PreviewPorts, ClientError> {
        self.call(&Call::new("the preview ports", Method::GET, path(id, "")?)).await?.json()
    }

    /// Takes a port back; one that is not published is fine.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn unpublish_port(&self, id: &str, port: u16) -> Result<(), ClientError> {
        let call = Call::new("the preview port", Method::DELETE, path(id, &format!("/{port}"))?);
        self.call(&call).await.map(drop)
    }

    /// A token of a private port, which ends after so many seconds or never. Earlier ones stay good.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn preview_token(
        &self,
        id: &str,
        port: u16,
        expires_in_seconds: Option<i64>,
    ) -> Result<PreviewToken, ClientError> {
        let path = path(id, &format!("/{port}/token"))?;
        let call = Call::new("the preview token", Method::POST, path);
        self.call(&call.json(&MintPreviewToken { expires_in_seconds })?).await?.json()
    }

    /// Ends all tokens and links of a private port and gives a new token without an end.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn rotate_preview_token(&self, id: &str, port: u16) -> Result<PreviewToken, ClientError> {
        let path = path(id, &format!("/{port}/token/rotate"))?;
        self.call(&Call::new("the preview token", Method::POST, path)).await?.json()
    }

    /// Every published port of the team with its traffic; an addition of our own servers.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 from other servers.
    pub async fn list_previews(&self) -> Result<Vec<Preview>, ClientError> {
        self.call(&Call::new("the previews", Method::GET, "/previews")).await?.json()
    }

    /// The latest requests of a published port, newest first; an addition of our own servers.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 from other servers.
    pub async fn preview_requests(&self, id: &str, port: u16) -> Result<Vec<PreviewRequest>, ClientError> {
        let path = path(id, &format!("/{port}/requests"))?;
        self.call(&Call::new("the preview's requests", Method::GET, path)).await?.json()
    }

    /// The address of a port for people: with a token, as a signed link.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] when the platform does not say where its previews are, or says something that is no
    /// host.
    pub async fn preview_url(
        &self,
        id: &str,
        port: u16,
        token: Option<&PreviewToken>,
    ) -> Result<String, ClientError> {
        let id = sandbox_id::check(id)?.to_ascii_lowercase();
        let (scheme, host) = self.preview_host().await?;
        let unusable = || ClientError::Protocol {
            what: "the preview's address",
            detail: "the platform's sandbox_host, query_param or token cannot be part of a URL".to_owned(),
            may_have_taken_effect: false,
        };
        let mut url = Url::parse(&format!("{scheme}://{port}-{id}.{host}/")).map_err(|_| unusable())?;
        let expected = format!("{port}-{id}.");
        let plain =
            url.host_str().is_some_and(|host| host.len() > expected.len() && host.starts_with(&expected))
                && url.path() == "/";
        if !plain || !url.username().is_empty() || url.query().is_some() || url.fragment().is_some() {
            return Err(unusable());
        }
        match token {
            None => Ok(url.as_str().trim_end_matches('/').to_owned()),
            Some(token) if token.token.is_empty() || token.query_param.is_empty() => Err(unusable()),
            Some(token) => {
                url.query_pairs_mut().append_pair(&token.query_param, &token.token);
                Ok(url.into())
            }
        }
    }

    /// Scheme and host that previews are below.
    async fn preview_host(&self) -> Result<(String, String), ClientError> {
        let control = Url::parse(self.base_url())
            .map_err(|_| ClientError::Local("the base URL is no URL".to_owned()))?;
        if let Some(host) = vendor_preview_host(&control) {
            return Ok(("https".to_owned(), host.to_owned()));
        }
        let descriptor = self.descriptor().await?;
        let host = descriptor.sandbox_host;
        // A token goes in the clear only where it does not leave the machine, or where the key does so as well.
        let local = host.split(':').next().is_some_and(|name| name.ends_with(".localhost"));
        let plain = descriptor.scheme == "http" && (local || control.scheme() == "http");
        Ok((if plain { "http" } else { "https" }.to_owned(), host))
    }
}

fn path(id: &str, rest: &str) -> Result<String, ClientError> {
    Ok(format!("/sandboxes/{}/preview-ports{rest}", sandbox_id::check(id)?))
}
