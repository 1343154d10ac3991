//! Preview ports.

use domain::{PreviewAccess, PreviewPort, SandboxId, SandboxState};

use super::fixture;
use crate::{PreviewRow, Store};

#[tokio::test]
async fn ports_are_kept_with_their_generation_and_go_with_their_sandbox() {
    let f = fixture().await;
    let sandbox = f.add(f.row("a", &[])).await.summary.id;
    let port = |number| PreviewPort::new(number).unwrap();
    let row = |number, access, generation| PreviewRow { sandbox, port: port(number), access, generation };
    let (public, private) = (Some(PreviewAccess::Public), Some(PreviewAccess::Private));
    assert!(f.store.preview_put(&row(3000, public, 1)).await.unwrap());
    assert!(f.store.preview_put(&row(8080, private, 1)).await.unwrap());
    assert!(f.store.preview_put(&row(3000, private, 2)).await.unwrap());
    assert!(f.store.preview_put(&row(3000, None, 2)).await.unwrap());
    assert!(!f.store.preview_put(&row(3000, public, 1)).await.unwrap(), "a generation never goes back");
    f.store.close().await;
    let store = Store::open(&f.path).await.unwrap();
    let mut rows = store.preview_all().await.unwrap();
    rows.sort_by_key(|row| row.port);
    assert_eq!(rows, [row(3000, None, 2), row(8080, private, 1)]);
    assert_eq!(rows[0].published(), None);
    let nobody = PreviewRow { sandbox: SandboxId::new(), ..rows[1] };
    assert!(!store.preview_put(&nobody).await.unwrap());
    let mut gone = store.sandbox_get(sandbox).await.unwrap().unwrap();
    gone.summary.state = SandboxState::Deleted;
    store.sandbox_transition(gone, None).await.unwrap();
    assert!(!store.preview_put(&row(3000, public, 3)).await.unwrap(), "deleted is gone");
    store.sandbox_remove(sandbox).await.unwrap();
    assert_eq!(store.preview_all().await.unwrap(), []);
}
