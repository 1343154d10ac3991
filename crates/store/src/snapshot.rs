//! Saved snapshots: what a sandbox was, as far as its forks get it.

use std::collections::BTreeMap;

use domain::{
    Captured, EgressRules, Engine, EnvVars, MAX_SNAPSHOTS, MAX_SNAPSHOTS_IN_FLIGHT, MAX_SNAPSHOTS_OF_SANDBOX,
    RuntimeDefaults, SandboxId, SecretId, Shape, SnapshotId, SnapshotStatus, TeamId, TemplateId,
};
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row, Sqlite, Transaction};

use crate::{Page, Store, StoreError, columns};

/// Failed snapshots of one sandbox that are remembered: they hold nothing and do not count.
const FAILED_KEPT: i64 = 10;
/// What a snapshot that nobody can fork does not keep: its columns, in the shape in which they can be read.
const EMPTIED: &str = "layers = '[]', defaults = '{\"env\":{}}', network = '{\"allow_out\":[],\"deny_out\":[],\"strict\":false}', \
     env = '{}', bindings = '{}'";

/// One saved snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    /// Never reused.
    pub id: SnapshotId,
    /// Whose.
    pub team: TeamId,
    /// What was saved; it may be gone.
    pub sandbox: SandboxId,
    /// What that was made from, unless the template is gone.
    pub template: Option<TemplateId>,
    /// The snapshot that was made from; it may be gone.
    pub parent: Option<SnapshotId>,
    /// Not unique.
    pub name: Option<String>,
    /// How far it is.
    pub status: SnapshotStatus,
    /// What it holds.
    pub captured: Captured,
    /// Unique in the sandbox, for ever.
    pub idempotency_key: Option<String>,
    /// Compute and disk of forks.
    pub shape: Shape,
    /// What the sandbox ran on.
    pub engine: Engine,
    /// Digests, lowest first; while it is being saved, those that the sandbox stands on.
    pub layers: Vec<String>,
    /// What processes of forks start with.
    pub defaults: RuntimeDefaults,
    /// What forks may reach, unless they say otherwise.
    pub network: EgressRules,
    /// Longest active session of forks, unless they say otherwise.
    pub timeout_seconds: Option<u32>,
    /// Private.
    pub env: EnvVars,
    /// Which secrets were bound, by variable. Stand-ins are not kept.
    pub bindings: BTreeMap<String, SecretId>,
    /// Bytes of the layer that holds what the sandbox had written; 0 until it is ready.
    pub size_bytes: u64,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When sandboxes could be made from it.
    pub ready_at: Option<Timestamp>,
}

/// Whether a snapshot may be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotBegun {
    /// It may; this is its row, with the id of an attempt that failed, if the key had one.
    Applied(Box<SnapshotRow>),
    /// The key has one.
    Known(Box<SnapshotRow>),
    /// The key had one.
    Gone,
    /// The team has as many as it may.
    TooMany,
    /// The sandbox has as many as it may.
    TooManyOfSandbox,
    /// The team saves as many at once as it may.
    TooManyInFlight,
}

/// Whether a snapshot was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotRemoved {
    /// This one was.
    Removed(Box<SnapshotRow>),
    /// It is being saved.
    Creating,
    /// There is none.
    Absent,
}

const COLUMNS: &str = "SELECT id, team, sandbox, template, parent, name, status, captured, idempotency_key, vcpu, \
     memory_mib, disk_mib, layers, defaults, network, timeout_seconds, env, bindings, size_bytes, created_at, ready_at, \
     deleted_at, engine FROM snapshots";

fn read(row: &SqliteRow) -> Result<SnapshotRow, StoreError> {
    let bad = |problem: domain::Problem| StoreError::Corrupt { column: "env", found: problem.message };
    let bindings = columns::map(row, "bindings")?.into_iter().map(|(key, id)| {
        let found = || StoreError::Corrupt { column: "bindings", found: "no id of a secret".to_owned() };
        Ok((key, id.parse().map_err(|_| found())?))
    });
    Ok(SnapshotRow {
        id: columns::parsed(row, "id")?,
        team: columns::parsed(row, "team")?,
        sandbox: columns::parsed(row, "sandbox")?,
        template: columns::maybe_parsed(row, "template")?,
        parent: columns::maybe_parsed(row, "parent")?,
        name: row.try_get("name")?,
        status: columns::parsed(row, "status")?,
        captured: columns::parsed(row, "captured")?,
        idempotency_key: row.try_get("idempotency_key")?,
        shape: columns::shape(row)?,
        engine: columns::parsed(row, "engine")?,
        layers: columns::list(row, "layers")?,
        defaults: columns::defaults(row, "defaults")?,
        network: columns::network(row, "network")?,
        timeout_seconds: columns::maybe_number(row, "timeout_seconds")?,
        env: EnvVars::new(columns::map(row, "env")?).map_err(bad)?,
        bindings: bindings.collect::<Result<_, StoreError>>()?,
        size_bytes: columns::number(row, "size_bytes")?,
        created_at: columns::time(row, "created_at")?,
        ready_at: columns::maybe_time(row, "ready_at")?,
    })
}

