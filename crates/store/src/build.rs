//! Builds of templates, and what earlier builds made.

use domain::{BuildId, BuildStatus, RuntimeDefaults, TeamId, TemplateId, TemplateStatus};
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row, Sqlite, Transaction};

use crate::template::{put, read_template};
use crate::{Store, StoreError, TemplateRow, columns};

/// One build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRow {
    /// Never reused.
    pub id: BuildId,
    /// Of which template.
    pub template: TemplateId,
    /// Whose.
    pub team: TeamId,
    /// How far it is.
    pub status: BuildStatus,
    /// SHA-256 of the canonical spec, 64 hex digits.
    pub spec_hash: String,
    /// `<code>: <detail>` of a failure.
    pub error: Option<String>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it left the queue.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finalized_at: Option<Timestamp>,
}

/// Most of a team.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildQuota {
    /// Templates.
    pub templates: u32,
    /// Builds that wait or run.
    pub builds: u32,
}

/// Whether a build was taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildWritten {
    /// It was.
    Applied,
    /// The same build is under way.
    Same(Box<BuildRow>),
    /// Too many builds of the team are.
    TooManyBuilds,
    /// The team has too many templates.
    TooManyTemplates,
    /// The template is gone.
    NoTemplate,
}

/// What a build made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltImage {
    /// Digests, lowest first.
    pub layers: Vec<String>,
    /// Bytes of the layers.
    pub size_bytes: u64,
    /// What processes start with.
    pub defaults: RuntimeDefaults,
}

/// What a step made before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedStep {
    /// Its layer; `None` when it changed nothing.
    pub layer: Option<String>,
    /// Bytes of the layer.
    pub size_bytes: u64,
}

/// Whether a template was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateRemoved {
    /// It was, with these builds.
    Removed(Vec<BuildId>),
    /// Sandboxes were made from it.
    InUse,
    /// A build of it is under way.
    Building,
    /// There is none.
    Absent,
}

/// A build that waits or runs.
const IN_FLIGHT: &str = "status IN ('pending', 'building', 'snapshotting')";
const COLUMNS: &str = "SELECT id, template, team, status, spec_hash, error, created_at, started_at, finalized_at \
     FROM template_builds";
/// Builds that are kept of one template; as many as a list can show.
const KEPT_BUILDS: i64 = 100;

fn read(row: &SqliteRow) -> Result<BuildRow, StoreError> {
    Ok(BuildRow {
        id: columns::parsed(row, "id")?,
        template: columns::parsed(row, "template")?,
        team: columns::parsed(row, "team")?,
        status: columns::parsed(row, "status")?,
        spec_hash: row.try_get("spec_hash")?,
        error: row.try_get("error")?,
        created_at: columns::time(row, "created_at")?,
        started_at: columns::maybe_time(row, "started_at")?,
        finalized_at: columns::maybe_time(row, "finalized_at")?,
    })
}

impl Store {
    /// Adds a template with its first build.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] when another template of the team has the name.
    pub async fn template_create(
        &self,
        template: &TemplateRow,
        build: &BuildRow,
        quota: BuildQuota,
    ) -> Result<BuildWritten, StoreError> {
        let mut tx = self.begin().await?;
        let templates: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM templates WHERE team = $1")
            .bind(template.team.to_string())
            .fetch_one(&mut *tx)
            .await?;
        // The name first: somebody who asks twice learns that it worked the first time.
        put(&mut tx, template).await?;
        if templates >= i64::from(quota.templates) {
            return Ok(BuildWritten::TooManyTemplates);
        }
        if in_flight(&mut tx, template.team).await? >= i64::from(quota.builds) {
            return Ok(BuildWritten::TooManyBuilds);
        }
        insert_build(&mut tx, build).await?;
        tx.commit().await?;
        Ok(BuildWritten::Applied)
    }

