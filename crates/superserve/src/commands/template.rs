//! `superserve template …`: listing over the API, importing into the state directory.

use std::path::PathBuf;
use std::process::ExitCode;

use activity::{Action, Actor, Caller, Entry};
use clap::Subcommand;
use client::Client;
use domain::{RuntimeDefaults, Shape, TemplateId, TemplateStatus};
use jiff::Timestamp;
use store::{Store, StoreError, TemplateRow};

use crate::commands::connect;
use crate::commands::sandbox::{block_on, finish};
use crate::config::{Settings, StateDirArg};
use crate::output::{Failure, Outcome, print};
use crate::platform::TEAM;
use crate::state_dir::{StateDirError, database_path};

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Show the templates sandboxes can be made from
    #[command(visible_alias = "ls")]
    List,
    /// Make a template from a root file system archive (tar or tar.gz)
    Import {
        /// The archive
        file: PathBuf,
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

pub(crate) fn run(state: &StateDirArg, command: TemplateCommand, json: bool) -> Outcome {
    match command {
        TemplateCommand::List => {
            let client = Client::new(connect::config(&state.state_dir)?)?;
            Ok(finish(block_on(cli::run_template(cli::TemplateCommand::List, &client, json))?, json))
        }
        TemplateCommand::Import { file, name, vcpu, memory_mib, disk_mib } => {
            check_name(&name)?;
            let shape = Shape { vcpu, memory_mib, disk_mib };
            let database = database_path(&state.state_dir);
            if !database.exists() {
                return Err(StateDirError::NeverStarted { path: state.state_dir.clone() }.into());
            }
            let settings = Settings::from_file(None, &state.state_dir)?;
            let config = Settings::default().over(settings, state.state_dir.clone())?;
            let layer = crate::platform::import_archive(&config, &file)?;
            let row = block_on(async {
                let store = Store::open(&database).await?;
                let row = record(&store, name, shape, &layer).await;
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
                    layer.size_bytes / (1024 * 1024),
                    row.id
                ));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn record(
    store: &Store,
    name: String,
    shape: Shape,
    layer: &templates::Layer,
) -> Result<TemplateRow, StoreError> {
    let team = store.team_ensure(TEAM, Timestamp::now()).await?;
    let now = Timestamp::now();
    let row = TemplateRow {
        id: TemplateId::new(),
        team: team.id,
        name,
        status: TemplateStatus::Ready,
        shape,
        defaults: RuntimeDefaults::default(),
        layers: vec![layer.digest.clone()],
        size_bytes: Some(layer.size_bytes),
        created_at: now,
        built_at: Some(now),
        error: None,
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

/// `spec/rest-api.md` §10.3.
fn check_name(name: &str) -> Result<(), Failure> {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = name.as_bytes();
    let inner = bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._/-".contains(b));
    if bytes.len() > 128 || !edge(bytes.first()) || !edge(bytes.last()) || !inner {
        return Err(Failure::new(format!("`{name}` is not accepted as a template name"))
            .hint("use 1 to 128 lower-case letters, digits, `.`, `_`, `/`, `-`, beginning and ending with a letter or digit"));
    }
    if name.starts_with(domain::RESERVED_TEMPLATE_PREFIX) {
        return Err(
            Failure::new("names below `superserve/` are the platform's own").hint("choose another name")
        );
    }
    Ok(())
}
