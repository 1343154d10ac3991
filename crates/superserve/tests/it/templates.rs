//! Templates from their `POST` to the sandboxes made of them: real images out of a real registry, steps in real machines.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testing::{Platform, wait_for};

use crate::BIN;
use crate::registry::{Registry, own_layers};

/// Pulling, some machines, a busy host, and perhaps an emulated one.
const BUILD: Duration = Duration::from_secs(300);

/// A platform whose default registry is a mirror with `python:3.11`, and layers of its own.
pub(crate) struct Bed {
    pub(crate) p: Platform,
    pub(crate) registry: Registry,
}

impl Bed {
    /// With `python:3.11`.
    async fn with_python() -> Option<Self> {
        let registry = Registry::start().await?;
        if !registry.push_python() {
            return None;
        }
        Self::over(registry, &[]).await
    }

    /// With `small`, which is busybox.
    pub(crate) async fn with_small(flags: &[&str]) -> Option<Self> {
        let registry = Registry::start().await?;
        registry.push_small("library/small:latest");
        Self::over(registry, flags).await
    }

    async fn over(registry: Registry, flags: &[&str]) -> Option<Self> {
        let state = Platform::new_state();
        let layers = state.path().join("layers");
        Self::over_state(registry, state, &layers, flags).await
    }

    /// On a state directory that somebody has prepared.
    pub(crate) async fn over_state(
        registry: Registry,
        state: tempfile::TempDir,
        layers: &Path,
        flags: &[&str],
    ) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: sandboxes need root");
            return None;
        }
        own_layers(layers);
        let mirror = registry.address.to_string();
        let own = ["--layers-dir", layers.to_str().unwrap(), "--registry-mirrors", &mirror];
        let p = Platform::start_on(BIN, state, &[&own, flags].concat(), &[]).await;
        Some(Self { p, registry })
    }

    /// Creates a template and gives its id and the build's.
    pub(crate) async fn create(&self, name: &str, spec: Value) -> (String, String) {
        let body = json!({"name": name, "memory_mib": 256, "disk_mib": 1024, "build_spec": spec});
        let made = self.p.rest("POST", "/templates", Some(body)).await;
        assert_eq!(made.status, 202, "{:?}", made.body);
        assert_eq!(made.body["status"], "building");
        let text = |key: &str| made.body[key].as_str().unwrap().to_owned();
        (text("id"), text("build_id"))
    }

    pub(crate) async fn build(&self, template: &str, build: &str) -> Value {
        self.p.rest("GET", &format!("/templates/{template}/builds/{build}"), None).await.body
    }

    /// Waits for the end of a build.
    pub(crate) async fn ended(&self, template: &str, build: &str) -> Value {
        wait_for("the end of a build", BUILD, || async {
            let build = self.build(template, build).await;
            let over = ["ready", "failed", "cancelled"].iter().any(|status| build["status"] == *status);
            over.then_some(build)
        })
        .await
    }

    /// Waits for a status on the way.
    pub(crate) async fn reached(&self, template: &str, build: &str, status: &str) {
        wait_for(&format!("status {status}"), BUILD, || async {
            (self.build(template, build).await["status"] == status).then_some(())
        })
        .await;
    }

    pub(crate) async fn log(&self, template: &str, build: &str) -> Vec<Value> {
        let answer = self.p.rest("GET", &format!("/templates/{template}/builds/{build}/logs"), None).await;
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        let text = answer.body.as_str().unwrap().to_owned();
        let records = text.split("\n\n").filter_map(|record| record.strip_prefix("data: "));
        records.map(|json| serde_json::from_str(json).unwrap()).collect()
    }

    /// Builds a template that must become ready.
    pub(crate) async fn ready(&self, name: &str, spec: Value) -> (String, String) {
        let (template, build) = self.create(name, spec).await;
        let done = self.ended(&template, &build).await;
        assert_eq!(done["status"], "ready", "{done}\n{}", self.p.log());
        (template, build)
    }

    /// Builds a template that must fail, and gives why; nothing of it is left then.
    pub(crate) async fn failed(&self, name: &str, spec: Value) -> String {
        let (template, build) = self.create(name, spec).await;
        let done = self.ended(&template, &build).await;
        assert_eq!(done["status"], "failed", "{done}");
        let shown = self.p.rest("GET", &format!("/templates/{template}"), None).await.body;
        assert_eq!((&shown["status"], &shown["error_message"]), (&json!("failed"), &done["error_message"]));
        let log = self.log(&template, &build).await;
        let last = log.last().unwrap();
        assert!(last["finished"] == true && last["status"] == "failed", "{last}");
        let refused =
            self.p.rest("POST", "/sandboxes", Some(json!({"name": "x", "from_template": name}))).await;
        assert_eq!((refused.status, refused.code()), (409, "conflict"));
        assert_eq!(self.delete(&template).await, 204);
        done["error_message"].as_str().unwrap().to_owned()
    }

    /// Waits until a command of a running build has printed something.
    pub(crate) async fn printed(&self, build: &str, text: &str) {
        let file = self.p.state_dir().join("builds").join(format!("{build}.log"));
        let line = format!(r#""stdout","text":"{text}"#);
        wait_for(&format!("`{text}` in the log"), BUILD, || async {
            std::fs::read_to_string(&file).is_ok_and(|log| log.contains(&line)).then_some(())
        })
        .await;
    }

    pub(crate) fn layers(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.p.state_dir().join("layers")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.len() == 64).collect()
    }

    pub(crate) fn nothing_runs(&self) {
        let remains = self.p.remains();
        assert_eq!((remains.machines, remains.disks, remains.links), (0, 0, 0), "{remains:?}");
    }

    pub(crate) async fn delete(&self, name: &str) -> u16 {
        self.p.rest("DELETE", &format!("/templates/{name}"), None).await.status
    }
}

