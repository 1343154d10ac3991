//! Sandboxes. Every write is a compare-and-set on the generation and says whether it applied; there is no way to force
//! a state.

use domain::{
    EgressRules, Engine, EnvVars, Metadata, PreviewAccess, RuntimeDefaults, SandboxId, SandboxState, Shape,
    SnapshotId, TeamId, TemplateId, Timeouts,
};
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row, Sqlite, Transaction};
use uuid::Uuid;

use crate::binding::{self, BindingRow};
use crate::{Store, StoreError, columns, snapshot, template};

/// Link numbers of sandboxes run from 0 to one below this: each stands for a pair of addresses in a /16.
const LINKS: u32 = 32_704;

/// The rest of the link numbers of the /16, for machines that build templates; the last five are the host's own
/// (`node::warm` and `superserve::proof`).
pub const BUILD_LINKS: std::ops::Range<u32> = LINKS..32_763;

/// The states that hold compute and therefore count against the quota (`spec/semantics.md` §1).
const HOLDS_COMPUTE: &str = "state IN ('starting', 'active', 'pausing', 'resuming')";

/// What a list shows of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSummary {
    /// Its id.
    pub id: SandboxId,
    /// Not unique.
    pub name: String,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Compute and disk.
    pub shape: Shape,
    /// What it runs on, for life.
    pub engine: Engine,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// Tags.
    pub metadata: Metadata,
    /// The two clocks.
    pub timeouts: Timeouts,
    /// When it will be deleted, while it is paused.
    pub auto_delete_at: Option<Timestamp>,
    /// Default of ports published later.
    pub preview_access: PreviewAccess,
    /// What it may reach.
    pub network: EgressRules,
    /// The latest pause.
    pub checkpoint: Option<Uuid>,
    /// The saved snapshot it was made from; it may be gone.
    pub source_snapshot: Option<SnapshotId>,
}

/// The numbers a data-plane token is derived from; without the key they are worth nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenNumbers {
    /// Changes with every resume, which ends all earlier tokens.
    pub epoch: u64,
    /// When the newest token was issued, milliseconds since 1970.
    pub issued_ms: i64,
}

/// Everything that is known of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRow {
    /// What a list shows too.
    pub summary: SandboxSummary,
    /// Whose it is.
    pub team: TeamId,
    /// Counts the writes.
    pub generation: i64,
    /// What it was made from; for a fork, what its source was. Unset when that template is gone.
    pub template: Option<TemplateId>,
    /// Digests of its layers, lowest first; its own copy, since a template can be rebuilt and a snapshot deleted.
    pub layers: Vec<String>,
    /// The template's defaults, its own copy.
    pub defaults: RuntimeDefaults,
    /// Private.
    pub env: EnvVars,
    /// Begin of the active session.
    pub active_since: Option<Timestamp>,
    /// Unique among all rows.
    pub link: u32,
    /// While paused: whether a frozen machine is there to be continued, or only a disk to boot from.
    pub memory_kept: bool,
    /// For tokens.
    pub token: TokenNumbers,
}

/// Whether a write applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It did; this is the row now.
    Applied(Box<SandboxRow>),
    /// Somebody else wrote in between, or the row is gone. Of a create: its snapshot or template is gone, or the template
    /// was built again.
    Stale,
    /// The team's quota is used up.
    OverQuota,
}

const COLUMNS: &str = "SELECT id, team, name, state, generation, template, vcpu, memory_mib, disk_mib, layers, defaults, \
     metadata, env, timeout_seconds, auto_delete_seconds, active_since, auto_delete_at, preview_access, network, link, \
     memory_kept, token_epoch, token_issued_ms, checkpoint, source_snapshot, created_at, engine FROM sandboxes";

