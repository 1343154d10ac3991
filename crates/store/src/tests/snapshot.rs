//! Saved snapshots, and the column that had to change for them.

use domain::{
    Captured, EgressRules, MAX_SNAPSHOTS, MAX_SNAPSHOTS_OF_SANDBOX, RuntimeDefaults, SandboxState, SecretId,
    SnapshotId, SnapshotStatus, TemplateId,
};
use jiff::Timestamp;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use super::{Fixture, fixture};
use crate::database::migrations;
use crate::{SandboxRow, SnapshotBegun, SnapshotRemoved, SnapshotRow, Store, TemplateRemoved, Written};

fn snapshot(of: &SandboxRow, key: Option<&str>) -> SnapshotRow {
    SnapshotRow {
        id: SnapshotId::new(),
        team: of.team,
        sandbox: of.summary.id,
        template: of.template,
        parent: Some(SnapshotId::new()),
        name: Some("n".to_owned()),
        status: SnapshotStatus::Creating,
        captured: Captured::Disk,
        idempotency_key: key.map(str::to_owned),
        shape: of.summary.shape,
        engine: of.summary.engine,
        layers: of.layers.clone(),
        defaults: of.defaults.clone(),
        network: of.summary.network.clone(),
        timeout_seconds: Some(5),
        env: of.env.clone(),
        bindings: [("KEY".to_owned(), SecretId::new())].into(),
        size_bytes: 0,
        created_at: Timestamp::from_microsecond(Timestamp::now().as_microsecond()).unwrap(),
        ready_at: None,
    }
}

