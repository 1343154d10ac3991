//! The template calls of the control plane (`spec/rest-api.md` §10).

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use wire::rest::Template;

use crate::control::{Call, Client};
use crate::error::ClientError;
use crate::sandbox::Page;

/// One path segment: a name's slash must not become a separator.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

impl Client {
    /// All templates the team can use.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_templates(&self) -> Result<Page<Template>, ClientError> {
        self.page(&Call::new("the list of templates", Method::GET, "/templates")).await
    }

    /// One template by name or id.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is none.
    pub async fn get_template(&self, name_or_id: &str) -> Result<Template, ClientError> {
        if matches!(name_or_id, "" | "." | "..") {
            return Err(ClientError::Invalid {
                field: "template",
                accepted: "a name or an id is expected".into(),
            });
        }
        let segment = utf8_percent_encode(name_or_id, SEGMENT);
        self.call(&Call::new("the template", Method::GET, format!("/templates/{segment}"))).await?.json()
    }

    /// A list with its total.
    pub(crate) async fn page<T: DeserializeOwned>(&self, call: &Call) -> Result<Page<T>, ClientError> {
        let answer = self.call(call).await?;
        let total = answer.headers.get("x-total-count").and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Page { items: answer.json()?, total })
    }
}
