//! The list of a team's sandboxes, with its filters (`spec/rest-api.md` §4.4).

use std::collections::BTreeMap;

use domain::{SandboxState, TeamId};
use sqlx::{QueryBuilder, Sqlite};

use crate::sandbox::{SandboxSummary, read_summary, whole};
use crate::{Store, StoreError};

/// Some rows, and how many match in all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows asked for.
    pub rows: Vec<T>,
    /// All that match, this page or not.
    pub total: u64,
}

/// The order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SandboxSort {
    /// By age.
    #[default]
    CreatedAt,
    /// By name.
    Name,
    /// By state name.
    Status,
}

/// What a list of sandboxes is narrowed to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxFilter {
    /// Tags that must all be there with these values.
    pub metadata: BTreeMap<String, String>,
    /// The name contains this, whatever the case.
    pub query: Option<String>,
    /// The state is one of these; any when unset, none when empty.
    pub states: Option<Vec<SandboxState>>,
    /// Order by.
    pub sort: SandboxSort,
    /// Smallest first.
    pub ascending: bool,
    /// Most rows; all when unset.
    pub limit: Option<u32>,
    /// Rows to skip.
    pub offset: u64,
}

impl Store {
    /// Sandboxes of a team that exist, and how many match in all.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandbox_list(
        &self,
        team: TeamId,
        filter: &SandboxFilter,
    ) -> Result<Page<SandboxSummary>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT id, name, state, vcpu, memory_mib, disk_mib, metadata, timeout_seconds, auto_delete_seconds, \
             auto_delete_at, preview_access, network, checkpoint, source_snapshot, created_at, engine",
        );
        narrow(&mut query, team, filter);
        query.push(match filter.sort {
            SandboxSort::CreatedAt => " ORDER BY created_at",
            SandboxSort::Name => " ORDER BY name",
            SandboxSort::Status => " ORDER BY state",
        });
        // The id makes the order total, so that pages neither overlap nor leave a gap.
        query.push(if filter.ascending { " ASC, id ASC" } else { " DESC, id DESC" });
        let paged = filter.limit.is_some() || filter.offset > 0;
        if paged {
            let most = filter.limit.map_or(i64::MAX, i64::from);
            query.push(" LIMIT ").push_bind(most);
            query.push(" OFFSET ").push_bind(i64::try_from(filter.offset).unwrap_or(i64::MAX));
        }
        let rows = query.build().fetch_all(&self.read).await?;
        let rows = whole(&rows, read_summary);
        let total = if paged {
            let mut count = QueryBuilder::<Sqlite>::new("SELECT COUNT(*)");
            narrow(&mut count, team, filter);
            let total: i64 = count.build_query_scalar().fetch_one(&self.read).await?;
            u64::try_from(total).unwrap_or(0)
        } else {
            rows.len() as u64
        };
        Ok(Page { rows, total })
    }
}

fn narrow(query: &mut QueryBuilder<Sqlite>, team: TeamId, filter: &SandboxFilter) {
    query.push(" FROM sandboxes WHERE state <> 'deleted' AND team = ").push_bind(team.to_string());
    if let Some(states) = &filter.states {
        query.push(" AND state IN (''");
        for state in states {
            query.push(", ").push_bind(state.as_str());
        }
        query.push(")");
    }
    if let Some(text) = &filter.query {
        query.push(" AND name_folded LIKE ").push_bind(like(&text.to_lowercase())).push(" ESCAPE '\\'");
    }
    for (key, value) in &filter.metadata {
        query
            .push(" AND EXISTS (SELECT 1 FROM sandbox_tags WHERE sandbox = sandboxes.id AND key = ")
            .push_bind(key.clone())
            .push(" AND value = ")
            .push_bind(value.clone())
            .push(")");
    }
}

/// A pattern that finds the text anywhere, whatever characters it has.
pub(crate) fn like(text: &str) -> String {
    let mut pattern = String::from("%");
    for c in text.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}
