//! `superserve setup`: installs what the platform does not bring along.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use driver_vm::Kernel;
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

use crate::config::StateDirArg;
use crate::firecracker::{self, GivenKernel, VERSION};
use crate::output::{Failure, Outcome, print};
use crate::state_dir::StateDir;

/// The release's archive for x86_64, as published with it.
const ARCHIVE_SHA256: &str = "382a02a869e4d6d5cb14c40577f9545e8458021ea8b0b2d3fc10ec14d9c242e6";
/// It has 7.5 MB.
const MAX_ARCHIVE_BYTES: usize = 64 * 1024 * 1024;
/// Its programs have 3 MB and 2 MB; with their debugging information the archive has some hundreds.
const MAX_UNPACKED_BYTES: u64 = 1024 * 1024 * 1024;
/// On a slow line a minute; a silent one is given up earlier.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(600);
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Subcommand)]
pub(crate) enum SetupCommand {
    /// Install Firecracker, its jailer and a guest kernel, for --isolation firecracker
    Firecracker(FirecrackerArgs),
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("source").required(true)))]
pub(crate) struct FirecrackerArgs {
    #[command(flatten)]
    state: StateDirArg,
    /// Take the programs from a directory: firecracker and jailer, or an unpacked release
    #[arg(long, value_name = "DIR", group = "source")]
    from: Option<PathBuf>,
    /// Download the release that this version was tested with
    #[arg(long, group = "source")]
    download: bool,
    /// The guest's kernel, a vmlinux or a distribution's vmlinuz; the newest installed cloud kernel by default
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Its modules, as in /lib/modules/RELEASE; without them it must have all that is needed built in
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
}

