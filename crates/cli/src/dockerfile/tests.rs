//! Dockerfiles and what becomes of them.

use expect_test::expect;

use super::*;

fn shown(text: &str) -> String {
    let given = BTreeMap::from([("VERSION".to_owned(), "2".to_owned())]);
    match read(text, Path::new("/nonexistent"), &given, None) {
        Ok(read) => serde_json::to_string(&read.spec).unwrap(),
        Err(error) => error.message,
    }
}

#[test]
fn the_common_instructions() {
    let text = "# syntax\nARG BASE=python:3.11\nFROM ${BASE} AS final\nARG VERSION=1\nENV A=1 B=\"x y\" C=$VERSION\nENV LEGACY some words\n\
        WORKDIR /srv/app\nRUN apt-get update \\\n  # why\n  && echo it\\'s\nRUN [\"echo\", \"a b\"]\nLABEL x=y\nEXPOSE 80\nUSER app\n\
        ENTRYPOINT [\"python\", \"-m\"]\nCMD [\"http.server\", \"80\"]\n";
    expect![[r#"{"from":"python:3.11","steps":[{"env":{"key":"A","value":"1"}},{"env":{"key":"B","value":"x y"}},{"env":{"key":"C","value":"2"}},{"env":{"key":"LEGACY","value":"some words"}},{"workdir":"/srv/app"},{"run":"export VERSION=2; apt-get update   && echo it\\'s"},{"run":"export VERSION=2; echo 'a b'"},{"user":{"name":"app"}}],"start_cmd":"python -m http.server 80"}"#]]
    .assert_eq(&shown(text));
}

#[test]
fn what_would_change_the_result_is_refused() {
    for (text, told) in [
        ("RUN x", "before FROM"),
        ("FROM a\nONBUILD RUN x", "ONBUILD is not supported"),
        ("FROM a\nSHELL bash", "JSON list"),
        ("FROM --x=1 a", "FROM --x=1 is not supported"),
        ("FROM a b", "AS with a name"),
        ("FROM a\nADD x.tar.gz /", "would unpack"),
        ("FROM a\nRUN x <<EOF", "here-documents"),
        ("FROM a\nENV A=${B:?no}", "only ${name}"),
        ("FROM a\nCOPY --chmod=u+x x y", "octal"),
        ("FROM a\nHEALTHCHECK x", "HEALTHCHECK takes"),
        ("FROM a\nRUN --mount=type=cache x", "mounts"),
        ("FROM a\nUSER 1000", "name of a user"),
        ("FROM a\nCOPY --from=b x y", "cannot reach"),
        ("FROM a\nCOPY ../x y", "leads out"),
        ("FROM a\nCOPY nothing y", "there is no `nothing`"),
        ("FROM a\nADD https://x/y z", "ADD of an address"),
        ("FROM a\nENV A=\"x", "quotation mark"),
        ("", "no FROM"),
    ] {
        assert!(shown(text).contains(told), "{text}: {}", shown(text));
    }
}

#[test]
fn a_stage_goes_on_where_another_one_ended() {
    let text = "ARG TAG=3.11\nFROM --platform=linux/amd64 python:$TAG AS base\nARG TAG\nARG LOCAL=x\nENV A=1\nRUN one $TAG\n\
        FROM other AS tools\nCOPY --from=base /x /y\nRUN never\n\
        FROM base AS test\nRUN two\nSHELL [\"/bin/bash\", \"-ec\"]\nRUN echo \"$A\"\nCMD serve it\nFROM test\nRUN three\n";
    let read_target = |target: Option<&str>| {
        let read = read(text, Path::new("/nonexistent"), &BTreeMap::new(), target);
        read.map(|read| serde_json::to_string(&read.spec).unwrap()).unwrap_or_else(|error| error.message)
    };
    expect![[r#"{"from":"python:3.11","steps":[{"env":{"key":"A","value":"1"}},{"run":"export TAG=3.11; export LOCAL=x; one $TAG"},{"run":"two"},{"run":"/bin/bash -ec 'echo \"$A\"'"},{"run":"/bin/bash -ec three"}],"start_cmd":"/bin/bash -ec 'serve it'"}"#]]
    .assert_eq(&read_target(None));
    expect![[r#"{"from":"python:3.11","steps":[{"env":{"key":"A","value":"1"}},{"run":"export TAG=3.11; export LOCAL=x; one $TAG"}]}"#]]
    .assert_eq(&read_target(Some("BASE")));
    // Only who wants it learns that it cannot be.
    let error = read_target(Some("tools"));
    assert!(error.starts_with("Dockerfile, line 8: COPY --from=base takes files of another"), "{error}");
    assert_eq!(read_target(Some("no")), "the Dockerfile has no stage `no`");
}

#[test]
fn commands_run_as_other_engines_run_them() {
    let start = |text: &str| {
        let read =
            read(&format!("FROM a\n{text}"), Path::new("/nonexistent"), &BTreeMap::new(), None).unwrap();
        (read.spec.start_cmd.unwrap_or_default(), read.spec.ready_cmd.unwrap_or_default(), read.notes.len())
    };
    for (text, command, ready, notes) in [
        ("CMD a b", "a b", "", 0),
        ("CMD [\"a\", \"b c\"]", "a 'b c'", "", 0),
        ("ENTRYPOINT [\"a\"]\nCMD [\"b\"]", "a b", "", 0),
        ("ENTRYPOINT [\"a\"]\nCMD b $C", "a /bin/sh -c 'b $C'", "", 0),
        ("ENTRYPOINT a\nCMD [\"b\"]", "a", "", 0),
        ("CMD [\"b\"]\nENTRYPOINT [\"a\"]", "a", "", 0),
        ("CMD [ -e x ] && y", "[ -e x ] && y", "", 0),
        ("HEALTHCHECK --interval=5s --retries=3 CMD curl -f localhost", "", "curl -f localhost", 0),
        ("HEALTHCHECK CMD x\nHEALTHCHECK NONE", "", "", 0),
        ("EXPOSE 80\nVOLUME /x\nSTOPSIGNAL 9\nLABEL a=b", "", "", 3),
    ] {
        assert_eq!(start(text), (command.to_owned(), ready.to_owned(), notes), "{text}");
    }
}

#[test]
fn files_travel_in_the_steps() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("src")).unwrap();
    std::fs::write(dir.path().join("src/main.py"), "print(1)\n").unwrap();
    std::fs::write(dir.path().join("run.sh"), "#!/bin/sh\n").unwrap();
    let read_in = |text: &str| read(text, dir.path(), &BTreeMap::new(), None).unwrap().spec.steps.unwrap();
    let steps = read_in("FROM a\nUSER app\nCOPY --chown=app src/ run.sh /srv/app/\n");
    let steps: Vec<String> = steps.iter().map(|step| serde_json::to_string(step).unwrap()).collect();
    assert_eq!(steps.len(), 4, "{steps:?}");
    assert!(steps[1].contains("root") && steps[3].contains("app"));
    assert!(
        steps[2].contains("-C /srv/app/") && steps[2].contains("chown -h app -- main.py run.sh"),
        "{}",
        steps[2]
    );
    // The same content again, at another time.
    std::fs::write(dir.path().join("run.sh"), "#!/bin/sh\n").unwrap();
    assert_eq!(read_in("FROM a\nCOPY run.sh /x\n"), read_in("FROM a\nCOPY run.sh /x\n"));
    std::fs::write(dir.path().join("big"), vec_of_noise()).unwrap();
    let error = read("FROM a\nCOPY big /x\n", dir.path(), &BTreeMap::new(), None).unwrap_err();
    assert!(error.message.contains("more than 540 KiB"), "{}", error.message);
}

fn vec_of_noise() -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..1_000_000).map(|_| next()).collect()
}
