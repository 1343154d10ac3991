//! Against a registry that lies, refuses or wants to know who asks.

use std::time::{Duration, Instant};

use base64::Engine;
use serde_json::json;

use super::serve::{Answer, Scripted};
use super::*;
use crate::oci::manifest::ARCHITECTURE;
use crate::progress::Phase;
use crate::tests::place;

fn plain_image() -> Pushed {
    image(vec![Blob::layer(Archive::default().file("a", "1"))], ARCHITECTURE, json!({}))
}

async fn refusal(place: &Place, registry: &Scripted, reference: &str) -> String {
    let before = Instant::now();
    let error = pull(place, reference).await.unwrap_err();
    assert!(before.elapsed() < Duration::from_secs(20), "{error}");
    assert!(matches!(error, TemplateError::Image { .. }), "{error}");
    assert!(place.names().is_empty(), "{error}: {:?}", place.names());
    assert!(!registry.asked.lock().unwrap().is_empty());
    error.to_string()
}

#[tokio::test]
async fn what_does_not_match_its_digest_is_refused() {
    let place = place();
    let good = plain_image();
    let registry = Scripted::start().await;
    registry.serve(&good);
    assert_eq!(pull(&place, &registry.reference()).await.unwrap().layers.len(), 1);
    for layer in place.store.list().unwrap() {
        place.store.remove(&layer).unwrap();
    }

    let other = "sha256:".to_owned() + &"0".repeat(64);
    let [layer, config] = &good.blobs[..] else { panic!("two blobs") };
    let path = |blob: &Blob| format!("/v2/x/blobs/{}", digest(&blob.bytes));
    let mut longer = layer.bytes.clone();
    longer.push(0);
    let mut spoilt = layer.bytes.clone();
    spoilt[20] ^= 1;
    let manifest = Answer {
        headers: vec![("docker-content-digest", other.clone())],
        ..Answer::ok(good.manifest.bytes.clone())
    };
    let endless = Answer { endless: true, ..Answer::ok(layer.bytes.clone()) };
    let cases = [
        ("/v2/x/manifests/1".to_owned(), manifest, "manifest is not what"),
        (format!("/v2/x/manifests/{other}"), Answer::ok(good.manifest.bytes.clone()), "manifest is not what"),
        (path(config), Answer::ok([&config.bytes[..], b" "].concat()), "configuration is not what"),
        (path(layer), Answer::ok(longer), "longer than"),
        (path(layer), Answer::ok(spoilt), "layer is not what"),
        (path(layer), endless, "longer than"),
        ("/v2/x/manifests/1".to_owned(), Answer { endless: true, ..Answer::ok("{") }, "more than 4194304"),
    ];
    for (place_of, answer, expected) in cases {
        registry.serve(&good);
        let reference = if place_of.contains(&other) {
            format!("{}/x@{other}", registry.address)
        } else {
            registry.reference()
        };
        registry.answer(place_of, answer);
        let text = refusal(&place, &registry, &reference).await;
        assert!(text.contains(expected), "expected {expected:?} in {text}");
    }

    // One that ends early cannot be told from one that was cut off, so it is asked for again, not for ever.
    registry.serve(&good);
    registry.answer(path(layer), Answer::ok(&layer.bytes[..10]));
    let error = pull(&place, &registry.reference()).await.unwrap_err();
    assert!(matches!(error, TemplateError::Registry { .. }), "{error}");
    assert!(error.to_string().contains("after 10 of"), "{error}");
    assert!(place.names().is_empty(), "{:?}", place.names());

    // The configuration says what the layers unpack to; blobs that are whole may still be others.
    let (blob, _) = Blob::layer(Archive::default().file("a", "1"));
    registry.serve(&image(vec![(blob, other)], ARCHITECTURE, json!({})));
    let text = refusal(&place, &registry, &registry.reference()).await;
    assert!(text.contains("unpacks to something else"), "{text}");
}