pub(crate) fn run(command: SetupCommand, json: bool) -> Outcome {
    let SetupCommand::Firecracker(args) = command;
    let kernel = kernel(&args)?;
    let state = StateDir::open(&args.state.state_dir)?;
    let install = |from: &Path| firecracker::install(state.root(), &firecracker::find(from)?, &kernel);
    let version = match &args.from {
        Some(from) => install(from)?,
        None => {
            // Nobody else's: the directory is this process's alone.
            let unpacked = state.root().join("firecracker.unpacked");
            let _of_one_that_was_cut_off = std::fs::remove_dir_all(&unpacked);
            let archive = download()?;
            std::fs::create_dir(&unpacked)?;
            let installed = unpack(&archive, &unpacked).and_then(|()| install(&unpacked));
            std::fs::remove_dir_all(&unpacked)?;
            installed?
        }
    };
    let dir = firecracker::dir(state.root());
    if json {
        print(
            serde_json::json!({ "version": version.to_string(), "path": dir, "tested": version == VERSION }),
        );
    } else {
        print(format!("Firecracker {version} is installed in {}", dir.display()));
        if version != VERSION {
            print(format!("this version of superserve was tested with {VERSION}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn kernel(args: &FirecrackerArgs) -> Result<GivenKernel, Failure> {
    if let Some(image) = args.kernel.clone() {
        return Ok(GivenKernel { image, modules: args.modules.clone() });
    }
    let installed = Kernel::installed(Path::new("/")).ok_or_else(|| {
        Failure::new("there is no kernel for virtual machines")
            .hint("apt-get install -y linux-image-cloud-amd64, or name one with --kernel")
    })?;
    Ok(GivenKernel { image: installed.image, modules: Some(installed.modules) })
}

fn name() -> String {
    format!("v{VERSION}-x86_64")
}

/// The release's archive, which is what it should be.
fn download() -> Result<Vec<u8>, Failure> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Failure::new("only the release for x86_64 can be downloaded")
            .hint("download the release for this machine and use --from"));
    }
    let url = format!(
        "https://github.com/firecracker-microvm/firecracker/releases/download/v{VERSION}/firecracker-{}.tgz",
        name()
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let archive = runtime.block_on(async {
        match tokio::time::timeout(DOWNLOAD_LIMIT, fetch(&url)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(format!("it takes longer than {} s", DOWNLOAD_LIMIT.as_secs())),
        }
    });
    let archive = archive.map_err(|why| {
        Failure::new(format!("{url} cannot be downloaded: {why}"))
            .hint("download it elsewhere, unpack it and use --from DIR")
    })?;
    check(&archive)?;
    Ok(archive)
}

async fn fetch(url: &str) -> Result<Vec<u8>, String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .https_only(true)
        .read_timeout(SILENCE_LIMIT)
        .connect_timeout(SILENCE_LIMIT)
        .build()
        .map_err(|error| error.to_string())?;
    let said = |error: reqwest::Error| {
        let error = error.without_url();
        std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
    };
    let mut answer =
        client.get(url).send().await.and_then(|answer| answer.error_for_status()).map_err(said)?;
    let mut archive = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(said)? {
        if archive.len() + part.len() > MAX_ARCHIVE_BYTES {
            return Err("it is too large".to_owned());
        }
        archive.extend_from_slice(&part);
    }
    Ok(archive)
}

/// Refuses anything but the archive that was published.
fn check(archive: &[u8]) -> Result<(), Failure> {
    let found: String = Sha256::digest(archive).iter().map(|byte| format!("{byte:02x}")).collect();
    if found == ARCHIVE_SHA256 {
        return Ok(());
    }
    Err(Failure::new(format!("what was downloaded is not Firecracker {VERSION}: its SHA-256 is {found}"))
        .hint(format!("it should be {ARCHIVE_SHA256}; nothing was installed")))
}

/// Takes the two programs out of the archive, and nothing else.
fn unpack(archive: &[u8], to: &Path) -> Result<(), Failure> {
    let mut archive = tar::Archive::new(GzDecoder::new(archive).take(MAX_UNPACKED_BYTES));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        for program in ["firecracker", "jailer"] {
            let file = format!("{program}-{}", name());
            if entry.header().entry_type().is_file()
                && path == Path::new(&format!("release-{}", name())).join(&file)
            {
                let mut new = std::fs::File::options().write(true).create_new(true).open(to.join(&file))?;
                std::io::copy(&mut entry, &mut new)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_programs_leave_the_archive() {
        let mut archive = tar::Builder::new(Vec::new());
        let mut add = |path: &str, kind: tar::EntryType| {
            let mut header = tar::Header::new_gnu();
            // The builder would refuse what an attacker writes.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(kind);
            header.set_size(4);
            header.set_mode(0o755);
            header.set_link_name("/etc/passwd").unwrap();
            header.set_cksum();
            archive.append(&header, &b"text"[..]).unwrap();
        };
        for program in ["firecracker", "jailer"] {
            add(&format!("release-{0}/{program}-{0}", name()), tar::EntryType::Regular);
            add(&format!("/release-{0}/{program}-{0}", name()), tar::EntryType::Regular);
            add(&format!("../{program}-{}", name()), tar::EntryType::Regular);
            add(&format!("release-{0}/{program}-{0}", name()), tar::EntryType::Symlink);
        }
        add("release/LICENSE", tar::EntryType::Regular);
        let packed = archive.into_inner().unwrap();
        let mut pipe = std::process::Command::new("gzip")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut pipe.stdin.take().unwrap(), &packed).unwrap();
        let packed = pipe.wait_with_output().unwrap().stdout;
        let root = tempfile::tempdir().unwrap();
        let to = root.path().join("to");
        std::fs::create_dir(&to).unwrap();
        unpack(&packed, &to).unwrap();
        firecracker::find(&to).unwrap();
        assert_eq!(std::fs::read_dir(&to).unwrap().count(), 2);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
        assert!(unpack(b"rubbish", &to).is_err());
        // It is refused long before, anyway.
        let Err(refused) = check(&packed) else { panic!("any archive will do") };
        assert!(format!("{refused:?}").contains("SHA-256"), "{refused:?}");
    }
}
