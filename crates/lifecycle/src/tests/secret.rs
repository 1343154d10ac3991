//! Secrets in the life of a sandbox.

use std::collections::BTreeMap;

use domain::{
    Auth, AuthScheme, Code, Credentials, EnvVars, NoValue, SandboxId, SandboxState, Secret, SecretOptions,
    SecretPolicy,
};
use secrets::{MAX_BINDINGS, NewSecret};

use super::fake_host::{Call, Fault};
use super::{Platform, new_sandbox, wait_for};
use crate::NewSandbox;

impl Platform {
    async fn store_secret(&self, name: &str) {
        let policy = SecretPolicy {
            hosts: vec!["a.test".parse().unwrap()],
            auth: Auth::Same(AuthScheme::Bearer),
            options: SecretOptions::default(),
        };
        let new = NewSecret { name: name.to_owned(), value: Secret::new("hunter2"), provider: None, policy };
        self.secrets.create(self.team, new).await.unwrap();
    }

    async fn with_secret(&self, env_key: &str, name: &str) -> SandboxId {
        let secrets = BTreeMap::from([(env_key.to_owned(), name.to_owned())]);
        let made = self.lifecycle.create(self.team, NewSandbox { secrets, ..new_sandbox() }).await.unwrap();
        assert_eq!(made.secrets.len(), 1);
        made.row.summary.id
    }

    fn variable(&self, id: SandboxId, env_key: &str) -> Option<String> {
        self.host.variables(id).get(env_key).cloned()
    }

