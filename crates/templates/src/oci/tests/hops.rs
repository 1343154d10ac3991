//! Where a registry may lead: nobody is dialled on this machine, at any step of a pull, but whom the operator has named.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::serve::{Answer, Scripted};
use super::*;
use crate::oci::manifest::ARCHITECTURE;
use crate::tests::place;

/// Something that must not be spoken to, and knows whether it was.
struct Trap {
    address: SocketAddr,
    dialled: Arc<AtomicUsize>,
    server: tokio::task::JoinHandle<()>,
}

impl Trap {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let dialled = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&dialled);
        let server = tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { address, dialled, server }
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn refused(place: &Place, reference: &str, access: &Access) {
    let error = pull_image(&place.store, reference, access, GIB, |_| {}).await.unwrap_err();
    assert!(matches!(error, TemplateError::Image { .. }), "{reference}: {error:?}");
    let text = error.to_string();
    assert!(text.contains("is not on the public internet") && text.contains("internal_registries"), "{text}");
    assert!(place.names().is_empty(), "{:?}", place.names());
}

#[tokio::test]
async fn a_client_does_not_lead_the_server_to_itself() {
    let place = place();
    let trap = Trap::start().await;
    let port = trap.address.port();
    let named = Access { internal: vec!["127.0.0.1".into(), "registry.lan".into()], ..Access::default() };
    for access in [Access::default(), named] {
        for host in ["127.0.0.2", "localhost", "127.1", "[::1]", "[::ffff:127.0.0.2]", "169.254.169.254"] {
            let reference = format!("{host}:{port}/x:1");
            // Not every spelling of an address is a reference at all.
            if crate::oci::reference::Reference::parse(&reference, &access).is_ok() {
                refused(&place, &reference, &access).await;
            }
        }
    }
    assert_eq!(trap.dialled.load(Ordering::Relaxed), 0);
    // The operator may: the registry is spoken to, and has nothing to say.
    let reference = format!("127.0.0.2:{port}/x:1");
    let error = pull(&place, &reference).await.unwrap_err();
    assert!(matches!(error, TemplateError::Registry { .. }), "{error}");
    assert!(trap.dialled.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn no_hop_leads_elsewhere_on_this_machine() {
    let place = place();
    let trap = Trap::start().await;
    let registry = Scripted::start().await;
    let good = image(vec![Blob::layer(Archive::default().file("a", "1"))], ARCHITECTURE, json!({}));
    let [layer, config] = &good.blobs[..] else { panic!("two blobs") };
    let path = |blob: &Blob| format!("/v2/x/blobs/{}", digest(&blob.bytes));
    let access = Access { plain_http: vec![registry.address.to_string()], ..Access::default() };
    let port = trap.address.port();
    for place_of in [
        format!("http://{}", trap.address),
        format!("http://localhost:{port}"),
        format!("http://2130706434:{port}"),
    ] {
        let away =
            Answer { status: 307, headers: vec![("location", format!("{place_of}/x"))], ..Answer::default() };
        let realm = format!(r#"Bearer realm="{place_of}/token",service="r""#);
        let locked = Answer { locked: Some(("Bearer t".into(), realm)), ..Answer::ok("") };
        for (hop, answer) in [
            ("/v2/x/manifests/1".to_owned(), &away),
            (path(config), &away),
            (path(layer), &away),
            ("/v2/x/manifests/1".to_owned(), &locked),
            (path(layer), &locked),
        ] {
            registry.serve(&good);
            registry.answer(hop, answer.clone());
            refused(&place, &registry.reference(), &access).await;
        }
        // By a redirect of the place for tokens, too.
        registry.serve(&good);
        let realm = format!(r#"Bearer realm="http://{}/token",service="r""#, registry.address);
        registry.answer(
            "/v2/x/manifests/1",
            Answer { locked: Some(("Bearer t".into(), realm)), ..Answer::ok("") },
        );
        registry.answer("/token?scope=repository%3Ax%3Apull&service=r", away);
        refused(&place, &registry.reference(), &access).await;
    }
    assert_eq!(trap.dialled.load(Ordering::Relaxed), 0);

    // What is named as well may be led to.
    let storage = Scripted::start_at("127.0.0.2").await;
    storage.answer("/blob", Answer::ok(layer.bytes.clone()));
    registry.serve(&good);
    let away = format!("http://{}/blob", storage.address);
    registry
        .answer(path(layer), Answer { status: 307, headers: vec![("location", away)], ..Answer::default() });
    refused(&place, &registry.reference(), &access).await;
    assert!(storage.asked.lock().unwrap().is_empty());
    let access = Access { internal: vec![storage.address.to_string()], ..access };
    pull_image(&place.store, &registry.reference(), &access, GIB, |_| {}).await.unwrap();
}
