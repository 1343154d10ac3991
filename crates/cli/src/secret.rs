//! `superserve secret …`. A value comes from standard input or is typed at a prompt; it is never an argument, is never
//! printed, and nothing can read it back.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use client::{AuditFilter, Client, ClientError, CreateSecret, Secret, SecretAuth};

use crate::args::{NewSecretArgs, SecretCommand};
use crate::error::{CliError, INTERRUPTED};
use crate::interrupt::unless_interrupted;
use crate::out::{self, Stop, printable};
use crate::sandbox::whole_seconds;
use crate::{table, terminal};

/// Longest input that is read for a value: a little more than the platform takes, so that it can say so.
const MAX_INPUT: u64 = 16 * 1024;
/// Largest file with `auth`.
const MAX_AUTH_FILE: u64 = 64 * 1024;

/// Runs the command and says what the process should exit with.
///
/// # Errors
/// [`CliError`], ready to be reported.
pub async fn run_secret(command: SecretCommand, client: &Client, json: bool) -> Result<u8, CliError> {
    // Before anything waits: a prompt must not be left half-way by Ctrl-C with the echo off.
    let value = match &command {
        SecretCommand::Create(_) | SecretCommand::Rotate { .. } => Some(read_value()?),
        _ => None,
    };
    out::settle(unless_interrupted(run(command, value, client, json)).await.map(|()| 0))
}

async fn run(
    command: SecretCommand,
    value: Option<domain::Secret>,
    client: &Client,
    json: bool,
) -> Result<(), Stop> {
    let value = value.unwrap_or_else(|| domain::Secret::new(""));
    match command {
        SecretCommand::Create(args) => {
            let body = request(args, &value)?;
            let secret = client.create_secret(&body).await.map_err(CliError::from)?;
            if json { out::json(&secret) } else { out::line(&format!("stored {}", printable(&secret.name))) }
        }
        SecretCommand::Rotate { name } => {
            let secret =
                client.rotate_secret(&name, &value).await.map_err(|error| of_secret(error, &name))?;
            if json { out::json(&secret) } else { out::line(&format!("rotated {}", printable(&secret.name))) }
        }
        SecretCommand::List => {
            let secrets = client.list_secrets().await.map_err(CliError::from)?;
            if json {
                return out::json(&secrets);
            }
            if secrets.is_empty() {
                out::note("No secrets. Store one: superserve secret create NAME --provider PROVIDER");
                return Ok(());
            }
            let rows: Vec<_> = secrets.iter().map(row).collect();
            out::line(&table::render(&["NAME", "PROVIDER", "AUTH", "HOSTS", "LAST USED"], &rows))
        }
        SecretCommand::Info { name } => {
            let secret = client.get_secret(&name).await.map_err(|error| of_secret(error, &name))?;
            if json { out::json(&secret) } else { out::line(&described(&secret)) }
        }
        SecretCommand::Delete { name } => {
            client.delete_secret(&name).await.map_err(|error| of_secret(error, &name))?;
            if json {
                out::json(&serde_json::json!({ "name": name, "status": "deleted" }))
            } else {
                out::line(&format!(
                    "deleted {}; sandboxes that have it are refused from now on",
                    printable(&name)
                ))
            }
        }
        SecretCommand::Sandboxes { name } => {
            let bound = client.secret_sandboxes(&name).await.map_err(|error| of_secret(error, &name))?;
            if json {
                return out::json(&bound);
            }
            let rows =
                bound.into_iter().map(|row| vec![row.sandbox_id, row.sandbox_name, row.env_key, row.status]);
            out::line(&table::render(&["SANDBOX", "NAME", "VARIABLE", "STATUS"], &rows.collect::<Vec<_>>()))
        }
        SecretCommand::Audit { name, errors, limit } => {
            let filter =
                AuditFilter { limit: Some(limit), status: errors.then(|| "errors".to_owned()), before: None };
            let rows = client.secret_audit(&name, &filter).await.map_err(|error| of_secret(error, &name))?;
            if json {
                return out::json(&rows);
            }
            let rows = rows.into_iter().map(|row| {
                let sandbox = row.sandbox_name.unwrap_or(row.sandbox_id);
                let what = format!("{} {}{}", row.method, row.host, row.path);
                let status = row.status.to_string();
                vec![whole_seconds(&row.ts), sandbox, status, what, row.error_code.unwrap_or_default()]
            });
            out::line(&table::render(
                &["TIME", "SANDBOX", "STATUS", "REQUEST", "ERROR"],
                &rows.collect::<Vec<_>>(),
            ))
        }
        SecretCommand::Providers => {
            let providers = client.list_providers().await.map_err(CliError::from)?;
            if json {
                return out::json(&providers);
            }
            let rows = providers.into_iter().map(|provider| {
                vec![
                    provider.name,
                    provider.display,
                    provider.auth_type,
                    provider.hosts.join(","),
                    provider.token_shape,
                ]
            });
            out::line(&table::render(
                &["NAME", "PROVIDER", "AUTH", "HOSTS", "SHAPE"],
                &rows.collect::<Vec<_>>(),
            ))
        }
        SecretCommand::Attach { id, env_key, name } => {
            client.attach_secret(&id, &env_key, &name).await.map_err(|error| of_binding(&error, &id))?;
            done(json, &id, &env_key, "attached")
        }
        SecretCommand::Detach { id, env_key } => {
            client.detach_secret(&id, &env_key).await.map_err(|error| of_binding(&error, &id))?;
            done(json, &id, &env_key, "detached")
        }
    }
}

