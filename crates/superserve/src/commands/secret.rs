//! `superserve secret …`: everyday use over the public API, and replacing the key that seals all secrets, which works on
//! the state directory of a stopped server.

use std::process::ExitCode;

use activity::{Action, Actor, Caller, Entry};
use clap::Subcommand;
use client::Client;
use jiff::Timestamp;
use secrets::Keyring;
use store::Store;

use crate::commands::connect;
use crate::commands::sandbox::{block_on, finish};
use crate::config::StateDirArg;
use crate::output::{Failure, Outcome, print};
use crate::platform::TEAM;
use crate::state_dir::{StateDir, StateDirError, database_path};

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    #[command(flatten)]
    Use(Box<cli::SecretCommand>),
    /// Replace the key that seals all secrets on this machine's disk; the server must be stopped
    RotateKey,
}

pub(crate) fn run(state: &StateDirArg, command: SecretCommand, json: bool) -> Outcome {
    match command {
        SecretCommand::Use(command) => {
            let client = Client::new(connect::config(&state.state_dir)?)?;
            Ok(finish(block_on(cli::run_secret(*command, &client, json))?, json))
        }
        SecretCommand::RotateKey => {
            let path = database_path(&state.state_dir);
            if !path.exists() {
                return Err(StateDirError::NeverStarted { path: state.state_dir.clone() }.into());
            }
            // Held until the end: a server that started in between would have the old key only.
            let directory = StateDir::open(&state.state_dir).map_err(|error| match error {
                busy @ StateDirError::Busy { .. } => Failure::from(busy)
                    .hint("stop the server; sandboxes go on running, and the next start finds them"),
                other => other.into(),
            })?;
            block_on(rotate_key(&directory, json))?
        }
    }
}

/// Whatever is cut off in between, every value is sealed with a key that is in the file.
async fn rotate_key(directory: &StateDir, json: bool) -> Outcome {
    let mut keys = directory.secret_keys()?;
    keys.insert(0, directory.new_secret_key()?);
    directory.write_secret_keys(&keys)?;
    let store = Store::open(&database_path(directory.root())).await?;
    let sealed = secrets::rewrap_all(&store, &Keyring::new(&keys)?).await;
    let sealed = match sealed {
        Ok(sealed) => sealed,
        Err(error) => {
            store.close().await;
            directory.write_secret_keys(&keys[1..])?;
            return Err(Failure::from(error).hint("nothing was changed; the former keys stay in use"));
        }
    };
    keys.truncate(1);
    directory.write_secret_keys(&keys)?;
    let team = store.team_ensure(TEAM, Timestamp::now()).await?.id;
    let by = Caller { team, actor: Actor::Operator, request: None };
    let entry = Entry { facts: vec![("secrets", sealed.into())], ..Entry::new(Action::SecretKeyRotated, by) };
    store.activity_add(&[entry.into_row(Timestamp::now())]).await?;
    store.close().await;
    if json {
        print(serde_json::json!({ "secrets": sealed, "key": keys[0].0 }));
    } else {
        print(format!("sealed {sealed} secrets with the new key {}; the former key is gone", keys[0].0));
    }
    Ok(ExitCode::SUCCESS)
}
