//! `superserve template …`: listing over the API, importing into the state directory.

use std::path::PathBuf;
use std::process::ExitCode;

use activity::{Action, Actor, Caller, Entry};
use clap::{Args, Subcommand};
use client::Client;
use domain::{Shape, TemplateId, TemplateStatus};
use jiff::Timestamp;
use store::{Store, StoreError, TemplateRow};
use templates::{Bar, Image};

use crate::commands::connect;
use crate::commands::sandbox::{block_on, finish};
use crate::config::{Config, Settings, StateDirArg};
use crate::output::{Failure, Outcome, print};
use crate::platform::TEAM;
use crate::state_dir::{StateDirError, database_path};

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    #[command(flatten)]
    Remote(cli::TemplateCommand),
    /// Send a template to a registry as an image; the registry's credentials are those of registry_auth_file
    Push {
        /// Template name or id
        name: String,
        /// registry/repository:tag
        #[arg(value_name = "REF")]
        reference: String,
        #[command(flatten)]
        places: Places,
    },
    /// Make a template from a root file system archive (tar, tar.gz or tar.zst), or from an image in a registry
    Import {
        /// The archive
        #[arg(required_unless_present = "image", conflicts_with = "image")]
        file: Option<PathBuf>,
        /// The image: registry/repository:tag or …@sha256:digest; the part for linux and this machine's processor
        #[arg(long, value_name = "REF")]
        image: Option<String>,
        #[command(flatten)]
        places: Places,
        /// Name of the template: lower-case letters, digits, `.`, `_`, `/`, `-`
        #[arg(long)]
        name: String,
        /// Processors of its sandboxes
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10))]
        vcpu: u32,
        /// Memory of its sandboxes, MiB
        #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(256..=20_480))]
        memory_mib: u32,
        /// Writable disk of its sandboxes, MiB
        #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1024..=65_536))]
        disk_mib: u32,
    },
}

/// The settings of `up` that an import needs as well.
#[derive(Debug, Args)]
pub(crate) struct Places {
    /// Directory of template layers, as for `up`
    #[arg(long, env = "SUPERSERVE_LAYERS_DIR", value_name = "DIR")]
    layers_dir: Option<PathBuf>,
    /// A config.json with registry credentials
    #[arg(long, env = "SUPERSERVE_REGISTRY_AUTH_FILE", value_name = "FILE")]
    registry_auth_file: Option<PathBuf>,
    /// Registries that are spoken to without TLS
    #[arg(long, env = "SUPERSERVE_PLAIN_REGISTRIES", value_delimiter = ',', value_name = "HOST:PORT")]
    plain_registries: Option<Vec<String>>,
}

impl From<Places> for Settings {
    fn from(places: Places) -> Self {
        let Places { layers_dir, registry_auth_file, plain_registries } = places;
        Self { layers_dir, registry_auth_file, plain_registries, ..Self::default() }
    }
}

