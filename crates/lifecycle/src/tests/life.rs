//! A sandbox's life while the server runs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use domain::{Code, Metadata, SandboxState, Timeouts};
use jiff::{SignedDuration, Timestamp};
use node::Found;
use store::SandboxFilter;

use super::fake_host::{Call, Fault};
use super::{Platform, new_sandbox, wait_for};
use crate::{NetworkPatch, NewSandbox, Origin, Patch, PauseOutcome};

fn code<T: std::fmt::Debug>(result: Result<T, domain::Problem>) -> Code {
    result.unwrap_err().code
}

#[tokio::test]
async fn from_create_to_delete() {
    let p = Platform::new().await;
    let made = p.lifecycle.create(p.team, new_sandbox()).await.unwrap();
    let id = made.row.summary.id;
    assert_eq!(made.row.summary.state, SandboxState::Active);
    assert!(p.lifecycle.admit(id, made.token.expose_secret()));
    assert_eq!(p.host.found(id), Found::Running);
    assert_eq!(code(p.lifecycle.resume(p.team, id).await), Code::Conflict);

    assert_eq!(p.lifecycle.pause(p.team, id, false).await.unwrap(), PauseOutcome::Paused);
    assert_eq!(p.host.found(id), Found::Frozen);
    assert_eq!(code(p.lifecycle.pause(p.team, id, false).await), Code::Conflict);
    assert_eq!(code(p.lifecycle.agent(id).await.map(|_| ())), Code::SandboxUnavailable);
    let paused = p.lifecycle.get(p.team, id).unwrap();
    let checkpoint = paused.row.summary.checkpoint.expect("shown after a pause");
    assert!(p.lifecycle.admit(id, made.token.expose_secret()), "503 comes after the token check");

    let resumed = p.lifecycle.resume(p.team, id).await.unwrap();
    assert_eq!(resumed.row.summary.checkpoint, Some(checkpoint));
    assert!(!p.lifecycle.admit(id, made.token.expose_secret()), "a resume ends old tokens");
    assert!(p.lifecycle.admit(id, resumed.token.expose_secret()));
    let fresh = p.lifecycle.activate(p.team, id).await.unwrap();
    assert_ne!(fresh.token, resumed.token);
    assert!(p.lifecycle.admit(id, resumed.token.expose_secret()), "an activate leaves them their hour");
    assert_eq!(p.lifecycle.get(p.team, id).unwrap().token, fresh.token, "get returns the newest");
    assert_eq!((p.host.count(Call::Thaw, id), p.host.count(Call::Boot, id)), (1, 0));

    p.lifecycle.delete(p.team, id).await.unwrap();
    assert_eq!(code(p.lifecycle.delete(p.team, id).await), Code::NotFound);
    assert_eq!(code(p.lifecycle.get(p.team, id)), Code::NotFound);
    assert!(!p.lifecycle.admit(id, fresh.token.expose_secret()));
    assert_eq!(p.state(id), None);
    assert_eq!(p.host.found(id), Found::Nothing);
    assert!(p.store.sandbox_all().await.unwrap().is_empty());
    assert_eq!(p.lifecycle.list(p.team, &SandboxFilter::default()).await.unwrap().total, 0);
}

#[tokio::test]
async fn the_host_has_the_rules_before_the_machine_runs() {
    let p = Platform::new().await;
    let network = domain::EgressRules::parse(&["1.1.1.1".into()], &["0.0.0.0/0".into()]).unwrap();
    let new =
        NewSandbox { network: Some(NetworkPatch { rules: network.clone(), strict: None }), ..new_sandbox() };
    let id = p.lifecycle.create(p.team, new).await.unwrap().row.summary.id;
    assert_eq!(p.host.network(id), Some(network.clone()));
    // Whatever the host forgot in between.
    for dies in [false, true] {
        if dies {
            p.host.kill(id).await;
            p.wait_for_state(id, Some(SandboxState::Paused)).await;
        } else {
            p.lifecycle.pause(p.team, id, false).await.unwrap();
        }
        p.host.forget_network(id);
        p.lifecycle.resume(p.team, id).await.unwrap();
        assert_eq!(p.host.network(id), Some(network.clone()), "dies: {dies}");
    }
}

