//! How a grant calls the control plane. Keys are not stored, and a client's token must not travel on (RFC 8707, MCP's ban on
//! passing tokens through), so the MCP endpoint calls with a credential that only this process can make and only this process
//! accepts. It names the grant; whether the grant and its key still stand is asked at every use.

use std::sync::Arc;

use domain::Secret;
use jiff::Timestamp;
use store::{KeyRow, Store, StoreError};
use uuid::Uuid;

use crate::token::{Kind, Mint, Token};

/// Never an audience of a client.
const AUDIENCE: &str = "control plane";

/// Makes the credentials for the MCP endpoint and reads them for the control plane. Clones know the same ones.
#[derive(Debug, Clone)]
pub struct Delegation {
    mint: Arc<Mint>,
    store: Store,
}

impl Delegation {
    pub(crate) fn new(store: Store) -> Result<Self, getrandom::Error> {
        // Not derived from anything: it ends with the process.
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        Ok(Self { mint: Arc::new(Mint::new(key, AUDIENCE)), store })
    }

    /// The same text every time, so that what is cached by it is found again.
    pub(crate) fn credential(&self, grant: Uuid) -> Secret {
        self.mint.make(&Token { kind: Kind::Delegation, grant, generation: 0, ends: i64::MAX })
    }

    /// The working key that a credential stands for; `None` when it is none, or its grant or key has ended.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn key(&self, credential: &str) -> Result<Option<KeyRow>, StoreError> {
        let Some(token) = self.mint.open(credential, Kind::Delegation) else { return Ok(None) };
        let found = self.store.oauth_grant_find(token.grant, Timestamp::now()).await?;
        Ok(found.filter(|found| found.grant.generation > 0).map(|found| found.key))
    }
}
