//! Wires the parts together: what `up` runs, and what `reset` removes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use activity::{NetworkLog, Recorder, Writer};
use broker::Broker;
use builds::{Builds, BuildsConfig};
use domain::{
    Credentials, Engine, NetworkEvent, NetworkSink, Problem, Secret, Shape, TemplateId, TemplateStatus,
};
use egress::{GatewayConfig, Interceptor};
use hmac::{Hmac, Mac};
use jiff::Timestamp;
use lifecycle::{Lifecycle, LifecycleConfig};
use node::{Engines, Host, Node, NodeConfig};
use secrets::{Keyring, Secrets};
use sha2::{Digest, Sha256};
use store::{Store, TemplateRow};
use templates::{Bar, Image, Layer, LayerStore, TemplateError};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::auto::Choice;
use crate::config::{Config, MetricsSetting};
use crate::directory::Sandboxes;
use crate::oauth::Oauth;
use crate::observe::Observers;
use crate::output::Failure;
use crate::state_dir::{ServerInfo, StateDir, database_path, tls_dir};
use crate::{auto, engine, proof};

/// The team of a platform with one owner.
pub(crate) const TEAM: &str = "default";
/// How long a pause that may answer early waits nevertheless (`spec/rest-api.md` §15, open point 7).
const PAUSE_GRACE: Duration = Duration::from_secs(2);
/// Clients that know nothing of snapshots that are still being saved give up after 30 s; those that do look again.
const SAVE_WAIT: Duration = Duration::from_secs(25);
/// Requests may still answer this long after the stop was asked for.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// Shape of `superserve/base` (`spec/semantics.md` §9.3).
const BASE_SHAPE: Shape = Shape { vcpu: 1, memory_mib: 1024, disk_mib: 4096 };
/// Runtime state lives where the system empties it at boot.
const RUN_ROOT: &str = "/run/superserve";
/// Characters of the instance name: enough that two state directories of one machine never share it.
const INSTANCE_CHARS: usize = 12;

/// What users are told once the platform is ready.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) info: ServerInfo,
    pub(crate) engine: String,
    /// A stronger engine that sandboxes had before.
    pub(crate) weaker_than: Option<Engine>,
    /// The key, when this start made it.
    pub(crate) new_key: Option<Secret>,
    /// Where the authorization server is, if there is one.
    pub(crate) oauth: Option<String>,
}

/// A platform that runs until it is told to stop.
#[derive(Debug)]
pub(crate) struct Platform {
    state: StateDir,
    store: Store,
    logs: [Writer; 2],
    node: Arc<Node>,
    lifecycle: Arc<Lifecycle>,
    builds: Arc<Builds>,
    edge: edge::Edge,
    app: axum::Router,
    mcp: mcp::HttpServer,
    /// What MCP calls, and where: see [`MCP_API`].
    mcp_api: (axum::Router, TcpListener),
    oauth: Option<Oauth>,
    api_listener: TcpListener,
    edge_listener: TcpListener,
}

/// MCP calls the control plane as any client does, but not at the same address: it would compete for connections with its own
/// clients, and could make none for the calls that end while the server stops.
const MCP_API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
/// Nobody but MCP uses that address, and MCP is done then.
const MCP_DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// Names what this state directory owns on the machine: cgroups, namespaces, run directory.
pub(crate) fn instance(root: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let digest = Sha256::digest(root.as_os_str().as_bytes());
    let mut name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    name.truncate(INSTANCE_CHARS);
    name
}

/// A key for one purpose, derived from the master key.
fn derived_key(master: &[u8; 32], purpose: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(master).expect("HMAC takes keys of any length");
    mac.update(purpose.as_bytes());
    mac.finalize().into_bytes().into()
}

pub(crate) async fn open_node(
    config: &Config,
    engines: Engines,
    network_log: Arc<dyn NetworkSink>,
    interceptor: Option<Arc<dyn Interceptor>>,
) -> Result<Arc<Node>, Failure> {
    let node = NodeConfig {
        state_dir: config.state_dir.clone(),
        layers_dir: config.layers_dir.clone(),
        run_dir: Path::new(RUN_ROOT).join(instance(&config.state_dir)),
        agent: config.agent.clone(),
        id_shift: templates::ID_SHIFT,
        link_range: config.link_range,
        template_states: config.template_snapshots as usize,
        egress: GatewayConfig { interceptor, ..config.egress.clone() },
        network_log,
    };
    Node::open(node, engines).await.map_err(failed)
}

