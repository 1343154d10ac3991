//! Templates from their `POST` to the sandboxes made of them: real images out of a real registry, steps in real machines.

use std::time::Duration;

use serde_json::{Value, json};
use testing::{Platform, wait_for};

use crate::platform_with;
use crate::registry::{Registry, own_layers};

/// Pulling, some machines, a busy host.
const BUILD: Duration = Duration::from_secs(90);

/// A platform whose default registry is a mirror with `python:3.11`, and layers of its own.
struct Bed {
    p: Platform,
    _registry: Registry,
    layers: tempfile::TempDir,
}

impl Bed {
    async fn new(flags: &[&str]) -> Option<Self> {
        let registry = Registry::start().await?;
        if !registry.push_python() {
            return None;
        }
        let layers = tempfile::tempdir().unwrap();
        own_layers(layers.path());
        let mirror = registry.address.to_string();
        let own = ["--layers-dir", layers.path().to_str().unwrap(), "--registry-mirrors", &mirror];
        let p = platform_with(&[&own, flags].concat()).await?;
        Some(Self { p, _registry: registry, layers })
    }

    /// Creates a template and gives its id and the build's.
    async fn create(&self, name: &str, spec: Value) -> (String, String) {
        let body = json!({"name": name, "disk_mib": 2048, "build_spec": spec});
        let made = self.p.rest("POST", "/templates", Some(body)).await;
        assert_eq!(made.status, 202, "{:?}", made.body);
        assert_eq!(made.body["status"], "building");
        let text = |key: &str| made.body[key].as_str().unwrap().to_owned();
        (text("id"), text("build_id"))
    }

    async fn build(&self, template: &str, build: &str) -> Value {
        self.p.rest("GET", &format!("/templates/{template}/builds/{build}"), None).await.body
    }

    /// Waits for the end of a build.
    async fn ended(&self, template: &str, build: &str) -> Value {
        wait_for("the end of a build", BUILD, || async {
            let build = self.build(template, build).await;
            let over = ["ready", "failed", "cancelled"].iter().any(|status| build["status"] == *status);
            over.then_some(build)
        })
        .await
    }

    /// Waits for a status on the way.
    async fn reached(&self, template: &str, build: &str, status: &str) {
        wait_for(&format!("status {status}"), BUILD, || async {
            (self.build(template, build).await["status"] == status).then_some(())
        })
        .await;
    }

    async fn log(&self, template: &str, build: &str) -> Vec<Value> {
        let answer = self.p.rest("GET", &format!("/templates/{template}/builds/{build}/logs"), None).await;
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        let text = answer.body.as_str().unwrap().to_owned();
        let records = text.split("\n\n").filter_map(|record| record.strip_prefix("data: "));
        records.map(|json| serde_json::from_str(json).unwrap()).collect()
    }

    async fn delete(&self, name: &str) -> u16 {
        self.p.rest("DELETE", &format!("/templates/{name}"), None).await.status
    }
}

fn text_of(log: &[Value], stream: &str) -> String {
    log.iter()
        .filter(|event| event["stream"] == stream)
        .map(|event| event["text"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_template_is_built_used_rebuilt_and_deleted() {
    let Some(bed) = Bed::new(&[]).await else { return };
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
    let names = p.run(&id, &token, "ls /etc/issue /usr/share/base-files 2>&1 | grep -c 'No such'; ls deep/moved | head -1; cat /etc/hostname").await;
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
    let remains = p.remains();
    assert_eq!((remains.machines, remains.disks, remains.links), (0, 0, 0), "{remains:?}");
    drop(bed.layers);
}
