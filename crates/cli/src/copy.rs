//! `sandbox cp`: files and directories both ways. Downloads land beside their destination first, so that a failed one
//! leaves what was there; a directory travels as a zip down and file by file up.

use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use client::{Client, Download, UploadBody};
use futures_util::{StreamExt, TryStreamExt, stream};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::io::AsyncWriteExt;
use wire::data_plane::{MAX_ZIP_BYTES, MAX_ZIP_ENTRIES};

use crate::archive;
use crate::args::CopyArgs;
use crate::error::CliError;
use crate::input;
use crate::out::{self, Stop};
use crate::place::{Place, base_name};

/// Largest file read from a sandbox: the largest disk a template can have.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024 * 1024;
/// Files of a directory that are sent at the same time: hides the round trips of small ones.
const PARALLEL_UPLOADS: usize = 4;
/// Deepest local directory: far below the longest path, and an end to loops.
const MAX_DEPTH: usize = 128;

/// What was moved.
#[derive(Debug, Default)]
struct Moved {
    files: u64,
    bytes: u64,
    /// Links and special files left out.
    skipped: u64,
}

pub(crate) async fn run(args: CopyArgs, client: &Client, json: bool) -> Result<(), Stop> {
    let moved = match (Place::parse(&args.from)?, Place::parse(&args.to)?) {
        (Place::Sandbox { id, path }, Place::Standard) => return to_stdout(client, &id, &path).await,
        (Place::Sandbox { id, path }, Place::Local(to)) => download(client, &id, &path, &to).await?,
        (Place::Local(from), Place::Sandbox { id, path }) => upload(client, &from, &id, &path).await?,
        (Place::Standard, Place::Sandbox { id, path }) => {
            let body = UploadBody::once(input::stdin());
            let done =
                client.write_file(&id, &path, body).await.map_err(|error| of_path(error, &id, &path))?;
            Moved { files: 1, bytes: done.size, skipped: 0 }
        }
        (Place::Sandbox { .. }, Place::Sandbox { .. }) => {
            return Err(CliError::new("one of the two sides must be on this machine")
                .hint("copy to a local path first, or pipe: superserve sandbox cp A:/x - | superserve sandbox cp - B:/x")
                .into());
        }
        (Place::Local(_) | Place::Standard, Place::Local(_) | Place::Standard) => {
            return Err(CliError::new("one of the two sides must be in a sandbox")
                .hint("superserve sandbox cp ID:/path local, or superserve sandbox cp local ID:/path")
                .into());
        }
    };
    if json {
        let Moved { files, bytes, skipped } = moved;
        return out::json(&serde_json::json!({ "files": files, "bytes": bytes, "skipped": skipped }));
    }
    let skipped = match moved.skipped {
        0 => String::new(),
        n => format!("; left out {n} links or special files"),
    };
    out::note(&format!("copied {} file(s), {} bytes{skipped}", moved.files, moved.bytes));
    Ok(())
}

async fn to_stdout(client: &Client, id: &str, path: &str) -> Result<(), Stop> {
    let of_path = |error| of_path(error, id, path);
    let mut file = client.read_file(id, path, MAX_FILE_BYTES).await.map_err(of_path)?;
    while let Some(chunk) = file.chunk().await.map_err(of_path)? {
        out::raw(&chunk)?;
    }
    Ok(())
}

async fn download(client: &Client, id: &str, path: &str, to: &Path) -> Result<Moved, CliError> {
    match client.read_file(id, path, MAX_FILE_BYTES).await {
        Ok(file) => download_file(file, id, path, to).await,
        // The platform has no `stat`: it refuses to read a directory as a file, and that is how one shows.
        Err(error) if error.status() == Some(400) => {
            let zip = client
                .download_zip(id, path, MAX_ZIP_BYTES)
                .await
                .map_err(|error| of_path(error, id, path))?;
            download_dir(zip, id, path, to).await
        }
        Err(error) => Err(of_path(error, id, path)),
    }
}

async fn download_file(file: Download, id: &str, path: &str, to: &Path) -> Result<Moved, CliError> {
    let to = if to.is_dir() { to.join(base_name(path).unwrap_or("file")) } else { to.to_owned() };
    let special = std::fs::metadata(&to).is_ok_and(|found| !found.is_file());
    if special {
        let target = File::options().write(true).open(&to).map_err(|error| local("write", &to, &error))?;
        let bytes = receive(file, target, id, path, &to).await?;
        return Ok(Moved { files: 1, bytes, skipped: 0 });
    }
    let beside = temporary(&to)?;
    let target = beside.as_file().try_clone().map_err(|error| local("write", &to, &error))?;
    let bytes = receive(file, target, id, path, &to).await?;
    beside.persist(&to).map_err(|error| local("write", &to, &error.error))?;
    Ok(Moved { files: 1, bytes, skipped: 0 })
}

async fn download_dir(zip: Download, id: &str, path: &str, to: &Path) -> Result<Moved, CliError> {
    if zip.content_type().is_none_or(|media| !media.starts_with("application/zip")) {
        return Err(CliError::new(format!("{path} is neither a file nor a directory that can be read")));
    }
    let to = match base_name(path) {
        Some(name) if to.is_dir() => to.join(name),
        _ => to.to_owned(),
    };
    std::fs::create_dir_all(&to).map_err(|error| local("create", &to, &error))?;
    let archive = tempfile::tempfile().map_err(|error| local("create", &std::env::temp_dir(), &error))?;
    let target = archive.try_clone().map_err(|error| local("write", &to, &error))?;
    receive(zip, target, id, path, &to).await?;
    let unpacked = tokio::task::spawn_blocking(move || archive::unpack(archive, &to))
        .await
        .map_err(|_| CliError::new("unpacking stopped unexpectedly"))??;
    Ok(Moved { files: unpacked.files, bytes: unpacked.bytes, skipped: unpacked.skipped })
}