/// A problem of the platform's own start, with its cause: whoever starts it may see everything.
fn failed(problem: Problem) -> Failure {
    Failure::new(problem.chain())
}

impl Platform {
    /// Makes everything ready; nothing is served yet, but the addresses are taken. Whoever gives it up while there is something
    /// of a proof ([`proof::is_there`]) lets it come to an end, which is soon after `stop`.
    pub(crate) async fn prepare(
        config: &Config,
        state: StateDir,
        stop: &CancellationToken,
    ) -> Result<(Self, Ready), Failure> {
        let master = state.master_key()?;
        let hosts = edge::Hosts::new(&config.sandbox_hosts)?;
        // What has a certificate of its own needs no authority of ours, which would have to be trusted anew.
        let own = config.certificate.as_ref();
        let issued = edge::Hosts::new(hosts.iter().filter(|host| own.is_none_or(|own| own.host != *host)))?;
        let ca = Arc::new(edge::Ca::open(&tls_dir(state.root()), &issued)?);
        let tls = match own {
            Some(own) => edge::server_config_with_own(ca, &issued, &own.host, &own.cert, &own.key)?,
            None => edge::server_config(ca, &issued)?,
        };
        let store = Store::open(&database_path(state.root())).await?;
        let new_key = first_key(&store, &state).await?;
        ensure_base(config, &store).await?;
        // Before the node makes the disks say so.
        if node::guests_mount_disks(&config.state_dir) {
            store.sandbox_engine_of_all(Engine::Qemu).await?;
        }

        // Taken before machines are touched, so that a taken address changes nothing.
        let api_listener = listen("--listen", config.listen).await?;
        let edge_listener = listen("--edge-listen", config.edge_listen).await?;
        let api_address = api_listener.local_addr()?;
        let edge_address = edge_listener.local_addr()?;

        let (recorder, activity_writer) = Recorder::start(store.clone(), config.activity);
        let (network, network_writer) = NetworkLog::start(store.clone(), config.network_log);
        let secrets = Secrets::open(store.clone(), Keyring::new(&state.secret_keys()?)?).await?;
        let broker = Broker::new(
            broker::Ca::open(&tls_dir(state.root()))?,
            &config.service_authorities,
            Arc::clone(&secrets) as Arc<dyn Credentials>,
            Arc::new(network.clone()),
        )?;
        secrets.trust(broker.ca().trust());
        if let Err(why) = proof::clean_up(config).await {
            tracing::warn!(why, "what is left of a proof of isolation engines stays");
        }
        if stop.is_cancelled() {
            return Err(Failure::new("stopped before the platform was ready"));
        }
        let choice = match engine::named(config.isolation) {
            Some(engine) => Choice { engine, config: config.clone(), weaker_than: None },
            None => auto::choose(config, &base_layers(&store).await?, stop).await?,
        };
        let config = &choice.config;
        let engines = engine::open(config, &instance(&config.state_dir));
        let offer = engine::offer(config, &engines, choice.engine)?;
        let engine = offer.default_engine().to_string();
        let node = open_node(config, engines, Arc::new(network.clone()), Some(Arc::new(broker))).await?;
        let lifecycle = Lifecycle::start(
            store.clone(),
            Arc::clone(&node) as Arc<dyn Host>,
            recorder.clone(),
            Arc::clone(&secrets),
            LifecycleConfig {
                quota: config.max_active_sandboxes,
                pause_grace: PAUSE_GRACE,
                save_wait: SAVE_WAIT,
                token_key: derived_key(&master, "superserve data-plane tokens v1"),
                preview_key: derived_key(&master, "superserve preview tokens v1"),
                layers: open_layers(config)?,
                engines: offer.clone(),
            },
        )
        .await
        .map_err(failed)?;

        // After the sandboxes: what an earlier server left of its builds has been removed with what belongs to none.
        let builds = Builds::start(
            store.clone(),
            Arc::clone(&node) as Arc<dyn Host>,
            open_layers(config)?,
            recorder.clone(),
            BuildsConfig {
                state_dir: config.state_dir.clone(),
                quota: config.templates.quota,
                running: config.templates.running,
                access: config.registry_access.clone(),
                cache_bytes: config.templates.cache_bytes,
                ready_within: config.templates.ready_within,
                owns_layers: config.layers_dir.starts_with(&config.state_dir),
                owner: store.team_ensure(TEAM, Timestamp::now()).await?.id,
                engines: offer,
            },
        )
        .await
        .map_err(failed)?;
        builds.offer_curated().await.map_err(failed)?;

        let traffic = edge::Traffic::default();
        let observer = Arc::new(Observers::new(
            Arc::clone(&lifecycle),
            Arc::clone(&node),
            recorder.clone(),
            network.clone(),
            traffic.clone(),
        )?);
        let edge = edge::Edge::new(
            edge::EdgeConfig {
                hosts,
                tls,
                cors_origins: config.cors_origins.clone(),
                limits: edge::Limits {
                    preview_requests_per_second: config.preview_requests_per_second,
                    preview_body_bytes: config.preview_body_mib.map(|mib| u64::from(mib) * 1024 * 1024),
                    ..edge::Limits::default()
                },
                observer: Arc::clone(&observer) as Arc<dyn edge::Observer>,
                traffic,
            },
            Arc::new(Sandboxes(Arc::clone(&lifecycle))),
        );
        let info = ServerInfo {
            pid: std::process::id(),
            base_url: format!("http://{}", reachable(api_address)),
            edge: reachable(edge_address),
            sandbox_hosts: config.sandbox_hosts.clone(),
        };
        let mcp_listener = listen("--listen", MCP_API).await?;
        let mcp_url = format!("http://{}", mcp_listener.local_addr()?);
        let mcp_config = crate::commands::mcp::mounted_config(api_address, &mcp_url)?;
        let oauth = Oauth::start(
            &config.oauth,
            api_address,
            mcp_config.origins(),
            derived_key(&master, "superserve oauth tokens v1"),
            &store,
            Arc::clone(&observer) as Arc<dyn oauth::Observer>,
        )?;
        let app = api::router(api::ApiState {
            lifecycle: Arc::clone(&lifecycle),
            builds: Arc::clone(&builds),
            max_shape: config.templates.shape,
            store: store.clone(),
            activity: recorder,
            network,
            secrets,
            observer,
            metrics: match config.metrics {
                MetricsSetting::On => api::MetricsAccess::Local,
                MetricsSetting::Key => api::MetricsAccess::Key,
                MetricsSetting::Off => api::MetricsAccess::Off,
            },
            delegation: oauth.as_ref().map(|oauth| oauth.server.delegation()),
            descriptor: Arc::new(descriptor(config, &info, &engine)),
        });
        let mcp = crate::commands::mcp::mounted(mcp_config, oauth.as_ref())?;
        let mcp_api = (app.clone(), mcp_listener);
        let app = mcp.mounted_over(app);
        let app = match &oauth {
            Some(oauth) => oauth.server.mounted_over(app),
            None => app,
        };
        let logs = [activity_writer, network_writer];
        let oauth_url = oauth.as_ref().map(|oauth| oauth.url.origin().to_owned());
        let platform = Self {
            state,
            store,
            logs,
            node,
            lifecycle,
            builds,
            edge,
            app,
            mcp,
            mcp_api,
            oauth,
            api_listener,
            edge_listener,
        };
        Ok((platform, Ready { info, engine, weaker_than: choice.weaker_than, new_key, oauth: oauth_url }))
    }