impl Fixture {
    async fn begin(&self, row: &SnapshotRow) -> SnapshotRow {
        match self.store.snapshot_begin(row.clone()).await.unwrap() {
            SnapshotBegun::Applied(row) => *row,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn it_comes_back_as_it_went_and_a_fork_is_made_of_a_ready_one_only() {
    let f = fixture().await;
    let source = f.add(f.row("a", &[])).await;
    let row = f.begin(&snapshot(&source, Some("k"))).await;
    assert_eq!(f.store.snapshot_get(f.team, row.id).await.unwrap().unwrap(), row);
    assert!(!format!("{row:?}").contains("hunter2"), "variables are private");
    let mut fork = f.row("fork", &[]);
    fork.summary.source_snapshot = Some(row.id);
    assert_eq!(f.store.sandbox_create(fork.clone(), &[], 9).await.unwrap(), Written::Stale);
    let (now, layers) = (row.created_at, ["aa".to_owned(), "bb".to_owned()]);
    assert!(f.store.snapshot_ready(row.id, &layers, 7, now).await.unwrap());
    assert!(!f.store.snapshot_ready(row.id, &layers, 8, now).await.unwrap(), "once");
    let ready = f.store.snapshot_get(f.team, row.id).await.unwrap().unwrap();
    let expected = SnapshotRow {
        status: SnapshotStatus::Ready,
        layers: layers.to_vec(),
        size_bytes: 7,
        ready_at: Some(now),
        ..row.clone()
    };
    assert_eq!(ready, expected);
    assert!(f.store.layers_in_use(now).await.unwrap().contains(&"bb".to_owned()));
    let Written::Applied(fork) = f.store.sandbox_create(fork, &[], 9).await.unwrap() else { panic!() };
    assert_eq!(f.store.sandbox_get(fork.summary.id).await.unwrap().unwrap(), *fork);
    // Another team has none of it.
    let other = f.store.team_ensure("other", now).await.unwrap().id;
    assert_eq!(f.store.snapshot_get(other, row.id).await.unwrap(), None);
    assert_eq!(f.store.snapshot_rename(other, row.id, "x").await.unwrap(), None);
    assert_eq!(f.store.snapshot_remove(other, row.id).await.unwrap(), SnapshotRemoved::Absent);
    assert_eq!(f.store.snapshot_list(other, source.summary.id, None, 0).await.unwrap().total, 0);
    assert_eq!(f.store.snapshot_rename(f.team, row.id, "x").await.unwrap().unwrap().name.unwrap(), "x");
}

#[tokio::test]
async fn a_deleted_one_leaves_its_key_as_long_as_the_sandbox_and_nothing_private() {
    let f = fixture().await;
    let mut source = f.add(f.row("a", &[])).await;
    let [keyed, plain] = [Some("k"), None].map(|key| snapshot(&source, key));
    for row in [&keyed, &plain] {
        f.begin(row).await;
        assert_eq!(f.store.snapshot_remove(f.team, row.id).await.unwrap(), SnapshotRemoved::Creating);
        f.store.snapshot_ready(row.id, &["bb".to_owned()], 7, row.created_at).await.unwrap();
        let removed = f.store.snapshot_remove(f.team, row.id).await.unwrap();
        assert!(matches!(removed, SnapshotRemoved::Removed(_)), "{removed:?}");
        assert_eq!(f.store.snapshot_get(f.team, row.id).await.unwrap(), None);
    }
    assert!(!f.store.layers_in_use(keyed.created_at).await.unwrap().contains(&"bb".to_owned()));
    let again = f.store.snapshot_replay(source.summary.id, "k").await.unwrap();
    assert_eq!(again, Some(SnapshotBegun::Gone));
    assert_eq!(f.store.snapshot_begin(snapshot(&source, Some("k"))).await.unwrap(), SnapshotBegun::Gone);
    assert_eq!(private(&f.store).await, [keyed.id.to_string(), NOTHING.to_owned()]);

    source.summary.state = SandboxState::Deleted;
    f.store.sandbox_remove(source.summary.id).await.unwrap();
    assert_eq!(f.store.snapshot_replay(source.summary.id, "k").await.unwrap(), Some(SnapshotBegun::Gone));
    f.store.sandbox_transition(source.clone(), None).await.unwrap();
    f.store.sandbox_remove(source.summary.id).await.unwrap();
    assert_eq!(f.store.snapshot_replay(source.summary.id, "k").await.unwrap(), None);
}

#[tokio::test]
async fn failures_do_not_count_and_do_not_pile_up() {
    let f = fixture().await;
    let source = f.add(f.row("a", &[])).await;
    for n in 0..30 {
        let row = f.begin(&snapshot(&source, Some(&format!("k{n}")))).await;
        f.store.snapshot_fail(row.id).await.unwrap();
    }
    let left = f.store.snapshot_list(f.team, source.summary.id, None, 0).await.unwrap();
    assert!(left.total <= 11, "{}", left.total);
    // The key of one that is remembered makes it anew.
    let known = &left.rows[0];
    let kept = private(&f.store).await;
    assert!(kept.iter().skip(1).step_by(2).all(|left| left == NOTHING), "{kept:?}");
    assert_eq!((&known.network, &known.defaults), (&EgressRules::default(), &RuntimeDefaults::default()));
    let again = f.begin(&snapshot(&source, known.idempotency_key.as_deref())).await;
    assert_eq!(again.id, known.id);
    assert_eq!(f.store.snapshot_fail_all().await.unwrap(), 1);
    assert_eq!(f.store.snapshot_fail_all().await.unwrap(), 0);
    let ready = f.begin(&snapshot(&source, None)).await;
    f.store.snapshot_ready(ready.id, &["bb".to_owned()], 7, ready.created_at).await.unwrap();
    let late = f.begin(&snapshot(&source, None)).await;
    // They go with the sandbox, and one that fails later goes with the next start.
    let mut gone = source.clone();
    gone.summary.state = SandboxState::Deleted;
    f.store.sandbox_transition(gone, None).await.unwrap();
    f.store.sandbox_remove(source.summary.id).await.unwrap();
    let ids = async || {
        let left = f.store.snapshot_list(f.team, source.summary.id, None, 0).await.unwrap();
        left.rows.into_iter().map(|row| row.id).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(ids().await, [ready.id, late.id].into());
    assert_eq!(f.store.snapshot_fail_all().await.unwrap(), 1);
    assert_eq!(ids().await, [ready.id].into());
}

const NOTHING: &str = r#"{}{}{"env":{}}{"allow_out":[],"deny_out":[],"strict":false}[]"#;

/// Each id, and what of the snapshot its forks would get.
async fn private(store: &Store) -> Vec<String> {
    let rows: Vec<(String, String)> =
        sqlx::query_as("SELECT id, env || bindings || defaults || network || layers FROM snapshots")
            .fetch_all(&store.read)
            .await
            .unwrap();
    rows.into_iter().flat_map(|(id, left)| [id, left]).collect()
}

#[tokio::test]
async fn a_team_has_a_hundred() {
    let f = fixture().await;
    let mut last = None;
    for n in 0..MAX_SNAPSHOTS {
        if n % MAX_SNAPSHOTS_OF_SANDBOX == 0 {
            last = Some(f.add(f.row("a", &[])).await);
        }
        let row = f.begin(&snapshot(last.as_ref().unwrap(), None)).await;
        f.store.snapshot_ready(row.id, &[], 0, row.created_at).await.unwrap();
    }
    let refused = f.store.snapshot_begin(snapshot(last.as_ref().unwrap(), None)).await.unwrap();
    assert_eq!(refused, SnapshotBegun::TooMany);
    let other = f.store.team_ensure("other", Timestamp::now()).await.unwrap().id;
    f.begin(&SnapshotRow { team: other, ..snapshot(&f.add(f.row("b", &[])).await, None) }).await;
}

#[tokio::test]
async fn a_template_goes_when_only_snapshots_came_from_it() {
    let f = fixture().await;
    let template = super::template("own", f.team);
    f.store.template_put(&template).await.unwrap();
    let mut source = f.row("a", &[]);
    source.template = Some(template.id);
    let mut source = f.add(source).await;
    let row = f.begin(&snapshot(&source, None)).await;
    assert_eq!(f.store.template_remove(f.team, template.id).await.unwrap(), TemplateRemoved::InUse);
    source.summary.state = SandboxState::Deleted;
    f.store.sandbox_transition(source.clone(), None).await.unwrap();
    f.store.sandbox_remove(source.summary.id).await.unwrap();
    f.store.snapshot_ready(row.id, &["bb".to_owned()], 7, row.created_at).await.unwrap();
    let removed = f.store.template_remove(f.team, template.id).await.unwrap();
    assert!(matches!(removed, TemplateRemoved::Removed(_)));
    // Somebody has read the snapshot before, and forks it now.
    let mut fork = f.row("fork", &[]);
    fork.template = Some(template.id);
    fork.summary.source_snapshot = Some(row.id);
    match f.store.sandbox_create(fork.clone(), &[], 100).await.unwrap() {
        Written::Applied(made) => assert_eq!((made.summary.id, made.template), (fork.summary.id, None)),
        other => panic!("{other:?}"),
    }
    assert_eq!(f.store.sandbox_get(fork.summary.id).await.unwrap().unwrap().template, None);
    assert_eq!(f.store.snapshot_get(f.team, row.id).await.unwrap().unwrap().template, None);
}

/// A database of the release before keeps its sandboxes and all that hangs on them.
#[tokio::test]
async fn sandboxes_of_the_release_before_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true).foreign_keys(true);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let before = migrations().iter().take(7).cloned().collect();
    Migrator::with_migrations(before).run(&pool).await.unwrap();
    let (template, sandbox) = (TemplateId::new().to_string(), domain::SandboxId::new().to_string());
    for statement in [
        format!(
            "INSERT INTO templates (id, team, name, status, vcpu, memory_mib, disk_mib, defaults, layers, created_at) \
             VALUES ('{template}', '00000000-0000-4000-8000-000000000001', 't', 'ready', 1, 1, 1, '{{\"env\":{{}}}}', '[]', 0)"
        ),
        format!(
            "INSERT INTO sandboxes (id, team, name, name_folded, state, generation, template, vcpu, memory_mib, disk_mib, \
             layers, defaults, metadata, env, preview_access, network, link, memory_kept, token_epoch, token_issued_ms, \
             created_at) VALUES ('{sandbox}', '00000000-0000-4000-8000-000000000001', 's', 's', 'paused', 3, '{template}', \
             1, 1, 1, '[\"aa\"]', '{{\"env\":{{}}}}', '{{\"a\":\"b\"}}', '{{}}', 'public', '{{}}', 0, TRUE, 1, 1, 0)"
        ),
        format!("INSERT INTO sandbox_tags (sandbox, key, value) VALUES ('{sandbox}', 'a', 'b')"),
        format!("INSERT INTO preview_ports (sandbox, port, generation) VALUES ('{sandbox}', 8000, 4)"),
        format!("INSERT INTO network_log (sandbox, at, kind) VALUES ('{sandbox}', 0, 'dns')"),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&pool).await.unwrap();
    }
    pool.close().await;

    let store = Store::open(&path).await.unwrap();
    let row = store.sandbox_get(sandbox.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((row.template, row.generation), (Some(template.parse().unwrap()), 3));
    assert_eq!(row.summary.engine, domain::Engine::Container);
    assert_eq!(store.template_get(row.template.unwrap()).await.unwrap().unwrap().engine, None);
    store.sandbox_engine_of_all(domain::Engine::Qemu).await.unwrap();
    let row = store.sandbox_get(row.summary.id).await.unwrap().unwrap();
    assert_eq!(row.summary.engine, domain::Engine::Qemu);
    assert_eq!((&row.layers[..], row.summary.source_snapshot), (&["aa".to_owned()][..], None));
    for table in ["sandbox_tags", "preview_ports", "network_log"] {
        let count = format!("SELECT COUNT(*) FROM {table} WHERE sandbox = '{sandbox}'");
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(count)).fetch_one(&store.read).await.unwrap();
        assert_eq!(count, 1, "{table}");
    }
    let removed = store.template_remove(crate::system_team(), template.parse().unwrap()).await.unwrap();
    assert_eq!(removed, TemplateRemoved::InUse);
}