pub(crate) fn run(state: &StateDirArg, command: TemplateCommand, json: bool) -> Outcome {
    if !matches!(command, TemplateCommand::Remote(_)) {
        // Removing what an interrupted import left takes a descriptor for each directory on the way down.
        super::mcp::raise_descriptor_limit();
    }
    match command {
        TemplateCommand::Remote(command) => {
            let client = Client::new(connect::config(&state.state_dir)?)?;
            Ok(finish(block_on(cli::run_template(command, &client, json))?, json))
        }
        TemplateCommand::Push { name, reference, places } => push(state, &name, &reference, places),
        TemplateCommand::Import { file, image, places, name, vcpu, memory_mib, disk_mib } => {
            let name = domain::template_name(&name).map_err(|problem| Failure::new(problem.to_string()))?;
            let shape = Shape { vcpu, memory_mib, disk_mib };
            let database = database_path(&state.state_dir);
            if !database.exists() {
                return Err(StateDirError::NeverStarted { path: state.state_dir.clone() }.into());
            }
            let settings = Settings::from_file(None, &state.state_dir)?;
            let config = Settings::from(places).over(settings, state.state_dir.clone())?;
            // Until the template refers to them.
            let _adding = crate::platform::open_layers(&config)?.adding()?;
            let image = match (file, image) {
                (Some(file), _) => Image::from(crate::platform::import_archive(&config, &file)?),
                (None, Some(image)) => pull(&config, &image, shape)?,
                (None, None) => return Err(Failure::new("neither an archive nor an image is named")),
            };
            let row = block_on(async {
                let store = Store::open(&database).await?;
                let row = record(&store, name, shape, image).await;
                store.close().await;
                row
            })??;
            if json {
                print(
                    serde_json::json!({"id": row.id.to_string(), "name": row.name, "size_bytes": row.size_bytes}),
                );
            } else {
                print(format!(
                    "imported {} ({} MiB) as {}",
                    row.name,
                    row.size_bytes.unwrap_or_default() / (1024 * 1024),
                    row.id
                ));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn push(state: &StateDirArg, name: &str, reference: &str, places: Places) -> Outcome {
    let database = database_path(&state.state_dir);
    if !database.exists() {
        return Err(StateDirError::NeverStarted { path: state.state_dir.clone() }.into());
    }
    let settings = Settings::from_file(None, &state.state_dir)?;
    let config = Settings::from(places).over(settings, state.state_dir.clone())?;
    let layers = crate::platform::open_layers(&config)?;
    // Nobody removes what is being read.
    let _adding = layers.adding()?;
    block_on(async {
        let store = Store::open(&database).await?;
        let team = store.team_ensure(TEAM, Timestamp::now()).await?;
        let found = store.template_find(team.id, name).await;
        store.close().await;
        let row = found?.filter(|row| row.status == TemplateStatus::Ready);
        let row = row.ok_or_else(|| {
            Failure::new(format!("there is no ready template {name}")).hint("superserve template list")
        })?;
        for layer in &row.layers {
            layers.keep(layer)?;
        }
        let count = row.layers.len();
        let told = |done: usize| tracing::debug!(done, count, "pushing layers");
        let access = config.registry_access.trusting(reference);
        templates::push_image(&layers, reference, &access, &row.layers, &row.defaults, told).await?;
        print(format!("pushed {} ({count} layers) to {reference}", row.name));
        Ok(ExitCode::SUCCESS)
    })?
}

/// Fetches an image anew; layers that are there already are used.
fn pull(config: &Config, reference: &str, shape: Shape) -> Result<Image, Failure> {
    let layers = crate::platform::open_layers(config)?;
    let bar = Bar::new(reference);
    let room = u64::from(shape.disk_mib) * 1024 * 1024;
    let access = config.registry_access.trusting(reference);
    Ok(block_on(templates::pull_image(&layers, reference, &access, room, move |phase| bar.update(phase)))??)
}

async fn record(store: &Store, name: String, shape: Shape, image: Image) -> Result<TemplateRow, StoreError> {
    let team = store.team_ensure(TEAM, Timestamp::now()).await?;
    let now = Timestamp::now();
    let row = TemplateRow {
        id: TemplateId::new(),
        team: team.id,
        name,
        status: TemplateStatus::Ready,
        shape,
        engine: None,
        size_bytes: Some(image.size_bytes()),
        layers: image.layers.into_iter().map(|layer| layer.digest).collect(),
        defaults: image.defaults,
        created_at: now,
        built_at: Some(now),
        error: None,
        spec: None,
    };
    store.template_put(&row).await?;
    let by = Caller { team: team.id, actor: Actor::Operator, request: None };
    let entry = Entry {
        template: Some(row.id),
        facts: vec![("template_name", row.name.as_str().into()), ("source", "archive".into())],
        ..Entry::new(Action::TemplateCreated, by)
    };
    store.activity_add(&[entry.into_row(now)]).await?;
    Ok(row)
}
