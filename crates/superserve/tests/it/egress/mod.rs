//! The way out of sandboxes, against a test internet: what rules permit works as it does without a gateway, and what they
//! refuse never leaves.

mod clients;

use serde_json::{Value, json};
use testing::{Internet, Platform};

/// A platform whose sandboxes go out into a test internet.
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
        Self::with(&[]).await
    }

    async fn with(flags: &[&str]) -> Option<Self> {
        let internet = Internet::start()?;
        let own = internet.flags();
        let flags: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let platform = crate::platform_with(&flags).await?;
        Some(Self { platform, internet })
    }

    /// A sandbox with these lists.
    async fn guest(&self, allow: &[&str], deny: &[&str]) -> Guest {
        self.guest_with(json!({"allow_out": allow, "deny_out": deny})).await
    }

    async fn guest_with(&self, network: Value) -> Guest {
        let (id, token) = self.platform.create(json!({"network": network})).await;
        Guest { id, token }
    }

    /// Runs a command and gives exit code and all it said.
    async fn run(&self, guest: &Guest, command: &str) -> (i64, String) {
        let answer = self.platform.exec(&guest.id, &guest.token, command).await;
        assert_eq!(answer.status, 200, "{command}: {:?}", answer.body);
        let text = |key: &str| answer.body[key].as_str().unwrap_or_default().to_owned();
        (answer.body["exit_code"].as_i64().unwrap(), text("stdout") + &text("stderr"))
    }

    /// Runs a command that must succeed.
    async fn sh(&self, guest: &Guest, command: &str) -> String {
        let (code, text) = self.run(guest, command).await;
        assert_eq!(code, 0, "{command}: {text}\n{}", self.platform.log());
        text
    }
}