pub(crate) fn read_summary(row: &SqliteRow) -> Result<SandboxSummary, StoreError> {
    let bad = |problem: domain::Problem| StoreError::Corrupt { column: "metadata", found: problem.message };
    Ok(SandboxSummary {
        id: columns::parsed(row, "id")?,
        name: row.try_get("name")?,
        state: columns::parsed(row, "state")?,
        shape: columns::shape(row)?,
        engine: columns::parsed(row, "engine")?,
        created_at: columns::time(row, "created_at")?,
        metadata: Metadata::new(columns::map(row, "metadata")?).map_err(bad)?,
        timeouts: Timeouts {
            timeout_seconds: columns::maybe_number(row, "timeout_seconds")?,
            auto_delete_seconds: columns::maybe_number(row, "auto_delete_seconds")?,
        },
        auto_delete_at: columns::maybe_time(row, "auto_delete_at")?,
        preview_access: columns::parsed(row, "preview_access")?,
        network: columns::network(row, "network")?,
        checkpoint: columns::maybe_parsed(row, "checkpoint")?,
        source_snapshot: columns::maybe_parsed(row, "source_snapshot")?,
    })
}

fn read(row: &SqliteRow) -> Result<SandboxRow, StoreError> {
    let bad = |problem: domain::Problem| StoreError::Corrupt { column: "env", found: problem.message };
    Ok(SandboxRow {
        summary: read_summary(row)?,
        team: columns::parsed(row, "team")?,
        generation: row.try_get("generation")?,
        template: columns::maybe_parsed(row, "template")?,
        layers: columns::list(row, "layers")?,
        defaults: columns::defaults(row, "defaults")?,
        env: EnvVars::new(columns::map(row, "env")?).map_err(bad)?,
        active_since: columns::maybe_time(row, "active_since")?,
        link: columns::number(row, "link")?,
        memory_kept: row.try_get("memory_kept")?,
        token: TokenNumbers {
            epoch: columns::number(row, "token_epoch")?,
            issued_ms: row.try_get("token_issued_ms")?,
        },
    })
}

impl Store {
    /// Adds a sandbox in the state given with its bindings, chooses its link number, and checks the quota, all in one
    /// transaction: however many creates run at once, no more than `quota` get through. `row.link` is ignored.
    ///
    /// # Errors
    /// [`StoreError::NoLink`] when every link is taken.
    pub async fn sandbox_create(
        &self,
        row: SandboxRow,
        bindings: &[BindingRow],
        quota: u32,
    ) -> Result<Written, StoreError> {
        let mut tx = self.begin().await?;
        // From here on the row itself refers to its layers; nobody must have removed them before.
        let there = match (row.summary.source_snapshot, row.template) {
            (Some(snapshot), _) => snapshot::is_ready(&mut tx, snapshot).await?,
            (None, Some(template)) => template::has_layers(&mut tx, template, &row.layers).await?,
            (None, None) => false,
        };
        if !there {
            return Ok(Written::Stale);
        }
        if compute_held(&mut tx, row.team).await? >= i64::from(quota) {
            return Ok(Written::OverQuota);
        }
        // A fork needs no template: it may have gone since the snapshot was read.
        let template = match row.template {
            Some(id) if template::exists(&mut tx, id).await? => Some(id),
            _ => None,
        };
        let row = SandboxRow { link: free_link(&mut tx).await?, template, ..row };
        let summary = &row.summary;
        sqlx::query(
            "INSERT INTO sandboxes (id, team, name, name_folded, state, generation, template, vcpu, memory_mib, \
             disk_mib, layers, defaults, metadata, env, timeout_seconds, auto_delete_seconds, active_since, \
             auto_delete_at, preview_access, network, link, memory_kept, token_epoch, token_issued_ms, checkpoint, \
             created_at, source_snapshot, engine) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, \
             $20, $21, $22, $23, $24, $25, $26, $27, $28)",
        )
        .bind(summary.id.to_string())
        .bind(row.team.to_string())
        .bind(&summary.name)
        .bind(summary.name.to_lowercase())
        .bind(summary.state.as_str())
        .bind(row.generation)
        .bind(row.template.map(|id| id.to_string()))
        .bind(i64::from(summary.shape.vcpu))
        .bind(i64::from(summary.shape.memory_mib))
        .bind(i64::from(summary.shape.disk_mib))
        .bind(columns::list_text(&row.layers))
        .bind(columns::defaults_text(&row.defaults))
        .bind(columns::map_text(summary.metadata.as_map()))
        .bind(columns::map_text(row.env.as_map()))
        .bind(summary.timeouts.timeout_seconds.map(i64::from))
        .bind(summary.timeouts.auto_delete_seconds.map(i64::from))
        .bind(columns::micros(row.active_since))
        .bind(columns::micros(summary.auto_delete_at))
        .bind(summary.preview_access.as_str())
        .bind(columns::network_text(&summary.network))
        .bind(i64::from(row.link))
        .bind(row.memory_kept)
        .bind(stored_epoch(row.token))
        .bind(row.token.issued_ms)
        .bind(summary.checkpoint.map(|id| id.to_string()))
        .bind(summary.created_at.as_microsecond())
        .bind(summary.source_snapshot.map(|id| id.to_string()))
        .bind(summary.engine.as_str())
        .execute(&mut *tx)
        .await?;
        write_tags(&mut tx, summary).await?;
        for binding in bindings {
            binding::insert(&mut tx, binding).await?;
        }
        tx.commit().await?;
        Ok(Written::Applied(Box::new(row)))
    }

