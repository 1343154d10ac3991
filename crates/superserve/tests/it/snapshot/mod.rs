//! Saved snapshots and forks, with real machines: what a fork has and has not, and that nothing is lost or left behind.

mod crash;
mod depth;
mod forks;
mod inherit;
mod rest;

use serde_json::{Value, json};
use testing::{Answer, Platform};

use crate::BIN;
use crate::registry::own_layers;

/// Snapshots are layers: the shared directory is nobody's to write.
async fn platform(flags: &[&str]) -> Option<Platform> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: sandboxes need root");
        return None;
    }
    let state = Platform::new_state();
    let layers = state.path().join("layers");
    own_layers(&layers);
    let own = ["--layers-dir", layers.to_str().unwrap()];
    Some(Platform::start_on(BIN, state, &[&own, flags].concat(), &[]).await)
}

/// Saves a sandbox; it must be ready at once.
async fn save(p: &Platform, id: &str, body: Value) -> Value {
    let answer = p.rest("POST", &format!("/sandboxes/{id}/snapshot"), Some(body)).await;
    assert_eq!(
        (answer.status, &answer.body["status"]),
        (201, &json!("ready")),
        "{:?}\n{}",
        answer.body,
        p.log()
    );
    answer.body
}

fn id_of(body: &Value) -> String {
    body["id"].as_str().unwrap().to_owned()
}

/// Creates from a snapshot and gives id, token and all that was said.
async fn fork(p: &Platform, snapshot: &str, more: Value) -> (String, String, Value) {
    let mut body = json!({"name": "fork", "from_snapshot": snapshot});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made = p.rest("POST", "/sandboxes", Some(body)).await;
    assert_eq!(made.status, 201, "{:?}\n{}", made.body, p.log());
    (id_of(&made.body), made.body["access_token"].as_str().unwrap().to_owned(), made.body)
}

async fn delete(p: &Platform, path: &str) {
    let answer: Answer = p.rest("DELETE", path, None).await;
    assert_eq!(answer.status, 204, "{path}: {:?}", answer.body);
}

/// Layers that this platform made, and what is being made into one.
fn layers(p: &Platform) -> (usize, usize) {
    let entries = std::fs::read_dir(p.state_dir().join("layers")).unwrap().flatten();
    // The base is a link to the shared one.
    let own = entries.filter(|entry| !entry.path().is_symlink());
    let names: Vec<_> = own.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let count = |of: fn(&str) -> bool| names.iter().filter(|name| of(name)).count();
    (count(|name| name.len() == 64), count(|name| name.starts_with(".tmp-")))
}

/// Resumes a sandbox and gives its new token.
async fn activate(p: &Platform, id: &str) -> String {
    let answer = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!(answer.status, 200, "{:?}\n{}", answer.body, p.log());
    answer.body["access_token"].as_str().unwrap().to_owned()
}
