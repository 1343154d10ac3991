//! Templates: what a sandbox is made from.

use domain::{BuildSpec, Engine, RuntimeDefaults, Shape, TeamId, TemplateId, TemplateStatus};
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, QueryBuilder, Row, Sqlite, SqlitePool, Transaction};

use crate::{Page, Store, StoreError, columns, system_team};

/// One template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRow {
    /// Never reused.
    pub id: TemplateId,
    /// The owner; [`system_team`] for curated ones.
    pub team: TeamId,
    /// Unique within the team.
    pub name: String,
    /// Whether sandboxes can be made from it.
    pub status: TemplateStatus,
    /// Compute and disk of its sandboxes.
    pub shape: Shape,
    /// What its sandboxes run on; unset, on what the server says when one is made.
    pub engine: Option<Engine>,
    /// What processes start with.
    pub defaults: RuntimeDefaults,
    /// Digests, lowest first.
    pub layers: Vec<String>,
    /// Bytes of the layers.
    pub size_bytes: Option<u64>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When the image in service was finished.
    pub built_at: Option<Timestamp>,
    /// Why no build succeeded.
    pub error: Option<String>,
    /// How it is built; `None` for one that was imported.
    pub spec: Option<BuildSpec>,
}

/// Whose templates a list shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TemplateOwner {
    /// The team's own and the curated ones.
    #[default]
    All,
    /// The team's own.
    Team,
    /// The curated ones.
    System,
}

/// The order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TemplateSort {
    /// By age.
    #[default]
    CreatedAt,
    /// By name.
    Name,
    /// By status name.
    Status,
    /// By bytes.
    Size,
    /// By age of the image.
    BuiltAt,
}

/// What a list of templates is narrowed to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateFilter {
    /// Whose.
    pub owner: TemplateOwner,
    /// The name begins with this.
    pub name_prefix: Option<String>,
    /// The name contains this, whatever the case.
    pub query: Option<String>,
    /// Order by.
    pub sort: TemplateSort,
    /// Smallest first.
    pub ascending: bool,
    /// Most rows; all when unset.
    pub limit: Option<u32>,
    /// Rows to skip.
    pub offset: u64,
}

const COLUMNS: &str = "SELECT id, team, name, status, vcpu, memory_mib, disk_mib, defaults, layers, size_bytes, \
     created_at, built_at, error, spec, engine FROM templates";

fn read(row: &SqliteRow) -> Result<TemplateRow, StoreError> {
    Ok(TemplateRow {
        id: columns::parsed(row, "id")?,
        team: columns::parsed(row, "team")?,
        name: row.try_get("name")?,
        status: columns::parsed(row, "status")?,
        shape: columns::shape(row)?,
        engine: columns::maybe_parsed(row, "engine")?,
        defaults: columns::defaults(row, "defaults")?,
        layers: columns::list(row, "layers")?,
        size_bytes: columns::maybe_number(row, "size_bytes")?,
        created_at: columns::time(row, "created_at")?,
        built_at: columns::maybe_time(row, "built_at")?,
        error: row.try_get("error")?,
        spec: columns::spec(row, "spec")?,
    })
}

