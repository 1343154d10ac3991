//! Why the database could not do what was asked.

use std::path::PathBuf;

/// One variant per remedy.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened or created.
    #[error("cannot open the database {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The schema cannot be brought up to date, for example because a newer release wrote it.
    #[error("cannot bring the database schema up to date")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// The schema is not this release's, and is not to be changed now.
    #[error("the database {path} is of another release; start that release's server, or this one's once")]
    OtherRelease {
        /// The file.
        path: PathBuf,
    },
    /// A query failed: the disk is full or broken, or another program holds the database.
    #[error("the database does not answer")]
    Query(#[from] sqlx::Error),
    /// A column holds something this release never writes.
    #[error("the {column} column holds {found}")]
    Corrupt {
        /// The column.
        column: &'static str,
        /// What is wrong with it; never the value of a private column.
        found: String,
    },
    /// A name that must be unique is taken.
    #[error("a {what} named `{name}` exists already")]
    NameTaken {
        /// The kind of thing.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Every link number is in use by a sandbox that exists.
    #[error("all {limit} links of this host are in use")]
    NoLink {
        /// How many there are.
        limit: u32,
    },
    /// The operating system gave no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}