#[tokio::test]
async fn foreign_documents_are_named() {
    let place = place();
    let registry = Scripted::start().await;
    let check = async |manifest: serde_json::Value, expected: &str| {
        registry.answer("/v2/x/manifests/1", Answer::ok(manifest.to_string()));
        let text = refusal(&place, &registry, &registry.reference()).await;
        assert!(text.contains(expected), "expected {expected:?} in {text}");
    };
    check(json!({"schemaVersion": 1, "fsLayers": []}), "outdated").await;
    check(json!({"errors": []}), "cannot be read").await;
    let good = plain_image();
    registry.serve(&good);
    let with = |layer: serde_json::Value| {
        let mut manifest: serde_json::Value = serde_json::from_slice(&good.manifest.bytes).unwrap();
        manifest["layers"] = layer;
        manifest
    };
    let mut chart = good.blobs[0].descriptor();
    chart["mediaType"] = "application/vnd.cncf.helm.chart.content.v1.tar+gzip".into();
    check(with(json!([chart])), "helm").await;
    check(with(json!([])), "disagree").await;
    // An index that contains itself ends somewhere.
    let hex = "sha256:".to_owned() + &"1".repeat(64);
    let entry = json!({"mediaType": "x", "digest": hex, "size": 1});
    check(json!({"schemaVersion": 2, "manifests": [entry]}), "does not have it").await;
    let many = vec![entry_of_own(&registry); 40];
    check(json!({"schemaVersion": 2, "manifests": many}), "lead too far").await;
}

/// A further index, by digest, that leads nowhere.
fn entry_of_own(registry: &Scripted) -> serde_json::Value {
    let inner = index(&[]);
    registry.answer(format!("/v2/x/manifests/{}", digest(&inner.bytes)), Answer::ok(inner.bytes.clone()));
    inner.descriptor()
}

