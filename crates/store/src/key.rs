//! API keys: a hash, a shown prefix, and when it was last used.

use domain::{Secret, TeamId};
use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::{Store, StoreError, columns, keys};

/// One key, without its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Names it in administration.
    pub id: Uuid,
    /// Whose it is.
    pub team: TeamId,
    /// Free text, not unique.
    pub name: String,
    /// The first characters of its text.
    pub prefix: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when it no longer works.
    pub revoked_at: Option<Timestamp>,
    /// When it was last seen, to the minute.
    pub last_used_at: Option<Timestamp>,
}

const COLUMNS: &str =
    "SELECT id, team, name, hash, prefix, created_at, revoked_at, last_used_at FROM api_keys";

fn read(row: &SqliteRow) -> Result<KeyRow, StoreError> {
    Ok(KeyRow {
        id: columns::parsed(row, "id")?,
        team: columns::parsed(row, "team")?,
        name: row.try_get("name")?,
        prefix: row.try_get("prefix")?,
        created_at: columns::time(row, "created_at")?,
        revoked_at: columns::maybe_time(row, "revoked_at")?,
        last_used_at: columns::maybe_time(row, "last_used_at")?,
    })
}

fn select(condition: &'static str) -> sqlx::AssertSqlSafe<String> {
    sqlx::AssertSqlSafe(format!("{COLUMNS} {condition}"))
}

impl Store {
    /// Makes a key for a team. The text is returned here and nowhere else.
    ///
    /// # Errors
    /// When the database or the random source fails.
    pub async fn key_create(
        &self,
        team: TeamId,
        name: &str,
        now: Timestamp,
    ) -> Result<(Secret, KeyRow), StoreError> {
        let made = keys::generate()?;
        let row = KeyRow {
            id: Uuid::new_v4(),
            team,
            name: name.to_owned(),
            prefix: made.prefix,
            created_at: now,
            revoked_at: None,
            last_used_at: None,
        };
        let mut tx = self.begin().await?;
        sqlx::query(
            "INSERT INTO api_keys (id, team, name, hash, prefix, created_at) VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(row.id.to_string())
        .bind(team.to_string())
        .bind(name)
        .bind(made.hash)
        .bind(&row.prefix)
        .bind(now.as_microsecond())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok((made.key, row))
    }

    /// All keys, revoked ones included, oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn key_list(&self) -> Result<Vec<KeyRow>, StoreError> {
        let rows = sqlx::query(select("ORDER BY created_at, id")).fetch_all(&self.read).await?;
        rows.iter().map(read).collect()
    }

    /// Ends a key and all that was granted with it; `false` when there is no such key that still works.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn key_revoke(&self, id: Uuid, now: Timestamp) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query("UPDATE api_keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL")
            .bind(id.to_string())
            .bind(now.as_microsecond())
            .execute(&mut *tx)
            .await?;
        sqlx::query("DELETE FROM oauth_grants WHERE api_key = $1")
            .bind(id.to_string())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// The working key with this text. The look-up is by hash, so its timing says nothing about the text.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn key_find(&self, key: &str) -> Result<Option<KeyRow>, StoreError> {
        let hash = keys::hash(key);
        let row = sqlx::query(select("WHERE hash = $1 AND revoked_at IS NULL"))
            .bind(&hash)
            .fetch_optional(&self.read)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let stored = row.try_get::<&str, _>("hash")?;
        if !bool::from(stored.as_bytes().ct_eq(hash.as_bytes())) {
            return Ok(None);
        }
        read(&row).map(Some)
    }

    /// Notes that a key was used.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn key_touch(&self, id: Uuid, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("UPDATE api_keys SET last_used_at = $2 WHERE id = $1")
            .bind(id.to_string())
            .bind(now.as_microsecond())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }
}
