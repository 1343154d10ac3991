//! `superserve key …`: works on the state directory, also while a server runs.

use std::process::ExitCode;

use activity::{Action, Actor, Caller, Entry};
use clap::Subcommand;
use domain::TeamId;
use jiff::Timestamp;
use store::{KeyRow, OauthGrantSummary, Store, StoreError};

use crate::commands::sandbox::block_on;
use crate::config::StateDirArg;
use crate::output::{Failure, Outcome, print};
use crate::platform::TEAM;
use crate::state_dir::{StateDirError, database_path};

/// Longest name of a key; it is shown in a table.
const MAX_NAME_BYTES: usize = 64;

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key; its text is shown this once
    Create {
        /// What the key is for
        #[arg(long, default_value = "unnamed")]
        name: String,
    },
    /// Show which keys exist, never their text
    #[command(visible_alias = "ls")]
    List,
    /// Show which MCP clients were connected with OAuth, and with which key
    Grants,
    /// End a key at once with everything connected through it, or one such connection
    Revoke {
        /// Its id, from `superserve key list` or `superserve key grants`
        id: String,
    },
}

pub(crate) fn run(state: &StateDirArg, command: KeyCommand, json: bool) -> Outcome {
    let path = database_path(&state.state_dir);
    if !path.exists() {
        return Err(StateDirError::NeverStarted { path: state.state_dir.clone() }.into());
    }
    block_on(async {
        let store = Store::open(&path).await?;
        let done = work(&store, command, json).await;
        store.close().await;
        done
    })?
}

async fn work(store: &Store, command: KeyCommand, json: bool) -> Outcome {
    match command {
        KeyCommand::Create { name } => {
            if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
                return Err(Failure::new(format!(
                    "a key name has 1 to {MAX_NAME_BYTES} bytes and no control characters"
                )));
            }
            let team = store.team_ensure(TEAM, Timestamp::now()).await?;
            let (key, row) = store.key_create(team.id, &name, Timestamp::now()).await?;
            note(store, Action::KeyCreated, team.id, vec![("key_name", row.name.as_str().into())]).await?;
            if json {
                let mut value = shown(&row);
                value["key"] = key.expose_secret().into();
                print(value);
            } else {
                print(key.expose_secret());
            }
        }
        KeyCommand::List => {
            let rows = store.key_list().await?;
            if json {
                print(serde_json::Value::Array(rows.iter().map(shown).collect()));
            } else {
                for row in &rows {
                    let state = if row.revoked_at.is_some() { "revoked" } else { "active " };
                    let used = row.last_used_at.map_or_else(
                        || "never used".to_owned(),
                        |t| format!("last used {}", domain::format_timestamp(t)),
                    );
                    print(format!("{}  {state}  {}…  {}  {used}", row.id, row.prefix, row.name));
                }
            }
        }
        KeyCommand::Grants => {
            let grants = store.oauth_grant_list(Timestamp::now()).await?;
            if json {
                print(serde_json::Value::Array(grants.iter().map(shown_grant).collect()));
            } else {
                for grant in &grants {
                    let (of, used) = (&grant.of, domain::format_timestamp(grant.of.grant.rotated_at));
                    // The name is whatever the client says; it has no control characters.
                    print(format!(
                        "{}  key {} ({})  {}  at {}  last renewed {used}",
                        of.grant.id, of.key.prefix, of.key.name, grant.client_name, of.grant.redirect_uri
                    ));
                }
            }
        }
        KeyCommand::Revoke { id } => {
            let keys = store.key_list().await?;
            let key = keys.iter().find(|key| key.id.to_string() == id && key.revoked_at.is_none());
            let Some(key) = key else {
                return revoke_grant(store, &id).await;
            };
            store.key_revoke(key.id, Timestamp::now()).await?;
            note(store, Action::KeyRevoked, key.team, vec![("key_name", key.name.as_str().into())]).await?;
            print(format!("revoked {id}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn revoke_grant(store: &Store, id: &str) -> Outcome {
    let grants = store.oauth_grant_list(Timestamp::now()).await?;
    let Some(grant) = grants.iter().find(|grant| grant.of.grant.id.to_string() == id) else {
        return Err(Failure::new(format!("no working key and no grant has the id {id}"))
            .hint("superserve key list, superserve key grants"));
    };
    let of = &grant.of;
    store.oauth_grant_end(of.grant.id).await?;
    let facts = vec![
        ("key_name", of.key.name.as_str().into()),
        ("client_id", of.grant.client.to_string().into()),
        ("grant_id", id.into()),
        ("reason", "operator".into()),
    ];
    note(store, Action::GrantRevoked, of.key.team, facts).await?;
    print(format!("revoked {id}"));
    Ok(ExitCode::SUCCESS)
}

/// Puts it into the activity log.
async fn note(
    store: &Store,
    action: Action,
    team: TeamId,
    facts: Vec<(&'static str, serde_json::Value)>,
) -> Result<(), StoreError> {
    let by = Caller { team, actor: Actor::Operator, request: None };
    let entry = Entry { facts, ..Entry::new(action, by) };
    store.activity_add(&[entry.into_row(Timestamp::now())]).await
}

fn shown(row: &KeyRow) -> serde_json::Value {
    serde_json::json!({
        "id": row.id.to_string(),
        "name": row.name,
        "prefix": row.prefix,
        "created_at": domain::format_timestamp(row.created_at),
        "revoked_at": row.revoked_at.map(domain::format_timestamp),
        "last_used_at": row.last_used_at.map(domain::format_timestamp),
    })
}

fn shown_grant(grant: &OauthGrantSummary) -> serde_json::Value {
    let of = &grant.of;
    serde_json::json!({
        "id": of.grant.id.to_string(),
        "key_id": of.key.id.to_string(),
        "key_name": of.key.name,
        "client_id": of.grant.client.to_string(),
        "client_name": grant.client_name,
        "redirect_uri": of.grant.redirect_uri,
        "resource": of.grant.resource,
        "created_at": domain::format_timestamp(of.grant.created_at),
        "renewed_at": domain::format_timestamp(of.grant.rotated_at),
        "expires_at": domain::format_timestamp(of.grant.expires_at),
    })
}