    /// Writes state, clocks and token numbers of `row`, if the stored generation is still `row.generation`. With
    /// `quota`, the sandbox must not hold compute yet, and is refused when the team holds that much already.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandbox_transition(
        &self,
        row: SandboxRow,
        quota: Option<u32>,
    ) -> Result<Written, StoreError> {
        let mut tx = self.begin().await?;
        if let Some(quota) = quota
            && compute_held(&mut tx, row.team).await? >= i64::from(quota)
        {
            return Ok(Written::OverQuota);
        }
        let applied = write_runtime(&mut tx, &row).await?;
        tx.commit().await?;
        Ok(written(row, applied))
    }

    /// Like [`Store::sandbox_transition`], and writes tags, rules, clocks and preview default too.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandbox_patch(&self, row: SandboxRow) -> Result<Written, StoreError> {
        let mut tx = self.begin().await?;
        let applied = write_runtime(&mut tx, &row).await?;
        if applied {
            let summary = &row.summary;
            sqlx::query(
                "UPDATE sandboxes SET metadata = $2, timeout_seconds = $3, auto_delete_seconds = $4, \
                 preview_access = $5, network = $6 WHERE id = $1",
            )
            .bind(summary.id.to_string())
            .bind(columns::map_text(summary.metadata.as_map()))
            .bind(summary.timeouts.timeout_seconds.map(i64::from))
            .bind(summary.timeouts.auto_delete_seconds.map(i64::from))
            .bind(summary.preview_access.as_str())
            .bind(columns::network_text(&summary.network))
            .execute(&mut *tx)
            .await?;
            sqlx::query("DELETE FROM sandbox_tags WHERE sandbox = $1")
                .bind(summary.id.to_string())
                .execute(&mut *tx)
                .await?;
            write_tags(&mut tx, summary).await?;
        }
        tx.commit().await?;
        Ok(written(row, applied))
    }

    /// Forgets a deleted sandbox once nothing of it is left on the host.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandbox_remove(&self, id: SandboxId) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("DELETE FROM sandboxes WHERE id = $1 AND state = 'deleted'")
            .bind(id.to_string())
            .execute(&mut *tx)
            .await?;
        snapshot::forget_keys(&mut tx, id).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Forgets every sandbox, whatever its state, and says how many there were: for a host on which nothing is left.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandbox_forget_all(&self) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query("DELETE FROM sandboxes").execute(&mut *tx).await?;
        sqlx::query("DELETE FROM snapshots WHERE deleted_at IS NOT NULL OR status = 'failed'")
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(done.rows_affected())
    }

    /// Notes that all sandboxes there are run on this engine: for what was written before rows said so.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandbox_engine_of_all(&self, engine: Engine) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("UPDATE sandboxes SET engine = $1").bind(engine.as_str()).execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }

    /// Every row that can be read, the deleted ones that still need cleaning up included: what a start begins with.
    /// Damaged rows are named in the log and left as they are; [`Store::sandbox_ids`] has them too.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandbox_all(&self) -> Result<Vec<SandboxRow>, StoreError> {
        let rows = sqlx::query(AssertSqlSafe(format!("{COLUMNS} ORDER BY created_at")))
            .fetch_all(&self.read)
            .await?;
        Ok(whole(&rows, read))
    }

    /// The ids of all rows, damaged ones included.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandbox_ids(&self) -> Result<Vec<SandboxId>, StoreError> {
        let ids: Vec<String> = sqlx::query_scalar("SELECT id FROM sandboxes").fetch_all(&self.read).await?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// One row, whatever its state.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandbox_get(&self, id: SandboxId) -> Result<Option<SandboxRow>, StoreError> {
        let row = sqlx::query(AssertSqlSafe(format!("{COLUMNS} WHERE id = $1")))
            .bind(id.to_string())
            .fetch_optional(&self.read)
            .await?;
        row.as_ref().map(read).transpose()
    }
}

