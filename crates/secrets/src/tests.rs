//! The service against a real database.

use std::collections::BTreeMap;

use domain::{
    Auth, AuthScheme, BoundSecret, Code, Credentials, NoValue, SandboxId, Secret, SecretPolicy, TeamId,
};
use jiff::Timestamp;
use store::Store;
use zeroize::Zeroizing;

use crate::{Keyring, NewSecret, Provider, Secrets, SecretsError, rewrap_all};

const VALUE: &str = "planted-value-4711-\u{fc}";

fn keys(names: &[(&str, u8)]) -> Keyring {
    let keys: Vec<_> =
        names.iter().map(|(name, byte)| ((*name).to_owned(), Zeroizing::new([*byte; 32]))).collect();
    Keyring::new(&keys).unwrap()
}

struct Fixture {
    dir: tempfile::TempDir,
    store: Store,
    team: TeamId,
    secrets: std::sync::Arc<Secrets>,
}

async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).await.unwrap();
    let team = store.team_ensure("default", Timestamp::now()).await.unwrap().id;
    let secrets = Secrets::open(store.clone(), keys(&[("one", 1)])).await.unwrap();
    Fixture { dir, store, team, secrets }
}

fn own(name: &str, value: &str) -> NewSecret {
    NewSecret {
        name: name.to_owned(),
        value: Secret::new(value),
        provider: None,
        policy: SecretPolicy {
            hosts: vec!["api.example.com".parse().unwrap()],
            auth: Auth::Same(AuthScheme::Bearer),
            options: domain::SecretOptions::default(),
        },
    }
}

impl Fixture {
    /// Binds without a sandbox in the database: what holds is decided in memory.
    fn bind(&self, sandbox: SandboxId, env_key: &str, name: &str) -> BoundSecret {
        let wanted = BTreeMap::from([(env_key.to_owned(), name.to_owned())]);
        let bindings = self.secrets.prepare(self.team, sandbox, &wanted).unwrap();
        let id = bindings[0].id;
        self.secrets.bound_now(bindings);
        self.secrets.bound(sandbox).iter().find(|bound| bound.binding == id).unwrap().clone()
    }

    fn value(&self, bound: &BoundSecret) -> Result<String, NoValue> {
        self.secrets.value(bound).map(|value| value.expose_secret().to_owned())
    }
}

#[tokio::test]
async fn a_stand_in_stands_for_the_value_as_long_as_it_may() {
    let f = fixture().await;
    f.secrets.create(f.team, own("prod", VALUE)).await.unwrap();
    let (one, two) = (SandboxId::new(), SandboxId::new());
    let (first, second) = (f.bind(one, "KEY", "prod"), f.bind(two, "KEY", "prod"));
    assert_ne!(first.stand_in, second.stand_in, "fresh for each binding");
    assert_eq!(
        f.secrets.variables(one),
        BTreeMap::from([("KEY".to_owned(), first.stand_in.as_str().to_owned())])
    );
    assert_eq!(f.value(&first).as_deref(), Ok(VALUE));
    // Whoever has it: the broker sees that it is another sandbox's.
    assert_eq!(f.secrets.find(first.stand_in.as_str()).unwrap().sandbox, one);
    assert_eq!(f.secrets.find("ssrv_proxy_nonsense"), None);
    assert_eq!(f.secrets.bound(SandboxId::new()).len(), 0);
    // Rotation: the next request, the same stand-in.
    f.secrets.rotate(f.team, "prod", &Secret::new("second")).await.unwrap();
    assert_eq!(f.value(&first).as_deref(), Ok("second"));
    // Detached: known, in order to be refused, and gone from the variables.
    f.secrets.detached_now(one, first.binding, Timestamp::now());
    assert_eq!(f.value(&first), Err(NoValue::Revoked));
    assert!(f.secrets.find(first.stand_in.as_str()).unwrap().revoked && f.secrets.bound(one)[0].revoked);
    assert!(f.secrets.variables(one).is_empty() && f.secrets.shown(one).is_empty());
    // Attached again: another stand-in; the old one does not come back.
    let again = f.bind(one, "KEY", "prod");
    assert_eq!((f.value(&again).as_deref(), f.value(&first)), (Ok("second"), Err(NoValue::Revoked)));
    // Deleted: everywhere at once, and a new secret of that name is another one.
    f.secrets.delete(f.team, "prod").await.unwrap();
    f.secrets.create(f.team, own("prod", "third")).await.unwrap();
    for bound in [&again, &second] {
        assert_eq!(f.value(bound), Err(NoValue::Revoked));
    }
    let shown = f.secrets.shown(two);
    assert_eq!((shown[0].secret_name.as_str(), shown[0].revoked), ("prod", true));
    assert_eq!(f.secrets.variables(two).len(), 1, "the variable stays");
    assert_eq!(f.secrets.delete(f.team, "nothing").await.unwrap_err().code, Code::NotFound);
    // With the sandbox everything goes.
    f.secrets.forget(two);
    assert_eq!((f.secrets.find(second.stand_in.as_str()), f.value(&second)), (None, Err(NoValue::Revoked)));
}

