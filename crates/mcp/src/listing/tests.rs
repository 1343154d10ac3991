use super::*;

fn entry(name: &str, kind: EntryKind, size: u64, modified: Option<&str>) -> Entry {
    Entry { name: name.into(), kind, size, modified: modified.map(str::to_owned) }
}

#[test]
fn commands_quote_the_path() {
    let find = find_command("/it's");
    assert!(find.starts_with(r"find '/it'\''s'") && find.contains("-maxdepth 1") && find.contains("-printf"));
    let posix = posix_command("/it's");
    assert!(posix.starts_with(r"cd '/it'\''s'") && posix.contains("* .*") && posix.contains("printf"));
    assert!(!posix.contains("-printf") && !posix.contains("echo"));
}

#[test]
fn find_rows() {
    let rows = "F\0f\t11\t1718791260.1239567890\tb.txt\0d\t4096\t0.5\tsub\0l\t3\t\tlink\0f\t\t\ttab\there\n\0\
                f\t1\t2\t..\0f\t1\t2\t.\0broken\0ff\t1\t2\tx\0f\tsize\t2\ty\0f\t1\t2\tcut";
    use EntryKind::{Directory, File, Symlink};
    assert_eq!(
        parse(rows).unwrap(),
        [
            entry("sub", Directory, 4096, Some("1970-01-01T00:00:00.500Z")),
            entry("b.txt", File, 11, Some("2024-06-19T10:01:00.123Z")),
            entry("link", Symlink, 3, None),
            entry("tab\there\n", File, 0, None),
        ]
    );
}

#[test]
fn times_before_1970_and_nonsense() {
    assert_eq!(from_epoch("-1.2500000000").as_deref(), Some("1969-12-31T23:59:58.750Z"));
    for bad in ["", "x", "1.x", "99999999999999999999", "9223372036854775807"] {
        assert_eq!(from_epoch(bad), None, "{bad}");
    }
}

#[test]
fn ls_rows() {
    let lines = "L\0total 12\n\
        drwxr-xr-x 3 0 0 4096 2026-06-19 10:01 .\n\
        drwxr-xr-x 9 0 0 4096 2026-06-19 10:01 ..\n\
        -rw-r--r-- 1 0 0   11 2026-06-19 10:01 two words.txt\n\
        drwxr-xr-x 2 0 0 4096 2026-06-19 10:01 sub\n\
        lrwxrwxrwx 1 0 0    3 2026-06-19 10:01 link -> two words.txt\n\
        crw-rw-rw- 1 0 0 1, 3 2026-06-19 10:01 null\n\
        ?????????? ? ? ? ? ? broken\n";
    use EntryKind::{CharDevice, Directory, File, Symlink};
    let time = Some("2026-06-19T10:01:00.000Z");
    assert_eq!(
        parse(lines).unwrap(),
        [
            entry("sub", Directory, 4096, time),
            entry("link", Symlink, 3, time),
            entry("null", CharDevice, 0, time),
            entry("two words.txt", File, 11, time),
        ]
    );
}

#[test]
fn output_without_a_tag_is_not_a_listing() {
    assert_eq!(parse(""), None);
    assert_eq!(parse("Segmentation fault\n"), None);
    assert_eq!(parse("F\0").unwrap(), []);
}

/// The three ways agree with each other on a real directory with awkward names, run by a real shell.
#[test]
fn real_shells_agree() {
    let root = std::env::temp_dir().join(format!("mcp-listing-{}", std::process::id()));
    let dir = root.join("it's a dir");
    std::fs::create_dir_all(dir.join("sub")).unwrap();
    std::fs::write(dir.join("-rf"), "abc").unwrap();
    std::fs::write(dir.join(".hidden"), "").unwrap();
    std::fs::write(dir.join("a b"), "").unwrap();
    std::os::unix::fs::symlink("a b", dir.join("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.join("dangling")).unwrap();
    std::os::unix::fs::symlink(&dir, root.join("to-dir")).unwrap();

    let run = |script: &str| {
        let output = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let names = |output: &str| -> Vec<(String, EntryKind)> {
        parse(output).unwrap().into_iter().map(|e| (e.name, e.kind)).collect()
    };
    let path = dir.to_str().unwrap();
    use EntryKind::{Directory, File, Symlink};
    let expected: Vec<(String, EntryKind)> = [
        ("sub", Directory),
        ("-rf", File),
        (".hidden", File),
        ("a b", File),
        ("dangling", Symlink),
        ("link", Symlink),
    ]
    .map(|(name, kind)| (name.to_owned(), kind))
    .into();

    let (code, output) = run(&script(path));
    assert_eq!(code, 0);
    assert!(output.starts_with("F\0"), "this machine has GNU find");
    assert_eq!(names(&output), expected);
    let listed = parse(&output).unwrap();
    let dash = listed.iter().find(|e| e.name == "-rf").unwrap();
    assert_eq!(dash.size, 3);
    assert!(dash.modified.as_deref().unwrap().ends_with('Z'));
    assert_eq!(names(&format!("L\0{}", run(&ls_command(path)).1)), expected);
    assert_eq!(names(&format!("P\0{}", run(&posix_command(path)).1)), expected);

    let through_link = run(&script(root.join("to-dir").to_str().unwrap())).1;
    assert_eq!(names(&through_link), expected);
    assert_eq!(run(&script(dir.join("a b").to_str().unwrap())).0, EXIT_NOT_DIRECTORY);
    assert_eq!(run(&script(dir.join("nope").to_str().unwrap())).0, EXIT_MISSING);
    assert_eq!(names(&run(&script(dir.join("sub").to_str().unwrap())).1), []);
    assert!(run(&script("/")).1.contains("\ttmp\0"));
    std::fs::remove_dir_all(&root).unwrap();
}
