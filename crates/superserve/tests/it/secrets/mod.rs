//! Secrets that sandboxes use and never have, against a test internet whose services want them: what real clients send
//! arrives with the value, and the value is nowhere in the sandbox or in what the platform keeps.

mod clients;
mod refusals;
mod search;
mod stay;

use std::time::Duration;

use serde_json::{Value, json};
use testing::{Internet, Platform};

/// A platform that trusts the authority of a test internet.
struct Bed {
    platform: Platform,
    internet: Internet,
}

/// A sandbox in it.
struct Guest {
    id: String,
    token: String,
}

impl Bed {
    async fn new() -> Option<Self> {
        let internet = Internet::start()?;
        let flags = internet.trusted_flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let platform = crate::platform_with(&flags).await?;
        Some(Self { platform, internet })
    }

    /// Names of the test internet, each with an address of its own.
    fn names(&self, names: &[&str]) {
        for (number, name) in names.iter().enumerate() {
            self.internet.name(name, &[&format!("198.51.100.{}", 100 + number)]);
        }
    }

    /// Stores a secret.
    async fn secret(&self, name: &str, value: &str, auth: Value, hosts: &[&str]) {
        let body = json!({"name": name, "value": value, "auth": auth, "hosts": hosts});
        let answer = self.platform.rest("POST", "/secrets", Some(body)).await;
        assert_eq!(answer.status, 201, "{:?}", answer.body);
    }

    /// A sandbox with these secrets, by variable.
    async fn guest(&self, secrets: Value) -> Guest {
        let (id, token) = self.platform.create(json!({"secrets": secrets})).await;
        Guest { id, token }
    }

    async fn rest(&self, method: &str, path: &str, body: Option<Value>, status: u16) -> Value {
        let answer = self.platform.rest(method, path, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {:?}", answer.body);
        answer.body
    }

    /// Runs a command and gives exit code and all it said.
    async fn run(&self, guest: &Guest, command: &str) -> (i64, String) {
        let answer = self.platform.exec(&guest.id, &guest.token, command).await;
        assert_eq!(answer.status, 200, "{command}: {:?}\n{}", answer.body, self.platform.log());
        let text = |key: &str| answer.body[key].as_str().unwrap_or_default().to_owned();
        (answer.body["exit_code"].as_i64().unwrap(), text("stdout") + &text("stderr"))
    }

    /// Runs a command that must succeed.
    async fn sh(&self, guest: &Guest, command: &str) -> String {
        let (code, text) = self.run(guest, command).await;
        assert_eq!(code, 0, "{command}: {text}\n{}", self.platform.log());
        text
    }

    async fn upload(&self, guest: &Guest, path: &str, content: &str) {
        let path = format!("/files?path={path}");
        let answer =
            self.platform.data("POST", &path, &guest.id, &guest.token, content.as_bytes().to_vec()).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
    }

    /// The newest `request` row of the network log, once it satisfies the condition.
    async fn row(&self, guest: &Guest, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/sandboxes/{}/network?limit=200", guest.id);
        let look = || async {
            let rows = self.rest("GET", &path, None, 200).await["data"].clone();
            rows.as_array().unwrap().iter().find(|row| row["kind"] == "request" && wanted(row)).cloned()
        };
        testing::wait_for(what, Duration::from_secs(3), look).await
    }
}