fn network(allow: &str, deny: &str, strict: Option<bool>) -> Patch {
    let list = |text: &str| text.split(',').filter(|t| !t.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let rules = domain::EgressRules::parse(&list(allow), &list(deny)).unwrap();
    Patch { network: Some(NetworkPatch { rules, strict }), ..Patch::default() }
}

#[tokio::test]
async fn a_change_of_rules_is_in_force_when_it_is_answered() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.lifecycle.patch(p.team, id, network("a.example", "0.0.0.0/0", Some(true))).await.unwrap();
    let shown = || p.lifecycle.get(p.team, id).unwrap().row.summary.network.clone();
    assert_eq!(p.host.network(id), Some(shown()));
    assert_eq!(
        (shown().allow_out(), shown().deny_out(), shown().strict),
        (vec!["a.example".into()], vec!["0.0.0.0/0".into()], true)
    );
    // Who does not know of strict mode does not end it.
    p.lifecycle.patch(p.team, id, network("b.example", "", None)).await.unwrap();
    assert_eq!(
        (shown().allow_out(), shown().deny_out(), shown().strict),
        (vec!["b.example".into()], vec![], true)
    );
    assert_eq!(p.host.network(id), Some(shown()));
    p.lifecycle.patch(p.team, id, network("", "", Some(false))).await.unwrap();
    assert!(shown().is_empty());
    assert_eq!(p.host.network(id), Some(shown()));
    // Paused, it is a conflict, and nothing changes; afterwards the rules are the same.
    p.lifecycle.patch(p.team, id, network("", "0.0.0.0/0", None)).await.unwrap();
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    let refused = p.lifecycle.patch(p.team, id, network("", "", None)).await.unwrap_err();
    assert_eq!(refused.code, Code::Conflict);
    assert!(refused.to_string().contains("activate"), "{refused}");
    let p = p.restarted().await;
    p.host.forget_network(id);
    p.lifecycle.resume(p.team, id).await.unwrap();
    assert_eq!(p.host.network(id).unwrap().deny_out(), ["0.0.0.0/0"]);
}

#[tokio::test]
async fn what_the_host_does_not_take_is_not_shown() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.lifecycle.patch(p.team, id, network("a.example", "", None)).await.unwrap();
    let row = || p.lifecycle.get(p.team, id).unwrap().row;
    // It fails once, and takes the former rules again.
    p.host.fault(Call::SetNetwork, Fault::FailOnce);
    let both = Patch {
        metadata: Some(domain::Metadata::default()),
        timeout_seconds: Some(Some(99)),
        ..network("", "0.0.0.0/0", None)
    };
    assert_eq!(p.lifecycle.patch(p.team, id, both).await.unwrap_err().code, Code::Internal);
    assert_eq!(
        (row().summary.network.allow_out(), row().summary.state),
        (vec!["a.example".into()], SandboxState::Active)
    );
    assert_eq!(row().summary.timeouts.timeout_seconds, None, "all or nothing");
    assert_eq!(p.host.network(id), Some(row().summary.network.clone()));
    let stored = p.store.sandbox_get(id).await.unwrap().unwrap();
    assert_eq!(stored.summary.network, row().summary.network);
    // It takes nothing at all any more: whatever is in force there, nothing runs under it.
    p.host.fault(Call::SetNetwork, Fault::Fail);
    assert!(p.lifecycle.patch(p.team, id, network("", "0.0.0.0/0", None)).await.is_err());
    p.wait_for_state(id, Some(SandboxState::Paused)).await;
    assert_eq!(p.host.found(id), Found::Frozen);
    p.host.mend();
    p.lifecycle.resume(p.team, id).await.unwrap();
    assert_eq!(p.host.network(id), Some(row().summary.network.clone()), "what is shown is in force");
}

