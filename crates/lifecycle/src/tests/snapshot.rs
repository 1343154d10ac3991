//! Saving a sandbox, and what happens to it meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::{
    Captured, Code, EgressRules, EnvVars, MAX_LAYERS, MAX_SNAPSHOTS_IN_FLIGHT, MAX_SNAPSHOTS_OF_SANDBOX,
    SandboxId, SandboxState, SnapshotId, SnapshotStatus, Timeouts,
};
use node::Found;
use store::SnapshotRow;

use super::fake_host::{Call, Fault, layer};
use super::{Platform, new_sandbox, wait_for};
use crate::owner::MAX_WAITING;
use crate::table::Operation;
use crate::{NetworkPatch, NewSandbox, NewSnapshot, Origin, Patch, Saved};

fn code<T: std::fmt::Debug>(result: Result<T, domain::Problem>) -> Code {
    result.unwrap_err().code
}

fn keyed(key: &str) -> NewSnapshot {
    NewSnapshot { name: None, idempotency_key: Some(key.to_owned()) }
}

impl Platform {
    async fn save(&self, id: SandboxId) -> SnapshotRow {
        match self.lifecycle.snapshot(self.caller(), id, NewSnapshot::default()).await.unwrap() {
            Saved::New(row) => row,
            Saved::Before(row) => panic!("{row:?}"),
        }
    }

    /// Starts saving, which does not end until the host is mended.
    async fn saving(&self, id: SandboxId) -> tokio::task::JoinHandle<Result<Saved, domain::Problem>> {
        self.host.fault(Call::Save, Fault::Wait);
        let before = self.host.count(Call::Save, id);
        let (lifecycle, by) = (self.lifecycle.clone(), self.caller());
        let saving = tokio::spawn(async move { lifecycle.snapshot(by, id, NewSnapshot::default()).await });
        wait_for("the save to begin", || self.host.count(Call::Save, id) > before).await;
        saving
    }

    async fn fork(&self, snapshot: SnapshotId, new: NewSandbox) -> Result<crate::Opened, domain::Problem> {
        let new = NewSandbox { origin: Origin::Snapshot(snapshot), ..new };
        self.lifecycle.create(self.caller(), new).await
    }
}

#[tokio::test]
async fn an_active_one_stands_still_and_a_paused_one_stays_as_it_is() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let before = p.lifecycle.get(p.team, id).unwrap();
    let row = p.save(id).await;
    assert_eq!((row.status, row.captured, row.size_bytes), (SnapshotStatus::Ready, Captured::Disk, 7));
    assert_eq!(row.layers, ["aa", &layer(1)]);
    assert_eq!((p.host.count(Call::Freeze, id), p.host.count(Call::Thaw, id)), (0, 1), "within the save");
    let after = p.lifecycle.get(p.team, id).unwrap();
    assert_eq!((&after.row, &after.token), (&before.row, &before.token), "clock and generation too");
    assert_eq!(p.host.found(id), Found::Running);

    p.lifecycle.pause(p.team, id, false).await.unwrap();
    p.save(id).await;
    assert_eq!((p.host.count(Call::Freeze, id), p.host.count(Call::Thaw, id)), (1, 1), "that was the pause");
    assert_eq!(p.state(id), Some(SandboxState::Paused));
    // Also when only its disk is left.
    p.host.kill(id).await;
    wait_for("the loss", || !p.lifecycle.get(p.team, id).unwrap().row.memory_kept).await;
    p.save(id).await;
    assert_eq!(p.host.found(id), Found::Disk);
    assert_eq!(p.lifecycle.snapshot_list(p.team, id, Some(2), 1).await.unwrap().total, 3);
    assert_eq!(p.log().await.iter().filter(|line| *line == "created ok by laptop").count(), 3);
}

