//! `superserve mcp install`: writes the entry of the MCP server into a client's own configuration, keeps everything else that is
//! there, shows the change first, and can take it back.

mod clients;
mod diff;
mod entry;
mod file;
mod json;
mod record;
mod toml;

use std::io::{BufRead, IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;
use domain::Secret;

use crate::error::CliError;
use crate::out::{self, Stop, printable};
use clients::Place;
pub use clients::{McpClient, McpHome};
use entry::Wanted;
use file::File;
use record::Record;

/// Arguments of `mcp install`.
#[derive(Debug, Clone, Args)]
pub struct InstallArgs {
    /// The client whose configuration is changed
    #[arg(value_enum)]
    pub client: McpClient,
    /// Use a server over HTTP at this address instead of starting one on this machine
    #[arg(long, value_name = "URL", conflicts_with = "undo")]
    pub url: Option<String>,
    /// Have the key read from this file whenever it is needed, instead of copying it; with --url it is copied
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_env", "undo"])]
    pub key_file: Option<PathBuf>,
    /// Have the client take the key from its own environment (SUPERSERVE_API_KEY), instead of copying it
    #[arg(long, conflicts_with = "undo")]
    pub key_env: bool,
    /// Install for one project (by default the current directory) instead of for the user
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = ".")]
    pub project: Option<PathBuf>,
    /// Name of the entry
    #[arg(long, default_value = "superserve")]
    pub name: String,
    /// Write without asking
    #[arg(long, short = 'y', conflicts_with = "dry_run")]
    pub yes: bool,
    /// Show the change and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Take back what an earlier install wrote
    #[arg(long)]
    pub undo: bool,
}

/// What can be installed. `Debug` masks the key.
#[derive(Debug, Clone)]
pub struct InstallTarget {
    /// This program.
    pub program: PathBuf,
    /// The control plane that a server on this machine talks to; `None`: the vendor's.
    pub base_url: Option<String>,
    /// A key.
    pub key: Option<Secret>,
    /// The key is for `base_url` and must go nowhere else.
    pub key_is_local: bool,
}

/// Runs the command and gives its exit code.
///
/// # Errors
/// A sentence for the user. Nothing was changed.
pub fn run_install(
    args: &InstallArgs,
    target: &InstallTarget,
    home: &McpHome,
    json: bool,
) -> Result<u8, CliError> {
    out::settle(run(args, target, home, json))
}

fn run(args: &InstallArgs, target: &InstallTarget, home: &McpHome, json: bool) -> Result<u8, Stop> {
    entry::check_name(&args.name)?;
    let place = args.client.place(args.project.as_deref(), home)?;
    let record_path = home.record(&place.path, &args.name);
    let record = Record::read(&record_path)?;
    let file = File::open(&place.path)?;
    let change = match (args.undo, record) {
        (true, Some(record)) => Change::undo(&file, &place, &args.name, record)?,
        (true, None) => {
            let shown = printable(&place.path.display().to_string());
            return Err(CliError::new(format!("nothing to undo: no install of `{}` into {shown} is on record", args.name))
                .hint("--project and --name must be those of the install; an entry of another origin is removed by hand")
                .into());
        }
        (false, record) => {
            Change::install(&file, &place, &args.name, &Wanted::new(args, target, &place)?, record)?
        }
    };
    let changed = change.text != file.text;
    let diff = diff::unified(file.text.as_deref(), change.text.as_deref(), change.secret.as_deref());
    if !json {
        let path = printable(&place.path.display().to_string());
        let nothing = if args.undo { "is as it was already" } else { "is as wanted already" };
        out::line(&if changed { format!("{path}\n{diff}") } else { format!("{path} {nothing}") })?;
    }
    let write = !args.dry_run && (args.yes || !changed || ask()?);
    if write {
        change.write(&file, &record_path)?;
    }
    if json {
        let path = place.path.to_string_lossy();
        out::json(
            &serde_json::json!({"path": path, "changed": changed, "written": write && changed, "diff": diff}),
        )?;
    } else if write && changed {
        out::line(args.client.what_next(args.undo))?;
    }
    if write || args.dry_run { Ok(0) } else { Err(CliError::new("nothing was written").into()) }
}

/// What becomes of a file.
struct Change {
    /// `None`: there is no file.
    text: Option<String>,
    mode: u32,
    /// What is remembered from then on.
    record: Option<Record>,
    /// Not to be shown.
    secret: Option<String>,
    /// To be removed with the file.
    directories: Vec<PathBuf>,
}

impl Change {
    fn install(
        file: &File,
        place: &Place,
        name: &str,
        wanted: &Wanted,
        record: Option<Record>,
    ) -> Result<Self, CliError> {
        let secret = wanted.copied_key();
        let mode = match file.mode {
            // Others must not read the key, whatever they could read before.
            Some(mode) if secret.is_some() && mode & 0o077 != 0 => 0o600,
            Some(mode) => mode,
            None if place.private => 0o600,
            None => 0o644,
        };
        // A second install replaces the first, so that undoing it gives what was there before both.
        let (original, old_mode, directories) = match record {
            Some(record) => (undone(file, place, name, &record)?.0, record.mode, record.directories),
            None => (file.text.clone(), file.mode, file.missing_directories()),
        };
        let written = place.set(original.as_deref().unwrap_or_default(), name, wanted)?;
        let record = Record {
            mode: old_mode,
            original,
            written: written.clone(),
            secret: secret.clone(),
            directories,
        };
        Ok(Self { text: Some(written), mode, record: Some(record), secret, directories: Vec::new() })
    }

    fn undo(file: &File, place: &Place, name: &str, record: Record) -> Result<Self, CliError> {
        let (text, exact) = undone(file, place, name, &record)?;
        let mode = if exact { record.mode } else { file.mode };
        let directories = if text.is_none() { record.directories } else { Vec::new() };
        Ok(Self { text, mode: mode.unwrap_or(0o600), record: None, secret: record.secret, directories })
    }

    fn write(&self, file: &File, record_path: &std::path::Path) -> Result<(), CliError> {
        // First what is needed to take it back: a crash between the two leaves a record that changes nothing.
        if let Some(record) = &self.record {
            record.write(record_path)?;
        }
        if self.text != file.text {
            match &self.text {
                Some(text) => file.replace(text, self.mode)?,
                None => file.remove(&self.directories)?,
            }
        }
        if self.record.is_none() {
            Record::remove(record_path)?;
        }
        Ok(())
    }
}

/// The text without an install, and whether it is exactly the one from before.
fn undone(
    file: &File,
    place: &Place,
    name: &str,
    record: &Record,
) -> Result<(Option<String>, bool), CliError> {
    match &file.text {
        Some(text) if *text != record.written => {
            // Others have written meanwhile, so only our part goes.
            Ok((Some(place.unset(text, name, record.original.as_deref().unwrap_or_default())?), false))
        }
        Some(_) => Ok((record.original.clone(), true)),
        None => Ok((None, true)),
    }
}

/// Asks at the terminal; without one nobody can have agreed.
fn ask() -> Result<bool, CliError> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(CliError::new("nothing was written, because there is no terminal to ask at")
            .hint("--yes writes without asking, --dry-run only shows the change"));
    }
    out::note("Write this? [y/N]");
    let mut answer = String::new();
    // A line that long is no answer.
    input
        .lock()
        .take(64)
        .read_line(&mut answer)
        .map_err(|error| CliError::new(format!("cannot read: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests;