#[tokio::test]
async fn detached_stand_ins_do_not_pile_up() {
    let f = fixture().await;
    f.secrets.create(f.team, own("prod", VALUE)).await.unwrap();
    let sandbox = SandboxId::new();
    let first = f.bind(sandbox, "KEY", "prod");
    f.secrets.detached_now(sandbox, first.binding, Timestamp::now());
    for _ in 0..100 {
        let bound = f.bind(sandbox, "KEY", "prod");
        f.secrets.detached_now(sandbox, bound.binding, Timestamp::now());
    }
    let live = f.bind(sandbox, "KEY", "prod");
    assert_eq!(f.secrets.bound(sandbox).len(), 65);
    assert_eq!(f.secrets.find(first.stand_in.as_str()), None);
    assert_eq!(f.value(&live).as_deref(), Ok(VALUE));
}

#[tokio::test]
async fn names_are_the_teams_own_and_stand_ins_have_the_providers_shape() {
    let f = fixture().await;
    let other = f.store.team_ensure("other", Timestamp::now()).await.unwrap().id;
    let provider = Provider::find("anthropic");
    let new = NewSecret { provider, policy: provider.unwrap().policy(), ..own("ant", VALUE) };
    f.secrets.create(f.team, new).await.unwrap();
    assert_eq!(f.secrets.create(f.team, own("ant", "x")).await.unwrap_err().code, Code::Conflict);
    f.secrets.create(other, own("ant", "x")).await.unwrap();
    assert_eq!(f.secrets.get(other, "ant").await.unwrap().provider, None);
    let text = f.bind(SandboxId::new(), "K", "ant").stand_in;
    assert!(text.as_str().starts_with("sk-ant-api03-") && text.as_str().len() == 13 + 48);
    let wanted = BTreeMap::from([("K".to_owned(), "no\u{1b}such".to_owned())]);
    let refused = f.secrets.prepare(f.team, SandboxId::new(), &wanted).unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (Code::SecretNotFound, "secret `nosuch` not found"));
}

#[tokio::test]
async fn values_are_in_no_file_in_no_form() {
    let f = fixture().await;
    f.secrets.create(f.team, own("prod", VALUE)).await.unwrap();
    f.secrets.rotate(f.team, "prod", &Secret::new(format!("{VALUE}-2"))).await.unwrap();
    let row = f.secrets.get(f.team, "prod").await.unwrap();
    assert!(!format!("{row:?} {:?}", f.secrets).contains("planted"));
    f.store.close().await;
    let mut files = 0;
    for entry in std::fs::read_dir(f.dir.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        // The value, its base64 (in all three alignments) and its percent form.
        for form in
            ["planted-value", "cGxhbnRlZC12YWx1Z", "BsYW50ZWQtdmFsdW", "wbGFudGVkLXZhbHVl", "planted%2Dvalue"]
        {
            assert!(!bytes.windows(form.len()).any(|part| part == form.as_bytes()), "{form}");
        }
        files += 1;
    }
    assert!(files >= 1);
}

#[tokio::test]
async fn the_platforms_key_can_be_replaced_and_without_it_nothing_opens() {
    let f = fixture().await;
    f.secrets.create(f.team, own("prod", VALUE)).await.unwrap();
    f.secrets.create(f.team, own("test", "t")).await.unwrap();
    let both = keys(&[("two", 2), ("one", 1)]);
    assert_eq!(rewrap_all(&f.store, &both).await.unwrap(), 2);
    let reopened = Secrets::open(f.store.clone(), keys(&[("two", 2)])).await.unwrap();
    let f = Fixture { secrets: reopened, ..f };
    let bound = f.bind(SandboxId::new(), "K", "prod");
    assert_eq!(f.value(&bound).as_deref(), Ok(VALUE));
    // With another key the start goes on, the value does not open, and nothing is changed by trying.
    let lost = Secrets::open(f.store.clone(), keys(&[("three", 3)])).await.unwrap();
    let f = Fixture { secrets: lost, ..f };
    let bound = f.bind(SandboxId::new(), "K", "prod");
    assert_eq!(f.value(&bound), Err(NoValue::Unavailable));
    assert!(matches!(rewrap_all(&f.store, &keys(&[("three", 3)])).await, Err(SecretsError::NoKey { .. })));
    f.secrets.rotate(f.team, "prod", &Secret::new("again")).await.unwrap();
    assert_eq!(f.value(&bound).as_deref(), Ok("again"));
}