#[tokio::test]
async fn a_registry_that_does_not_answer_is_told_from_one_that_refuses() {
    let place = place();
    let registry = Scripted::start().await;
    for status in [500, 503, 429] {
        registry.answer("/v2/x/manifests/1", Answer { status, ..Answer::default() });
        let error = pull(&place, &registry.reference()).await.unwrap_err();
        assert!(matches!(error, TemplateError::Registry { .. }), "{error}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
    let reference = registry.reference();
    drop(registry);
    let error = pull(&place, &reference).await.unwrap_err();
    assert!(matches!(error, TemplateError::Registry { .. }), "{error}");
    // A name that cannot be one is a mistake, not an outage.
    let error = pull(&place, "http://127.0.0.1/x").await.unwrap_err();
    assert!(matches!(error, TemplateError::BadReference { .. }), "{error}");
}

#[tokio::test]
async fn a_token_is_fetched_when_one_is_demanded() {
    let place = place();
    let registry = Scripted::start().await;
    let good = plain_image();
    registry.serve(&good);
    let address = registry.address;
    let challenge = format!(r#"Bearer realm="http://{address}/token",service="r",scope="repository:x:pull""#);
    let lock = |key: &str, challenge: &str| {
        let locked = Some((key.to_owned(), challenge.to_owned()));
        registry.answer(
            "/v2/x/manifests/1",
            Answer { locked: locked.clone(), ..Answer::ok(good.manifest.bytes.clone()) },
        );
        for blob in &good.blobs {
            let path = format!("/v2/x/blobs/{}", digest(&blob.bytes));
            registry.answer(path, Answer { locked: locked.clone(), ..Answer::ok(blob.bytes.clone()) });
        }
    };
    let forget = || place.store.list().unwrap().iter().for_each(|layer| place.store.remove(layer).unwrap());
    let token_path = "/token?scope=repository%3Ax%3Apull&service=r";

    // Anonymously.
    lock("Bearer t0", &challenge);
    registry.answer(token_path, Answer::ok(r#"{"token":"t0"}"#));
    pull(&place, &registry.reference()).await.unwrap();
    let asked = std::mem::take(&mut *registry.asked.lock().unwrap());
    assert_eq!(
        asked.iter().filter(|line| line.contains("/token")).count(),
        1,
        "one token serves all: {asked:?}"
    );
    assert!(asked.contains(&format!("{token_path} -")), "{asked:?}");
    forget();

    // With credentials, for the token and directly.
    let file = place.dir.path().join("auth.json");
    let basic = base64::prelude::BASE64_STANDARD.encode("me:hush");
    std::fs::write(&file, json!({"auths": {address.to_string(): {"auth": basic}}}).to_string()).unwrap();
    let access =
        Access { auth_file: Some(file.clone()), ..Access::default() }.trusting(&registry.reference());
    let known = async || pull_image(&place.store, &registry.reference(), &access, GIB, |_| {}).await;
    let basic = format!("Basic {basic}");
    let locked = Some((basic.clone(), r#"Basic realm="x""#.to_owned()));
    registry.answer(token_path, Answer { locked, ..Answer::ok(r#"{"access_token":"t1"}"#) });
    lock("Bearer t1", &challenge);
    known().await.unwrap();
    forget();
    lock(&basic, r#"Basic realm="x""#);
    known().await.unwrap();
    forget();

    // Without, or with wrong ones, it ends with a sentence, and without the secret.
    let text = refusal(&place, &registry, &registry.reference()).await;
    assert!(text.contains("registry_auth_file"), "{text}");
    lock("Bearer other", &challenge);
    let error = known().await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
    assert!(error.to_string().contains("configured user"), "{error}");
    lock("x", r#"Bearer realm="file:///etc/passwd""#);
    assert!(refusal(&place, &registry, &registry.reference()).await.contains("https"));
    lock("x", "Negotiate");
    assert!(refusal(&place, &registry, &registry.reference()).await.contains("unknown kind"));
    registry.answer(token_path, Answer { endless: true, ..Answer::ok("{") });
    lock("x", &challenge);
    assert!(refusal(&place, &registry, &registry.reference()).await.contains("more than 65536"));
}

#[tokio::test]
async fn redirects_are_followed_but_not_for_ever() {
    let place = place();
    let registry = Scripted::start().await;
    let good = plain_image();
    registry.serve(&good);
    let path = format!("/v2/x/blobs/{}", digest(&good.blobs[0].bytes));
    let to =
        |target: String| Answer { status: 307, headers: vec![("location", target)], ..Answer::default() };
    registry.answer(path.clone(), to(path.clone()));
    assert!(refusal(&place, &registry, &registry.reference()).await.contains("without end"));
    let elsewhere = Scripted::start().await;
    elsewhere.answer("/store/1", Answer::ok(good.blobs[0].bytes.clone()));
    registry.answer(path, to(format!("http://{}/store/1", elsewhere.address)));
    pull(&place, &registry.reference()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_pull_leaves_nothing() {
    let place = place();
    let registry = Scripted::start().await;
    let mut image = plain_image();
    let mut manifest: serde_json::Value = serde_json::from_slice(&image.manifest.bytes).unwrap();
    manifest["layers"][0]["size"] = (GIB / 2).into();
    image.manifest.bytes = manifest.to_string().into_bytes();
    registry.serve(&image);
    let path = format!("/v2/x/blobs/{}", digest(&image.blobs[0].bytes));
    // Comes, but never to its end.
    registry.answer(path, Answer { slow: true, ..Answer::ok("x") });
    let (seen, mut phases) = tokio::sync::mpsc::unbounded_channel();
    let (store, reference) = (place.store.clone(), registry.reference());
    let work = tokio::spawn(async move {
        let hear = move |phase| seen.send(phase).unwrap_or(());
        pull_image(&store, &reference, &Access::default().trusting(&reference), GIB, hear).await
    });
    while !matches!(phases.recv().await, Some(Phase::Pulling { .. })) {}
    assert_eq!(place.names().len(), 1, "{:?}", place.names());
    work.abort();
    assert!(work.await.unwrap_err().is_cancelled());
    assert!(place.names().is_empty(), "{:?}", place.names());
}