#[tokio::test]
async fn another_team_sees_nothing() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let other = p.store.team_ensure("other", Timestamp::now()).await.unwrap().id;
    assert_eq!(code(p.lifecycle.get(other, id)), Code::NotFound);
    assert_eq!(code(p.lifecycle.pause(other, id, false).await), Code::NotFound);
    assert_eq!(code(p.lifecycle.activate(other, id).await), Code::NotFound);
    assert_eq!(code(p.lifecycle.delete(other, id).await), Code::NotFound);
    assert_eq!(code(p.lifecycle.patch(other, id, Patch::default()).await), Code::NotFound);
    assert_eq!(p.lifecycle.list(other, &SandboxFilter::default()).await.unwrap().total, 0);
    assert_eq!(p.state(id), Some(SandboxState::Active));
}

#[tokio::test]
async fn a_create_that_fails_leaves_nothing() {
    let p = Platform::new().await;
    p.host.fault(Call::Create, Fault::Fail);
    assert_eq!(code(p.lifecycle.create(p.team, new_sandbox()).await), Code::Internal);
    wait_for("the owner to end", || p.lifecycle.context_is_empty()).await;
    assert!(p.store.sandbox_all().await.unwrap().is_empty());
    let unknown = NewSandbox { origin: Origin::Template("nope".to_owned()), ..new_sandbox() };
    assert_eq!(code(p.lifecycle.create(p.team, unknown).await), Code::NotFound);
}

#[tokio::test]
async fn a_caller_who_leaves_changes_nothing() {
    let p = Platform::new().await;
    p.host.fault(Call::Create, Fault::Wait);
    let gone = tokio::time::timeout(Duration::from_millis(100), p.lifecycle.create(p.team, new_sandbox()));
    assert!(gone.await.is_err());
    let id = p.store.sandbox_all().await.unwrap()[0].summary.id;
    assert_eq!(p.state(id), Some(SandboxState::Starting));
    assert_eq!(code(p.lifecycle.pause(p.team, id, false).await), Code::Conflict);
    p.host.mend();
    p.wait_for_state(id, Some(SandboxState::Active)).await;
    // The same for a resume.
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    p.host.fault(Call::Thaw, Fault::Wait);
    let gone = tokio::time::timeout(Duration::from_millis(100), p.lifecycle.resume(p.team, id));
    assert!(gone.await.is_err());
    assert_eq!(p.state(id), Some(SandboxState::Resuming));
    p.host.mend();
    p.wait_for_state(id, Some(SandboxState::Active)).await;
}

#[tokio::test]
async fn operations_join_what_is_in_progress() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.host.fault(Call::Freeze, Fault::Wait);
    // Three pauses and two activates around one freeze.
    let early = p.lifecycle.pause(p.team, id, true).await.unwrap();
    assert_eq!(early, PauseOutcome::Pausing, "answered after its grace");
    assert_eq!(code(p.lifecycle.resume(p.team, id).await), Code::Conflict);
    let network = Patch { network: Some(NetworkPatch::default()), ..Patch::default() };
    assert_eq!(code(p.lifecycle.patch(p.team, id, network).await), Code::Conflict);
    let settings = Patch { timeout_seconds: Some(Some(60)), ..Patch::default() };
    p.lifecycle.patch(p.team, id, settings).await.unwrap();
    let pauses = futures_util::future::join(
        p.lifecycle.pause(p.team, id, false),
        p.lifecycle.pause(p.team, id, false),
    );
    let activates =
        futures_util::future::join(p.lifecycle.activate(p.team, id), p.lifecycle.activate(p.team, id));
    let opening = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        p.host.mend();
    };
    let (pauses, activates, ()) = futures_util::future::join3(pauses, activates, opening).await;
    assert_eq!(pauses.0.unwrap(), PauseOutcome::Paused);
    assert_eq!(pauses.1.unwrap(), PauseOutcome::Paused);
    assert_eq!(activates.0.unwrap().row.summary.state, SandboxState::Active);
    assert_eq!(activates.1.unwrap().row.summary.timeouts.timeout_seconds, Some(60));
    assert_eq!(
        (p.host.count(Call::Freeze, id), p.host.count(Call::Thaw, id)),
        (1, 1),
        "one pause, one resume"
    );
}