    /// Adds a build to a template, unless the same one is under way. A template without a usable image is `building` again.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn build_create(
        &self,
        build: &BuildRow,
        quota: BuildQuota,
    ) -> Result<BuildWritten, StoreError> {
        let mut tx = self.begin().await?;
        let there: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM templates WHERE id = $1")
            .bind(build.template.to_string())
            .fetch_one(&mut *tx)
            .await?;
        if there == 0 {
            return Ok(BuildWritten::NoTemplate);
        }
        let statement = format!("{COLUMNS} WHERE template = $1 AND spec_hash = $2 AND {IN_FLIGHT}");
        let same = sqlx::query(AssertSqlSafe(statement))
            .bind(build.template.to_string())
            .bind(&build.spec_hash)
            .fetch_optional(&mut *tx)
            .await?;
        if let Some(row) = same {
            return Ok(BuildWritten::Same(Box::new(read(&row)?)));
        }
        if in_flight(&mut tx, build.team).await? >= i64::from(quota.builds) {
            return Ok(BuildWritten::TooManyBuilds);
        }
        insert_build(&mut tx, build).await?;
        sqlx::query("UPDATE templates SET status = $2, error = NULL WHERE id = $1 AND status <> $3")
            .bind(build.template.to_string())
            .bind(TemplateStatus::Building.as_str())
            .bind(TemplateStatus::Ready.as_str())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(BuildWritten::Applied)
    }

    /// One build of a template.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn build_get(&self, template: TemplateId, id: BuildId) -> Result<Option<BuildRow>, StoreError> {
        let statement = format!("{COLUMNS} WHERE id = $1 AND template = $2");
        let row = sqlx::query(AssertSqlSafe(statement))
            .bind(id.to_string())
            .bind(template.to_string())
            .fetch_optional(&self.read)
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// Builds of a template, newest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn build_list(&self, template: TemplateId, limit: u32) -> Result<Vec<BuildRow>, StoreError> {
        let statement =
            format!("{COLUMNS} WHERE template = $1 ORDER BY created_at DESC, rowid DESC LIMIT $2");
        let rows = sqlx::query(AssertSqlSafe(statement))
            .bind(template.to_string())
            .bind(i64::from(limit))
            .fetch_all(&self.read)
            .await?;
        rows.iter().map(read).collect()
    }

    /// Notes that a build goes on; `false` when it has ended already.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn build_advance(
        &self,
        id: BuildId,
        status: BuildStatus,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let statement = format!(
            "UPDATE template_builds SET status = $2, started_at = COALESCE(started_at, $3) WHERE id = $1 AND {IN_FLIGHT}"
        );
        let done = sqlx::query(AssertSqlSafe(statement))
            .bind(id.to_string())
            .bind(status.as_str())
            .bind(now.as_microsecond())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// Puts what a build made into service, and ends the build; `false` when it has ended already.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn build_succeed(
        &self,
        id: BuildId,
        image: &BuiltImage,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let Some(template) = finish(&mut tx, id, BuildStatus::Ready, None, now).await? else {
            return Ok(false);
        };
        sqlx::query(
            "UPDATE templates SET status = $2, layers = $3, defaults = $4, size_bytes = $5, built_at = $6, \
             error = NULL WHERE id = $1",
        )
        .bind(template)
        .bind(TemplateStatus::Ready.as_str())
        .bind(columns::list_text(&image.layers))
        .bind(columns::defaults_text(&image.defaults))
        .bind(i64::try_from(image.size_bytes).unwrap_or(i64::MAX))
        .bind(now.as_microsecond())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Ends a build that came to nothing; `false` when it has ended already. A template that was usable stays so.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn build_fail(
        &self,
        id: BuildId,
        status: BuildStatus,
        error: &str,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let Some(template) = finish(&mut tx, id, status, Some(error), now).await? else {
            return Ok(false);
        };
        let others = format!(
            "UPDATE templates SET status = $2, error = $3 WHERE id = $1 AND status <> $4 \
             AND NOT EXISTS (SELECT 1 FROM template_builds WHERE template = $1 AND {IN_FLIGHT})"
        );
        sqlx::query(AssertSqlSafe(others))
            .bind(template)
            .bind(TemplateStatus::Failed.as_str())
            .bind(error)
            .bind(TemplateStatus::Ready.as_str())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The builds that wait or run, or did when the server ended.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn build_in_flight(&self) -> Result<Vec<BuildRow>, StoreError> {
        let statement = format!("{COLUMNS} WHERE {IN_FLIGHT} ORDER BY created_at");
        let rows = sqlx::query(AssertSqlSafe(statement)).fetch_all(&self.read).await?;
        rows.iter().map(read).collect()
    }

    /// Forgets the oldest builds of a template beyond those that are kept, and says which.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn build_prune(&self, template: TemplateId) -> Result<Vec<BuildId>, StoreError> {
        let mut tx = self.begin().await?;
        let statement = format!(
            "DELETE FROM template_builds WHERE template = $1 AND NOT {IN_FLIGHT} AND id NOT IN (SELECT id FROM \
             template_builds WHERE template = $1 ORDER BY created_at DESC, rowid DESC LIMIT $2) RETURNING id"
        );
        let rows = sqlx::query(AssertSqlSafe(statement))
            .bind(template.to_string())
            .bind(KEPT_BUILDS)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        rows.iter().map(|row| columns::parsed(row, "id")).collect()
    }

    /// All builds there are, of all teams.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn build_ids(&self) -> Result<Vec<BuildId>, StoreError> {
        let rows = sqlx::query("SELECT id FROM template_builds").fetch_all(&self.read).await?;
        rows.iter().map(|row| columns::parsed(row, "id")).collect()
    }

    /// Removes a team's template with its builds, if nothing refers to it.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn template_remove(&self, team: TeamId, id: TemplateId) -> Result<TemplateRemoved, StoreError> {
        let mut tx = self.begin().await?;
        let count = async |tx: &mut Transaction<'static, Sqlite>, statement: &str| {
            let query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(statement.to_owned()));
            query.bind(id.to_string()).fetch_one(&mut **tx).await
        };
        if count(&mut tx, "SELECT COUNT(*) FROM sandboxes WHERE template = $1").await? > 0 {
            return Ok(TemplateRemoved::InUse);
        }
        let building = format!("SELECT COUNT(*) FROM template_builds WHERE template = $1 AND {IN_FLIGHT}");
        if count(&mut tx, &building).await? > 0 {
            return Ok(TemplateRemoved::Building);
        }
        let rows = sqlx::query("DELETE FROM template_builds WHERE template = $1 RETURNING id")
            .bind(id.to_string())
            .fetch_all(&mut *tx)
            .await?;
        let builds = rows.iter().map(|row| columns::parsed(row, "id")).collect::<Result<_, _>>()?;
        let done = sqlx::query("DELETE FROM templates WHERE id = $1 AND team = $2 RETURNING layers")
            .bind(id.to_string())
            .bind(team.to_string())
            .fetch_optional(&mut *tx)
            .await?;
        let Some(row) = done else { return Ok(TemplateRemoved::Absent) };
        // Whoever deletes a template wants its disk space, not its next build to be quick.
        let mut kept = Vec::new();
        for other in sqlx::query("SELECT layers FROM templates").fetch_all(&mut *tx).await? {
            kept.extend(columns::list(&other, "layers")?);
        }
        for layer in columns::list(&row, "layers")?.iter().filter(|layer| !kept.contains(layer)) {
            sqlx::query("DELETE FROM build_cache WHERE layer = $1").bind(layer).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(TemplateRemoved::Removed(builds))
    }

    /// What a step made before, and notes that it was of use.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn cache_get(&self, key: &str, now: Timestamp) -> Result<Option<CachedStep>, StoreError> {
        let mut tx = self.begin().await?;
        let row =
            sqlx::query("UPDATE build_cache SET used_at = $2 WHERE key = $1 RETURNING layer, size_bytes")
                .bind(key)
                .bind(now.as_microsecond())
                .fetch_optional(&mut *tx)
                .await?;
        tx.commit().await?;
        row.map(|row| {
            let layer: String = row.try_get("layer")?;
            let size_bytes = columns::number(&row, "size_bytes")?;
            Ok(CachedStep { layer: Some(layer).filter(|layer| !layer.is_empty()), size_bytes })
        })
        .transpose()
    }

    /// Remembers what a step made.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn cache_put(&self, key: &str, step: &CachedStep, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(
            "INSERT INTO build_cache (key, layer, size_bytes, used_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (key) DO UPDATE SET layer = excluded.layer, size_bytes = excluded.size_bytes, \
             used_at = excluded.used_at",
        )
        .bind(key)
        .bind(step.layer.as_deref().unwrap_or_default())
        .bind(i64::try_from(step.size_bytes).unwrap_or(i64::MAX))
        .bind(now.as_microsecond())
        .execute(&mut *tx)
        .await?;
        Ok(tx.commit().await?)
    }

    /// Digests of all layers that anything refers to. What a step made, and nothing else refers to, counts if it was of
    /// use at or after `cached_since`; the rest of the cache is forgotten.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn layers_in_use(&self, cached_since: Timestamp) -> Result<Vec<String>, StoreError> {
        let mut tx = self.begin().await?;
        let mut used = Vec::new();
        for row in sqlx::query(
            "SELECT layers FROM templates UNION ALL SELECT layers FROM sandboxes UNION ALL SELECT layers FROM snapshots",
        )
            .fetch_all(&mut *tx)
            .await?
        {
            used.extend(columns::list(&row, "layers")?);
        }
        for row in sqlx::query("SELECT key, layer, used_at FROM build_cache").fetch_all(&mut *tx).await? {
            let layer: String = row.try_get("layer")?;
            if columns::time(&row, "used_at")? >= cached_since {
                used.push(layer);
            } else if !used.contains(&layer) {
                sqlx::query("DELETE FROM build_cache WHERE key = $1")
                    .bind(row.try_get::<String, _>("key")?)
                    .execute(&mut *tx)
                    .await?;
            }
        }
        tx.commit().await?;
        used.retain(|layer| !layer.is_empty());
        used.sort();
        used.dedup();
        Ok(used)
    }

    /// A template by its id, whoever owns it.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn template_get(&self, id: TemplateId) -> Result<Option<TemplateRow>, StoreError> {
        read_template(&self.read, id).await
    }
}

