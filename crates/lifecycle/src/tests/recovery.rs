//! What a restart makes of every state and every finding.

use std::time::Duration;

use activity::Recorder;
use domain::{SandboxId, SandboxState, Timeouts};
use node::Found;

use super::fake_host::{Call, Fault};
use super::{Platform, wait_for};
use crate::table::{Effect, Step};

/// Writes a state as a crash would have left it. The server is stopped; nothing else writes.
async fn leave(p: &Platform, id: SandboxId, state: SandboxState, found: Found) {
    let mut row = p.store.sandbox_get(id).await.unwrap().unwrap();
    row = crate::transition::after(
        &row,
        Step { to: state, effect: Effect::Nothing },
        None,
        jiff::Timestamp::now(),
    );
    p.store.sandbox_transition(row, None).await.unwrap();
    if found == Found::Nothing {
        p.host.destroy_quietly(id);
    } else {
        p.host.put(id, found);
    }
}

async fn check(state: SandboxState, found: Found, expected: Option<SandboxState>, ends: Found) {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    if matches!(state, SandboxState::Paused | SandboxState::Resuming) {
        p.lifecycle.pause(p.team, id, false).await.unwrap();
    }
    assert!(p.lifecycle.shutdown().await);
    leave(&p, id, state, found).await;
    let p = p.restarted().await;
    p.wait_for_state(id, expected).await;
    wait_for("the host to agree", || p.host.found(id) == ends).await;
    match expected {
        Some(SandboxState::Failed) => assert!(p.lifecycle.activate(p.team, id).await.is_err()),
        Some(_) => {
            p.lifecycle.activate(p.team, id).await.unwrap();
            assert_eq!(p.host.found(id), Found::Running);
        }
        None => {
            wait_for("the owner to end", || p.lifecycle.context_is_empty()).await;
            assert!(p.store.sandbox_all().await.unwrap().is_empty());
            return;
        }
    }
    p.lifecycle.delete(p.team, id).await.unwrap();
    assert!(p.store.sandbox_all().await.unwrap().is_empty());
}

#[tokio::test]
async fn every_state_and_every_finding() {
    use Found::{Broken, Disk, Frozen, Nothing, Running};
    use SandboxState::{Active, Deleted, Failed, Paused, Pausing, Resuming, Starting};
    for found in [Running, Frozen, Disk, Nothing, Broken] {
        check(Starting, found, None, Nothing).await;
        check(Deleted, found, None, Nothing).await;
    }
    for state in [Active, Resuming] {
        check(state, Running, Some(Active), Running).await;
        check(state, Frozen, Some(Active), Running).await;
    }
    for state in [Pausing, Paused] {
        check(state, Running, Some(Paused), Frozen).await;
        check(state, Frozen, Some(Paused), Frozen).await;
    }
    for state in [Active, Pausing, Paused, Resuming] {
        check(state, Disk, Some(Paused), Disk).await;
        check(state, Nothing, Some(Failed), Nothing).await;
        check(state, Broken, Some(Failed), Broken).await;
    }
}

#[tokio::test]
async fn a_restart_changes_nothing_that_is_settled() {
    let p = Platform::new().await;
    let (active, paused) = (p.sandbox().await, p.sandbox().await);
    p.lifecycle.pause(p.team, paused, false).await.unwrap();
    let token = p.lifecycle.get(p.team, active).unwrap().token;
    let rows = p.store.sandbox_all().await.unwrap();
    let p = p.restarted().await;
    assert_eq!(p.store.sandbox_all().await.unwrap(), rows);
    assert!(p.lifecycle.admit(active, token.expose_secret()), "tokens survive");
    assert_eq!(p.host.count(Call::Thaw, paused) + p.host.count(Call::Boot, active), 0);
    p.lifecycle.resume(p.team, paused).await.unwrap();
}

#[tokio::test]
async fn strangers_on_the_host_are_removed() {
    let p = Platform::new().await;
    let stranger = SandboxId::new();
    p.host.put(stranger, Found::Running);
    let p = p.restarted().await;
    assert_eq!(p.host.found(stranger), Found::Nothing);
}

#[tokio::test]
async fn clocks_survive_a_restart() {
    let p = Platform::new().await;
    let session = p.sandbox_with(Timeouts { timeout_seconds: Some(1), auto_delete_seconds: None }).await;
    let retention = p.sandbox_with(Timeouts { timeout_seconds: None, auto_delete_seconds: Some(1) }).await;
    p.lifecycle.pause(p.team, retention, false).await.unwrap();
    let p = p.restarted().await;
    p.wait_for_state(session, Some(SandboxState::Paused)).await;
    p.wait_for_state(retention, None).await;
}

#[tokio::test]
async fn a_stop_lets_a_host_call_finish() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.host.fault(Call::Freeze, Fault::Wait);
    p.lifecycle.pause(p.team, id, true).await.unwrap();
    let opening = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        p.host.mend();
    };
    let (stopped, ()) = futures_util::future::join(p.lifecycle.shutdown(), opening).await;
    assert!(stopped);
    assert_eq!(p.store.sandbox_get(id).await.unwrap().unwrap().summary.state, SandboxState::Paused);
}

