//! The table by golden file and by properties; the rest against a real database and a host that lives in memory, fails
//! and hangs on demand.

mod activity_log;
mod fake_host;
mod life;
mod preview;
mod recovery;
mod secret;
mod snapshot;
mod table;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use activity::{Actor, Caller, Recorder, Retention, Writer};
use domain::{
    Engine, EnvVars, Metadata, Offer, PreviewAccess, RuntimeDefaults, SandboxId, SandboxState, Shape, TeamId,
    TemplateId, TemplateStatus, Timeouts,
};
use jiff::Timestamp;
use secrets::{Keyring, Secrets};
use store::{ActivityFilter, ActivityRow, Store, TemplateRow, system_team};

use crate::{Lifecycle, LifecycleConfig, NewSandbox, Origin};
use fake_host::FakeHost;

/// A platform of a test's own.
struct Platform {
    dir: tempfile::TempDir,
    store: Store,
    host: Arc<FakeHost>,
    lifecycle: Arc<Lifecycle>,
    activity: Recorder,
    secrets: Arc<Secrets>,
    writer: Writer,
    team: TeamId,
}

const KEEP: Retention = Retention { rows: 10_000, days: 30 };

fn config(dir: &Path) -> LifecycleConfig {
    LifecycleConfig {
        quota: 50,
        pause_grace: Duration::from_millis(200),
        save_wait: Duration::from_secs(25),
        token_key: [7; 32],
        preview_key: [8; 32],
        layers: templates::LayerStore::open(dir.join("layers")).unwrap(),
        engines: Offer::new(Engine::Container, [Engine::Qemu]),
    }
}

impl Platform {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).await.unwrap();
        let team = store.team_ensure("default", Timestamp::now()).await.unwrap().id;
        store.template_put(&template()).await.unwrap();
        let host = FakeHost::new(dir.path().join("layers"));
        let (activity, writer) = Recorder::start(store.clone(), KEEP);
        let secrets = open_secrets(&store).await;
        let lifecycle = Lifecycle::start(
            store.clone(),
            host.clone(),
            activity.clone(),
            secrets.clone(),
            config(dir.path()),
        )
        .await
        .unwrap();
        Self { dir, store, host, lifecycle, activity, secrets, writer, team }
    }

    /// Stops the server and starts another one on the same database and host.
    async fn restarted(self) -> Self {
        self.restarted_after(|_database| {}).await
    }

    /// The same, with something done to the database file in between.
    async fn restarted_after(self, meanwhile: impl FnOnce(&Path)) -> Self {
        assert!(self.lifecycle.shutdown().await);
        self.writer.stop().await;
        self.store.close().await;
        meanwhile(&self.dir.path().join("state.db"));
        let store = Store::open(&self.dir.path().join("state.db")).await.unwrap();
        self.host.reconnect();
        let (activity, writer) = Recorder::start(store.clone(), KEEP);
        let secrets = open_secrets(&store).await;
        let lifecycle = {
            let (host, config) = (self.host.clone(), config(self.dir.path()));
            Lifecycle::start(store.clone(), host, activity.clone(), secrets.clone(), config).await.unwrap()
        };
        Self { store, lifecycle, activity, secrets, writer, dir: self.dir, host: self.host, team: self.team }
    }

    /// The activity log so far: action, error and who did it.
    async fn log(&self) -> Vec<String> {
        self.activity.flush().await;
        let filter = ActivityFilter { ascending: true, limit: 200, ..ActivityFilter::default() };
        let rows = self.store.activity_list(self.team, &filter).await.unwrap().rows;
        let show = |row: &ActivityRow| {
            let who = row.metadata.get("actor_name").unwrap_or(&row.metadata["actor_type"]).as_str().unwrap();
            format!("{} {} by {who}", row.action, row.error.as_deref().unwrap_or("ok"))
        };
        rows.iter().map(show).collect()
    }

    /// Somebody with an API key.
    fn caller(&self) -> Caller {
        let actor = Actor::Key { id: uuid::Uuid::new_v4(), name: "laptop".into() };
        Caller { team: self.team, actor, request: None }
    }

    async fn sandbox(&self) -> SandboxId {
        self.sandbox_with(Timeouts::default()).await
    }

    async fn sandbox_with(&self, timeouts: Timeouts) -> SandboxId {
        let new = NewSandbox { timeouts, ..new_sandbox() };
        self.lifecycle.create(self.team, new).await.unwrap().row.summary.id
    }

    fn state(&self, id: SandboxId) -> Option<SandboxState> {
        self.lifecycle.state(id)
    }

    async fn wait_for_state(&self, id: SandboxId, wanted: Option<SandboxState>) {
        wait_for(&format!("state {wanted:?}"), || self.state(id) == wanted).await;
    }
}

async fn open_secrets(store: &Store) -> Arc<Secrets> {
    let keys = [("k".to_owned(), zeroize::Zeroizing::new([9; secrets::KEY_BYTES]))];
    Secrets::open(store.clone(), Keyring::new(&keys).unwrap()).await.unwrap()
}

fn template() -> TemplateRow {
    TemplateRow {
        id: TemplateId::new(),
        team: system_team(),
        name: "superserve/base".to_owned(),
        status: TemplateStatus::Ready,
        shape: Shape { vcpu: 1, memory_mib: 1024, disk_mib: 4096 },
        engine: None,
        defaults: RuntimeDefaults::default(),
        layers: vec!["aa".to_owned()],
        size_bytes: None,
        created_at: Timestamp::now(),
        built_at: None,
        error: None,
        spec: None,
    }
}

fn new_sandbox() -> NewSandbox {
    NewSandbox {
        name: "test".to_owned(),
        origin: Origin::Template("superserve/base".to_owned()),
        engine: None,
        timeouts: Timeouts::default(),
        metadata: Metadata::default(),
        env: EnvVars::default(),
        network: None,
        preview_access: PreviewAccess::Public,
        secrets: std::collections::BTreeMap::new(),
    }
}

async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited 10 s for {what}");
}