#[tokio::test]
async fn a_delete_waits_for_the_transition() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.host.fault(Call::Freeze, Fault::Wait);
    p.lifecycle.pause(p.team, id, true).await.unwrap();
    let opening = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        p.host.mend();
    };
    let (deleted, ()) = futures_util::future::join(p.lifecycle.delete(p.team, id), opening).await;
    deleted.unwrap();
    assert_eq!(p.host.found(id), Found::Nothing);
}

/// The clock is stopped, so waits end at once while the database, which lives in threads, takes real time: which of the
/// documented answers comes is open, but one comes, within the time it may take, and the sandbox is not stuck.
#[tokio::test]
async fn nobody_waits_for_ever() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.host.fault(Call::Freeze, Fault::Wait);
    p.lifecycle.pause(p.team, id, true).await.unwrap();
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let activated = p.lifecycle.activate(p.team, id).await;
    if let Err(why) = &activated {
        assert_eq!(why.code, Code::SandboxPausing, "{why:?}");
    }
    let deleted = p.lifecycle.delete(p.team, id).await;
    if let Err(why) = &deleted {
        assert_eq!(why.code, Code::Conflict, "{why:?}");
    }
    assert!(begun.elapsed() <= Duration::from_secs(2 * 28 + 1), "{:?}", begun.elapsed());
    tokio::time::resume();
    if deleted.is_err() {
        // The freeze was given up and undone.
        p.wait_for_state(id, Some(SandboxState::Active)).await;
        p.host.mend();
        p.lifecycle.delete(p.team, id).await.unwrap();
    }
    assert_eq!(p.state(id), None);
}

#[tokio::test]
async fn failures_of_the_host_lead_back_or_to_the_disk() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let token = p.lifecycle.get(p.team, id).unwrap().token;
    // It cannot be frozen: it runs on, with its token.
    p.host.fault(Call::Freeze, Fault::Fail);
    assert_eq!(code(p.lifecycle.pause(p.team, id, false).await), Code::Internal);
    assert_eq!(p.state(id), Some(SandboxState::Active));
    assert!(p.lifecycle.admit(id, token.expose_secret()));
    p.host.mend();
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    // It cannot be thawed: it stays paused.
    p.host.fault(Call::Thaw, Fault::Fail);
    assert_eq!(code(p.lifecycle.resume(p.team, id).await), Code::Internal);
    assert_eq!(p.state(id), Some(SandboxState::Paused));
    p.host.mend();
    p.lifecycle.resume(p.team, id).await.unwrap();
    // Neither forward nor back: the disk is what is left, and the next activate boots it.
    p.host.fault(Call::Freeze, Fault::Fail);
    p.host.fault(Call::Thaw, Fault::Fail);
    assert_eq!(code(p.lifecycle.pause(p.team, id, false).await), Code::Internal);
    assert_eq!(p.state(id), Some(SandboxState::Paused));
    p.host.mend();
    p.host.put(id, Found::Disk);
    p.lifecycle.activate(p.team, id).await.unwrap();
    assert_eq!(p.host.count(Call::Boot, id), 1);
}

#[tokio::test]
async fn a_machine_that_dies_leaves_a_paused_sandbox() {
    let p = Platform::new().await;
    let id = p.sandbox_with(Timeouts { timeout_seconds: None, auto_delete_seconds: Some(0) }).await;
    p.host.kill(id).await;
    p.wait_for_state(id, Some(SandboxState::Paused)).await;
    let row = p.lifecycle.get(p.team, id).unwrap().row;
    assert_eq!(row.summary.auto_delete_at, None, "nobody paused it: it is not deleted");
    p.host.fault(Call::Boot, Fault::Fail);
    assert_eq!(code(p.lifecycle.activate(p.team, id).await), Code::Internal);
    assert_eq!(p.state(id), Some(SandboxState::Paused));
    p.host.mend();
    p.lifecycle.activate(p.team, id).await.unwrap();
    assert_eq!((p.host.count(Call::Boot, id), p.host.count(Call::Thaw, id)), (2, 0));
    assert_eq!(p.state(id), Some(SandboxState::Active));
}