    /// Serves until `stop`; sandboxes go on running.
    pub(crate) async fn serve(self, ready: &Ready, stop: CancellationToken) -> Result<(), Failure> {
        self.state.write_server_info(&ready.info)?;
        let api = crate::http::serve(self.api_listener, self.app, stop.clone(), DRAIN_LIMIT);
        let edge = self.edge.serve(self.edge_listener, stop.clone().cancelled_owned());
        let (mcp_app, mcp_listener) = self.mcp_api;
        let mcp_done = CancellationToken::new();
        let mcp_api = crate::http::serve(mcp_listener, mcp_app, mcp_done.clone(), MCP_DRAIN_LIMIT);
        let front = async {
            api.await;
            self.mcp.close().await;
            mcp_done.cancel();
        };
        // At once: whoever follows a build's log would hold up the end of the API.
        let builds = async {
            stop.cancelled().await;
            self.builds.shutdown().await
        };
        let ((), drained, built, ()) = tokio::join!(front, edge, builds, mcp_api);
        if !built {
            tracing::warn!("builds were still ending; the next start removes what is left of them");
        }
        if let edge::Drained::Cut(connections) = drained {
            tracing::warn!(connections, "cut data-plane connections that were still open");
        }
        if !self.lifecycle.shutdown().await {
            tracing::warn!("some operations were still running; the next start finishes them");
        }
        // It writes to the database, and must not while that closes.
        drop(self.oauth);
        // Nothing is left on the machine when nothing runs on it.
        let closed = self.node.close().await;
        // Last, because everything before may still have something to tell.
        for log in self.logs {
            log.stop().await;
        }
        self.store.close().await;
        closed.map_err(failed)?;
        Ok(())
    }
}

