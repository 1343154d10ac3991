//! The activity log, and rows that are damaged.

use domain::SandboxId;
use jiff::Timestamp;
use serde_json::Map;
use uuid::Uuid;

use super::{Fixture, fixture};
use crate::{ActivityFilter, ActivityRow, PRUNE_STEP, SandboxFilter};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn row(f: &Fixture, second: i64, action: &str) -> ActivityRow {
    ActivityRow {
        id: Uuid::new_v4(),
        team: f.team,
        actor: Some(Uuid::new_v4()),
        category: "sandbox".to_owned(),
        action: action.to_owned(),
        error: None,
        sandbox: Some(SandboxId::new()),
        sandbox_name: Some("Web_100%".to_owned()),
        template: Some(f.template.id),
        secret: Some(domain::SecretId::new()),
        secret_name: Some("prod-key".to_owned()),
        duration_ms: Some(12),
        metadata: Map::from_iter([("bytes".to_owned(), 7.into())]),
        created_at: at(second),
    }
}

#[tokio::test]
async fn rows_come_back_as_they_went_and_as_asked_for() {
    let f = fixture().await;
    let mut failed = row(&f, 2, "paused");
    failed.error = Some("conflict".to_owned());
    failed.category = "exec".to_owned();
    let rows = [row(&f, 1, "created"), failed, row(&f, 3, "deleted")];
    f.store.activity_add(&rows).await.unwrap();
    let all = ActivityFilter { limit: 200, ascending: true, ..ActivityFilter::default() };
    let page = f.store.activity_list(f.team, &all).await.unwrap();
    assert_eq!((page.rows.as_slice(), page.total), (rows.as_slice(), 3));

    let check = async |filter: ActivityFilter, expected: &[usize]| {
        let page = f.store.activity_list(f.team, &filter).await.unwrap();
        let expected: Vec<_> = expected.iter().map(|n| rows[*n].clone()).collect();
        assert_eq!(page.rows, expected, "{filter:?}");
    };
    let any = || all.clone();
    check(ActivityFilter { ascending: false, ..any() }, &[2, 1, 0]).await;
    check(ActivityFilter { category: Some("exec".into()), ..any() }, &[1]).await;
    check(ActivityFilter { action: Some("deleted".into()), ..any() }, &[2]).await;
    check(ActivityFilter { sandbox: rows[0].sandbox, ..any() }, &[0]).await;
    check(ActivityFilter { failed: Some(true), ..any() }, &[1]).await;
    check(ActivityFilter { failed: Some(false), ..any() }, &[0, 2]).await;
    check(ActivityFilter { query: Some("wEB_100%".into()), ..any() }, &[0, 1, 2]).await;
    check(ActivityFilter { query: Some("PROD-k".into()), ..any() }, &[0, 1, 2]).await;
    check(ActivityFilter { query: Some("web-100".into()), ..any() }, &[]).await;
    check(ActivityFilter { query: Some("CONFL".into()), ..any() }, &[1]).await;
    check(ActivityFilter { start: Some(at(2)), ..any() }, &[1, 2]).await;
    check(ActivityFilter { end: Some(at(2)), ..any() }, &[0, 1]).await;
    check(ActivityFilter { limit: 1, offset: 1, ..any() }, &[1]).await;
    let one = ActivityFilter { limit: 1, ..any() };
    assert_eq!(f.store.activity_list(f.team, &one).await.unwrap().total, 3, "all, not this page");
    let other = f.store.team_ensure("other", at(0)).await.unwrap().id;
    assert_eq!(f.store.activity_list(other, &all).await.unwrap().total, 0, "another team's log is not shown");
}

#[tokio::test]
async fn the_oldest_go_first_and_in_steps() {
    let f = fixture().await;
    let rows: Vec<_> = (0..1_200).map(|n| row(&f, n, "run")).collect();
    f.store.activity_add(&rows).await.unwrap();
    let total = async || {
        f.store
            .activity_list(f.team, &ActivityFilter { limit: 1, ..ActivityFilter::default() })
            .await
            .unwrap()
            .total
    };
    assert_eq!(f.store.activity_prune(2_000, at(0)).await.unwrap(), 0);
    // Beyond the newest hundred: two whole steps and the rest.
    let step = PRUNE_STEP;
    for expected in [step, step, 100, 0] {
        assert_eq!(f.store.activity_prune(100, at(0)).await.unwrap(), expected);
    }
    assert_eq!(total().await, 100);
    // From before a time.
    assert_eq!(f.store.activity_prune(100, at(1_150)).await.unwrap(), 50);
    assert_eq!(total().await, 50);
    // What is added later is numbered on: the count stays right.
    f.store.activity_add(&rows[..60]).await.unwrap();
    assert_eq!(f.store.activity_prune(100, at(-1)).await.unwrap(), 10);
    assert_eq!(total().await, 100);
}

/// One damaged row must neither stop a start nor empty a list, and it must not disappear.
#[tokio::test]
async fn a_damaged_row_is_left_out_and_kept() {
    let f = fixture().await;
    let (bad, good) = (f.add(f.row("bad", &[])).await, f.add(f.row("good", &[])).await);
    let mut tx = f.store.begin().await.unwrap();
    sqlx::query("UPDATE sandboxes SET network = '{\"allow', state = 'dancing' WHERE id = $1")
        .bind(bad.summary.id.to_string())
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(f.store.sandbox_all().await.unwrap(), std::slice::from_ref(&good));
    assert_eq!(f.names(SandboxFilter::default()).await, ["good"]);
    let ids = f.store.sandbox_ids().await.unwrap();
    assert!(ids.contains(&bad.summary.id) && ids.contains(&good.summary.id));
    assert_eq!(f.store.sandbox_forget_all().await.unwrap(), 2);
    assert!(f.store.sandbox_ids().await.unwrap().is_empty());
}