#[tokio::test]
async fn sessions_end_after_their_active_time() {
    let p = Platform::new().await;
    let begun = Instant::now();
    let id = p.sandbox_with(Timeouts { timeout_seconds: Some(1), auto_delete_seconds: None }).await;
    // Activity does not extend it.
    while p.state(id) == Some(SandboxState::Active) && begun.elapsed() < Duration::from_secs(5) {
        let _either = p.lifecycle.ensure_active(p.team, id).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        if begun.elapsed() > Duration::from_millis(900) {
            break;
        }
    }
    p.wait_for_state(id, Some(SandboxState::Paused)).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(950) && took < Duration::from_secs(3), "{took:?}");
    // A resume starts a fresh window; a longer one keeps it active, a shorter one than what has passed ends it.
    p.lifecycle.resume(p.team, id).await.unwrap();
    let longer = Patch { timeout_seconds: Some(Some(600)), ..Patch::default() };
    p.lifecycle.patch(p.team, id, longer).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1300)).await;
    assert_eq!(p.state(id), Some(SandboxState::Active));
    let shorter = Patch { timeout_seconds: Some(Some(1)), ..Patch::default() };
    p.lifecycle.patch(p.team, id, shorter).await.unwrap();
    let patched = Instant::now();
    p.wait_for_state(id, Some(SandboxState::Paused)).await;
    assert!(patched.elapsed() < Duration::from_millis(900), "promptly");
}

#[tokio::test]
async fn paused_sandboxes_are_deleted_when_they_should_be() {
    let p = Platform::new().await;
    let id = p.sandbox_with(Timeouts { timeout_seconds: None, auto_delete_seconds: Some(600) }).await;
    let at = |p: &Platform| p.lifecycle.get(p.team, id).unwrap().row.summary.auto_delete_at;
    assert_eq!(at(&p), None);
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    let first = at(&p).unwrap();
    let from_now = first.duration_since(Timestamp::now());
    assert!(from_now > SignedDuration::from_secs(590) && from_now <= SignedDuration::from_secs(600));
    p.lifecycle.resume(p.team, id).await.unwrap();
    assert_eq!(at(&p), None, "a resume clears it");
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    assert!(at(&p).unwrap() > first, "a fresh full window");
    let patch = |n| Patch { auto_delete_seconds: Some(n), ..Patch::default() };
    p.lifecycle.patch(p.team, id, patch(None)).await.unwrap();
    assert_eq!(at(&p), None);
    p.lifecycle.patch(p.team, id, patch(Some(1))).await.unwrap();
    assert!(at(&p).is_some());
    p.wait_for_state(id, None).await;
    wait_for("the host to be clean", || p.host.found(id) == Found::Nothing).await;

    // 0 deletes as soon as it is paused; the pause itself succeeds.
    let id = p.sandbox_with(Timeouts { timeout_seconds: None, auto_delete_seconds: Some(0) }).await;
    assert_eq!(p.lifecycle.pause(p.team, id, false).await.unwrap(), PauseOutcome::Paused);
    p.wait_for_state(id, None).await;
    // Set on a paused one: at once.
    let id = p.sandbox().await;
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    p.lifecycle.patch(p.team, id, patch(Some(0))).await.unwrap();
    p.wait_for_state(id, None).await;
}

#[tokio::test]
async fn patches_replace_what_they_name() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let tags = Metadata::new(BTreeMap::from([("env".to_owned(), "dev".to_owned())])).unwrap();
    let patch =
        Patch { metadata: Some(tags.clone()), network: Some(NetworkPatch::default()), ..Patch::default() };
    p.lifecycle.patch(p.team, id, patch.clone()).await.unwrap();
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    let later = Patch { metadata: Some(Metadata::default()), ..patch };
    assert_eq!(code(p.lifecycle.patch(p.team, id, later).await), Code::Conflict, "all or nothing");
    assert_eq!(p.lifecycle.get(p.team, id).unwrap().row.summary.metadata, tags);
}