/// What a reset has removed.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    pub(crate) sandboxes: u64,
    /// Those with memory.
    pub(crate) snapshots: u64,
}

/// Removes all sandboxes of a state directory from this machine and from its database.
pub(crate) async fn reset(config: &Config) -> Result<Removed, Failure> {
    let database = database_path(&config.state_dir);
    // Nobody goes out any more: neither the uplink nor the log has to be there.
    let config = &Config { egress: egress::GatewayConfig::default(), ..config.clone() };
    proof::clean_up(config).await.map_err(Failure::new)?;
    let engines = engine::open(config, &instance(&config.state_dir));
    let node = open_node(config, engines, Arc::new(NoLog), None).await?;
    node.adopt(Vec::new(), BTreeSet::new()).await.map_err(failed)?;
    let left = node.present().await.map_err(failed)?;
    if !left.is_empty() {
        node.close().await.map_err(failed)?;
        let named = proof::named(&left);
        return Err(Failure::new(format!("{} sandboxes cannot be removed: {named}", left.len()))
            .hint("install what is missing (`superserve doctor` says how) and repeat; nothing was forgotten of the sandboxes"));
    }
    // Memory is of no use to another engine, and is on this host alone.
    node.forget_others(BTreeSet::new()).await.map_err(failed)?;
    node.forget_templates().await.map_err(failed)?;
    node.close().await.map_err(failed)?;
    if !database.exists() {
        return Ok(Removed::default());
    }
    let store = Store::open(&database).await?;
    let sandboxes = store.sandbox_forget_all().await?;
    let snapshots = store.snapshot_forget_memory().await?;
    store.close().await;
    Ok(Removed { sandboxes, snapshots })
}

/// Where nobody asks what sandboxes did.
#[derive(Debug)]
pub(crate) struct NoLog;

impl NetworkSink for NoLog {
    fn record(&self, _event: NetworkEvent) {}
}

async fn listen(flag: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::new(format!("cannot listen on {address}: {error}"))
            .hint(format!("free the address, or choose another with {flag}"))
    })
}

/// An address that a client on this machine can connect to.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => SocketAddr::from(([127, 0, 0, 1], v4.port())),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, v6.port()))
        }
        other => other,
    }
}

fn descriptor(config: &Config, info: &ServerInfo, engine: &str) -> wire::well_known::Descriptor {
    // Browsers resolve names below `localhost` by themselves, and trust this machine without a certificate; the
    // vendor's names need DNS or a proxy.
    let local = config.sandbox_hosts.iter().find(|host| host.ends_with(".localhost"));
    let host = local.or(config.sandbox_hosts.first()).map_or("sandbox.localhost", String::as_str);
    let (sandbox_host, scheme) = match &config.public_host {
        Some(public) => (public.clone(), "https"),
        None => (format!("{host}:{}", info.edge.port()), if local.is_some() { "http" } else { "https" }),
    };
    wire::well_known::Descriptor {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_plane_url: format!("http://{}", info.edge),
        sandbox_host,
        scheme: scheme.to_owned(),
        engine: engine.to_owned(),
    }
}

