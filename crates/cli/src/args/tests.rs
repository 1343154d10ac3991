//! What people read and what is refused.

use clap::{Command, FromArgMatches};

use super::*;

fn command() -> Command {
    // A fixed width, so that the texts do not depend on the terminal.
    let top = Command::new("superserve").term_width(100).disable_help_subcommand(true);
    top.subcommand(SandboxCommand::augment_subcommands(Command::new("sandbox")).disable_help_subcommand(true))
        .subcommand(SecretCommand::augment_subcommands(Command::new("secret")).disable_help_subcommand(true))
        .subcommand(
            SnapshotCommand::augment_subcommands(Command::new("snapshot")).disable_help_subcommand(true),
        )
        .subcommand(BenchArgs::augment_args(Command::new("bench")))
}

fn help(command: &mut Command, out: &mut String) {
    *out += &format!("{}\n", command.render_help());
    for below in command.get_subcommands_mut() {
        help(below, out);
    }
}

#[test]
fn help_texts() {
    let mut out = String::new();
    let mut command = command();
    command.build();
    for below in command.get_subcommands_mut() {
        help(below, &mut out);
    }
    expect_test::expect_file!["help.txt"].assert_eq(&out);
}

fn parse(words: &[&str]) -> Result<SandboxCommand, String> {
    let words = ["superserve", "sandbox"].iter().chain(words);
    let matches = command().try_get_matches_from(words).map_err(|error| error.to_string())?;
    let (_, sandbox) = matches.subcommand().unwrap();
    Ok(SandboxCommand::from_arg_matches(sandbox).unwrap())
}

#[test]
fn commands_with_and_without_dashes() {
    for (words, expected) in [
        (&["exec", "i", "--timeout", "5", "ls -la | wc"][..], &["ls -la | wc"][..]),
        (&["exec", "i", "--", "ls", "-la", "--timeout", "x"], &["ls", "-la", "--timeout", "x"]),
        (&["exec", "i", "ls", "-la"], &["ls", "-la"]),
        (&["exec", "i", "--", "-x"], &["-x"]),
    ] {
        let Ok(SandboxCommand::Exec(args)) = parse(words) else { panic!("{words:?}") };
        assert_eq!(args.command, expected, "{words:?}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for words in [
        &["exec", "i"][..],
        &["exec", "i", "--timeout", "0", "x"],
        &["create", "--env", "NOVALUE"],
        &["create", "--env", "=x"],
        &["create", "--timeout", "604801"],
        &["create", "--auto-delete", "-1"],
        &["list", "--limit", "0"],
        &["kill"],
        &["cp", "a"],
    ] {
        assert!(parse(words).is_err(), "{words:?}");
    }
    let Ok(SandboxCommand::Create(args)) = parse(&["create", "--env", "A=b=c", "--auto-delete", "0"]) else {
        panic!()
    };
    assert_eq!(args.env, [("A".to_owned(), "b=c".to_owned())]);
    assert_eq!(args.auto_delete, Some(0));
}

#[test]
fn a_value_is_never_an_argument() {
    let parse = |words: &[&str]| {
        let words = ["superserve", "secret", "create"].iter().chain(words);
        command().try_get_matches_from(words).map(drop).map_err(|error| error.to_string())
    };
    for good in [
        &["a", "--provider", "openai"][..],
        &["a", "--auth", "bearer", "--host", "a.test"],
        &["a", "--auth", "custom", "--template", "X={{ value }}", "--host", "a.test", "--host", "b.test"],
        &["a", "--auth-file", "f", "--host", "a.test"],
    ] {
        assert_eq!(parse(good), Ok(()), "{good:?}");
    }
    for bad in [
        &["a"][..],
        &["a", "hunter2", "--provider", "openai"],
        &["a", "--value", "hunter2", "--provider", "openai"],
        &["a", "--provider", "openai", "--host", "a.test"],
        &["a", "--auth", "bearer"],
        &["a", "--auth", "digest", "--host", "a.test"],
        &["a", "--header", "X", "--host", "a.test"],
    ] {
        assert!(parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn sessions_and_their_actions() {
    let action = |words: &[&str]| match parse(words) {
        Ok(SandboxCommand::Sessions { id, action }) => (id, format!("{action:?}")),
        other => panic!("{words:?}: {other:?}"),
    };
    assert_eq!(action(&["sessions", "i"]), ("i".to_owned(), "None".to_owned()));
    assert_eq!(
        action(&["sessions", "i", "attach", "s"]),
        ("i".to_owned(), r#"Some(Attach { session: "s" })"#.to_owned())
    );
    assert_eq!(
        action(&["sessions", "i", "kill", "s", "t"]),
        ("i".to_owned(), r#"Some(Kill { sessions: ["s", "t"] })"#.to_owned())
    );
    for words in [&["sessions"][..], &["sessions", "i", "kill"], &["sessions", "i", "attach"], &["shell"]] {
        assert!(parse(words).is_err(), "{words:?}");
    }
    for (words, interactive, tty) in [
        (&["exec", "-it", "i", "sh"][..], true, true),
        (&["exec", "-i", "i", "cat"], true, false),
        (&["exec", "i", "grep", "-it", "x"], false, false),
    ] {
        let Ok(SandboxCommand::Exec(args)) = parse(words) else { panic!("{words:?}") };
        assert_eq!((args.interactive, args.tty), (interactive, tty), "{words:?}");
    }
}
