//! The commands against a small HTTP server that keeps the files of one sandbox in memory. The real platform is driven
//! through the same commands elsewhere; here are the answers it gives only seldom.

#![expect(clippy::unwrap_used, reason = "the lint is for products; helpers of tests are tests")]

mod desktop;
mod platform;

use clap::{FromArgMatches, Subcommand};
use cli::{CliError, SandboxCommand, run_sandbox};
use platform::{ID, Platform};

async fn run(platform: &Platform, words: &[&str]) -> Result<u8, CliError> {
    let command = SandboxCommand::augment_subcommands(clap::Command::new("sandbox"));
    let matches = command.try_get_matches_from(std::iter::once(&"sandbox").chain(words)).unwrap();
    let command = SandboxCommand::from_arg_matches(&matches).unwrap();
    run_sandbox(command, &platform.client(), false).await
}

fn at(path: &str) -> String {
    format!("{ID}:{path}")
}

#[tokio::test]
async fn the_commands_exit_code_is_ours_and_failures_have_their_own() {
    let platform = Platform::start().await;
    assert_eq!(run(&platform, &["exec", ID, "exit 7"]).await.unwrap(), 7);
    assert_eq!(run(&platform, &["exec", ID, "exit 0"]).await.unwrap(), 0);
    let failed = run(&platform, &["exec", "unknown", "exit 0"]).await.unwrap_err();
    assert_eq!((failed.exit_code, failed.message.as_str()), (125, "sandbox unknown not found"));
    assert_eq!(failed.hint.as_deref(), Some("superserve sandbox list"));
}

#[tokio::test]
async fn one_failure_among_several_is_a_failure_and_the_rest_is_done() {
    let platform = Platform::start().await;
    assert_eq!(run(&platform, &["kill", "unknown", ID]).await.unwrap(), 1);
    assert!(platform.deleted());
    assert_eq!(run(&platform, &["kill", ID]).await.unwrap(), 1, "a second delete finds nothing");
}

#[tokio::test]
async fn files_go_up_and_down() {
    let platform = Platform::start().await;
    let dir = tempfile::tempdir().unwrap();
    let local = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(local("a"), [0, 1, 255]).unwrap();

    run(&platform, &["cp", &local("a"), &at("/data/ü b")]).await.unwrap();
    assert_eq!(platform.file("/data/ü b"), [0, 1, 255]);
    run(&platform, &["cp", &local("a"), &at("/data/")]).await.unwrap();
    assert_eq!(platform.file("/data/a"), [0, 1, 255]);

    run(&platform, &["cp", &at("/data/ü b"), &local("b")]).await.unwrap();
    assert_eq!(std::fs::read(local("b")).unwrap(), [0, 1, 255]);
    run(&platform, &["cp", &at("/data/ü b"), dir.path().to_str().unwrap()]).await.unwrap();
    assert_eq!(std::fs::read(local("ü b")).unwrap(), [0, 1, 255]);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(local("b")).unwrap().permissions());
    let plain =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(local("a")).unwrap().permissions());
    assert_eq!(mode, plain, "the usual mode, not that of a temporary file");
    run(&platform, &["cp", &at("/data/a"), "/dev/null"]).await.unwrap();
}

#[tokio::test]
async fn directories_go_up_and_down() {
    let platform = Platform::start().await;
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("project");
    std::fs::create_dir_all(from.join("src/deep")).unwrap();
    std::fs::write(from.join("README"), "r").unwrap();
    std::fs::write(from.join("src/deep/m"), "m").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", from.join("link")).unwrap();

    run(&platform, &["cp", from.to_str().unwrap(), &at("/w")]).await.unwrap();
    assert_eq!(platform.names(), ["/w/README", "/w/src/deep/m"]);
    run(&platform, &["cp", from.to_str().unwrap(), &at("/home/")]).await.unwrap();
    assert_eq!(platform.file("/home/project/README"), b"r");

    let to = dir.path().join("back");
    run(&platform, &["cp", &at("/w"), to.to_str().unwrap()]).await.unwrap();
    assert_eq!(std::fs::read_to_string(to.join("src/deep/m")).unwrap(), "m");
    run(&platform, &["cp", &at("/w"), dir.path().to_str().unwrap()]).await.unwrap();
    assert_eq!(std::fs::read_to_string(dir.path().join("w/README")).unwrap(), "r");
}

#[tokio::test]
async fn a_download_that_breaks_leaves_what_was_there() {
    let platform = Platform::start().await;
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("kept");
    std::fs::write(&target, "old").unwrap();
    run(&platform, &["cp", &at("/breaks"), target.to_str().unwrap()]).await.unwrap_err();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file stays");
}

#[tokio::test]
async fn copies_that_cannot_be_meant_say_what_can() {
    let platform = Platform::start().await;
    let missing = run(&platform, &["cp", &at("/none"), "x"]).await.unwrap_err();
    assert_eq!(missing.message, format!("{ID}:/none not found"));
    assert_eq!(missing.hint.unwrap(), format!("superserve sandbox exec {ID} -- ls -la /"));
    for (from, to) in [("a", "b"), ("-", "b"), (&at("/a")[..], &at("/b")[..]), ("a", "id:relative")] {
        let refused = run(&platform, &["cp", from, to]).await.unwrap_err();
        assert!(refused.hint.is_some(), "{from} {to}");
    }
    let missing = run(&platform, &["cp", "/nonexistent/x", &at("/b")]).await.unwrap_err();
    assert!(missing.message.starts_with("cannot read /nonexistent/x: "), "{missing}");
}
