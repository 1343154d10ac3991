//! The router over a real lifecycle and a real database; only the machine is a stand-in.

mod access;
mod activity_log;
mod answers;
mod files;
mod host;
mod list;
mod network;
mod preview;
mod sandbox;
mod secret;
mod snapshot;
mod template;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use activity::{NetworkLog, NetworkRetention, Recorder, Retention, Writer};
use axum::Router;
use axum::body::Body;
use builds::{Builds, BuildsConfig};
use bytes::Bytes;
use domain::{
    Engine, Offer, PreviewPort, RuntimeDefaults, SandboxId, Shape, TeamId, TemplateId, TemplateStatus,
};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use lifecycle::{Lifecycle, LifecycleConfig};
use secrets::{Keyring, Secrets};
use serde_json::Value;
use store::{Store, TemplateRow, system_team};
use tower::ServiceExt;
use wire::rest::{PreviewRequest, PreviewTraffic};
use wire::well_known::Descriptor;

use crate::{Answered, ApiState, MetricsAccess, Observer, router};
use host::TestHost;

struct Platform {
    _dir: tempfile::TempDir,
    _writers: [Writer; 2],
    network: NetworkLog,
    store: Store,
    host: Arc<TestHost>,
    lifecycle: Arc<Lifecycle>,
    router: Router,
    key: String,
    team: TeamId,
}

/// Counts answers by route.
#[derive(Debug, Default)]
struct Counter(Mutex<BTreeMap<String, u32>>);

impl Observer for Counter {
    fn answered(&self, answered: Answered<'_>) {
        let Answered { method, route, status, .. } = answered;
        *self.0.lock().unwrap().entry(format!("{method} {route} {status}")).or_default() += 1;
    }

    fn page(&self) -> String {
        self.0.lock().unwrap().iter().map(|(what, count)| format!("{what} {count}\n")).collect()
    }

    fn preview_traffic(&self, _: SandboxId, port: PreviewPort) -> PreviewTraffic {
        PreviewTraffic { requests: port.get().into(), ..PreviewTraffic::default() }
    }

    fn preview_requests(&self, _: SandboxId, _: PreviewPort) -> Vec<PreviewRequest> {
        Vec::new()
    }
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {:?}", self.body))
    }

    fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

impl Platform {
    async fn new() -> Self {
        Self::with_quota(50).await
    }

    async fn with_quota(quota: u32) -> Self {
        Self::with(quota, MetricsAccess::Local).await
    }

    async fn with(quota: u32, metrics: MetricsAccess) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).await.unwrap();
        let now = Timestamp::now();
        let team = store.team_ensure("default", now).await.unwrap().id;
        let (key, _) = store.key_create(team, "test", now).await.unwrap();
        store.template_put(&template("superserve/base", system_team(), TemplateStatus::Ready)).await.unwrap();
        let host = TestHost::new(dir.path().join("layers"));
        let layers = templates::LayerStore::open(dir.path().join("layers")).unwrap();
        let config = LifecycleConfig {
            quota,
            pause_grace: Duration::from_millis(100),
            save_wait: Duration::from_millis(100),
            token_key: [7; 32],
            preview_key: [8; 32],
            layers: layers.clone(),
            engines: Offer::new(Engine::Container, [Engine::Qemu]),
        };
        let (activity, writer) = Recorder::start(store.clone(), Retention { rows: 10_000, days: 30 });
        let (network, network_writer) =
            NetworkLog::start(store.clone(), NetworkRetention { rows: 10_000, days: 30 });
        let keys = [("k".to_owned(), zeroize::Zeroizing::new([9; secrets::KEY_BYTES]))];
        let secrets = Secrets::open(store.clone(), Keyring::new(&keys).unwrap()).await.unwrap();
        let lifecycle =
            Lifecycle::start(store.clone(), host.clone(), activity.clone(), secrets.clone(), config)
                .await
                .unwrap();
        let quota = store::BuildQuota { templates: 3, builds: 2 };
        let builds = BuildsConfig {
            state_dir: dir.path().to_owned(),
            quota,
            running: 1,
            access: templates::Access::default(),
            cache_bytes: 0,
            ready_within: std::time::Duration::from_secs(600),
            owns_layers: false,
            owner: team,
            engines: Offer::new(Engine::Container, [Engine::Qemu]),
        };
        let builds =
            Builds::start(store.clone(), host.clone(), layers, activity.clone(), builds).await.unwrap();
        let descriptor = Descriptor {
            version: "0.1.0".to_owned(),
            data_plane_url: "http://127.0.0.1:8081".to_owned(),
            sandbox_host: "sandbox.localhost:8443".to_owned(),
            scheme: "https".to_owned(),
            engine: "container".to_owned(),
        };
        let state = ApiState {
            lifecycle: lifecycle.clone(),
            builds,
            max_shape: Shape { vcpu: 4, memory_mib: 4096, disk_mib: 8192 },
            store: store.clone(),
            activity,
            network: network.clone(),
            secrets: secrets.clone(),
            observer: Arc::new(Counter::default()),
            metrics,
            delegation: None,
            descriptor: Arc::new(descriptor),
        };
        let key = key.expose_secret().to_owned();
        Self {
            _dir: dir,
            _writers: [writer, network_writer],
            network,
            store,
            host,
            lifecycle,
            router: router(state),
            key,
            team,
        }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    /// As the SDKs do it: with the JSON content type, body or not.
    async fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        self.call_with(method, path, body, &self.key).await
    }

    async fn call_with(&self, method: &str, path: &str, body: &str, key: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-api-key", key)
            .header("content-type", "application/json")
            .body(Body::from(body.to_owned()));
        self.send(request.unwrap()).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "").await
    }

    async fn post(&self, path: &str) -> Answer {
        self.call("POST", path, "").await
    }

    /// Makes a sandbox and returns its object.
    async fn sandbox(&self, body: &str) -> Value {
        let made = self.call("POST", "/sandboxes", body).await;
        assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
        made.json()
    }

    async fn sandbox_id(&self) -> String {
        self.sandbox(r#"{"name":"test"}"#).await["id"].as_str().unwrap().to_owned()
    }
}

fn template(name: &str, team: TeamId, status: TemplateStatus) -> TemplateRow {
    TemplateRow {
        id: TemplateId::new(),
        team,
        name: name.to_owned(),
        status,
        shape: Shape { vcpu: 1, memory_mib: 1024, disk_mib: 4096 },
        engine: None,
        defaults: RuntimeDefaults::default(),
        layers: vec!["aa".to_owned()],
        size_bytes: Some(42),
        created_at: Timestamp::from_second(1_700_000_000).unwrap(),
        built_at: Some(Timestamp::from_second(1_700_000_100).unwrap()),
        error: None,
        spec: None,
    }
}
