//! Preview ports. The caller holds the only writer of a port, so that these are plain writes.

use domain::{PreviewAccess, PreviewPort, Published, SandboxId};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::sandbox::whole;
use crate::{Store, StoreError, columns};

/// A port that is, or once was, published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviewRow {
    /// Whose.
    pub sandbox: SandboxId,
    /// Which.
    pub port: PreviewPort,
    /// How; unset once it was taken back.
    pub access: Option<PreviewAccess>,
    /// Never goes back.
    pub generation: u64,
}

impl PreviewRow {
    /// How it is published, if it is.
    #[must_use]
    pub fn published(&self) -> Option<Published> {
        self.access.map(|access| Published { access, generation: self.generation })
    }
}

fn read(row: &SqliteRow) -> Result<PreviewRow, StoreError> {
    let bad = |problem: domain::Problem| StoreError::Corrupt { column: "port", found: problem.message };
    Ok(PreviewRow {
        sandbox: columns::parsed(row, "sandbox")?,
        port: PreviewPort::new(row.try_get("port")?).map_err(bad)?,
        access: columns::maybe_parsed(row, "access")?,
        generation: columns::number(row, "generation")?,
    })
}

impl Store {
    /// Every port of every sandbox. Damaged rows are named in the log and left as they are; their ports count as not
    /// published.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn preview_all(&self) -> Result<Vec<PreviewRow>, StoreError> {
        let rows = sqlx::query("SELECT sandbox AS id, sandbox, port, access, generation FROM preview_ports")
            .fetch_all(&self.read)
            .await?;
        Ok(whole(&rows, read))
    }

    /// Adds or replaces a port; `false` when the sandbox is gone. The generation only ever grows: a row that is newer
    /// stays as it is, which counts as gone too.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn preview_put(&self, row: &PreviewRow) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "INSERT INTO preview_ports (sandbox, port, access, generation) SELECT id, $2, $3, $4 FROM sandboxes \
             WHERE id = $1 AND state <> 'deleted' ON CONFLICT (sandbox, port) DO UPDATE SET access = excluded.access, \
             generation = excluded.generation WHERE excluded.generation >= preview_ports.generation",
        )
        .bind(row.sandbox.to_string())
        .bind(i64::from(row.port.get()))
        .bind(row.access.map(PreviewAccess::as_str))
        // It counts calls of people: it does not get near the limit.
        .bind(i64::try_from(row.generation).unwrap_or(i64::MAX))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }
}