/// A server killed at any moment: the runtime with all its tasks is dropped, the host and the file stay.
#[test]
fn a_killed_server_is_mended() {
    for pause_at_ms in [0, 1, 2, 3, 5, 8, 13] {
        let runtime =
            || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let first = runtime();
        let p = first.block_on(async {
            let p = Platform::new().await;
            for _ in 0..4 {
                p.sandbox().await;
            }
            for row in p.store.sandbox_all().await.unwrap() {
                let (lifecycle, team, id) = (p.lifecycle.clone(), p.team, row.summary.id);
                tokio::spawn(async move {
                    for _ in 0..100 {
                        let _ended = lifecycle.pause(team, id, false).await;
                        let _ended = lifecycle.activate(team, id).await;
                    }
                });
                let (lifecycle, team) = (p.lifecycle.clone(), p.team);
                tokio::spawn(async move {
                    for _ in 0..5 {
                        if let Ok(made) = lifecycle.create(team, super::new_sandbox()).await {
                            let _ended = lifecycle.delete(team, made.row.summary.id).await;
                        }
                    }
                });
            }
            tokio::time::sleep(Duration::from_millis(pause_at_ms)).await;
            p
        });
        first.shutdown_timeout(Duration::from_secs(5));
        let (dir, host, team) = (p.dir, p.host, p.team);
        drop((p.lifecycle, p.store, p.secrets));
        // A killed process writes nothing any more; the database's threads of the first server must have ended too.
        let open = || {
            let files = std::fs::read_dir("/proc/self/fd").unwrap();
            let mut targets = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
            targets.any(|target| target.starts_with(dir.path()))
        };
        runtime().block_on(wait_for("the first server to be gone", || !open()));
        runtime().block_on(async {
            host.reconnect();
            let store = store::Store::open(&dir.path().join("state.db")).await.unwrap();
            let (activity, _writer) = Recorder::start(store.clone(), super::KEEP);
            let lifecycle = crate::Lifecycle::start(
                store.clone(),
                host.clone(),
                activity,
                super::open_secrets(&store).await,
                super::config(dir.path()),
            )
            .await
            .unwrap();
            let settled =
                |id| matches!(lifecycle.state(id), None | Some(SandboxState::Active | SandboxState::Paused));
            let ids: Vec<_> = store.sandbox_all().await.unwrap().iter().map(|row| row.summary.id).collect();
            wait_for("all to settle", || ids.iter().all(|id| settled(*id))).await;
            wait_for("removed ones to be gone", || {
                ids.iter().all(|id| lifecycle.state(*id).is_some() || host.found(*id) == Found::Nothing)
            })
            .await;
            let rows = store.sandbox_all().await.unwrap();
            let alive: Vec<_> = rows.iter().filter(|row| lifecycle.state(row.summary.id).is_some()).collect();
            assert!(alive.len() >= 4);
            for row in alive {
                lifecycle.activate(team, row.summary.id).await.unwrap();
                assert_eq!(host.found(row.summary.id), Found::Running);
                lifecycle.delete(team, row.summary.id).await.unwrap();
            }
            wait_for("the host to be empty", || host.ids().is_empty()).await;
            assert!(lifecycle.shutdown().await);
        });
    }
}

/// Processor time of this thread, where all tasks of the test run, in clock ticks of 10 ms.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[tokio::test]
async fn a_thousand_paused_sandboxes_cost_nothing() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    let paused = p.store.sandbox_get(id).await.unwrap().unwrap();
    for n in 0..1000u32 {
        let mut row = paused.clone();
        row.summary.id = SandboxId::new();
        row.summary.auto_delete_at = Some(crate::timers::after(jiff::Timestamp::now(), 3600 + n));
        p.host.put(row.summary.id, Found::Frozen);
        p.store.sandbox_create(row, &[], u32::MAX).await.unwrap();
    }
    let begun = std::time::Instant::now();
    let p = p.restarted().await;
    let started = begun.elapsed();
    assert!(started < Duration::from_secs(5), "{started:?}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = ticks();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = ticks() - before;
    println!("start with 1001 sandboxes: {started:?}; {used} ticks of 10 ms in 2 s of idleness");
    assert!(used <= 2, "{used} ticks");
    p.lifecycle.resume(p.team, id).await.unwrap();
}

/// A row nobody can read must not stop the start, and what it stood for must not be removed as belonging to nobody.
#[tokio::test]
async fn a_damaged_row_costs_one_sandbox_only() {
    let p = Platform::new().await;
    let (good, bad) = (p.sandbox().await, p.sandbox().await);
    let p = p.restarted_after(|database| damage(database, bad)).await;
    assert_eq!(p.state(good), Some(SandboxState::Active));
    assert_eq!(p.state(bad), None);
    assert_eq!(p.host.found(bad), Found::Running, "its machine is left alone");
    assert!(p.store.sandbox_ids().await.unwrap().contains(&bad), "and so is its row");
    let page = p.lifecycle.list(p.team, &store::SandboxFilter::default()).await.unwrap();
    assert_eq!(page.rows.len(), 1);
}

/// Writes nonsense over the state in a sandbox's row, wherever the file has it.
fn damage(database: &std::path::Path, id: SandboxId) {
    let mut bytes = std::fs::read(database).unwrap();
    let id = id.to_string();
    let mut found = 0;
    for at in 0..bytes.len() - id.len() {
        if bytes[at..].starts_with(id.as_bytes()) {
            // The columns follow in the order of the table; the state is the fifth.
            let end = bytes.len().min(at + 200);
            let row = &mut bytes[at..end];
            if let Some(state) = row.windows(6).position(|text| text == b"active") {
                row[state..state + 6].copy_from_slice(b"broken");
                found += 1;
            }
        }
    }
    assert!(found > 0, "the row is in the file");
    std::fs::write(database, bytes).unwrap();
}
