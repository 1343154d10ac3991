//! Secrets, providers and bindings (`spec/rest-api.md` §8, §11). Values go out and never come back.

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use wire::rest::{
    AttachSecret, CreateSecret, Provider, RotateSecret, Secret, SecretAuditEvent, SecretSandbox,
};

use crate::control::{Call, Client};
use crate::error::ClientError;
use crate::sandbox::path;

/// One path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// What `GET /secrets/{name}/audit` is to show; unset fields do not filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Rows, 1 to 200.
    pub limit: Option<u32>,
    /// Only rows below this id.
    pub before: Option<i64>,
    /// `2xx` to `5xx`, or `errors`.
    pub status: Option<String>,
}

impl Client {
    /// Stores a secret.
    ///
    /// # Errors
    /// See [`ClientError`]; status 409 when there is one of this name.
    pub async fn create_secret(&self, body: &CreateSecret) -> Result<Secret, ClientError> {
        let call = Call::new("the new secret", Method::POST, "/secrets").json(body)?;
        self.call(&call).await?.json()
    }

    /// All secrets of the team.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_secrets(&self) -> Result<Vec<Secret>, ClientError> {
        self.call(&Call::new("the list of secrets", Method::GET, "/secrets")).await?.json()
    }

    /// One secret.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is none.
    pub async fn get_secret(&self, name: &str) -> Result<Secret, ClientError> {
        self.call(&Call::new("the secret", Method::GET, of(name, "")?)).await?.json()
    }

    /// Replaces a value.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is none.
    pub async fn rotate_secret(&self, name: &str, value: &domain::Secret) -> Result<Secret, ClientError> {
        let body = RotateSecret { value: value.expose_secret().to_owned() };
        let call = Call::new("the rotation", Method::PATCH, of(name, "")?).json(&body)?;
        self.call(&call).await?.json()
    }

    /// Deletes a secret; it ends in all sandboxes.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is none.
    pub async fn delete_secret(&self, name: &str) -> Result<(), ClientError> {
        self.call(&Call::new("the delete", Method::DELETE, of(name, "")?)).await.map(drop)
    }

    /// One page of what a secret was used for, newest first.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is none.
    pub async fn secret_audit(
        &self,
        name: &str,
        filter: &AuditFilter,
    ) -> Result<Vec<SecretAuditEvent>, ClientError> {
        let mut call = Call::new("the audit", Method::GET, of(name, "/audit")?);
        call.query.extend(filter.limit.map(|limit| ("limit".to_owned(), limit.to_string())));
        call.query.extend(filter.before.map(|before| ("before".to_owned(), before.to_string())));
        call.query.extend(filter.status.as_ref().map(|status| ("status".to_owned(), status.clone())));
        self.call(&call).await?.json()
    }

    /// The sandboxes a secret is bound to.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is none.
    pub async fn secret_sandboxes(&self, name: &str) -> Result<Vec<SecretSandbox>, ClientError> {
        self.call(&Call::new("the sandboxes", Method::GET, of(name, "/sandboxes")?)).await?.json()
    }

    /// The providers whose credentials are known by name.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_providers(&self) -> Result<Vec<Provider>, ClientError> {
        self.call(&Call::new("the list of providers", Method::GET, "/providers")).await?.json()
    }

    /// Binds a secret to a variable of a sandbox; never resumes it.
    ///
    /// # Errors
    /// See [`ClientError`]; status 409 when the variable is bound already, or in a state that has no say.
    pub async fn attach_secret(&self, id: &str, env_key: &str, secret: &str) -> Result<(), ClientError> {
        let body = AttachSecret { env_key: env_key.to_owned(), secret_name: secret.to_owned() };
        let call = Call::new("the binding", Method::POST, path(id, "/secrets")?).json(&body)?;
        self.call(&call).await.map(drop)
    }

    /// Ends the binding of a variable; never resumes the sandbox.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is no such binding or no such sandbox.
    pub async fn detach_secret(&self, id: &str, env_key: &str) -> Result<(), ClientError> {
        let key = segment("variable", env_key)?;
        let call = Call::new("the end of the binding", Method::DELETE, path(id, &format!("/secrets/{key}"))?);
        self.call(&call).await.map(drop)
    }
}

fn of(name: &str, rest: &str) -> Result<String, ClientError> {
    Ok(format!("/secrets/{}{rest}", segment("secret", name)?))
}

fn segment(field: &'static str, text: &str) -> Result<String, ClientError> {
    if matches!(text, "" | "." | "..") {
        return Err(ClientError::Invalid { field, accepted: "a name is expected".to_owned() });
    }
    Ok(utf8_percent_encode(text, SEGMENT).to_string())
}