/// The rows that can be read: one damaged row must not take the others with it.
pub(crate) fn whole<T>(rows: &[SqliteRow], read: impl Fn(&SqliteRow) -> Result<T, StoreError>) -> Vec<T> {
    let read = |row: &SqliteRow| match read(row) {
        Ok(row) => Some(row),
        Err(error) => {
            let sandbox = row.try_get::<String, _>("id").unwrap_or_default();
            let cause = &error as &dyn std::error::Error;
            tracing::error!(
                sandbox,
                cause,
                "the database row of a sandbox is damaged; it is left out and kept as it is"
            );
            None
        }
    };
    rows.iter().filter_map(read).collect()
}

pub(crate) fn written(mut row: SandboxRow, applied: bool) -> Written {
    if !applied {
        return Written::Stale;
    }
    row.generation += 1;
    Written::Applied(Box::new(row))
}

fn stored_epoch(token: TokenNumbers) -> i64 {
    // It counts resumes: it does not get near the limit.
    i64::try_from(token.epoch).unwrap_or(i64::MAX)
}

async fn compute_held(tx: &mut Transaction<'static, Sqlite>, team: TeamId) -> Result<i64, StoreError> {
    let statement = format!("SELECT COUNT(*) FROM sandboxes WHERE team = $1 AND {HOLDS_COMPUTE}");
    Ok(sqlx::query_scalar(AssertSqlSafe(statement)).bind(team.to_string()).fetch_one(&mut **tx).await?)
}

/// The smallest number no row has. The caller holds the write lock.
async fn free_link(tx: &mut Transaction<'static, Sqlite>) -> Result<u32, StoreError> {
    let first: Option<i64> = sqlx::query_scalar(
        "SELECT MIN(candidate) FROM (SELECT 0 AS candidate UNION ALL SELECT link + 1 FROM sandboxes) AS candidates \
         WHERE NOT EXISTS (SELECT 1 FROM sandboxes WHERE link = candidate)",
    )
    .fetch_one(&mut **tx)
    .await?;
    let link = first.and_then(|link| u32::try_from(link).ok()).filter(|link| *link < LINKS);
    link.ok_or(StoreError::NoLink { limit: LINKS })
}

pub(crate) async fn write_runtime(
    tx: &mut Transaction<'static, Sqlite>,
    row: &SandboxRow,
) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "UPDATE sandboxes SET state = $3, generation = generation + 1, active_since = $4, auto_delete_at = $5, \
         memory_kept = $6, token_epoch = $7, token_issued_ms = $8, checkpoint = $9 WHERE id = $1 AND generation = $2",
    )
    .bind(row.summary.id.to_string())
    .bind(row.generation)
    .bind(row.summary.state.as_str())
    .bind(columns::micros(row.active_since))
    .bind(columns::micros(row.summary.auto_delete_at))
    .bind(row.memory_kept)
    .bind(stored_epoch(row.token))
    .bind(row.token.issued_ms)
    .bind(row.summary.checkpoint.map(|id| id.to_string()))
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

async fn write_tags(
    tx: &mut Transaction<'static, Sqlite>,
    summary: &SandboxSummary,
) -> Result<(), StoreError> {
    for (key, value) in summary.metadata.as_map() {
        sqlx::query("INSERT INTO sandbox_tags (sandbox, key, value) VALUES ($1, $2, $3)")
            .bind(summary.id.to_string())
            .bind(key)
            .bind(value)
            .execute(&mut **tx)
            .await?;
    }
    Ok(())
}