async fn in_flight(tx: &mut Transaction<'static, Sqlite>, team: TeamId) -> Result<i64, StoreError> {
    let statement = format!("SELECT COUNT(*) FROM template_builds WHERE team = $1 AND {IN_FLIGHT}");
    Ok(sqlx::query_scalar(AssertSqlSafe(statement)).bind(team.to_string()).fetch_one(&mut **tx).await?)
}

async fn insert_build(tx: &mut Transaction<'static, Sqlite>, build: &BuildRow) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO template_builds (id, template, team, status, spec_hash, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(build.id.to_string())
    .bind(build.template.to_string())
    .bind(build.team.to_string())
    .bind(build.status.as_str())
    .bind(&build.spec_hash)
    .bind(build.created_at.as_microsecond())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Ends a build in flight; gives its template.
async fn finish(
    tx: &mut Transaction<'static, Sqlite>,
    id: BuildId,
    status: BuildStatus,
    error: Option<&str>,
    now: Timestamp,
) -> Result<Option<String>, StoreError> {
    let statement = format!(
        "UPDATE template_builds SET status = $2, error = $3, finalized_at = $4 WHERE id = $1 AND {IN_FLIGHT} \
         RETURNING template"
    );
    Ok(sqlx::query_scalar(AssertSqlSafe(statement))
        .bind(id.to_string())
        .bind(status.as_str())
        .bind(error)
        .bind(now.as_microsecond())
        .fetch_optional(&mut **tx)
        .await?)
}