#[tokio::test]
async fn where_memory_is_kept_forks_continue_it_and_nothing_outlives_its_row() {
    let p = Platform::new().await;
    p.host.memory.store(true, Ordering::Relaxed);
    p.host.own_kernel.store(true, Ordering::Relaxed);
    let kept = || p.host.kept.lock().unwrap().iter().copied().collect::<Vec<_>>();
    let id = p.sandbox().await;
    let row = p.save(id).await;
    let expected = (SnapshotStatus::Ready, Captured::MemoryAndDisk, 9);
    assert_eq!((row.status, row.captured, row.size_bytes), expected);
    assert_eq!((row.layers, kept()), (vec!["aa".to_owned()], vec![row.id]));
    assert_eq!(p.host.found(id), Found::Running);
    let fork = p.fork(row.id, new_sandbox()).await.unwrap().row.summary.id;
    assert_eq!((p.host.count(Call::Fork, fork), p.host.count(Call::Create, fork)), (1, 0));
    // It fails: what was kept stays, and another attempt succeeds.
    p.host.fault(Call::Fork, Fault::FailOnce);
    assert_eq!(code(p.fork(row.id, new_sandbox()).await), Code::Internal);
    p.host.mend();
    assert_eq!(kept(), [row.id]);
    p.fork(row.id, new_sandbox()).await.unwrap();

    // Nothing is kept of a save that fails, nor of a snapshot that is deleted.
    p.host.fault(Call::Keep, Fault::FailOnce);
    assert_eq!(code(p.lifecycle.snapshot(p.team, id, NewSnapshot::default()).await), Code::Internal);
    assert_eq!((kept(), p.state(id)), (vec![row.id], Some(SandboxState::Active)));
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    let paused = p.save(id).await;
    assert_eq!((paused.captured, kept().len()), (Captured::MemoryAndDisk, 2));
    p.lifecycle.snapshot_delete(p.team, row.id).await.unwrap();
    assert_eq!(kept(), [paused.id]);
    assert_eq!(p.host.found(fork), Found::Running, "a fork has what it needs");
    // Its memory is lost: its disk is for its engine alone.
    p.host.kill(id).await;
    wait_for("the loss", || !p.lifecycle.get(p.team, id).unwrap().row.memory_kept).await;
    assert_eq!(code(p.lifecycle.snapshot(p.team, id, NewSnapshot::default()).await), Code::Conflict);
    p.host.own_kernel.store(false, Ordering::Relaxed);
    assert_eq!(p.save(id).await.captured, Captured::Disk, "unless layers can be made of it");

    // What a server was keeping when it was cut off, and what no row knows, goes at the next start.
    p.host.kept.lock().unwrap().insert(SnapshotId::new());
    let p = p.restarted().await;
    assert_eq!(p.host.kept.lock().unwrap().iter().copied().collect::<Vec<_>>(), [paused.id]);
}

