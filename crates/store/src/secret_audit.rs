//! What secrets were used for (`spec/rest-api.md` §11.1): the requests of the network log once more, by secret, and kept
//! when the sandbox is gone.

use domain::{NetworkEvent, RequestAttempt, SandboxId, SecretId};
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite, Transaction};

use crate::network_log::{cut, millis};
use crate::{PRUNE_STEP, Store, StoreError, columns};

/// One use or refusal of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Counts upwards.
    pub id: i64,
    /// Which secret.
    pub secret: SecretId,
    /// By whom; it may be gone.
    pub sandbox: SandboxId,
    /// The sandbox's name, while it exists.
    pub sandbox_name: Option<String>,
    /// When it was over.
    pub at: Timestamp,
    /// HTTP method.
    pub method: String,
    /// Where to.
    pub host: String,
    /// Without its query.
    pub path: String,
    /// What the sandbox got.
    pub status: u16,
    /// What the service gave.
    pub upstream_status: Option<u16>,
    /// Until the head of the answer.
    pub latency_ms: u64,
    /// Why it was refused.
    pub error: Option<String>,
}

/// What a page of the audit is narrowed to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only rows below this one.
    pub before: Option<i64>,
    /// Only statuses from the first up to below the second.
    pub status: Option<(u16, u16)>,
    /// Most rows.
    pub limit: u32,
}

fn read(row: &SqliteRow) -> Result<AuditRow, StoreError> {
    Ok(AuditRow {
        id: row.try_get("seq")?,
        secret: columns::parsed(row, "secret")?,
        sandbox: columns::parsed(row, "sandbox")?,
        sandbox_name: row.try_get("name")?,
        at: columns::time(row, "at")?,
        method: row.try_get("method")?,
        host: row.try_get("host")?,
        path: row.try_get("path")?,
        status: columns::number(row, "status")?,
        upstream_status: columns::maybe_number(row, "upstream_status")?,
        latency_ms: columns::number(row, "latency_ms")?,
        error: row.try_get("error")?,
    })
}

/// Adds the request to the audit of its secret, and notes that the secret was used.
pub(crate) async fn add(
    tx: &mut Transaction<'static, Sqlite>,
    event: &NetworkEvent,
    secret: SecretId,
    request: &RequestAttempt,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO secret_audit (secret, sandbox, at, method, host, path, status, upstream_status, latency_ms, error) \
         SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10 WHERE EXISTS (SELECT 1 FROM secrets WHERE id = $1)",
    )
    .bind(secret.to_string())
    .bind(event.sandbox.to_string())
    .bind(event.at.as_microsecond())
    .bind(cut(Some(&request.method), domain::MAX_LOGGED_METHOD))
    .bind(cut(Some(&request.host), domain::MAX_LOGGED_HOST))
    .bind(cut(Some(&request.path), domain::MAX_LOGGED_PATH))
    .bind(i64::from(request.status))
    .bind(request.upstream_status.map(i64::from))
    .bind(millis(request.latency))
    .bind(cut(request.error.as_deref(), crate::network_log::MAX_WORD))
    .execute(&mut **tx)
    .await?;
    sqlx::query(
        "UPDATE secrets SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)",
    )
    .bind(secret.to_string())
    .bind(event.at.as_microsecond())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

impl Store {
    /// One page of a secret's audit, newest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn secret_audit_list(
        &self,
        secret: SecretId,
        filter: AuditFilter,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT secret_audit.*, sandboxes.name FROM secret_audit LEFT JOIN sandboxes \
             ON sandboxes.id = secret_audit.sandbox AND sandboxes.state <> 'deleted' WHERE secret = ",
        );
        query.push_bind(secret.to_string());
        if let Some(before) = filter.before {
            query.push(" AND seq < ").push_bind(before);
        }
        if let Some((from, to)) = filter.status {
            query.push(" AND status >= ").push_bind(i64::from(from));
            query.push(" AND status < ").push_bind(i64::from(to));
        }
        query.push(" ORDER BY seq DESC LIMIT ").push_bind(i64::from(filter.limit));
        let rows = query.build().fetch_all(&self.read).await?;
        rows.iter().map(read).collect()
    }

    /// Removes at most [`PRUNE_STEP`] audit rows beyond a secret's newest `keep`, and says how many it removed.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn secret_audit_prune(&self, secret: SecretId, keep: u32) -> Result<u32, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "DELETE FROM secret_audit WHERE seq IN (SELECT seq FROM secret_audit WHERE secret = $1 ORDER BY seq DESC \
             LIMIT $2 OFFSET $3)",
        )
        .bind(secret.to_string())
        .bind(i64::from(PRUNE_STEP))
        .bind(i64::from(keep))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(u32::try_from(done.rows_affected()).unwrap_or(PRUNE_STEP))
    }

    /// Removes at most [`PRUNE_STEP`] of the oldest audit rows, those from before `before`, and says how many it removed.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn secret_audit_prune_old(&self, before: Timestamp) -> Result<u32, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "DELETE FROM secret_audit WHERE seq IN (SELECT seq FROM (SELECT seq, at FROM secret_audit ORDER BY seq LIMIT $1) \
             AS oldest WHERE at < $2)",
        )
        .bind(i64::from(PRUNE_STEP))
        .bind(before.as_microsecond())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(u32::try_from(done.rows_affected()).unwrap_or(PRUNE_STEP))
    }
}
