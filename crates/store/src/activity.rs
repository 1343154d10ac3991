//! The activity log (`spec/rest-api.md` §12): rows are added in batches, read by the page, and removed from the old end
//! in small steps, so that neither holds up other writers.

use domain::{SandboxId, SecretId, TeamId, TemplateId};
use jiff::Timestamp;
use serde_json::{Map, Value};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite};
use uuid::Uuid;

use crate::sandbox_list::like;
use crate::{Page, Store, StoreError, columns};

/// Rows one step of pruning removes: a few milliseconds of the write lock.
pub const PRUNE_STEP: u32 = 500;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivityRow {
    /// Names it.
    pub id: Uuid,
    /// Whose log it is in.
    pub team: TeamId,
    /// The API key that asked for it, if one did.
    pub actor: Option<Uuid>,
    /// What kind of thing it is about.
    pub category: String,
    /// What happened to it.
    pub action: String,
    /// A code, when it failed.
    pub error: Option<String>,
    /// The sandbox it is about, which may be gone.
    pub sandbox: Option<SandboxId>,
    /// The sandbox's name at the time.
    pub sandbox_name: Option<String>,
    /// The template it is about or was made from.
    pub template: Option<TemplateId>,
    /// The secret it is about.
    pub secret: Option<SecretId>,
    /// The secret's name at the time.
    pub secret_name: Option<String>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// Small facts, none of them private.
    pub metadata: Map<String, Value>,
    /// When it was over.
    pub created_at: Timestamp,
}

/// What a list of activity is narrowed to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActivityFilter {
    /// Only this category.
    pub category: Option<String>,
    /// Only this action.
    pub action: Option<String>,
    /// Only this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Only failures, or only what succeeded.
    pub failed: Option<bool>,
    /// Names, action or error contain this, whatever the case.
    pub query: Option<String>,
    /// Not before.
    pub start: Option<Timestamp>,
    /// Not after.
    pub end: Option<Timestamp>,
    /// Oldest first.
    pub ascending: bool,
    /// Most rows.
    pub limit: u32,
    /// Rows to skip.
    pub offset: u64,
}

fn read(row: &SqliteRow) -> Result<ActivityRow, StoreError> {
    let corrupt = |_| StoreError::Corrupt { column: "metadata", found: "malformed JSON".to_owned() };
    Ok(ActivityRow {
        id: columns::parsed(row, "id")?,
        team: columns::parsed(row, "team")?,
        actor: columns::maybe_parsed(row, "actor")?,
        category: row.try_get("category")?,
        action: row.try_get("action")?,
        error: row.try_get("error")?,
        sandbox: columns::maybe_parsed(row, "sandbox")?,
        sandbox_name: row.try_get("sandbox_name")?,
        template: columns::maybe_parsed(row, "template")?,
        secret: columns::maybe_parsed(row, "secret")?,
        secret_name: row.try_get("secret_name")?,
        duration_ms: columns::maybe_number(row, "duration_ms")?,
        metadata: serde_json::from_str(row.try_get("metadata")?).map_err(corrupt)?,
        created_at: columns::time(row, "created_at")?,
    })
}

/// What `q` looks into, folded.
fn searched(row: &ActivityRow) -> String {
    let named = row.metadata.values().filter_map(Value::as_str);
    let own = [
        Some(row.action.as_str()),
        row.error.as_deref(),
        row.sandbox_name.as_deref(),
        row.secret_name.as_deref(),
    ];
    own.into_iter().flatten().chain(named).collect::<Vec<_>>().join("\n").to_lowercase()
}

impl Store {
    /// Adds rows in their order, all or none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn activity_add(&self, rows: &[ActivityRow]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for row in rows {
            sqlx::query(
                "INSERT INTO activity (id, team, actor, category, action, error, sandbox, sandbox_name, template, \
                 duration_ms, metadata, searched, created_at, secret, secret_name) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
            )
            .bind(row.id.to_string())
            .bind(row.team.to_string())
            .bind(row.actor.map(|id| id.to_string()))
            .bind(&row.category)
            .bind(&row.action)
            .bind(&row.error)
            .bind(row.sandbox.map(|id| id.to_string()))
            .bind(&row.sandbox_name)
            .bind(row.template.map(|id| id.to_string()))
            .bind(row.duration_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX)))
            .bind(Value::Object(row.metadata.clone()).to_string())
            .bind(searched(row))
            .bind(row.created_at.as_microsecond())
            .bind(row.secret.map(|id| id.to_string()))
            .bind(&row.secret_name)
            .execute(&mut *tx)
            .await?;
        }
        Ok(tx.commit().await?)
    }

    /// One page of a team's log, and how many rows match in all.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn activity_list(
        &self,
        team: TeamId,
        filter: &ActivityFilter,
    ) -> Result<Page<ActivityRow>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT id, team, actor, category, action, error, sandbox, sandbox_name, template, duration_ms, metadata, \
             created_at, secret, secret_name",
        );
        narrow(&mut query, team, filter);
        let order = if filter.ascending {
            " ORDER BY created_at ASC, seq ASC"
        } else {
            " ORDER BY created_at DESC, seq DESC"
        };
        query.push(order).push(" LIMIT ").push_bind(i64::from(filter.limit));
        query.push(" OFFSET ").push_bind(i64::try_from(filter.offset).unwrap_or(i64::MAX));
        let rows = query.build().fetch_all(&self.read).await?;
        let rows = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let mut count = QueryBuilder::<Sqlite>::new("SELECT COUNT(*)");
        narrow(&mut count, team, filter);
        let total: i64 = count.build_query_scalar().fetch_one(&self.read).await?;
        Ok(Page { rows, total: u64::try_from(total).unwrap_or(0) })
    }

    /// Removes at most [`PRUNE_STEP`] of the oldest rows: those beyond the newest `keep`, and those from before
    /// `before`. Says how many it removed.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn activity_prune(&self, keep: u32, before: Timestamp) -> Result<u32, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "DELETE FROM activity WHERE seq IN (SELECT seq FROM (SELECT seq, created_at FROM activity ORDER BY seq \
             LIMIT $1) AS oldest WHERE seq <= (SELECT MAX(seq) FROM activity) - $2 OR created_at < $3)",
        )
        .bind(i64::from(PRUNE_STEP))
        .bind(i64::from(keep))
        .bind(before.as_microsecond())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(u32::try_from(done.rows_affected()).unwrap_or(PRUNE_STEP))
    }
}

fn narrow(query: &mut QueryBuilder<Sqlite>, team: TeamId, filter: &ActivityFilter) {
    query.push(" FROM activity WHERE team = ").push_bind(team.to_string());
    if let Some(category) = &filter.category {
        query.push(" AND category = ").push_bind(category.clone());
    }
    if let Some(action) = &filter.action {
        query.push(" AND action = ").push_bind(action.clone());
    }
    if let Some(sandbox) = filter.sandbox {
        query.push(" AND sandbox = ").push_bind(sandbox.to_string());
    }
    match filter.failed {
        Some(true) => {
            query.push(" AND error IS NOT NULL");
        }
        Some(false) => {
            query.push(" AND error IS NULL");
        }
        None => {}
    }
    if let Some(text) = &filter.query {
        query.push(" AND searched LIKE ").push_bind(like(&text.to_lowercase())).push(" ESCAPE '\\'");
    }
    if let Some(start) = filter.start {
        query.push(" AND created_at >= ").push_bind(start.as_microsecond());
    }
    if let Some(end) = filter.end {
        query.push(" AND created_at <= ").push_bind(end.as_microsecond());
    }
}
