//! Preview ports: generations, tokens, restarts, and what a deleted sandbox leaves (nothing).

use domain::PreviewAccess::{Private, Public};
use domain::{Code, MAX_PREVIEW_PORTS, PreviewPort, Published, SandboxId};

use super::{Platform, wait_for};
use crate::PreviewAdmission::{Denied, Granted};
use crate::{Patch, PreviewToken};

fn port(number: i64) -> PreviewPort {
    PreviewPort::new(number).unwrap()
}

impl Platform {
    fn opens(&self, id: SandboxId, number: i64, token: &PreviewToken) -> bool {
        let Some(published) = self.lifecycle.preview(id, port(number)) else { return false };
        let worth = self.lifecycle.preview_admit(id, port(number), published, token.token.expose_secret());
        assert!(matches!(worth, Granted(None) | Denied));
        worth != Denied
    }
}

#[tokio::test]
async fn everything_that_ends_a_token_ends_it() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let publish =
        async |number, access| p.lifecycle.preview_publish(p.team, id, port(number), access).await.unwrap();
    let token = |number| p.lifecycle.preview_token(p.team, id, port(number), None).unwrap();
    assert_eq!(publish(3000, None).await, Published { access: Public, generation: 1 });
    assert_eq!(publish(3000, None).await.generation, 1, "again is nothing new");
    assert_eq!(publish(3000, Some(Private)).await, Published { access: Private, generation: 2 });
    assert_eq!(publish(3000, None).await, Published { access: Private, generation: 2 }, "it keeps its mode");
    publish(3001, Some(Private)).await;
    let (first, second, sibling) = (token(3000), token(3000), token(3001));
    assert!(p.opens(id, 3000, &first) && p.opens(id, 3000, &second), "earlier ones stay good");
    assert!(!p.opens(id, 3001, &first) && p.opens(id, 3001, &sibling));
    // Rotation.
    let rotated = p.lifecycle.preview_rotate(p.team, id, port(3000)).await.unwrap();
    assert_eq!(rotated.published.generation, 3);
    assert!(!p.opens(id, 3000, &first) && !p.opens(id, 3000, &second) && p.opens(id, 3000, &rotated));
    // To public and back.
    publish(3000, Some(Public)).await;
    publish(3000, Some(Private)).await;
    assert!(!p.opens(id, 3000, &rotated));
    // Taken back and published again.
    let third = token(3000);
    p.lifecycle.preview_unpublish(p.team, id, port(3000)).await.unwrap();
    p.lifecycle.preview_unpublish(p.team, id, port(3000)).await.unwrap();
    assert_eq!(p.lifecycle.preview(id, port(3000)), None);
    let again = publish(3000, Some(Private)).await;
    assert_eq!(again.generation, 6, "it goes on where it was");
    assert!(!p.opens(id, 3000, &third));
    assert!(p.opens(id, 3001, &sibling), "siblings are not concerned");
    // All of it survives a restart.
    let last = token(3000);
    let p = p.restarted().await;
    assert!(p.opens(id, 3000, &last) && !p.opens(id, 3000, &third) && p.opens(id, 3001, &sibling));
    assert_eq!(p.lifecycle.preview(id, port(3000)), Some(again));
    let (default, ports) = p.lifecycle.preview_ports(p.team, id).unwrap();
    assert_eq!((default, ports.len(), ports[0].0), (Public, 2, port(3000)));
    assert_eq!(p.lifecycle.previews(p.team).len(), 2);
}

#[tokio::test]
async fn refusals_and_the_default() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let token = |number| p.lifecycle.preview_token(p.team, id, port(number), None).unwrap_err().code;
    assert_eq!(token(3000), Code::NotFound);
    p.lifecycle.preview_publish(p.team, id, port(3000), None).await.unwrap();
    assert_eq!(token(3000), Code::Conflict);
    assert_eq!(p.lifecycle.preview_rotate(p.team, id, port(3000)).await.unwrap_err().code, Code::Conflict);
    assert_eq!(p.lifecycle.preview_rotate(p.team, id, port(3001)).await.unwrap_err().code, Code::NotFound);
    // The default is for ports published later.
    let patch = Patch { preview_access: Some(Private), ..Patch::default() };
    p.lifecycle.patch(p.team, id, patch).await.unwrap();
    assert_eq!(p.lifecycle.preview_publish(p.team, id, port(3001), None).await.unwrap().access, Private);
    assert_eq!(p.lifecycle.preview(id, port(3000)).unwrap().access, Public);
    // Somebody else's, and nobody's.
    let other = p.store.team_ensure("other", jiff::Timestamp::now()).await.unwrap().id;
    for (team, id) in [(other, id), (p.team, SandboxId::new())] {
        let code = p.lifecycle.preview_publish(team, id, port(3002), None).await.unwrap_err().code;
        assert_eq!(code, Code::NotFound);
        assert_eq!(p.lifecycle.preview_ports(team, id).unwrap_err().code, Code::NotFound);
        assert_eq!(p.lifecycle.preview_token(team, id, port(3001), None).unwrap_err().code, Code::NotFound);
        assert_eq!(
            p.lifecycle.preview_unpublish(team, id, port(3001)).await.unwrap_err().code,
            Code::NotFound
        );
    }
    assert!(p.lifecycle.previews(other).is_empty());
}

