//! Credentials, sealed. What seals and opens them is not known here.

use domain::{SecretId, SecretPolicy, TeamId};
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row};

use crate::{Store, StoreError, columns, policy};

/// A value that only the right key opens.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Which key opens it.
    pub by: String,
    /// The value's own key, sealed.
    pub key: Vec<u8>,
    /// The value, sealed with its own key.
    pub value: Vec<u8>,
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealed").field("by", &self.by).finish_non_exhaustive()
    }
}

/// One secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRow {
    /// Never used again.
    pub id: SecretId,
    /// Whose it is.
    pub team: TeamId,
    /// Unique among the team's secrets that are not deleted.
    pub name: String,
    /// The provider whose shape it has.
    pub provider: Option<String>,
    /// How it may be used.
    pub policy: SecretPolicy,
    /// The value; gone when it is deleted.
    pub sealed: Option<Sealed>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last got a value.
    pub updated_at: Timestamp,
    /// When a request last carried it.
    pub last_used_at: Option<Timestamp>,
    /// Since when it is gone for everybody.
    pub deleted_at: Option<Timestamp>,
}

const COLUMNS: &str = "SELECT id, team, name, provider, auth, hosts, sealed_by, sealed_key, sealed_value, created_at, \
     updated_at, last_used_at, deleted_at FROM secrets";

fn read(row: &SqliteRow) -> Result<SecretRow, StoreError> {
    let sealed = match row.try_get::<Option<String>, _>("sealed_by")? {
        Some(by) => Some(Sealed { by, key: row.try_get("sealed_key")?, value: row.try_get("sealed_value")? }),
        None => None,
    };
    Ok(SecretRow {
        id: columns::parsed(row, "id")?,
        team: columns::parsed(row, "team")?,
        name: row.try_get("name")?,
        provider: row.try_get("provider")?,
        policy: policy::read(row)?,
        sealed,
        created_at: columns::time(row, "created_at")?,
        updated_at: columns::time(row, "updated_at")?,
        last_used_at: columns::maybe_time(row, "last_used_at")?,
        deleted_at: columns::maybe_time(row, "deleted_at")?,
    })
}

impl Store {
    /// Adds a secret.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] when the team has one of this name.
    pub async fn secret_create(&self, row: &SecretRow) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let taken: Option<i64> =
            sqlx::query_scalar("SELECT 1 FROM secrets WHERE team = $1 AND name = $2 AND deleted_at IS NULL")
                .bind(row.team.to_string())
                .bind(&row.name)
                .fetch_optional(&mut *tx)
                .await?;
        if taken.is_some() {
            return Err(StoreError::NameTaken { what: "secret", name: row.name.clone() });
        }
        sqlx::query(
            "INSERT INTO secrets (id, team, name, provider, auth, hosts, sealed_by, sealed_key, sealed_value, created_at, \
             updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(row.id.to_string())
        .bind(row.team.to_string())
        .bind(&row.name)
        .bind(&row.provider)
        .bind(policy::auth_text(&row.policy))
        .bind(policy::hosts_text(&row.policy))
        .bind(row.sealed.as_ref().map(|sealed| &sealed.by))
        .bind(row.sealed.as_ref().map(|sealed| &sealed.key))
        .bind(row.sealed.as_ref().map(|sealed| &sealed.value))
        .bind(row.created_at.as_microsecond())
        .bind(row.updated_at.as_microsecond())
        .execute(&mut *tx)
        .await?;
        Ok(tx.commit().await?)
    }

    /// Every secret that was not deleted or is still bound somewhere.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn secret_all(&self) -> Result<Vec<SecretRow>, StoreError> {
        let statement = format!(
            "{COLUMNS} WHERE deleted_at IS NULL OR EXISTS (SELECT 1 FROM secret_bindings WHERE secret = secrets.id)"
        );
        let rows = sqlx::query(AssertSqlSafe(statement)).fetch_all(&self.read).await?;
        rows.iter().map(read).collect()
    }

    /// A team's secrets by name.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn secret_list(&self, team: TeamId) -> Result<Vec<SecretRow>, StoreError> {
        let statement = format!("{COLUMNS} WHERE team = $1 AND deleted_at IS NULL ORDER BY name");
        let rows = sqlx::query(AssertSqlSafe(statement)).bind(team.to_string()).fetch_all(&self.read).await?;
        rows.iter().map(read).collect()
    }

    /// A team's secret of this name.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn secret_find(&self, team: TeamId, name: &str) -> Result<Option<SecretRow>, StoreError> {
        let statement = format!("{COLUMNS} WHERE team = $1 AND name = $2 AND deleted_at IS NULL");
        let row = sqlx::query(AssertSqlSafe(statement))
            .bind(team.to_string())
            .bind(name)
            .fetch_optional(&self.read)
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// Replaces a value; `false` when the secret is deleted.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn secret_reseal(
        &self,
        id: SecretId,
        sealed: &Sealed,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "UPDATE secrets SET sealed_by = $2, sealed_key = $3, sealed_value = $4, updated_at = $5 \
             WHERE id = $1 AND deleted_at IS NULL",
        )
        .bind(id.to_string())
        .bind(&sealed.by)
        .bind(&sealed.key)
        .bind(&sealed.value)
        .bind(now.as_microsecond())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// Ends a secret and forgets its value; `false` when it was deleted before.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn secret_delete(&self, id: SecretId, now: Timestamp) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "UPDATE secrets SET deleted_at = $2, sealed_by = NULL, sealed_key = NULL, sealed_value = NULL \
             WHERE id = $1 AND deleted_at IS NULL",
        )
        .bind(id.to_string())
        .bind(now.as_microsecond())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// Seals the keys of all values anew, all or none: `rewrap` gets each value as it is and gives its sealed key and who
    /// sealed it. Says how many there were.
    ///
    /// # Errors
    /// When the database fails, or with what `rewrap` says.
    pub async fn secret_rewrap_all<E: From<StoreError>>(
        &self,
        mut rewrap: impl FnMut(SecretId, &Sealed) -> Result<Sealed, E>,
    ) -> Result<usize, E> {
        let mut tx = self.begin().await?;
        let statement = format!("{COLUMNS} WHERE sealed_by IS NOT NULL");
        let rows =
            sqlx::query(AssertSqlSafe(statement)).fetch_all(&mut *tx).await.map_err(StoreError::from)?;
        let rows = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        for row in &rows {
            let Some(sealed) = &row.sealed else { continue };
            let sealed = rewrap(row.id, sealed)?;
            sqlx::query(
                "UPDATE secrets SET sealed_by = $2, sealed_key = $3, sealed_value = $4 WHERE id = $1",
            )
            .bind(row.id.to_string())
            .bind(&sealed.by)
            .bind(&sealed.key)
            .bind(&sealed.value)
            .execute(&mut *tx)
            .await
            .map_err(StoreError::from)?;
        }
        tx.commit().await.map_err(StoreError::from)?;
        Ok(rows.len())
    }
}
