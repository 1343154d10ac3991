//! The authorization server in `up`: made when the configuration wants it, and joined to the MCP endpoint, which knows nothing
//! of it but that it opens tokens.

use std::net::SocketAddr;
use std::sync::Arc;

use domain::Secret;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mcp::{Authorization, Exchange, NoExchange};
use oauth::{OauthConfig, Observer, PublicUrl, Server, Sweeper};
use store::Store;

use crate::config::Oauth as Wanted;
use crate::output::Failure;

/// What is there when it is on.
#[derive(Debug)]
pub(crate) struct Oauth {
    pub(crate) url: PublicUrl,
    pub(crate) server: Server,
    _sweeper: Sweeper,
}

#[derive(Debug)]
struct Tokens(Server);

impl Exchange for Tokens {
    fn exchange<'a>(&'a self, token: &'a Secret) -> BoxFuture<'a, Result<Secret, NoExchange>> {
        async move {
            match self.0.exchange(token).await {
                Ok(Some(credential)) => Ok(credential),
                Ok(None) => Err(NoExchange::Invalid),
                Err(error) => {
                    tracing::error!(
                        cause = &error as &dyn std::error::Error,
                        "cannot look an access token up"
                    );
                    Err(NoExchange::Unavailable)
                }
            }
        }
        .boxed()
    }
}

impl Oauth {
    /// Begins to keep house, too. `listen` is where the control plane really listens; `origins` are the pages that may
    /// use the MCP endpoint.
    pub(crate) fn start(
        wanted: &Wanted,
        listen: SocketAddr,
        origins: Vec<String>,
        token_key: [u8; 32],
        store: &Store,
        observer: Arc<dyn Observer>,
    ) -> Result<Option<Self>, Failure> {
        let url = match wanted {
            Wanted::Off => return Ok(None),
            Wanted::At(url) => url.clone(),
            Wanted::Local => PublicUrl::parse(&format!("http://{listen}"))?,
        };
        let config = OauthConfig { url: url.clone(), listen, origins, token_key };
        let server = Server::new(config, store.clone(), observer)?;
        let sweeper = server.sweep();
        Ok(Some(Self { url, server, _sweeper: sweeper }))
    }

    /// What the MCP endpoint has to know.
    pub(crate) fn authorization(&self) -> Authorization {
        Authorization {
            prefix: oauth::PREFIX,
            metadata_url: self.server.resource_metadata_url(),
            scope: self.server.scope(),
            exchange: Arc::new(Tokens(self.server.clone())),
        }
    }
}