#[tokio::test]
async fn a_pause_changes_nothing_and_nothing_wakes_it() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    p.lifecycle.preview_publish(p.team, id, port(3000), Some(Private)).await.unwrap();
    let token = p.lifecycle.preview_token(p.team, id, port(3000), Some(60)).unwrap();
    assert!(token.ends.is_some_and(|ends| ends > jiff::Timestamp::now()));
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    p.lifecycle.preview_publish(p.team, id, port(3001), None).await.unwrap();
    p.lifecycle.preview_rotate(p.team, id, port(3000)).await.unwrap();
    let code = p.lifecycle.dial(id, port(3000)).await.map(drop).unwrap_err().code;
    assert_eq!(code, Code::SandboxUnavailable);
    assert_eq!(p.state(id), Some(domain::SandboxState::Paused));
    p.lifecycle.resume(p.team, id).await.unwrap();
    assert!(p.lifecycle.dial(id, port(3000)).await.is_ok());
    assert_eq!(p.lifecycle.preview(id, port(3000)).unwrap().generation, 2);
}

#[tokio::test]
async fn whoever_waits_for_a_change_is_told_and_a_delete_leaves_nothing() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let published = p.lifecycle.preview_publish(p.team, id, port(3000), None).await.unwrap();
    let waiting = || {
        let lifecycle = p.lifecycle.clone();
        tokio::spawn(async move { lifecycle.preview_changed(id, port(3000), published).await })
    };
    let (first, second) = (waiting(), waiting());
    tokio::task::yield_now().await;
    assert!(!first.is_finished());
    p.lifecycle.preview_publish(p.team, id, port(3000), Some(Private)).await.unwrap();
    first.await.unwrap();
    second.await.unwrap();
    // What has changed already is over at once; so is what never was.
    p.lifecycle.preview_changed(id, port(3000), published).await;
    p.lifecycle.preview_changed(id, port(9999), published).await;
    p.lifecycle.delete(p.team, id).await.unwrap();
    wait_for("the end of its ports", || p.lifecycle.preview(id, port(3000)).is_none()).await;
    assert!(p.store.preview_all().await.unwrap().is_empty());
    assert!(p.lifecycle.previews(p.team).is_empty());
}

#[tokio::test]
async fn ports_are_counted_and_logged() {
    let p = Platform::new().await;
    let id = p.sandbox().await;
    let most = i64::try_from(MAX_PREVIEW_PORTS).unwrap();
    for number in 0..most {
        p.lifecycle.preview_publish(p.team, id, port(2000 + number), None).await.unwrap();
    }
    let refusal = p.lifecycle.preview_publish(p.caller(), id, port(5000), None).await.unwrap_err();
    assert!(refusal.code == Code::Conflict && refusal.to_string().contains("unpublish"), "{refusal}");
    for _ in 0..3 {
        p.lifecycle.preview_publish(p.team, id, port(2000), Some(Private)).await.unwrap();
    }
    p.lifecycle.preview_unpublish(p.caller(), id, port(2001)).await.unwrap();
    p.lifecycle.preview_publish(p.caller(), id, port(5000), Some(Private)).await.unwrap();
    p.lifecycle.preview_token(p.caller(), id, port(5000), None).unwrap();
    p.lifecycle.preview_rotate(p.caller(), id, port(5000)).await.unwrap();
    p.activity.flush().await;
    let filter =
        store::ActivityFilter { category: Some("preview".to_owned()), limit: 6, ..Default::default() };
    let rows = p.store.activity_list(p.team, &filter).await.unwrap().rows;
    let shown: Vec<_> =
        rows.iter().map(|row| format!("{} {:?} {}", row.action, row.error, row.metadata["port"])).collect();
    assert_eq!(
        shown,
        [
            "rotated None 5000",
            "token_issued None 5000",
            "published None 5000",
            "unpublished None 2001",
            "published None 2000",
            "published Some(\"conflict\") 5000",
        ]
    );
}