/// Writes a download to an open file and shows how far it is.
async fn receive(mut from: Download, to: File, id: &str, path: &str, shown: &Path) -> Result<u64, CliError> {
    let progress = progress(from.content_length());
    let mut to = tokio::fs::File::from_std(to);
    while let Some(chunk) = from.chunk().await.map_err(|error| of_path(error, id, path))? {
        to.write_all(&chunk).await.map_err(|error| local("write", shown, &error))?;
        progress.inc(chunk.len() as u64);
    }
    to.flush().await.map_err(|error| local("write", shown, &error))?;
    let bytes = progress.position();
    progress.finish_and_clear();
    Ok(bytes)
}

/// A file beside the destination with the usual mode, removed unless it takes the destination's name.
fn temporary(to: &Path) -> Result<tempfile::NamedTempFile, CliError> {
    use std::os::unix::fs::PermissionsExt;
    let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(".superserve-")
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(dir)
        .map_err(|error| local("write", to, &error))
}

async fn upload(client: &Client, from: &Path, id: &str, path: &str) -> Result<Moved, CliError> {
    let found = std::fs::metadata(from).map_err(|error| local("read", from, &error))?;
    let name = from.file_name().and_then(|name| name.to_str());
    let path = match name {
        Some(name) if path.ends_with('/') => format!("{path}{name}"),
        _ => path.to_owned(),
    };
    if !found.is_dir() {
        let bytes = upload_file(client, from, id, &path).await?;
        return Ok(Moved { files: 1, bytes, skipped: 0 });
    }
    let (files, skipped) = walk(from)?;
    let progress = progress(Some(files.iter().map(|file| file.bytes).sum()));
    let sent = stream::iter(files.iter().map(|file| async {
        let target = format!("{}/{}", path.trim_end_matches('/'), file.below);
        let bytes = upload_file(client, &file.path, id, &target).await?;
        progress.inc(bytes);
        Ok::<u64, CliError>(bytes)
    }));
    let bytes = sent
        .buffer_unordered(PARALLEL_UPLOADS)
        .try_fold(0, |sum, bytes| async move { Ok(sum + bytes) })
        .await?;
    progress.finish_and_clear();
    Ok(Moved { files: files.len() as u64, bytes, skipped })
}

async fn upload_file(client: &Client, from: &Path, id: &str, path: &str) -> Result<u64, CliError> {
    let regular = std::fs::metadata(from).map_err(|error| local("read", from, &error))?.is_file();
    let body = if regular {
        UploadBody::File(from.to_owned())
    } else {
        UploadBody::once(tokio::fs::File::open(from).await.map_err(|error| local("read", from, &error))?)
    };
    let done = client.write_file(id, path, body).await.map_err(|error| of_path(error, id, path))?;
    Ok(done.size)
}

/// One file of a local directory.
struct Found {
    path: PathBuf,
    /// Path below the directory, with `/`.
    below: String,
    bytes: u64,
}

/// The regular files below a directory, and how many entries are neither file nor directory.
fn walk(root: &Path) -> Result<(Vec<Found>, u64), CliError> {
    let mut files = Vec::new();
    let mut skipped = 0;
    let mut open = vec![(root.to_owned(), String::new(), 0)];
    while let Some((dir, below, depth)) = open.pop() {
        let unreadable = |error: std::io::Error| local("read", &dir, &error);
        for entry in std::fs::read_dir(&dir).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(unreadable)?);
            if !kind.is_dir() && !kind.is_file() {
                skipped += 1;
                continue;
            }
            let Ok(name) = entry.file_name().into_string() else {
                return Err(CliError::new(format!("the name of {} is not UTF-8", path.display())));
            };
            let below = if below.is_empty() { name } else { format!("{below}/{name}") };
            if kind.is_dir() {
                if depth == MAX_DEPTH {
                    return Err(CliError::new(format!("{} is nested too deeply", path.display())));
                }
                open.push((path, below, depth + 1));
                continue;
            }
            if files.len() == MAX_ZIP_ENTRIES {
                return Err(CliError::new(format!(
                    "{} has more than {MAX_ZIP_ENTRIES} files",
                    root.display()
                ))
                .hint("pack it first and unpack it with superserve sandbox exec"));
            }
            let bytes = entry.metadata().map_err(unreadable)?.len();
            files.push(Found { path, below, bytes });
        }
    }
    Ok((files, skipped))
}

/// A bar on standard error when a person looks at it, else nothing.
fn progress(total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::new(total.unwrap_or(0));
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let template = match total {
        Some(_) => "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        None => "{spinner} {bytes} {bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

fn local(verb: &str, path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(format!("cannot {verb} {}: {error}", path.display()))
}

/// A failed call about a path in a sandbox. A 404 of the data plane is the file's unless it says otherwise.
fn of_path(error: client::ClientError, id: &str, path: &str) -> CliError {
    let shown = CliError::of_sandbox(&error, id);
    match error.api() {
        Some(api)
            if api.plane == client::Plane::Data && api.status == 404 && api.code != "sandbox_route_stale" =>
        {
            let parent =
                path.rsplit_once('/').map_or("/", |(parent, _)| if parent.is_empty() { "/" } else { parent });
            CliError { message: format!("{id}:{path} not found"), ..shown }
                .hint(format!("superserve sandbox exec {id} -- ls -la {parent}"))
        }
        Some(api) if api.plane == client::Plane::Data && !api.message.is_empty() => {
            CliError { message: format!("{id}:{path}: {}", api.message), ..shown }
        }
        _ => shown,
    }
}
