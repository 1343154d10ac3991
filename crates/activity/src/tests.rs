//! Against a real database.

mod network;

use std::time::Duration;

use domain::{SandboxId, TeamId};
use jiff::Timestamp;
use store::{ActivityFilter, ActivityRow, Store};

use crate::{Action, Actor, Caller, Entry, Recorder, Retention};

const KEEP: Retention = Retention { rows: 100_000, days: 30 };

struct Fixture {
    dir: tempfile::TempDir,
    store: Store,
    team: TeamId,
}

async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).await.unwrap();
    let team = store.team_ensure("default", Timestamp::now()).await.unwrap().id;
    Fixture { dir, store, team }
}

impl Fixture {
    async fn rows(&self) -> Vec<ActivityRow> {
        let filter = ActivityFilter { limit: 5_000, ascending: true, ..ActivityFilter::default() };
        self.store.activity_list(self.team, &filter).await.unwrap().rows
    }

    fn entry(&self, n: u64) -> Entry {
        let actor = Actor::Key { id: uuid::Uuid::from_u128(7), name: "laptop".into() };
        let by = Caller { team: self.team, actor, request: None };
        Entry {
            sandbox: Some((SandboxId::new(), "box".to_owned())),
            took: Some(Duration::from_millis(n)),
            facts: vec![("n", n.into())],
            ..Entry::new(Action::ExecRun, by)
        }
    }
}

#[tokio::test]
async fn what_is_recorded_is_read_after_a_flush_and_after_a_restart() {
    let f = fixture().await;
    let (recorder, writer) = Recorder::start(f.store.clone(), KEEP);
    for n in 0..600 {
        recorder.record(f.entry(n));
    }
    recorder.flush().await;
    let rows = f.rows().await;
    let order: Vec<_> = rows.iter().map(|row| row.duration_ms.unwrap()).collect();
    assert_eq!(order, (0..600).collect::<Vec<_>>(), "all, in their order");
    assert_eq!((rows[3].category.as_str(), rows[3].action.as_str()), ("exec", "run"));
    assert_eq!(rows[3].actor, Some(uuid::Uuid::from_u128(7)));
    assert_eq!((&rows[3].metadata["actor_name"], &rows[3].metadata["n"]), (&"laptop".into(), &3.into()));
    // What is still queued at the stop is written, without anybody asking for it.
    recorder.record(f.entry(600));
    writer.stop().await;
    assert_eq!(recorder.stats().written, 601);
    f.store.close().await;
    let store = Store::open(&f.dir.path().join("state.db")).await.unwrap();
    let f = Fixture { store, ..f };
    assert_eq!(f.rows().await.len(), 601);
}

#[tokio::test]
async fn a_full_queue_drops_and_counts_and_never_waits() {
    let f = fixture().await;
    let (recorder, writer) = Recorder::with_queue(f.store.clone(), KEEP, 4);
    // The writer has had no turn yet: one thread, and nothing here waits.
    for n in 0..10 {
        recorder.record(f.entry(n));
    }
    assert_eq!((recorder.stats().queued, recorder.stats().dropped), (4, 6));
    writer.stop().await;
    assert_eq!(f.rows().await.len(), 4);
}

#[tokio::test]
async fn a_database_that_fails_costs_rows_and_nothing_else() {
    let f = fixture().await;
    let (recorder, writer) = Recorder::start(f.store.clone(), KEEP);
    f.store.close().await;
    recorder.record(f.entry(1));
    recorder.flush().await;
    assert_eq!((recorder.stats().written, recorder.stats().dropped), (0, 1));
    writer.stop().await;
}

#[tokio::test]
async fn the_log_does_not_outgrow_its_limit() {
    let f = fixture().await;
    let (recorder, writer) = Recorder::start(f.store.clone(), Retention { rows: 100, days: 1 });
    for n in 0..3_000 {
        recorder.record(f.entry(n));
    }
    recorder.flush().await;
    for _ in 0..200 {
        if f.rows().await.len() == 100 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let rows = f.rows().await;
    assert_eq!((rows.len(), rows[0].duration_ms), (100, Some(2_900)), "the newest are kept");
    writer.stop().await;
}

#[test]
fn names_are_unique() {
    let names: std::collections::BTreeSet<_> = Action::ALL.iter().map(|a| (a.category(), a.name())).collect();
    assert_eq!(names.len(), Action::ALL.len());
}