impl Store {
    /// Adds a snapshot that is to be saved now, unless the quotas or its key are against it: however many are asked for at
    /// once, no more than these get through.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_begin(&self, row: SnapshotRow) -> Result<SnapshotBegun, StoreError> {
        let mut tx = self.begin().await?;
        let mut row = row;
        if let Some(key) = &row.idempotency_key {
            match by_key(&mut tx, row.sandbox, key).await? {
                Some(Keyed::Gone) => return Ok(SnapshotBegun::Gone),
                Some(Keyed::Is(known)) if known.status == SnapshotStatus::Failed => row.id = known.id,
                Some(Keyed::Is(known)) => return Ok(SnapshotBegun::Known(known)),
                None => {}
            }
        }
        let count = async |tx: &mut Transaction<'static, Sqlite>, which: &str, id: String| {
            let statement = format!(
                "SELECT COUNT(*) FROM snapshots WHERE deleted_at IS NULL AND status <> 'failed' AND {which}"
            );
            sqlx::query_scalar::<_, i64>(AssertSqlSafe(statement)).bind(id).fetch_one(&mut **tx).await
        };
        if count(&mut tx, "team = $1", row.team.to_string()).await? >= i64::from(MAX_SNAPSHOTS) {
            return Ok(SnapshotBegun::TooMany);
        }
        let of_sandbox = count(&mut tx, "sandbox = $1", row.sandbox.to_string()).await?;
        if of_sandbox >= i64::from(MAX_SNAPSHOTS_OF_SANDBOX) {
            return Ok(SnapshotBegun::TooManyOfSandbox);
        }
        let in_flight = count(&mut tx, "status = 'creating' AND team = $1", row.team.to_string()).await?;
        if in_flight >= i64::from(MAX_SNAPSHOTS_IN_FLIGHT) {
            return Ok(SnapshotBegun::TooManyInFlight);
        }
        sqlx::query(
            "DELETE FROM snapshots WHERE id = $1 OR (sandbox = $2 AND status = 'failed' AND id NOT IN (SELECT id FROM \
             snapshots WHERE sandbox = $2 AND status = 'failed' ORDER BY created_at DESC, id LIMIT $3))",
        )
        .bind(row.id.to_string())
        .bind(row.sandbox.to_string())
        .bind(FAILED_KEPT)
        .execute(&mut *tx)
        .await?;
        insert(&mut tx, &row).await?;
        tx.commit().await?;
        Ok(SnapshotBegun::Applied(Box::new(row)))
    }

    /// What a key of a sandbox stands for; `None` when nothing, or an attempt that failed and may be made again.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_replay(
        &self,
        sandbox: SandboxId,
        key: &str,
    ) -> Result<Option<SnapshotBegun>, StoreError> {
        let mut tx = self.begin().await?;
        Ok(match by_key(&mut tx, sandbox, key).await? {
            Some(Keyed::Gone) => Some(SnapshotBegun::Gone),
            Some(Keyed::Is(row)) if row.status != SnapshotStatus::Failed => Some(SnapshotBegun::Known(row)),
            Some(Keyed::Is(_)) | None => None,
        })
    }

    /// Notes what a snapshot holds: sandboxes can be made from it. `false` when it is not being saved any more.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_ready(
        &self,
        id: SnapshotId,
        layers: &[String],
        size_bytes: u64,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "UPDATE snapshots SET status = 'ready', layers = $2, size_bytes = $3, ready_at = $4 \
             WHERE id = $1 AND status = 'creating' AND deleted_at IS NULL",
        )
        .bind(id.to_string())
        .bind(columns::list_text(layers))
        .bind(i64::try_from(size_bytes).unwrap_or(i64::MAX))
        .bind(now.as_microsecond())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// Notes that nothing came of a snapshot; it holds no layer and nothing private from now on.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_fail(&self, id: SnapshotId) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let statement = format!(
            "UPDATE snapshots SET status = 'failed', {EMPTIED} WHERE id = $1 AND status = 'creating'"
        );
        sqlx::query(AssertSqlSafe(statement)).bind(id.to_string()).execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }

    /// Ends what an earlier server was saving when it was cut off, and says how many there were.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_fail_all(&self) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let statement =
            format!("UPDATE snapshots SET status = 'failed', {EMPTIED} WHERE status = 'creating'");
        let done = sqlx::query(AssertSqlSafe(statement)).execute(&mut *tx).await?;
        // Of sandboxes that are gone nobody asks again.
        sqlx::query(
            "DELETE FROM snapshots WHERE status = 'failed' \
             AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE sandboxes.id = snapshots.sandbox)",
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done.rows_affected())
    }

    /// All from which sandboxes can be made, also those whose rows are damaged otherwise.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_ready_ids(&self) -> Result<Vec<SnapshotId>, StoreError> {
        let statement = "SELECT id FROM snapshots WHERE status = 'ready' AND deleted_at IS NULL";
        let ids: Vec<String> = sqlx::query_scalar(statement).fetch_all(&self.read).await?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// Removes all that hold memory, with the sandboxes of this host; says how many there were.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_forget_memory(&self) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query("DELETE FROM snapshots WHERE captured = $1")
            .bind(Captured::MemoryAndDisk.as_str())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(done.rows_affected())
    }

    /// One snapshot of a team.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_get(
        &self,
        team: TeamId,
        id: SnapshotId,
    ) -> Result<Option<SnapshotRow>, StoreError> {
        let statement = format!("{COLUMNS} WHERE id = $1 AND team = $2 AND deleted_at IS NULL");
        let row = sqlx::query(AssertSqlSafe(statement))
            .bind(id.to_string())
            .bind(team.to_string())
            .fetch_optional(&self.read)
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// Snapshots of a sandbox, which may be gone, newest first, and how many there are in all.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_list(
        &self,
        team: TeamId,
        sandbox: SandboxId,
        limit: Option<u32>,
        offset: u64,
    ) -> Result<Page<SnapshotRow>, StoreError> {
        let which = "WHERE sandbox = $1 AND team = $2 AND deleted_at IS NULL";
        let statement = format!("{COLUMNS} {which} ORDER BY created_at DESC, id DESC LIMIT $3 OFFSET $4");
        let rows = sqlx::query(AssertSqlSafe(statement))
            .bind(sandbox.to_string())
            .bind(team.to_string())
            .bind(limit.map_or(i64::MAX, i64::from))
            .bind(i64::try_from(offset).unwrap_or(i64::MAX))
            .fetch_all(&self.read)
            .await?;
        let total: i64 = sqlx::query_scalar(AssertSqlSafe(format!("SELECT COUNT(*) FROM snapshots {which}")))
            .bind(sandbox.to_string())
            .bind(team.to_string())
            .fetch_one(&self.read)
            .await?;
        Ok(Page {
            rows: rows.iter().map(read).collect::<Result<_, _>>()?,
            total: u64::try_from(total).unwrap_or(0),
        })
    }

    /// Gives a snapshot a name; `None` when there is none of this id.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_rename(
        &self,
        team: TeamId,
        id: SnapshotId,
        name: &str,
    ) -> Result<Option<SnapshotRow>, StoreError> {
        let mut tx = self.begin().await?;
        let done =
            sqlx::query("UPDATE snapshots SET name = $3 WHERE id = $1 AND team = $2 AND deleted_at IS NULL")
                .bind(id.to_string())
                .bind(team.to_string())
                .bind(name)
                .execute(&mut *tx)
                .await?;
        tx.commit().await?;
        if done.rows_affected() == 0 { Ok(None) } else { self.snapshot_get(team, id).await }
    }

    /// Removes a snapshot. Sandboxes made from it have what they need.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn snapshot_remove(&self, team: TeamId, id: SnapshotId) -> Result<SnapshotRemoved, StoreError> {
        let mut tx = self.begin().await?;
        let statement = format!("{COLUMNS} WHERE id = $1 AND team = $2 AND deleted_at IS NULL");
        let row = sqlx::query(AssertSqlSafe(statement))
            .bind(id.to_string())
            .bind(team.to_string())
            .fetch_optional(&mut *tx)
            .await?;
        let Some(row) = row.as_ref().map(read).transpose()? else { return Ok(SnapshotRemoved::Absent) };
        if row.status == SnapshotStatus::Creating {
            return Ok(SnapshotRemoved::Creating);
        }
        let exists: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM sandboxes WHERE id = $1")
            .bind(row.sandbox.to_string())
            .fetch_one(&mut *tx)
            .await?;
        let statement = if row.idempotency_key.is_some() && exists > 0 {
            format!(
                "UPDATE snapshots SET deleted_at = $2, template = NULL, name = NULL, {EMPTIED} WHERE id = $1"
            )
        } else {
            "DELETE FROM snapshots WHERE id = $1 AND $2 > 0".to_owned()
        };
        sqlx::query(AssertSqlSafe(statement))
            .bind(id.to_string())
            .bind(Timestamp::now().as_microsecond())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(SnapshotRemoved::Removed(Box::new(row)))
    }
}