impl Store {
    /// Writes a template as a whole: a new one, or the new content of the one with this id.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] when another template of the team has the name.
    pub async fn template_put(&self, template: &TemplateRow) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        put(&mut tx, template).await?;
        Ok(tx.commit().await?)
    }

    /// The template a team means by an id or a name: its own first, then a curated one.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn template_find(
        &self,
        team: TeamId,
        name_or_id: &str,
    ) -> Result<Option<TemplateRow>, StoreError> {
        let id = name_or_id.parse::<TemplateId>().ok().map(|id| id.to_string());
        let statement = format!(
            "{COLUMNS} WHERE team IN ($1, $2) AND (id = $3 OR name = $4) \
             ORDER BY CASE WHEN id = $3 THEN 0 WHEN team = $1 THEN 1 ELSE 2 END LIMIT 1"
        );
        let row = sqlx::query(AssertSqlSafe(statement))
            .bind(team.to_string())
            .bind(system_team().to_string())
            .bind(id)
            .bind(name_or_id)
            .fetch_optional(&self.read)
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// Templates a team may use, and how many match in all.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn template_list(
        &self,
        team: TeamId,
        filter: &TemplateFilter,
    ) -> Result<Page<TemplateRow>, StoreError> {
        // Templates are few: names are compared here, where case is the whole of Unicode.
        let mut query = QueryBuilder::<Sqlite>::new(COLUMNS);
        let (team, system) = (team.to_string(), system_team().to_string());
        match filter.owner {
            TemplateOwner::All => {
                query.push(" WHERE team IN (").push_bind(team).push(", ").push_bind(system).push(")")
            }
            TemplateOwner::Team => query.push(" WHERE team = ").push_bind(team),
            TemplateOwner::System => query.push(" WHERE team = ").push_bind(system),
        };
        query.push(match filter.sort {
            TemplateSort::CreatedAt => " ORDER BY created_at",
            TemplateSort::Name => " ORDER BY name",
            TemplateSort::Status => " ORDER BY status",
            TemplateSort::Size => " ORDER BY COALESCE(size_bytes, 0)",
            TemplateSort::BuiltAt => " ORDER BY COALESCE(built_at, 0)",
        });
        query.push(if filter.ascending { " ASC, id ASC" } else { " DESC, id DESC" });
        let rows = query.build().fetch_all(&self.read).await?;
        let wanted = filter.query.as_ref().map(|text| text.to_lowercase());
        let mut matching = Vec::new();
        for row in &rows {
            let template = read(row)?;
            let prefix_ok = filter.name_prefix.as_ref().is_none_or(|p| template.name.starts_with(p));
            let query_ok = wanted.as_ref().is_none_or(|text| template.name.to_lowercase().contains(text));
            if prefix_ok && query_ok {
                matching.push(template);
            }
        }
        let total = matching.len() as u64;
        let skip = usize::try_from(filter.offset).unwrap_or(usize::MAX);
        let take = filter.limit.map_or(usize::MAX, |limit| limit as usize);
        Ok(Page { rows: matching.into_iter().skip(skip).take(take).collect(), total })
    }
}

pub(crate) async fn put(
    tx: &mut Transaction<'static, Sqlite>,
    template: &TemplateRow,
) -> Result<(), StoreError> {
    let done = sqlx::query(
        "INSERT INTO templates (id, team, name, status, vcpu, memory_mib, disk_mib, defaults, layers, size_bytes, \
         created_at, built_at, error, spec, engine) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) \
         ON CONFLICT (id) DO UPDATE SET name = excluded.name, status = excluded.status, vcpu = excluded.vcpu, \
         memory_mib = excluded.memory_mib, disk_mib = excluded.disk_mib, defaults = excluded.defaults, \
         layers = excluded.layers, size_bytes = excluded.size_bytes, built_at = excluded.built_at, \
         error = excluded.error, spec = excluded.spec, engine = excluded.engine",
    )
    .bind(template.id.to_string())
    .bind(template.team.to_string())
    .bind(&template.name)
    .bind(template.status.as_str())
    .bind(i64::from(template.shape.vcpu))
    .bind(i64::from(template.shape.memory_mib))
    .bind(i64::from(template.shape.disk_mib))
    .bind(columns::defaults_text(&template.defaults))
    .bind(columns::list_text(&template.layers))
    .bind(template.size_bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX)))
    .bind(template.created_at.as_microsecond())
    .bind(columns::micros(template.built_at))
    .bind(&template.error)
    .bind(template.spec.as_ref().map(columns::spec_text))
    .bind(template.engine.map(Engine::as_str))
    .execute(&mut **tx)
    .await;
    match done {
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
            Err(StoreError::NameTaken { what: "template", name: template.name.clone() })
        }
        Err(error) => Err(error.into()),
        Ok(_) => Ok(()),
    }
}

/// Whether a template is there and has these layers, now.
pub(crate) async fn has_layers(
    tx: &mut Transaction<'static, Sqlite>,
    id: TemplateId,
    layers: &[String],
) -> Result<bool, StoreError> {
    let found = sqlx::query("SELECT 1 FROM templates WHERE id = $1 AND layers = $2");
    let found = found.bind(id.to_string()).bind(columns::list_text(layers)).fetch_optional(&mut **tx).await?;
    Ok(found.is_some())
}

pub(crate) async fn exists(
    tx: &mut Transaction<'static, Sqlite>,
    id: TemplateId,
) -> Result<bool, StoreError> {
    let found = sqlx::query("SELECT 1 FROM templates WHERE id = $1").bind(id.to_string());
    Ok(found.fetch_optional(&mut **tx).await?.is_some())
}

pub(crate) async fn read_template(
    pool: &SqlitePool,
    id: TemplateId,
) -> Result<Option<TemplateRow>, StoreError> {
    let statement = format!("{COLUMNS} WHERE id = $1");
    let row = sqlx::query(AssertSqlSafe(statement)).bind(id.to_string()).fetch_optional(pool).await?;
    row.as_ref().map(read).transpose()
}
