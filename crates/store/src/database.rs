//! Opening the database. Writes go through one connection, so that a writer waits its turn in order instead of being
//! refused; reads have connections of their own and, in WAL mode, never wait for a writer.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{SqlSafeStr, Transaction};

use crate::StoreError;

/// How long a statement waits for another process (a `superserve key` beside a running server) to let go of the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller waits for its turn; beyond that the disk is in trouble and waiting longer helps nobody.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// Readers at once: lists are short, and each connection is a thread.
const READERS: u32 = 4;

/// The database.
#[derive(Debug, Clone)]
pub struct Store {
    write: SqlitePool,
    pub(crate) read: SqlitePool,
}

impl Store {
    /// Opens the database file, creating it (mode 0600: it holds private values) and its tables where needed.
    ///
    /// # Errors
    /// [`StoreError::Open`] when the file cannot be used, [`StoreError::Migrate`] when a newer release wrote it.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Self::connect(path, async |write| migrations().run(write).await.map_err(StoreError::Migrate)).await
    }

    /// Opens the database of a server that may be running, and leaves its tables as they are.
    ///
    /// # Errors
    /// [`StoreError::OtherRelease`] when they are another release's.
    pub async fn open_as_it_is(path: &Path) -> Result<Self, StoreError> {
        Self::connect(path, async |write| {
            let known: BTreeSet<i64> = migrations().iter().map(|migration| migration.version).collect();
            let applied = sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success");
            let applied: Vec<i64> = applied.fetch_all(write).await?;
            if applied.into_iter().collect::<BTreeSet<_>>() == known {
                Ok(())
            } else {
                Err(StoreError::OtherRelease { path: path.to_owned() })
            }
        })
        .await
    }

    async fn connect(
        path: &Path,
        settle: impl AsyncFnOnce(&SqlitePool) -> Result<(), StoreError>,
    ) -> Result<Self, StoreError> {
        // SQLite gives its journal files the mode of the main file.
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|source| StoreError::Open { path: path.to_owned(), source })?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            // An intent must survive a power cut once a machine has been touched because of it.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        let pool =
            |connections| SqlitePoolOptions::new().max_connections(connections).acquire_timeout(TURN_TIMEOUT);
        let write = pool(1).connect_with(options.clone()).await?;
        settle(&write).await?;
        let read = pool(READERS).connect_with(options.read_only(true)).await?;
        Ok(Self { write, read })
    }

    /// Closes all connections, so that the file may be moved or opened elsewhere.
    pub async fn close(&self) {
        self.read.close().await;
        self.write.close().await;
    }

    /// Begins a transaction that holds the write lock from its first statement: what it reads cannot change before it
    /// commits. Dropping it undoes everything.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, sqlx::Sqlite>, StoreError> {
        Ok(self.write.begin_with("BEGIN IMMEDIATE").await?)
    }
}

pub(crate) fn migrations() -> Migrator {
    let migration = |version, name: &'static str, sql: &'static str| {
        Migration::new(version, Cow::Borrowed(name), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(vec![
        migration(1, "first", include_str!("../migrations/sqlite/0001_first.sql")),
        migration(2, "activity", include_str!("../migrations/sqlite/0002_activity.sql")),
        migration(3, "previews", include_str!("../migrations/sqlite/0003_previews.sql")),
        migration(4, "oauth", include_str!("../migrations/sqlite/0004_oauth.sql")),
        migration(5, "secrets", include_str!("../migrations/sqlite/0005_secrets.sql")),
        migration(6, "network log", include_str!("../migrations/sqlite/0006_network_log.sql")),
        migration(7, "builds", include_str!("../migrations/sqlite/0007_builds.sql")),
        migration(8, "snapshots", include_str!("../migrations/sqlite/0008_snapshots.sql")),
        migration(9, "engines", include_str!("../migrations/sqlite/0009_engines.sql")),
    ])
}
