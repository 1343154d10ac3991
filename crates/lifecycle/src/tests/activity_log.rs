//! What a life leaves in the activity log.

use std::time::Duration;

use domain::{SandboxState, Timeouts};
use node::Found;
use store::ActivityFilter;

use super::fake_host::{Call, Fault};
use super::{Platform, new_sandbox, wait_for};
use crate::Patch;

#[tokio::test]
async fn every_step_of_a_life_once_with_who_asked() {
    let p = Platform::new().await;
    let by = p.caller();
    let id = p.lifecycle.create(by.clone(), new_sandbox()).await.unwrap().row.summary.id;
    let patch = Patch { metadata: Some(domain::Metadata::default()), ..Patch::default() };
    p.lifecycle.patch(by.clone(), id, patch).await.unwrap();
    // The second joins the first: one pause, one entry.
    p.host.fault(Call::Freeze, Fault::Wait);
    let opening = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        p.host.mend();
    };
    let (one, two, ()) = futures_util::future::join3(
        p.lifecycle.pause(by.clone(), id, false),
        p.lifecycle.pause(by.clone(), id, false),
        opening,
    )
    .await;
    assert!(one.is_ok() && two.is_ok());
    assert!(p.lifecycle.pause(by.clone(), id, false).await.is_err());
    // However many ask at once, one resumes it and the others get tokens.
    let asks = (0..3).map(|_| p.lifecycle.activate(by.clone(), id));
    assert!(futures_util::future::join_all(asks).await.iter().all(Result::is_ok));
    p.host.fault(Call::Freeze, Fault::Fail);
    assert!(p.lifecycle.pause(by.clone(), id, false).await.is_err());
    p.host.mend();
    p.lifecycle.delete(by.clone(), id).await.unwrap();
    assert!(p.lifecycle.delete(by, id).await.is_err(), "and leaves no entry");
    assert_eq!(
        p.log().await,
        [
            "created ok by laptop",
            "updated ok by laptop",
            "paused ok by laptop",
            "paused conflict by laptop",
            "resumed ok by laptop",
            "rotated ok by laptop",
            "rotated ok by laptop",
            "paused internal_error by laptop",
            "deleted ok by laptop",
        ]
    );
}

#[tokio::test]
async fn what_the_platform_does_by_itself() {
    let p = Platform::new().await;
    let id = p.sandbox_with(Timeouts { timeout_seconds: Some(1), auto_delete_seconds: Some(1) }).await;
    wait_for("auto-delete", || p.state(id).is_none()).await;
    let dying = p.sandbox().await;
    p.host.kill(dying).await;
    p.wait_for_state(dying, Some(SandboxState::Paused)).await;
    p.activity.flush().await;
    let newest = ActivityFilter { limit: 1, ..ActivityFilter::default() };
    let newest = p.store.activity_list(p.team, &newest).await.unwrap().rows.remove(0);
    assert_eq!(
        (newest.action.as_str(), &newest.metadata["isolation"]),
        ("machine_died", &"container".into())
    );
    assert_eq!(
        p.log().await,
        [
            "created ok by platform",
            "auto_paused ok by platform",
            "auto_deleted ok by platform",
            "created ok by platform",
            "machine_died ok by platform",
        ]
    );
}

#[tokio::test]
async fn failed_creates_and_restarts() {
    let p = Platform::new().await;
    p.host.fault(Call::Create, Fault::Fail);
    assert!(p.lifecycle.create(p.caller(), new_sandbox()).await.is_err());
    p.host.mend();
    let (lost, paused) = (p.sandbox().await, p.sandbox().await);
    p.lifecycle.pause(p.team, paused, false).await.unwrap();
    p.host.put(lost, Found::Broken);
    let p = p.restarted().await;
    p.wait_for_state(lost, Some(SandboxState::Failed)).await;
    // Nothing happened to the paused one, and a second restart is no news either.
    let p = p.restarted().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(
        p.log().await,
        [
            "created internal_error by laptop",
            "created ok by platform",
            "created ok by platform",
            "paused ok by platform",
            "failed ok by platform",
        ]
    );
}