fn done(json: bool, id: &str, env_key: &str, status: &str) -> Result<(), Stop> {
    if json {
        return out::json(&serde_json::json!({ "sandbox_id": id, "env_key": env_key, "status": status }));
    }
    out::line(&format!("{status} {}; processes started from now on are affected", printable(env_key)))
}

fn of_secret(error: ClientError, name: &str) -> CliError {
    let missing = error.status() == Some(404);
    let shown = CliError::from(error);
    if !missing {
        return shown;
    }
    CliError { message: format!("secret {} not found", printable(name)), ..shown }
        .hint("superserve secret list")
}

fn of_binding(error: &ClientError, id: &str) -> CliError {
    match error.api().map(|api| (api.status, api.code.as_str())) {
        Some((404, _)) => CliError::from(error.clone()).hint(format!("superserve sandbox info {id}")),
        Some((400, "secret_not_found")) => CliError::from(error.clone()).hint("superserve secret list"),
        _ => CliError::of_sandbox(error, id),
    }
}

fn row(secret: &Secret) -> Vec<String> {
    vec![
        secret.name.clone(),
        secret.provider_shortcut.clone().unwrap_or_else(|| "-".to_owned()),
        secret.auth_type.clone(),
        secret.hosts.join(","),
        secret.last_used_at.as_deref().map_or_else(|| "never".to_owned(), whole_seconds),
    ]
}

fn described(secret: &Secret) -> String {
    let lines = [
        ("name", Some(secret.name.clone())),
        ("id", Some(secret.id.clone())),
        ("provider", secret.provider_shortcut.clone()),
        ("auth", Some(secret.auth_type.clone())),
        (
            "config",
            secret
                .auth_config
                .as_object()
                .filter(|config| !config.is_empty())
                .map(|_| secret.auth_config.to_string()),
        ),
        ("hosts", Some(secret.hosts.join(", "))),
        ("created", Some(whole_seconds(&secret.created_at))),
        ("value since", Some(whole_seconds(&secret.updated_at))),
        ("last used", secret.last_used_at.as_deref().map(whole_seconds)),
    ];
    let shown = lines.into_iter().filter_map(|(key, value)| {
        value.map(|value| format!("{:<12} {}", format!("{key}:"), printable(&value)))
    });
    shown.collect::<Vec<_>>().join("\n")
}

fn request(args: NewSecretArgs, value: &domain::Secret) -> Result<CreateSecret, CliError> {
    let auth = match args.auth_file {
        Some(file) => Some(read_auth(&file)?),
        None => args.auth.map(|kind| SecretAuth {
            kind: Some(kind),
            header: args.header,
            prefix: args.prefix,
            username: args.username,
            headers: (!args.template.is_empty())
                .then(|| args.template.into_iter().collect::<BTreeMap<_, _>>()),
            ..SecretAuth::default()
        }),
    };
    Ok(CreateSecret {
        name: args.name,
        value: value.expose_secret().to_owned(),
        provider: args.provider,
        auth,
        hosts: (!args.host.is_empty()).then_some(args.host),
        scrub_bodies: args.scrub_bodies.then_some(true),
        in_query: args.in_query.then_some(true),
    })
}

fn read_auth(file: &std::path::Path) -> Result<SecretAuth, CliError> {
    let failed = |what: String| CliError::new(format!("{}: {what}", file.display()));
    let mut text = String::new();
    let open = std::fs::File::open(file).map_err(|error| failed(format!("cannot read it: {error}")))?;
    open.take(MAX_AUTH_FILE)
        .read_to_string(&mut text)
        .map_err(|error| failed(format!("cannot read it: {error}")))?;
    serde_json::from_str(&text)
        .map_err(|error| failed(format!("it is not the `auth` object of the API: {error}")))
}