pub(crate) fn text_of(log: &[Value], stream: &str) -> String {
    log.iter()
        .filter(|event| event["stream"] == stream)
        .map(|event| event["text"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_template_is_built_used_rebuilt_and_deleted() {
    let Some(bed) = Bed::with_python().await else { return };
    let p = &bed.p;
    let spec = json!({
        "from": "python:3.11",
        "steps": [
            {"run": "mkdir -p /srv/app && echo out && echo err >&2"},
            {"workdir": "/srv/app"},
            {"env": {"key": "GREETING", "value": "hello from build"}},
            {"user": {"name": "app", "sudo": true}},
            {"workdir": "data"},
            {"run": "id -un > who; pwd >> who; echo $GREETING >> who; sudo rm -f /etc/issue; mkdir deep; sudo mv /usr/share/base-files deep/moved"},
            {"run": "python --version > version; sudo -n id -u >> version"},
        ],
        "start_cmd": "echo $$ > /tmp/started; exec python -m http.server 8123 --directory /srv/app/data",
        "ready_cmd": "python -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8123/who\").read()'",
    });
    let (template, build) = bed.create("my/app", spec).await;
    let done = bed.ended(&template, &build).await;
    assert_eq!(done["status"], "ready", "{done}\n{}", p.log());
    assert_eq!(done["build_spec_hash"].as_str().unwrap().len(), 64);
    let shown = p.rest("GET", "/templates/my%2Fapp", None).await.body;
    assert_eq!(shown["status"], "ready");
    assert!(shown["built_at"].is_string() && shown["size_bytes"].as_u64().unwrap() > 10_000_000, "{shown}");
    let log = bed.log(&template, &build).await;
    assert_eq!(text_of(&log, "stdout").lines().next(), Some("out"));
    assert!(text_of(&log, "stderr").contains("err\n"));
    let last = log.last().unwrap();
    assert!(last["finished"] == true && last["status"] == "ready", "{last}");
    assert!(log.iter().rev().skip(1).all(|event| event.get("finished").is_none()));

    let (id, token) = p.create(json!({"name": "user", "from_template": "my/app"})).await;
    let seen = p.run(&id, &token, "id -un; pwd; echo $GREETING; cat who; cat version").await;
    let expected = [
        "app",
        "/srv/app/data",
        "hello from build",
        "app",
        "/srv/app/data",
        "hello from build",
        "Python 3.11.2",
        "0",
    ];
    assert_eq!(
        seen.lines()
            .map(|l| if l.starts_with("Python 3.11") { "Python 3.11.2" } else { l })
            .collect::<Vec<_>>(),
        expected
    );
    // What a step removed or renamed is so; what belongs to the build's machine is not in the template.
    let names = p.run(&id, &token, "find /etc/issue /usr/share/base-files 2>&1 | grep -c 'No such'; find deep/moved -printf '%f\\n' | head -1; cat /etc/hostname").await;
    assert!(names.starts_with("2\n") && names.contains(&id[..8]), "{names}");
    // The command of the template runs, and served before the create was answered.
    let served = "python -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8123/who\").read().decode())'";
    assert!(p.run(&id, &token, served).await.contains("/srv/app/data"));

    // The same build again: nothing is made twice, and the template is usable all the time.
    let again = p.rest("POST", &format!("/templates/{template}/builds"), None).await;
    assert_eq!(again.status, 201, "{:?}", again.body);
    assert_eq!(again.body["build_spec_hash"], done["build_spec_hash"]);
    assert_eq!(p.rest("GET", "/templates/my%2Fapp", None).await.body["status"], "ready");
    let (second, _) = p.create(json!({"name": "meanwhile", "from_template": template})).await;
    let build = again.body["id"].as_str().unwrap();
    assert_eq!(bed.ended(&template, build).await["status"], "ready");
    let log = text_of(&bed.log(&template, build).await, "system");
    assert_eq!(log.matches("(made before)").count(), 7, "{log}");
    let listed = p.rest("GET", &format!("/templates/{template}/builds?limit=1"), None).await.body;
    assert!(listed.as_array().unwrap().len() == 1 && listed[0]["id"] == build, "{listed}");

    // Not before its sandboxes are gone.
    assert_eq!(bed.delete("my%2Fapp").await, 409);
    for sandbox in [id, second] {
        assert_eq!(p.rest("DELETE", &format!("/sandboxes/{sandbox}"), None).await.status, 204);
    }
    assert_eq!(bed.delete("my%2Fapp").await, 204);
    assert_eq!(bed.delete("my%2Fapp").await, 404);
    assert_eq!(p.rest("GET", &format!("/templates/{template}/builds/{build}/logs"), None).await.status, 404);
    assert_eq!(std::fs::read_dir(p.state_dir().join("builds")).unwrap().count(), 0);
    bed.nothing_runs();

    // What nothing refers to goes; the base stays.
    wait_for("unused layers to go", Duration::from_secs(40), || async {
        (bed.layers().len() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn failures_say_what_to_change() {
    let Some(bed) = Bed::with_small(&[]).await else { return };
    let registry = &bed.registry;
    let run = |commands: &[&str]| {
        let steps: Vec<_> = commands.iter().map(|command| json!({"run": command})).collect();
        json!({"from": "small", "steps": steps})
    };
    let why = bed.failed("step", run(&["true", "echo told >&2; exit 7"])).await;
    assert!(
        why.starts_with("step_failed: step 2 (`run echo told") && why.ends_with("exit code 7: told"),
        "{why}"
    );
    // What it pulled and made until then is there for the next try.
    let (template, build) = bed.create("step-again", run(&["true", "exit 8"])).await;
    assert_eq!(bed.ended(&template, &build).await["status"], "failed");
    let log = text_of(&bed.log(&template, &build).await, "system");
    assert!(log.contains("run true (made before)") && !log.contains("downloading"), "{log}");
    assert_eq!(bed.delete("step-again").await, 204);
    let why = bed.failed("unknown", json!({"from": "never/was:1"})).await;
    assert!(why.starts_with("image_pull_failed: "), "{why}");
    let why = bed.failed("malformed", json!({"from": "Not An Image"})).await;
    assert!(why.starts_with("bad_reference: "), "{why}");

    let dir = registry.dir();
    std::fs::create_dir_all(dir.join("other/etc")).unwrap();
    std::fs::write(dir.join("other/etc/motd"), "no shell here").unwrap();
    registry.run("tar", &["-C", "other", "-cf", "no-shell.tar", "etc"]);
    registry.push_tar("library/no-shell:latest", "no-shell.tar", &[]);
    let why = bed.failed("no-shell", json!({"from": "no-shell"})).await;
    assert!(why.starts_with("boot_failed: "), "{why}");
    registry.push_tar("library/foreign:latest", "no-shell.tar", &["--architecture=s390x"]);
    let why = bed.failed("foreign", json!({"from": "foreign"})).await;
    assert!(why.starts_with("unsupported_platform: ") && why.contains("s390x"), "{why}");
    registry.run("tar", &["-cPf", "climbing.tar", "--transform=s,other/etc,../../etc,", "other/etc/motd"]);
    registry.push_tar("library/climbing:latest", "climbing.tar", &[]);
    let why = bed.failed("climbing", json!({"from": "climbing"})).await;
    assert!(why.starts_with("image_unsafe: ") && why.contains("`..`"), "{why}");
    std::fs::File::create(dir.join("other/zeros")).unwrap().set_len(1_100 << 20).unwrap();
    registry.run("tar", &["-cf", "bomb.tar", "other/zeros"]);
    registry.push_tar("library/bomb:latest", "bomb.tar", &[]);
    std::fs::remove_file(dir.join("bomb.tar")).unwrap();
    let why = bed.failed("bomb", json!({"from": "bomb"})).await;
    assert!(why.starts_with("image_too_large: ") && why.contains("1024 MiB"), "{why}");

    let start = |start_cmd: &str| json!({"from": "small", "start_cmd": start_cmd, "ready_cmd": "false"});
    let why = bed.failed("start", start("echo broken >&2; exit 3")).await;
    assert!(why.starts_with("start_cmd_failed: ") && why.ends_with("exit code 3: broken"), "{why}");
    // What a guest writes is its own, as long as it can be kept.
    let why = bed.failed("reserved", run(&["touch /srv/.wh.etc"])).await;
    assert!(why.starts_with("snapshot_failed: ") && why.contains("`srv/.wh.etc`"), "{why}");
    let why = bed.failed("sparse", run(&["dd if=/dev/zero of=/huge bs=1 count=1 seek=99999999999"])).await;
    assert!(why.starts_with("snapshot_failed: ") && why.contains("bytes"), "{why}");
    let deep = "i=0; while [ $i -lt 90 ]; do n=$(printf '%050d' $i); mkdir $n; cd $n; i=$((i+1)); done";
    let why = bed.failed("deep", run(&[deep])).await;
    assert!(why.starts_with("snapshot_failed: ") && why.contains("overlong"), "{why}");
    bed.nothing_runs();
}

/// What a step leaves behind, in every spelling the overlay has for it.
#[tokio::test]
async fn what_steps_write_is_what_sandboxes_see() {
    let Some(bed) = Bed::with_small(&[]).await else { return };
    let steps = [
        // Removed, replaced, renamed, also twice; names that need escapes; what is no file.
        "rm -r /srv/gone; mv /srv/old /srv/new; mv /srv/new /srv/newer; echo more > /srv/newer/c; mkdir /srv/old; echo mine > /srv/old/z",
        "rm /srv/newer/a; mv /srv/newer /tmp/moved; mkdir /srv/newer; mkfifo /tmp/fifo; ln -s /etc/passwd /tmp/link; echo x > '/tmp/a,b:c d'",
        "n=/tmp/$(printf '%0200d' 7); echo long > $n; ln $n /tmp/hard; chmod 4755 /tmp/hard; chown 12:34 $n; rm -r /srv/old; mkdir /srv/old; touch /srv/old/y",
        "dd if=/dev/zero of=/tmp/sparse bs=1 count=1 seek=52428800; chmod 1770 /tmp",
    ];
    let steps: Vec<_> = steps.iter().map(|command| json!({"run": command})).collect();
    bed.ready("marks", json!({"from": "small", "steps": steps})).await;
    let p = &bed.p;
    let (id, token) = p.create(json!({"from_template": "marks"})).await;
    let seen = p
        .run(&id, &token, "cd /srv; ls; ls old newer; cd /tmp; ls moved; cat moved/b moved/c; readlink link; cat 'a,b:c d'; stat -c '%F %a' fifo; stat -c '%h %a %u %g' hard; cat hard; stat -c '%s' sparse; stat -c %a /tmp")
        .await;
    let expected = [
        "newer",
        "old",
        "newer:",
        "",
        "old:",
        "y",
        "b",
        "c",
        "srv/old/bmore",
        "/etc/passwd",
        "x",
        "fifo 644",
        "2 755 12 34",
        "long",
        "52428801",
        "1770",
    ];
    assert_eq!(seen.lines().collect::<Vec<_>>(), expected);
    // What an image says about its processes is so; its command runs for whoever asks for that.
    let config = [
        "--config.env=PATH=/bin",
        "--config.env=FROM_IMAGE=it is",
        "--config.workingdir=/srv/old",
        "--config.user=12:34",
    ];
    let commands = ["--config.entrypoint=sh", "--config.entrypoint=-c"];
    let cmd = ["--config.cmd=echo $FROM_IMAGE $(pwd) $(id -u):$(id -g) > /tmp/ran; sleep 1000"];
    let root = bed.registry.dir().join("small");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    bed.registry.run("tar", &["-C", "small", "-cf", "speaks.tar", "--owner=0", "--group=0", "."]);
    bed.registry.push_tar("library/speaks:latest", "speaks.tar", &[&config[..], &commands, &cmd].concat());
    bed.ready("quiet", json!({"from": "speaks"})).await;
    bed.ready("speaks", json!({"from": "speaks", "image_cmd": true, "ready_cmd": "test -s /tmp/ran"})).await;
    let seen = "echo $FROM_IMAGE; pwd; id -u; id -g; cat /tmp/ran";
    let (id, token) = p.create(json!({"from_template": "speaks"})).await;
    assert_eq!(p.run(&id, &token, seen).await, "it is\n/srv/old\n12\n34\nit is /srv/old 12:34\n");
    let (id, token) = p.create(json!({"from_template": "quiet"})).await;
    assert_eq!(p.run(&id, &token, &format!("{seen} 2>/dev/null; true")).await, "it is\n/srv/old\n12\n34\n");
    let why = bed.failed("silent", json!({"from": "small", "image_cmd": true})).await;
    assert!(why.starts_with("start_cmd_failed: ") && why.contains("no ENTRYPOINT or CMD"), "{why}");

    // The hole is one in the layer, too.
    let layers = bed.layers().into_iter().map(|digest| p.state_dir().join("layers").join(digest));
    let sparse = layers.map(|layer| layer.join("tmp/sparse")).find(|path| path.exists()).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert!(std::fs::metadata(sparse).unwrap().blocks() < 1_000);
}

#[tokio::test]
async fn builds_wait_are_cancelled_and_end_with_the_server() {
    let Some(mut bed) =
        Bed::with_small(&["--concurrent-builds", "1", "--max-builds", "2", "--max-templates", "3"]).await
    else {
        return;
    };
    let slow = |name: &str| json!({"from": "small", "steps": [{"run": format!("echo {name}; sleep 600")}]});
    let (first, first_build) = bed.create("first", slow("first")).await;
    bed.reached(&first, &first_build, "building").await;
    let (second, second_build) = bed.create("second", slow("second")).await;
    let refused = bed.p.rest("POST", "/templates", Some(body_named("third"))).await;
    assert_eq!((refused.status, refused.code()), (429, "too_many_builds"));
    let taken = bed.p.rest("POST", "/templates", Some(body_named("first"))).await;
    assert_eq!((taken.status, taken.code()), (409, "conflict"));
    // The same build is not begun twice; a template that is being built stays.
    let same = bed.p.rest("POST", "/templates/first/builds", None).await;
    assert_eq!((same.status, &same.body["id"]), (200, &json!(first_build)));
    assert_eq!(bed.delete("first").await, 409);

    // The second one waits, and says so to whoever listens; it is cancelled without having begun.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(bed.build(&second, &second_build).await["status"], "pending");
    let cancel = async |template: &str, build: &str| {
        bed.p.rest("DELETE", &format!("/templates/{template}/builds/{build}"), None).await.status
    };
    assert_eq!(cancel(&second, &second_build).await, 204);
    let log = bed.log(&second, &second_build).await;
    assert!(text_of(&log, "system").contains("waiting for other builds"), "{log:?}");
    assert_eq!(log.last().unwrap()["status"], "cancelled");
    assert_eq!(bed.delete("second").await, 204);

    // The first one in the middle of its step.
    bed.printed(&first_build, "first").await;
    assert_eq!(cancel(&first, &first_build).await, 204);
    let ended = bed.build(&first, &first_build).await;
    assert_eq!(ended["status"], "cancelled", "{ended}");
    bed.nothing_runs();
    assert_eq!(cancel(&first, &first_build).await, 204);
    assert_eq!(bed.p.rest("GET", "/templates/first", None).await.body["status"], "failed");

    // Killed in the middle of a rebuild: the template stays usable, and the build says what happened.
    let body = json!({"from": "small", "steps": [{"run": "test ! -e /srv/old/stop || sleep 600"}]});
    let (kept, _) = bed.ready("kept", body).await;
    let (slow_one, slow_build) = bed.create("slow", slow("slow")).await;
    bed.printed(&slow_build, "slow").await;
    bed.p.kill_hard();
    bed.p.spawn().await;
    bed.nothing_runs();
    let ended = bed.build(&slow_one, &slow_build).await;
    assert_eq!(ended["status"], "failed");
    assert!(
        ended["error_message"].as_str().unwrap().starts_with("build_failed: the server was restarted"),
        "{ended}"
    );
    let log = bed.log(&slow_one, &slow_build).await;
    assert!(text_of(&log, "stdout").contains("slow") && log.last().unwrap()["finished"] == true, "{log:?}");
    let (id, _) = bed.p.create(json!({"from_template": kept})).await;
    assert_eq!(bed.p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);

    // Three templates are as many as there may be.
    let refused = bed.p.rest("POST", "/templates", Some(body_named("fourth"))).await;
    assert_eq!((refused.status, refused.code()), (429, "too_many_templates"));

    // Stopped: the build ends at once, and with it whoever listens.
    let again = bed.p.rest("POST", "/templates/slow/builds", None).await;
    assert_eq!(again.status, 201, "{:?}", again.body);
    let build = again.body["id"].as_str().unwrap().to_owned();
    bed.printed(&build, "slow").await;
    let begun = std::time::Instant::now();
    assert_eq!(bed.p.stop().await, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    bed.nothing_runs();
    bed.p.spawn().await;
    assert_eq!(bed.build(&slow_one, &build).await["status"], "failed");
}

fn body_named(name: &str) -> Value {
    json!({"name": name, "build_spec": {"from": "small"}})
}

#[tokio::test]
async fn the_command_line_builds_from_dockerfiles_and_templates() {
    let Some(bed) = Bed::with_small(&[]).await else { return };
    let state = bed.p.state_dir().to_str().unwrap().to_owned();
    let cli = |args: &[&str]| {
        let mut command = std::process::Command::new(BIN);
        command.args(["template", "--state-dir", &state]).args(args).env_remove("SUPERSERVE_API_KEY");
        let output = command.env_remove("SUPERSERVE_BASE_URL").output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let dir = bed.registry.dir().join("project");
    std::fs::create_dir_all(dir.join("src")).unwrap();
    std::fs::write(dir.join("src/hello.sh"), "#!/bin/sh\necho hello from $WHERE\n").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.join("src/hello.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    let file = dir.join("Dockerfile");
    std::fs::write(dir.join(".dockerignore"), "**/*.secret\n").unwrap();
    std::fs::write(dir.join("src/a.secret"), "stays here").unwrap();
    let text = "ARG IMAGE=nothing\nFROM $IMAGE AS made\nENV WHERE=docker\nWORKDIR /app\nCOPY src/ .\nFROM made\nSHELL [\"/bin/sh\", \"-ec\"]\nRUN ./hello.sh | tee said; test ! -e a.secret\nHEALTHCHECK --interval=1s CMD test -e /tmp/up\nEXPOSE 80\nCMD touch /tmp/up; exec sleep 1000\n";
    std::fs::write(&file, text).unwrap();
    let (code, out, err) =
        cli(&["build", "from-file", "-f", file.to_str().unwrap(), "--build-arg", "IMAGE=small"]);
    assert_eq!((code, out.as_str()), (Some(0), "hello from docker\n"), "{err}");
    assert!(err.contains("the template is ready") && err.contains("EXPOSE has no effect"), "{err}");
    let (code, out, _) = cli(&["logs", "from-file"]);
    assert_eq!((code, out.as_str()), (Some(0), "hello from docker\n"));

    // On top of it, without the registry.
    let (code, out, err) =
        cli(&["build", "above", "--from", "template:from-file", "--run", "cat /app/said", "--env", "MORE=1"]);
    assert_eq!((code, out.as_str()), (Some(0), "hello from docker\n"), "{err}");
    let (id, token) = bed.p.create(json!({"from_template": "above"})).await;
    assert_eq!(bed.p.run(&id, &token, "./hello.sh; echo $MORE").await, "hello from docker\n1\n");
    // To a registry and back.
    let reference = format!("{}/mine/above:1", bed.registry.address);
    let (code, out, err) = cli(&["push", "above", &reference, "--layers-dir", &format!("{state}/layers")]);
    assert!(code == Some(0) && out.contains("pushed above"), "{err}");
    let (code, out, err) = cli(&[
        "build",
        "returned",
        "--from",
        &reference,
        "--run",
        "cat /app/said; echo $MORE; ls /app/../srv/old",
    ]);
    assert_eq!((code, out.as_str()), (Some(0), "hello from docker\n1\na\nb\n"), "{err}");
    assert_eq!(cli(&["delete", "returned"]).0, Some(0));
    let (code, _, err) = cli(&["delete", "above", "nothing"]);
    assert!(
        code == Some(1) && err.contains("cannot be deleted") && err.contains("nothing not found"),
        "{err}"
    );
    assert_eq!(bed.p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
    assert_eq!(cli(&["delete", "above", "from-file"]).0, Some(0));
    let (code, _, err) = cli(&["build", "broken", "--from", "small", "--run", "exit 9"]);
    assert!(code == Some(1) && err.contains("step_failed"), "{err}");

    // The platform's own are there to be built, by their owner; nobody deletes them.
    let listed = bed.p.rest("GET", "/templates?name_prefix=superserve/&owner=system", None).await.body;
    let status = |name: &str| {
        let all = listed.as_array().unwrap().iter();
        all.clone().find(|row| row["name"] == name).map(|row| row["status"].as_str().unwrap().to_owned())
    };
    assert_eq!(listed.as_array().unwrap().len(), 9, "{listed}");
    assert_eq!(status("superserve/desktop").as_deref(), Some("pending"));
    let refused = bed.p.rest("DELETE", "/templates/superserve%2Fdesktop", None).await;
    assert_eq!((refused.status, refused.code()), (403, "forbidden"));
    let begun = bed.p.rest("POST", "/templates/superserve%2Fnode-22/builds", None).await;
    assert_eq!(begun.status, 201, "{:?}", begun.body);
    let path = format!("/templates/superserve%2Fnode-22/builds/{}", begun.body["id"].as_str().unwrap());
    assert_eq!(bed.p.rest("DELETE", &path, None).await.status, 204);
    bed.nothing_runs();
}
