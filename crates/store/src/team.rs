//! Teams own everything else.

use domain::TeamId;
use jiff::Timestamp;
use sqlx::Row;
use uuid::Uuid;

use crate::{Store, StoreError, columns};

/// The team that owns the curated templates; the first migration creates it.
#[must_use]
pub fn system_team() -> TeamId {
    TeamId::from(Uuid::from_u128(0x0000_0000_0000_4000_8000_0000_0000_0001))
}

/// One team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamRow {
    /// Its id.
    pub id: TeamId,
    /// Unique.
    pub name: String,
    /// When it was made.
    pub created_at: Timestamp,
}

impl Store {
    /// The team of this name, made now when there is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn team_ensure(&self, name: &str, now: Timestamp) -> Result<TeamRow, StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(
            "INSERT INTO teams (id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING",
        )
        .bind(TeamId::new().to_string())
        .bind(name)
        .bind(now.as_microsecond())
        .execute(&mut *tx)
        .await?;
        let row = sqlx::query("SELECT id, name, created_at FROM teams WHERE name = $1")
            .bind(name)
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(TeamRow {
            id: columns::parsed(&row, "id")?,
            name: row.try_get("name")?,
            created_at: columns::time(&row, "created_at")?,
        })
    }
}