#[tokio::test]
async fn the_quota_counts_what_holds_compute() {
    let p = Platform::new().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let (lifecycle, team) = (p.lifecycle.clone(), p.team);
        tasks.spawn(async move { lifecycle.create(team, new_sandbox()).await });
    }
    let results = tasks.join_all().await;
    let made: Vec<_> = results.iter().filter_map(|r| r.as_ref().ok()).map(|o| o.row.summary.id).collect();
    assert_eq!(made.len(), 50);
    let refused = results.into_iter().filter_map(Result::err);
    assert!(refused.map(|problem| problem.code).all(|code| code == Code::TooManySandboxes));
    p.lifecycle.pause(p.team, made[0], false).await.unwrap();
    let another = p.sandbox().await;
    assert_eq!(code(p.lifecycle.resume(p.team, made[0]).await), Code::TooManySandboxes);
    assert_eq!(code(p.lifecycle.activate(p.team, made[0]).await), Code::TooManySandboxes);
    assert_eq!(p.state(made[0]), Some(SandboxState::Paused));
    p.lifecycle.delete(p.team, another).await.unwrap();
    p.lifecycle.activate(p.team, made[0]).await.unwrap();
}

#[tokio::test]
async fn a_host_that_cannot_remove_is_asked_again_after_a_restart() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.host.fault(Call::Destroy, Fault::Fail);
    p.lifecycle.delete(p.team, id).await.unwrap();
    assert_eq!(code(p.lifecycle.get(p.team, id)), Code::NotFound, "it is gone for its owner");
    assert_eq!(p.store.sandbox_all().await.unwrap()[0].summary.state, SandboxState::Deleted);
    p.host.mend();
    let p = p.restarted().await;
    wait_for("the owner to end", || p.lifecycle.context_is_empty()).await;
    assert!(p.store.sandbox_all().await.unwrap().is_empty());
    assert_eq!(p.host.found(id), Found::Nothing);
}

/// 50 parallel mixes on five sandboxes end only in documented answers, and in a settled state.
#[tokio::test]
async fn mixes_end_in_documented_answers() {
    let p = Platform::new().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(p.sandbox().await);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..50usize {
        let (lifecycle, team, ids) = (p.lifecycle.clone(), p.team, ids.clone());
        tasks.spawn(async move {
            let mut seed = n.wrapping_mul(2_654_435_761);
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let id = ids[(seed >> 33) % ids.len()];
                let result = match (seed >> 40) % 20 {
                    0..6 => lifecycle.pause(team, id, seed & (1 << 50) != 0).await.map(drop),
                    6..10 => lifecycle.resume(team, id).await.map(drop),
                    10..14 => lifecycle.activate(team, id).await.map(drop),
                    14..17 => lifecycle.agent(id).await.map(drop),
                    17..19 => {
                        lifecycle
                            .patch(team, id, Patch { timeout_seconds: Some(None), ..Patch::default() })
                            .await
                    }
                    _ => lifecycle.delete(team, id).await,
                };
                let documented = match &result {
                    Ok(()) => true,
                    Err(why) => {
                        matches!(
                            why.code,
                            Code::Conflict | Code::SandboxPausing | Code::NotFound | Code::SandboxUnavailable
                        ) || why.message == "no agent"
                    }
                };
                assert!(documented, "{result:?}");
            }
        });
    }
    tokio::time::timeout(Duration::from_secs(60), tasks.join_all()).await.unwrap();
    for id in ids {
        let (state, found) = (p.state(id), p.host.found(id));
        let agrees = matches!(
            (state, found),
            (Some(SandboxState::Active), Found::Running)
                | (Some(SandboxState::Paused), Found::Frozen)
                | (None, Found::Nothing)
        );
        assert!(agrees, "{state:?} {found:?}");
    }
}