/// The value: typed without an echo, or everything on standard input less one line break at its end.
fn read_value() -> Result<domain::Secret, CliError> {
    let value = if terminal::stdin_is_terminal() { prompt()? } else { piped()? };
    if value.expose_secret().is_empty() {
        return Err(CliError::new("there is no value on standard input")
            .hint("printf %s \"$VALUE\" | superserve secret create NAME …, or type it at the prompt"));
    }
    Ok(value)
}

fn piped() -> Result<domain::Secret, CliError> {
    let failed = |what: String| CliError::new(format!("cannot read the value: {what}"));
    let mut text = String::new();
    let read = io::stdin().lock().take(MAX_INPUT).read_to_string(&mut text);
    let text = read.map(|_| domain::Secret::new(text)).map_err(|error| failed(error.to_string()))?;
    Ok(without_line_break(&text))
}

fn without_line_break(text: &domain::Secret) -> domain::Secret {
    let text = text.expose_secret();
    let line = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
    domain::Secret::new(line)
}

/// What ends or mends a line that is typed unseen, since the terminal does none of it meanwhile.
const ENTER: [u8; 2] = [b'\r', b'\n'];
const GIVE_UP: [u8; 2] = [0x03, 0x04];
const ERASE: [u8; 2] = [0x7f, 0x08];
const ERASE_ALL: u8 = 0x15;

fn prompt() -> Result<domain::Secret, CliError> {
    let failed = |what: String| CliError::new(format!("cannot read the value: {what}"));
    let _nobody_sees_it = write!(io::stderr(), "Value: ").and_then(|()| io::stderr().flush());
    // Nothing is echoed, and Ctrl-C is a key like any other, so that the terminal is whole again in every case.
    let raw = terminal::Raw::enter()?;
    let line = typed(io::stdin().lock().take(MAX_INPUT));
    drop(raw);
    out::note("");
    match line.map_err(|error| failed(error.to_string()))? {
        Some(line) => {
            String::from_utf8(line).map(domain::Secret::new).map_err(|_| failed("it is no text".to_owned()))
        }
        None => Err(CliError::new("interrupted").exit_code(INTERRUPTED)),
    }
}

/// A line, or nothing when whoever typed it gave up.
fn typed(keys: impl io::BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    for key in keys.bytes() {
        match key? {
            key if ENTER.contains(&key) => return Ok(Some(line)),
            key if GIVE_UP.contains(&key) => return Ok(None),
            key if ERASE.contains(&key) => {
                // A character, however many bytes it has.
                while line.pop().is_some_and(|byte: u8| byte & 0xc0 == 0x80) {}
            }
            ERASE_ALL => line.clear(),
            key => line.push(key),
        }
    }
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_break_goes_and_nothing_else() {
        for (given, kept) in
            [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a "), ("\n", "")]
        {
            assert_eq!(without_line_break(&domain::Secret::new(given)).expose_secret(), kept, "{given:?}");
        }
    }

    #[test]
    fn a_typed_line_can_be_mended_and_given_up() {
        for (keys, line) in [
            ("abc\r", Some("abc")),
            ("abc\nrest", Some("abc")),
            ("ab\u{fc}\u{7f}c\r", Some("abc")),
            ("wrong\u{15}right\r", Some("right")),
            ("\u{7f}\u{7f}a\r", Some("a")),
            ("abc\u{3}", None),
            ("\u{4}", None),
            ("abc", Some("abc")),
        ] {
            let typed = typed(keys.as_bytes()).unwrap().map(|line| String::from_utf8(line).unwrap());
            assert_eq!(typed.as_deref(), line, "{keys:?}");
        }
    }

    #[test]
    fn arguments_become_the_request() {
        let value = domain::Secret::new("hunter2");
        let args =
            NewSecretArgs { name: "a".into(), provider: Some("openai".into()), ..NewSecretArgs::default() };
        let body = serde_json::to_value(request(args, &value).unwrap()).unwrap();
        assert_eq!(body, serde_json::json!({"name": "a", "value": "hunter2", "provider": "openai"}));
        let args = NewSecretArgs {
            name: "a".into(),
            auth: Some("custom".into()),
            template: vec![("X-A".into(), "a {{ value }}".into())],
            host: vec!["a.test".into()],
            ..NewSecretArgs::default()
        };
        let body = serde_json::to_value(request(args, &value).unwrap()).unwrap();
        assert_eq!(body["auth"], serde_json::json!({"type": "custom", "headers": {"X-A": "a {{ value }}"}}));
        assert_eq!(body["hosts"], serde_json::json!(["a.test"]));
    }
}
