//! What can go wrong with secrets.

use store::StoreError;

/// One variant per remedy.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// The database failed.
    #[error("the database failed")]
    Store(#[from] StoreError),
    /// The key that sealed a value is not among those we have.
    #[error("the key `{by}` that sealed a secret is missing; restore the file with the keys from a backup")]
    NoKey {
        /// Its name.
        by: String,
    },
    /// The right key does not open it: it was changed.
    #[error("a sealed value is damaged")]
    Damaged,
    /// There is no key at all.
    #[error("no key to seal secrets with")]
    Empty,
    /// The operating system gave no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}