enum Keyed {
    Is(Box<SnapshotRow>),
    Gone,
}

async fn by_key(
    tx: &mut Transaction<'static, Sqlite>,
    sandbox: SandboxId,
    key: &str,
) -> Result<Option<Keyed>, StoreError> {
    let statement = format!("{COLUMNS} WHERE sandbox = $1 AND idempotency_key = $2");
    let row = sqlx::query(AssertSqlSafe(statement))
        .bind(sandbox.to_string())
        .bind(key)
        .fetch_optional(&mut **tx)
        .await?;
    let Some(row) = row else { return Ok(None) };
    if row.try_get::<Option<i64>, _>("deleted_at")?.is_some() {
        return Ok(Some(Keyed::Gone));
    }
    Ok(Some(Keyed::Is(Box::new(read(&row)?))))
}

async fn insert(tx: &mut Transaction<'static, Sqlite>, row: &SnapshotRow) -> Result<(), StoreError> {
    let bindings = row.bindings.iter().map(|(key, id)| (key.clone(), id.to_string())).collect();
    sqlx::query(
        "INSERT INTO snapshots (id, team, sandbox, template, parent, name, status, captured, idempotency_key, vcpu, \
         memory_mib, disk_mib, layers, defaults, network, timeout_seconds, env, bindings, size_bytes, created_at, \
         ready_at, engine) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)",
    )
    .bind(row.id.to_string())
    .bind(row.team.to_string())
    .bind(row.sandbox.to_string())
    .bind(row.template.map(|id| id.to_string()))
    .bind(row.parent.map(|id| id.to_string()))
    .bind(&row.name)
    .bind(row.status.as_str())
    .bind(row.captured.as_str())
    .bind(&row.idempotency_key)
    .bind(i64::from(row.shape.vcpu))
    .bind(i64::from(row.shape.memory_mib))
    .bind(i64::from(row.shape.disk_mib))
    .bind(columns::list_text(&row.layers))
    .bind(columns::defaults_text(&row.defaults))
    .bind(columns::network_text(&row.network))
    .bind(row.timeout_seconds.map(i64::from))
    .bind(columns::map_text(row.env.as_map()))
    .bind(columns::map_text(&bindings))
    .bind(i64::try_from(row.size_bytes).unwrap_or(i64::MAX))
    .bind(row.created_at.as_microsecond())
    .bind(columns::micros(row.ready_at))
    .bind(row.engine.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Whether sandboxes can be made from a snapshot now.
pub(crate) async fn is_ready(
    tx: &mut Transaction<'static, Sqlite>,
    id: SnapshotId,
) -> Result<bool, StoreError> {
    let ready: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM snapshots WHERE id = $1 AND status = 'ready' AND deleted_at IS NULL",
    )
    .bind(id.to_string())
    .fetch_one(&mut **tx)
    .await?;
    Ok(ready == 1)
}

/// The sandbox is gone: nobody can use its keys, or try again what failed.
pub(crate) async fn forget_keys(
    tx: &mut Transaction<'static, Sqlite>,
    sandbox: SandboxId,
) -> Result<(), StoreError> {
    sqlx::query(
        "DELETE FROM snapshots WHERE sandbox = $1 AND (deleted_at IS NOT NULL OR status = 'failed') \
         AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = $1)",
    )
    .bind(sandbox.to_string())
    .execute(&mut **tx)
    .await?;
    Ok(())
}