#[tokio::test]
async fn meanwhile_rules_and_secrets_stay_and_the_rest_waits() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let saving = p.saving(id).await;
    let network = Patch { network: Some(NetworkPatch::default()), ..Patch::default() };
    assert_eq!(code(p.lifecycle.patch(p.team, id, network.clone()).await), Code::SnapshotInProgress);
    assert_eq!(code(p.lifecycle.detach_secret(p.team, id, "KEY").await), Code::SnapshotInProgress);
    let clock = Patch { timeout_seconds: Some(Some(1)), ..Patch::default() };
    p.lifecycle.patch(p.team, id, clock).await.unwrap();
    p.lifecycle.activate(p.team, id).await.unwrap();
    let waiting = p.lifecycle.snapshot_list(p.team, id, None, 0).await.unwrap();
    assert_eq!(waiting.rows[0].status, SnapshotStatus::Creating);
    let snapshot = waiting.rows[0].id;
    assert_eq!(code(p.lifecycle.snapshot_delete(p.team, snapshot).await), Code::Conflict);
    assert_eq!(code(p.fork(snapshot, new_sandbox()).await), Code::Conflict);

    let (lifecycle, team) = (p.lifecycle.clone(), p.team);
    let second = tokio::spawn(async move { lifecycle.snapshot(team, id, NewSnapshot::default()).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (lifecycle, team) = (p.lifecycle.clone(), p.team);
    let pause = tokio::spawn(async move { lifecycle.pause(team, id, false).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (lifecycle, team) = (p.lifecycle.clone(), p.team);
    let delete = tokio::spawn(async move { lifecycle.delete(team, id).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(p.host.count(Call::Freeze, id), 0, "the pause waits");
    p.host.mend();
    assert!(matches!(saving.await.unwrap(), Ok(Saved::New(row)) if row.status == SnapshotStatus::Ready));
    pause.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    delete.await.unwrap().unwrap();
    assert_eq!(p.state(id), None);
    // They outlive it, in its list too.
    let left = p.lifecycle.snapshot_list(p.team, id, None, 0).await.unwrap();
    assert_eq!(left.rows.iter().map(|row| row.status).collect::<Vec<_>>(), [SnapshotStatus::Ready; 2]);
    assert_eq!(p.fork(snapshot, new_sandbox()).await.unwrap().row.layers, ["aa", &layer(1)]);
    assert_eq!(code(p.lifecycle.snapshot(p.team, id, NewSnapshot::default()).await), Code::NotFound);
}

#[tokio::test]
async fn whoever_waits_for_it_waits_with_a_thousand_others_at_most() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let saving = p.saving(id).await;
    let ask = async || p.lifecycle.ask(p.caller(), id, Operation::Pause, None).await.unwrap().1;
    // Those who have gone away take no place.
    for _ in 0..MAX_WAITING {
        drop(ask().await);
    }
    let mut waiting = Vec::new();
    for _ in 0..MAX_WAITING {
        waiting.push(ask().await);
    }
    let one_more = tokio::time::timeout(Duration::from_secs(10), ask().await).await;
    assert_eq!(code(one_more.expect("it is answered at once").unwrap()), Code::Conflict);
    assert!(waiting.iter_mut().all(|answer| answer.try_recv().is_err()), "nobody else is");
    p.host.mend();
    saving.await.unwrap().unwrap();
    for answer in waiting {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(p.host.count(Call::Freeze, id), 1);
}

#[tokio::test]
async fn a_key_is_one_snapshot_for_ever() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.host.fault(Call::Save, Fault::FailOnce);
    assert_eq!(code(p.lifecycle.snapshot(p.team, id, keyed("k")).await), Code::Internal);
    let failed = p.lifecycle.snapshot_list(p.team, id, None, 0).await.unwrap().rows.remove(0);
    assert_eq!((failed.status, failed.layers.len()), (SnapshotStatus::Failed, 0));
    assert_eq!(code(p.fork(failed.id, new_sandbox()).await), Code::Conflict);
    // What failed may be tried again; what has begun is begun once, however many ask.
    let asking = (0..5).map(|_| p.lifecycle.snapshot(p.team, id, keyed("k")));
    let answers = futures_util::future::join_all(asking).await;
    let rows: Vec<_> = answers
        .into_iter()
        .map(|answer| match answer.unwrap() {
            Saved::New(row) => (true, row.id),
            Saved::Before(row) => (false, row.id),
        })
        .collect();
    assert_eq!(rows.iter().filter(|(new, _)| *new).count(), 1, "{rows:?}");
    assert!(rows.iter().all(|(_, row)| *row == failed.id));
    assert_eq!(p.host.count(Call::Save, id), 2);
    // The key of another sandbox is another key.
    let other = p.sandbox().await;
    assert!(matches!(p.lifecycle.snapshot(p.team, other, keyed("k")).await.unwrap(), Saved::New(_)));
    // Also in a state in which nothing could be saved.
    p.lifecycle.snapshot_delete(p.team, failed.id).await.unwrap();
    assert_eq!(code(p.lifecycle.snapshot_get(p.team, failed.id).await), Code::NotFound);
    assert_eq!(code(p.lifecycle.snapshot(p.team, id, keyed("k")).await), Code::Gone);
    let p = p.restarted().await;
    assert_eq!(code(p.lifecycle.snapshot(p.team, id, keyed("k")).await), Code::Gone);
    assert_eq!(p.lifecycle.snapshot_list(p.team, id, None, 0).await.unwrap().total, 0);
}

#[tokio::test]
async fn no_more_than_the_quotas_get_through() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    for _ in 0..MAX_SNAPSHOTS_OF_SANDBOX {
        p.save(id).await;
    }
    let one_more = p.lifecycle.snapshot(p.team, id, NewSnapshot::default()).await;
    assert_eq!(code(one_more), Code::TooManySnapshots);
    let first = p.lifecycle.snapshot_list(p.team, id, Some(1), 0).await.unwrap().rows.remove(0);
    p.lifecycle.snapshot_delete(p.team, first.id).await.unwrap();
    p.save(id).await;

    let mut saving = Vec::new();
    for _ in 0..MAX_SNAPSHOTS_IN_FLIGHT {
        let other = p.sandbox().await;
        saving.push(p.saving(other).await);
    }
    let last = p.sandbox().await;
    let refused = p.lifecycle.snapshot(p.team, last, NewSnapshot::default()).await;
    assert_eq!(code(refused), Code::TooManySnapshotsInFlight);
    p.host.mend();
    for saving in saving {
        saving.await.unwrap().unwrap();
    }
    p.save(last).await;
    assert!(p.log().await.contains(&"created too_many_snapshots_in_flight by platform".to_owned()));
}

#[tokio::test]
async fn a_failure_leaves_the_source_as_it_was() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.host.fault(Call::Save, Fault::Fail);
    assert_eq!(code(p.lifecycle.snapshot(p.team, id, NewSnapshot::default()).await), Code::Internal);
    p.host.mend();
    assert_eq!((p.state(id), p.host.found(id)), (Some(SandboxState::Active), Found::Running));
    // Nor is one kept whose layer somebody has removed.
    p.host.loses_layers.store(true, Ordering::Relaxed);
    assert_eq!(code(p.lifecycle.snapshot(p.team, id, NewSnapshot::default()).await), Code::Internal);
    p.host.loses_layers.store(false, Ordering::Relaxed);
    let failed = p.lifecycle.snapshot_list(p.team, id, None, 0).await.unwrap();
    assert_eq!(failed.rows.iter().map(|row| row.status).collect::<Vec<_>>(), [SnapshotStatus::Failed; 2]);
    // An engine that cannot says so before anything is written.
    p.host.own_kernel.store(true, Ordering::Relaxed);
    assert_eq!(code(p.lifecycle.snapshot(p.team, id, NewSnapshot::default()).await), Code::BadRequest);
    // One that is not here now is not taken for one that cannot.
    p.host.no_engine.store(true, Ordering::Relaxed);
    let refused = p.lifecycle.snapshot(p.team, id, NewSnapshot::default()).await;
    assert_eq!(code(refused), Code::ServiceUnavailable);
    p.host.no_engine.store(false, Ordering::Relaxed);
    p.host.own_kernel.store(false, Ordering::Relaxed);
    assert_eq!(p.lifecycle.snapshot_list(p.team, id, None, 0).await.unwrap().total, 2);
    assert_eq!((p.state(id), p.host.found(id)), (Some(SandboxState::Active), Found::Running));
    // One that does not run again is paused: nobody must believe that it runs.
    p.host.fault(Call::Thaw, Fault::FailOnce);
    let saved = p.lifecycle.snapshot(p.team, id, NewSnapshot::default()).await.unwrap();
    assert!(matches!(saved, Saved::New(row) if row.status == SnapshotStatus::Ready), "the snapshot is whole");
    p.wait_for_state(id, Some(SandboxState::Paused)).await;
    p.lifecycle.resume(p.team, id).await.unwrap();
    // One that dies meanwhile has its disk.
    let saving = p.saving(id).await;
    p.host.kill(id).await;
    p.host.mend();
    saving.await.unwrap().unwrap();
    p.wait_for_state(id, Some(SandboxState::Paused)).await;
    assert!(!p.lifecycle.get(p.team, id).unwrap().row.memory_kept);
}

#[tokio::test]
async fn a_stop_ends_it_and_a_cut_off_one_is_ended_by_the_next_start() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let saving = p.saving(id).await;
    let p = p.restarted().await;
    assert_eq!(code(saving.await.unwrap()), Code::ServiceUnavailable);
    assert_eq!((p.state(id), p.host.found(id)), (Some(SandboxState::Active), Found::Running));
    let ended = p.lifecycle.snapshot_list(p.team, id, None, 0).await.unwrap().rows.remove(0);
    assert_eq!(ended.status, SnapshotStatus::Failed);

    // As `kill -9` leaves it.
    p.host.mend();
    let row = SnapshotRow {
        id: SnapshotId::new(),
        status: SnapshotStatus::Creating,
        idempotency_key: Some("k".to_owned()),
        ..ended
    };
    p.store.snapshot_begin(row.clone()).await.unwrap();
    p.host.put(id, Found::Frozen);
    let p = p.restarted().await;
    p.wait_for_state(id, Some(SandboxState::Active)).await;
    let row = p.lifecycle.snapshot_get(p.team, row.id).await.unwrap();
    assert_eq!((row.status, row.layers.len()), (SnapshotStatus::Failed, 0));
    assert!(matches!(p.lifecycle.snapshot(p.team, id, keyed("k")).await.unwrap(), Saved::New(_)));
}

fn env(pairs: &[(&str, &str)]) -> EnvVars {
    EnvVars::new(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()).unwrap()
}

#[tokio::test]
async fn a_fork_gets_what_it_should_and_nothing_else() {
    let p = Platform::new().await;
    let rules = EgressRules::parse(&["1.1.1.1".into()], &["0.0.0.0/0".into()]).unwrap();
    let strict = EgressRules { strict: true, ..rules };
    let new = NewSandbox {
        timeouts: Timeouts { timeout_seconds: Some(600), auto_delete_seconds: Some(60) },
        metadata: domain::Metadata::new([("a".to_owned(), "b".to_owned())].into()).unwrap(),
        env: env(&[("A", "1"), ("B", "1"), ("C", "1")]),
        network: Some(NetworkPatch { rules: strict.clone(), strict: Some(true) }),
        ..new_sandbox()
    };
    let source = p.lifecycle.create(p.team, new).await.unwrap().row;
    let snapshot = p.save(source.summary.id).await;
    // What changes afterwards changes nothing of it.
    p.lifecycle
        .patch(
            p.team,
            source.summary.id,
            Patch {
                network: Some(NetworkPatch { rules: EgressRules::default(), strict: Some(false) }),
                ..Patch::default()
            },
        )
        .await
        .unwrap();

    let fork = p.fork(snapshot.id, new_sandbox()).await.unwrap().row;
    assert_eq!(p.host.network(fork.summary.id), Some(strict.clone()), "before anything runs");
    assert_eq!(p.host.variables(fork.summary.id), *env(&[("A", "1"), ("B", "1"), ("C", "1")]).as_map());
    let timeouts = Timeouts { timeout_seconds: Some(600), auto_delete_seconds: None };
    assert_eq!(fork.summary.timeouts, timeouts);
    assert!(fork.summary.metadata.as_map().is_empty());
    assert_eq!((fork.summary.shape, fork.template), (source.summary.shape, source.template));
    assert_eq!((fork.summary.source_snapshot, &fork.defaults), (Some(snapshot.id), &source.defaults));

    let own = NewSandbox {
        timeouts: Timeouts { timeout_seconds: Some(5), auto_delete_seconds: Some(7) },
        env: env(&[("B", "2"), ("D", "2")]),
        network: Some(NetworkPatch::default()),
        ..new_sandbox()
    };
    let fork = p.fork(snapshot.id, own).await.unwrap().row;
    let expected = env(&[("A", "1"), ("B", "2"), ("C", "1"), ("D", "2")]);
    assert_eq!(p.host.variables(fork.summary.id), *expected.as_map());
    let without = EgressRules { strict: true, ..EgressRules::default() };
    assert_eq!(fork.summary.network, without, "who does not know of strict mode does not end it");
    assert_eq!(fork.summary.timeouts.timeout_seconds, Some(5));

    let too_many: BTreeMap<_, _> = (0..62).map(|n| (format!("V{n}"), String::new())).collect();
    let new = NewSandbox { env: EnvVars::new(too_many).unwrap(), ..new_sandbox() };
    assert_eq!(code(p.fork(snapshot.id, new).await), Code::BadRequest);
    assert_eq!(code(p.fork(SnapshotId::new(), new_sandbox()).await), Code::NotFound);
}

#[tokio::test]
async fn a_stack_that_gets_too_high_becomes_one_layer() {
    let p = Platform::new().await;
    let mut id = p.sandbox().await;
    let mut heights = Vec::new();
    for _ in 0..=MAX_LAYERS {
        let snapshot = p.save(id).await;
        heights.push(snapshot.layers.len());
        let fork = p.fork(snapshot.id, new_sandbox()).await.unwrap().row.summary.id;
        p.lifecycle.delete(p.team, id).await.unwrap();
        p.lifecycle.snapshot_delete(p.team, snapshot.id).await.unwrap();
        id = fork;
    }
    assert_eq!(heights[..MAX_LAYERS - 1], (2..=MAX_LAYERS).collect::<Vec<_>>());
    assert_eq!(heights[MAX_LAYERS - 1..], [1, 2]);
}

/// The template may go: what was saved has all it needs.
#[tokio::test]
async fn snapshots_and_forks_outlive_the_template() {
    let p = Platform::new().await;
    let template = store::TemplateRow { team: p.team, name: "own".to_owned(), ..super::template() };
    p.store.template_put(&template).await.unwrap();
    let own = || NewSandbox { origin: Origin::Template("own".to_owned()), ..new_sandbox() };
    let id = p.lifecycle.create(p.team, own()).await.unwrap().row.summary.id;
    let snapshot = p.save(id).await;
    assert_eq!(p.store.template_remove(p.team, template.id).await.unwrap(), store::TemplateRemoved::InUse);
    p.lifecycle.delete(p.team, id).await.unwrap();
    let removed = p.store.template_remove(p.team, template.id).await.unwrap();
    assert!(matches!(removed, store::TemplateRemoved::Removed(_)));
    assert_eq!(p.lifecycle.snapshot_get(p.team, snapshot.id).await.unwrap().template, None);
    let fork = p.fork(snapshot.id, new_sandbox()).await.unwrap().row;
    assert_eq!(fork.template, None);
    p.lifecycle.snapshot_delete(p.team, snapshot.id).await.unwrap();
    let used = p.store.layers_in_use(jiff::Timestamp::now()).await.unwrap();
    assert_eq!(used, [layer(1), "aa".to_owned()], "the fork's");
    let p = p.restarted().await;
    assert_eq!(p.lifecycle.get(p.team, fork.summary.id).unwrap().row.layers, ["aa", &layer(1)]);
}

#[tokio::test]
async fn a_fork_runs_on_what_its_source_ran_on_and_on_nothing_weaker() {
    use domain::{Captured, Engine};
    let p = Platform::new().await;
    let on = |engine| NewSandbox { engine, ..new_sandbox() };
    let engine = async |new| p.lifecycle.create(p.team, new).await.map(|opened| opened.row.summary.engine);
    assert_eq!(engine(on(None)).await.unwrap(), Engine::Container);
    assert_eq!(engine(on(Some(Engine::Qemu))).await.unwrap(), Engine::Qemu);
    let refused = engine(on(Some(Engine::Gvisor))).await.unwrap_err();
    assert!(refused.code == Code::BadRequest && refused.to_string().contains("gvisor"), "{refused}");

    let source = p.lifecycle.create(p.team, on(Some(Engine::Qemu))).await.unwrap().row.summary.id;
    let snapshot = p.save(source).await;
    assert_eq!(snapshot.engine, Engine::Qemu);
    let fork = |id, engine| NewSandbox { origin: Origin::Snapshot(id), ..on(engine) };
    assert_eq!(engine(fork(snapshot.id, None)).await.unwrap(), Engine::Qemu);
    assert_eq!(engine(fork(snapshot.id, Some(Engine::Container))).await.unwrap(), Engine::Container);

    // As another server has left them: of an engine that is not here any more, and with memory.
    let other =
        |engine, captured| SnapshotRow { id: SnapshotId::new(), engine, captured, ..snapshot.clone() };
    let keep = async |row: SnapshotRow| {
        let row = SnapshotRow { status: SnapshotStatus::Creating, ready_at: None, ..row };
        p.store.snapshot_begin(row.clone()).await.unwrap();
        assert!(p.store.snapshot_ready(row.id, &row.layers, 0, jiff::Timestamp::now()).await.unwrap());
        row.id
    };
    let lost = keep(other(Engine::Firecracker, Captured::Disk)).await;
    assert_eq!(
        engine(fork(lost, None)).await.unwrap_err().code,
        Code::BadRequest,
        "nothing weaker by itself"
    );
    assert_eq!(engine(fork(lost, Some(Engine::Qemu))).await.unwrap(), Engine::Qemu);
    let memory = keep(other(Engine::Qemu, Captured::MemoryAndDisk)).await;
    assert_eq!(engine(fork(memory, None)).await.unwrap(), Engine::Qemu);
    assert_eq!(engine(fork(memory, Some(Engine::Container))).await.unwrap_err().code, Code::BadRequest);
}
