//! The template calls of the control plane (`spec/rest-api.md` §10).

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use wire::rest::{CreateTemplate, CreatedTemplate, Template};

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
        self.call(&Call::new("the template", Method::GET, path(name_or_id)?)).await?.json()
    }

    /// Templates whose names begin with a text.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_templates_below(&self, name_prefix: &str) -> Result<Page<Template>, ClientError> {
        let mut call = Call::new("the list of templates", Method::GET, "/templates");
        call.query.push(("name_prefix".to_owned(), name_prefix.to_owned()));
        self.page(&call).await
    }

    /// Makes a template; its first build goes on when this returns.
    ///
    /// # Errors
    /// See [`ClientError`]; 409 when the name is taken, 429 at a quota.
    pub async fn create_template(&self, body: &CreateTemplate) -> Result<CreatedTemplate, ClientError> {
        let call = Call::new("the new template", Method::POST, "/templates").json(body)?;
        self.call(&call).await?.json()
    }

    /// Removes a template.
    ///
    /// # Errors
    /// See [`ClientError`]; 409 while sandboxes or builds refer to it.
    pub async fn delete_template(&self, name_or_id: &str) -> Result<(), ClientError> {
        self.call(&Call::new("deleting the template", Method::DELETE, path(name_or_id)?)).await.map(drop)
    }

    /// A list with its total.
    pub(crate) async fn page<T: DeserializeOwned>(&self, call: &Call) -> Result<Page<T>, ClientError> {
        let answer = self.call(call).await?;
        let total = answer.headers.get("x-total-count").and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Page { items: answer.json()?, total })
    }
}

/// The path of a template.
pub(crate) fn path(name_or_id: &str) -> Result<String, ClientError> {
    if matches!(name_or_id, "" | "." | "..") {
        return Err(ClientError::Invalid {
            field: "template",
            accepted: "a name or an id is expected".into(),
        });
    }
    Ok(format!("/templates/{}", utf8_percent_encode(name_or_id, SEGMENT)))
}
