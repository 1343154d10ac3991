//! Stand-ins in sandboxes. They are written with the sandbox's own row, so that each is there or not at all.

use domain::{SandboxId, SecretId, StandIn};
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, Transaction};
use uuid::Uuid;

use crate::sandbox::{SandboxRow, write_runtime, written};
use crate::{Store, StoreError, Written, columns};

/// Detached stand-ins of one sandbox that are remembered, so that attaching and detaching without end leaves no trail
/// without end.
const DETACHED_KEPT: i64 = 64;

/// A secret under a variable's name in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindingRow {
    /// Names it.
    pub id: Uuid,
    /// Where.
    pub sandbox: SandboxId,
    /// What.
    pub secret: SecretId,
    /// The variable.
    pub env_key: String,
    /// What the variable holds.
    pub stand_in: StandIn,
    /// When it was attached.
    pub created_at: Timestamp,
    /// When it was detached.
    pub detached_at: Option<Timestamp>,
}

/// A sandbox that a secret is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundSandbox {
    /// Its id.
    pub sandbox: SandboxId,
    /// Its name.
    pub name: String,
    /// The variable.
    pub env_key: String,
    /// The sandbox's state.
    pub state: domain::SandboxState,
}

fn read(row: &SqliteRow) -> Result<BindingRow, StoreError> {
    Ok(BindingRow {
        id: columns::parsed(row, "id")?,
        sandbox: columns::parsed(row, "sandbox")?,
        secret: columns::parsed(row, "secret")?,
        env_key: row.try_get("env_key")?,
        stand_in: StandIn::new(row.try_get::<String, _>("stand_in")?),
        created_at: columns::time(row, "created_at")?,
        detached_at: columns::maybe_time(row, "detached_at")?,
    })
}

pub(crate) async fn insert(
    tx: &mut Transaction<'static, Sqlite>,
    binding: &BindingRow,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO secret_bindings (id, sandbox, secret, env_key, stand_in, created_at) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(binding.id.to_string())
    .bind(binding.sandbox.to_string())
    .bind(binding.secret.to_string())
    .bind(&binding.env_key)
    .bind(binding.stand_in.as_str())
    .bind(binding.created_at.as_microsecond())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

impl Store {
    /// Every binding there is, detached ones included.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn binding_all(&self) -> Result<Vec<BindingRow>, StoreError> {
        let rows = sqlx::query("SELECT * FROM secret_bindings ORDER BY created_at, id")
            .fetch_all(&self.read)
            .await?;
        rows.iter().map(read).collect()
    }

    /// The sandboxes a secret is bound to now.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn binding_sandboxes(&self, secret: SecretId) -> Result<Vec<BoundSandbox>, StoreError> {
        let rows = sqlx::query(
            "SELECT sandboxes.id, sandboxes.name, sandboxes.state, secret_bindings.env_key FROM secret_bindings \
             JOIN sandboxes ON sandboxes.id = secret_bindings.sandbox \
             WHERE secret = $1 AND detached_at IS NULL AND state <> 'deleted' ORDER BY sandboxes.created_at, env_key",
        )
        .bind(secret.to_string())
        .fetch_all(&self.read)
        .await?;
        let read = |row: &SqliteRow| {
            Ok(BoundSandbox {
                sandbox: columns::parsed(row, "id")?,
                name: row.try_get("name")?,
                env_key: row.try_get("env_key")?,
                state: columns::parsed(row, "state")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Like [`Store::sandbox_transition`], and adds a binding.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn binding_attach(&self, row: SandboxRow, binding: &BindingRow) -> Result<Written, StoreError> {
        let mut tx = self.begin().await?;
        let applied = write_runtime(&mut tx, &row).await?;
        if applied {
            insert(&mut tx, binding).await?;
        }
        tx.commit().await?;
        Ok(written(row, applied))
    }

    /// Like [`Store::sandbox_transition`], and ends a binding.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn binding_detach(
        &self,
        row: SandboxRow,
        binding: Uuid,
        now: Timestamp,
    ) -> Result<Written, StoreError> {
        let mut tx = self.begin().await?;
        let applied = write_runtime(&mut tx, &row).await?;
        if applied {
            sqlx::query("UPDATE secret_bindings SET detached_at = $2 WHERE id = $1")
                .bind(binding.to_string())
                .bind(now.as_microsecond())
                .execute(&mut *tx)
                .await?;
            sqlx::query(
                "DELETE FROM secret_bindings WHERE sandbox = $1 AND detached_at IS NOT NULL AND id NOT IN (SELECT id FROM \
                 secret_bindings WHERE sandbox = $1 AND detached_at IS NOT NULL ORDER BY detached_at DESC, id LIMIT $2)",
            )
            .bind(row.summary.id.to_string())
            .bind(DETACHED_KEPT)
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(written(row, applied))
    }

    /// Forgets a binding that never came into force.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn binding_forget(&self, binding: Uuid) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("DELETE FROM secret_bindings WHERE id = $1")
            .bind(binding.to_string())
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }
}