    /// What the broker would be told about a text it found.
    fn meaning(&self, text: &str) -> Option<Result<SandboxId, NoValue>> {
        let bound = self.secrets.find(text)?;
        Some(self.secrets.value(&bound).map(|_| bound.sandbox))
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, domain::Problem>) -> Code {
    result.unwrap_err().code
}

#[tokio::test]
async fn a_stand_in_lives_as_long_as_its_binding_and_its_sandbox() {
    let p = Platform::new().await;
    p.store_secret("prod").await;
    let id = p.with_secret("KEY", "prod").await;
    let first = p.variable(id, "KEY").unwrap();
    assert!(first.starts_with("ssrv_proxy_"));
    assert_eq!(p.meaning(&first), Some(Ok(id)));
    p.lifecycle.attach_secret(p.caller(), id, "OTHER", "prod").await.unwrap();
    let other = p.variable(id, "OTHER").unwrap();
    assert_ne!(first, other);
    p.lifecycle.detach_secret(p.caller(), id, "KEY").await.unwrap();
    assert_eq!((p.variable(id, "KEY"), p.meaning(&first)), (None, Some(Err(NoValue::Revoked))));
    assert_eq!(p.meaning(&other), Some(Ok(id)));
    // All of it survives the server, and a machine that dies gets its variables again.
    let p = p.restarted().await;
    assert_eq!((p.meaning(&first), p.meaning(&other)), (Some(Err(NoValue::Revoked)), Some(Ok(id))));
    p.host.kill(id).await;
    p.wait_for_state(id, Some(SandboxState::Paused)).await;
    p.lifecycle.resume(p.team, id).await.unwrap();
    assert_eq!((p.variable(id, "OTHER").as_deref(), p.variable(id, "KEY")), (Some(other.as_str()), None));
    // A deleted secret: the binding is shown as revoked and its variable stays.
    p.secrets.delete(p.team, "prod").await.unwrap();
    let shown = p.lifecycle.get(p.team, id).unwrap().secrets;
    assert_eq!((shown.len(), shown[0].env_key.as_str(), shown[0].revoked), (1, "OTHER", true));
    assert_eq!(p.meaning(&other), Some(Err(NoValue::Revoked)));
    let p = p.restarted().await;
    assert!(p.lifecycle.get(p.team, id).unwrap().secrets[0].revoked);
    p.lifecycle.delete(p.team, id).await.unwrap();
    assert_eq!((p.meaning(&first), p.meaning(&other)), (None, None));
    wait_for("the rows", || p.lifecycle.context_is_empty()).await;
    assert_eq!(p.store.binding_all().await.unwrap(), []);
    let log = p.log().await;
    assert!(
        log.contains(&"attached ok by laptop".to_owned())
            && log.contains(&"detached ok by laptop".to_owned()),
        "{log:?}"
    );
}

#[tokio::test]
async fn bindings_change_while_it_runs_or_is_paused_and_not_in_between() {
    let p = Platform::new().await;
    p.store_secret("prod").await;
    let id = p.with_secret("KEY", "prod").await;
    p.lifecycle.pause(p.team, id, false).await.unwrap();
    p.lifecycle.attach_secret(p.team, id, "LATER", "prod").await.unwrap();
    p.lifecycle.detach_secret(p.team, id, "KEY").await.unwrap();
    assert_eq!(p.host.count(Call::Configure, id), 0, "a paused machine is left alone");
    assert_eq!(p.state(id), Some(SandboxState::Paused));
    p.lifecycle.resume(p.team, id).await.unwrap();
    assert!(p.variable(id, "LATER").is_some() && p.variable(id, "KEY").is_none());
    p.host.fault(Call::Freeze, Fault::Wait);
    let (pausing, during) = tokio::join!(p.lifecycle.pause(p.team, id, false), async {
        p.wait_for_state(id, Some(SandboxState::Pausing)).await;
        let during = p.lifecycle.attach_secret(p.team, id, "NOW", "prod").await;
        p.host.mend();
        during
    });
    pausing.unwrap();
    assert_eq!(code(during), Code::Conflict);
    assert_eq!(code(p.lifecycle.attach_secret(p.team, SandboxId::new(), "A", "prod").await), Code::NotFound);
}

#[tokio::test]
async fn what_is_refused_leaves_nothing() {
    let p = Platform::new().await;
    p.store_secret("prod").await;
    let env = EnvVars::new(BTreeMap::from([("PLAIN".to_owned(), "1".to_owned())])).unwrap();
    let id = p.lifecycle.create(p.team, NewSandbox { env, ..new_sandbox() }).await.unwrap().row.summary.id;
    let attach = async |key: &str, name: &str| p.lifecycle.attach_secret(p.team, id, key, name).await;
    assert_eq!(code(attach("A", "nothing").await), Code::SecretNotFound);
    assert_eq!(code(attach("PLAIN", "prod").await), Code::BadRequest);
    attach("A", "prod").await.unwrap();
    assert_eq!(code(attach("A", "prod").await), Code::Conflict);
    assert_eq!(code(p.lifecycle.detach_secret(p.team, id, "B").await), Code::NotFound);
    for n in 1..MAX_BINDINGS {
        attach(&format!("K{n}"), "prod").await.unwrap();
    }
    assert_eq!(code(attach("MORE", "prod").await), Code::BadRequest);
    p.lifecycle.detach_secret(p.team, id, "A").await.unwrap();
    // The machine does not take the variable: there is no binding.
    p.host.fault(Call::Configure, Fault::Fail);
    assert_eq!(code(attach("A", "prod").await), Code::Internal);
    assert_eq!(p.lifecycle.get(p.team, id).unwrap().secrets.len(), MAX_BINDINGS - 1);
    // It does not take the end of one: the stand-in is refused all the same.
    let stand_in = p.variable(id, "K1").unwrap();
    p.lifecycle.detach_secret(p.team, id, "K1").await.unwrap();
    assert_eq!(p.meaning(&stand_in), Some(Err(NoValue::Revoked)));
    p.host.mend();
    let live = p.store.binding_all().await.unwrap();
    assert_eq!(live.iter().filter(|row| row.detached_at.is_none()).count(), MAX_BINDINGS - 2);
    // An unknown name at creation: no sandbox, no row.
    let secrets = BTreeMap::from([("A".to_owned(), "nothing".to_owned())]);
    let refused = p.lifecycle.create(p.team, NewSandbox { secrets, ..new_sandbox() }).await;
    assert_eq!(code(refused), Code::SecretNotFound);
    // A creation that fails takes its stand-ins with it.
    p.host.fault(Call::Create, Fault::Fail);
    let secrets = BTreeMap::from([("A".to_owned(), "prod".to_owned())]);
    assert!(p.lifecycle.create(p.team, NewSandbox { secrets, ..new_sandbox() }).await.is_err());
    p.host.mend();
    for _ in 0..200 {
        let rows = p.store.binding_all().await.unwrap();
        if rows.iter().all(|row| row.sandbox == id) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the stand-ins of a failed creation stay");
}