/// Makes the team and its first key where there is none; the key's only copy is the file.
async fn first_key(store: &Store, state: &StateDir) -> Result<Option<Secret>, Failure> {
    let team = store.team_ensure(TEAM, Timestamp::now()).await?;
    let exists = store.key_list().await?.iter().any(|key| key.team == team.id);
    if exists {
        return Ok(None);
    }
    let (key, _) = store.key_create(team.id, "first", Timestamp::now()).await?;
    state.write_api_key(&key)?;
    Ok(Some(key))
}

/// Whether `up` can start without making the base template.
pub(crate) fn base_layer_exists(config: &Config) -> bool {
    let pulled = |image: &String| templates::recorded_base(&config.layers_dir, image).is_some();
    config.base_image.as_ref().is_some_and(pulled) || templates::base_is_made(&config.layers_dir)
}

/// The layers of `superserve/base`, which every platform has.
pub(crate) async fn base_layers(store: &Store) -> Result<Vec<String>, Failure> {
    let base = store.template_find(store::system_team(), domain::DEFAULT_TEMPLATE).await?;
    base.map(|row| row.layers).ok_or_else(|| Failure::new("there is no superserve/base"))
}

/// Makes `superserve/base` unless it is there, and records it. What is there is replaced only where another image is
/// configured than the one it came from.
async fn ensure_base(config: &Config, store: &Store) -> Result<(), Failure> {
    let team = store::system_team();
    let known = store.template_find(team, domain::DEFAULT_TEMPLATE).await?;
    let layers = open_layers(config)?;
    let usable = |row: &&TemplateRow| row.layers.iter().all(|digest| layers.path(digest).is_some());
    let usable = known.as_ref().filter(usable);
    let made = match (&config.base_tar, &config.base_image) {
        (None, Some(image)) => {
            let recorded = templates::recorded_base(&config.layers_dir, image);
            if usable
                .zip(recorded)
                .is_some_and(|(row, image)| image.layers.iter().map(|layer| &layer.digest).eq(&row.layers))
            {
                return Ok(());
            }
            let bar = Bar::new(domain::DEFAULT_TEMPLATE);
            let room = u64::from(BASE_SHAPE.disk_mib) * 1024 * 1024;
            let access = config.registry_access.trusting(image);
            match templates::base_from_image(&layers, image, &access, room, move |phase| bar.update(phase))
                .await
            {
                // The image may be had later; sandboxes are wanted now.
                Err(error @ TemplateError::Registry { .. }) => {
                    let instead = if usable.is_some() { "the base made before" } else { "Debian packages" };
                    tracing::warn!(%image, %error, instead, "cannot pull the base image");
                    None
                }
                pulled => Some(pulled?),
            }
        }
        _ => None,
    };
    let image = match (made, &config.base_tar) {
        (Some(image), _) => image,
        (None, _) if usable.is_some() => return Ok(()),
        (None, Some(file)) => Image::from(import_archive(config, file)?),
        (None, None) => {
            let bar = Bar::new(domain::DEFAULT_TEMPLATE);
            templates::bootstrap_base(&layers, move |phase| bar.update(phase)).await?.into()
        }
    };
    let now = Timestamp::now();
    let row = TemplateRow {
        id: known.as_ref().map_or_else(TemplateId::new, |row| row.id),
        team,
        name: domain::DEFAULT_TEMPLATE.to_owned(),
        status: TemplateStatus::Ready,
        shape: BASE_SHAPE,
        engine: None,
        size_bytes: Some(image.size_bytes()),
        layers: image.layers.into_iter().map(|layer| layer.digest).collect(),
        defaults: image.defaults,
        created_at: known.map_or(now, |row| row.created_at),
        built_at: Some(now),
        error: None,
        spec: None,
    };
    store.template_put(&row).await?;
    Ok(())
}

pub(crate) fn open_layers(config: &Config) -> Result<LayerStore, Failure> {
    Ok(LayerStore::open(&config.layers_dir)?)
}

/// Unpacks a root file system archive into a layer.
pub(crate) fn import_archive(config: &Config, file: &Path) -> Result<Layer, Failure> {
    let open = std::fs::File::open(file)
        .map_err(|error| Failure::new(format!("cannot read {}: {error}", file.display())))?;
    Ok(open_layers(config)?.import_tar(std::io::BufReader::new(open), &|_| {})?)
}
