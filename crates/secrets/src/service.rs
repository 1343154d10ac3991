//! What the rest of the platform calls. Everything is written to the database before it holds.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use domain::{
    Action, BoundSecret, Code, Credentials, NextStep, NoValue, Problem, SandboxId, Secret, SecretId,
    SecretPolicy, TeamId,
};
use jiff::Timestamp;
use store::{BindingRow, Sealed, SecretRow, Store};
use tokio::sync::Mutex;
use uuid::Uuid;
use wire::agent::Trust;

use crate::problem::{no_such_secret, unknown_secret};
use crate::registry::{Registry, ShownBinding};
use crate::{Keyring, Provider, SecretsError, stand_in};

/// Most secrets bound to one sandbox (`spec/semantics.md` §6.5).
pub const MAX_BINDINGS: usize = 32;
/// Most secrets of one team: each is kept in memory.
const MAX_SECRETS: usize = 1_000;
/// Detached stand-ins of one sandbox that are remembered, as in the database.
const DETACHED_KEPT: usize = 64;

/// What a create asks for.
#[derive(Debug)]
pub struct NewSecret {
    /// Checked.
    pub name: String,
    /// Checked.
    pub value: Secret,
    /// The provider whose shape it has.
    pub provider: Option<&'static Provider>,
    /// How it may be used.
    pub policy: SecretPolicy,
}

/// The secrets of this platform.
#[derive(Debug)]
pub struct Secrets {
    store: Store,
    keys: Keyring,
    registry: RwLock<Registry>,
    /// One change of a secret at a time, so that memory changes in the order of the database.
    turn: Mutex<()>,
    /// The authority that signs for the hosts of secrets.
    trust: OnceLock<Trust>,
}

impl Secrets {
    /// Reads everything from the database.
    ///
    /// # Errors
    /// When the database fails. A value whose key is missing is no error: it is said in the log, and it cannot be used.
    pub async fn open(store: Store, keys: Keyring) -> Result<Arc<Self>, SecretsError> {
        let (secrets, bindings) = (store.secret_all().await?, store.binding_all().await?);
        let lost = |row: &&SecretRow| row.sealed.as_ref().is_some_and(|sealed| !keys.knows(&sealed.by));
        let lost = secrets.iter().filter(lost).count();
        if lost > 0 {
            tracing::error!(
                secrets = lost,
                "the key of some secrets is missing; restore secret.keys from a backup, or rotate them"
            );
        }
        let registry = RwLock::new(Registry::new(secrets, bindings));
        Ok(Arc::new(Self { store, keys, registry, turn: Mutex::new(()), trust: OnceLock::new() }))
    }

    /// Sandboxes that have, or had, a secret are to trust this authority.
    pub fn trust(&self, authority: Trust) {
        let _there_is_one_broker = self.trust.set(authority);
    }

    /// What programs in this sandbox must trust.
    #[must_use]
    pub fn trusted(&self, sandbox: SandboxId) -> Option<Trust> {
        self.trust.get().filter(|_| !self.bound(sandbox).is_empty()).cloned()
    }

    fn read(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a secret.
    ///
    /// # Errors
    /// `conflict` when the team has one of this name.
    pub async fn create(&self, team: TeamId, new: NewSecret) -> Result<SecretRow, Problem> {
        let _turn = self.turn.lock().await;
        if self.read().count(team) >= MAX_SECRETS {
            let message = format!("your team has as many secrets as it may ({MAX_SECRETS})");
            return Err(Problem::new(Code::Conflict, message, NextStep::Do(Action::ListSecrets)));
        }
        let (id, now) = (SecretId::new(), Timestamp::now());
        let row = SecretRow {
            id,
            team,
            name: new.name,
            provider: new.provider.map(|provider| provider.name.to_owned()),
            policy: new.policy,
            sealed: Some(self.keys.seal(id, &new.value)?),
            created_at: now,
            updated_at: now,
            last_used_at: None,
            deleted_at: None,
        };
        self.store.secret_create(&row).await?;
        self.write().add(row.clone());
        Ok(row)
    }

    /// A team's secrets, by name.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn list(&self, team: TeamId) -> Result<Vec<SecretRow>, Problem> {
        Ok(self.store.secret_list(team).await?)
    }

    /// One secret.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn get(&self, team: TeamId, name: &str) -> Result<SecretRow, Problem> {
        self.store.secret_find(team, name).await?.ok_or_else(|| no_such_secret(name))
    }

    /// Replaces a value: the next request carries the new one.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn rotate(&self, team: TeamId, name: &str, value: &Secret) -> Result<SecretRow, Problem> {
        let _turn = self.turn.lock().await;
        let id = self.read().find(team, name).ok_or_else(|| no_such_secret(name))?;
        let sealed = self.keys.seal(id, value)?;
        if !self.store.secret_reseal(id, &sealed, Timestamp::now()).await? {
            return Err(no_such_secret(name));
        }
        self.write().reseal(id, sealed);
        self.get(team, name).await
    }

    /// Ends a secret in all sandboxes at once, and forgets its value. Bindings stay and are refused.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn delete(&self, team: TeamId, name: &str) -> Result<SecretId, Problem> {
        let _turn = self.turn.lock().await;
        let id = self.read().find(team, name).ok_or_else(|| no_such_secret(name))?;
        let existed = self.store.secret_delete(id, Timestamp::now()).await?;
        self.write().delete(id);
        if existed { Ok(id) } else { Err(no_such_secret(name)) }
    }

    /// Makes bindings of secrets by name, with fresh stand-ins; nothing is written or holds yet.
    ///
    /// # Errors
    /// `secret_not_found`.
    pub fn prepare<'a>(
        &self,
        team: TeamId,
        sandbox: SandboxId,
        wanted: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Vec<BindingRow>, Problem> {
        let registry = self.read();
        let bind = |(env_key, name): (&String, &String)| {
            let secret = registry.find(team, name).ok_or_else(|| unknown_secret(name))?;
            new_binding(&registry, sandbox, env_key.clone(), secret)
        };
        wanted.into_iter().map(bind).collect()
    }

    /// Makes bindings for a fork, with fresh stand-ins, of what its source had bound, as far as these secrets still exist;
    /// nothing is written or holds yet.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn inherit(
        &self,
        sandbox: SandboxId,
        bound: impl IntoIterator<Item = (String, SecretId)>,
    ) -> Result<Vec<BindingRow>, Problem> {
        let registry = self.read();
        let alive = bound.into_iter().filter(|(_, secret)| registry.is_alive(*secret));
        alive.map(|(env_key, secret)| new_binding(&registry, sandbox, env_key, secret)).collect()
    }

    /// Which secrets are bound to a sandbox, by variable.
    #[must_use]
    pub fn bindings(&self, sandbox: SandboxId) -> BTreeMap<String, SecretId> {
        self.read().secrets_of(sandbox)
    }

    /// These bindings are written: they hold from now on.
    pub fn bound_now(&self, bindings: Vec<BindingRow>) {
        let mut registry = self.write();
        for binding in bindings {
            registry.bind(binding);
        }
    }

    /// This binding is ended in the database: it is refused from now on.
    pub fn detached_now(&self, sandbox: SandboxId, binding: Uuid, now: Timestamp) {
        self.write().detach(sandbox, binding, now, DETACHED_KEPT);
    }

    /// This binding never came into force.
    pub fn unbound_now(&self, sandbox: SandboxId, binding: Uuid) {
        self.write().unbind(sandbox, binding);
    }

    /// The sandbox is deleted: all its stand-ins are nothing from now on.
    pub fn forget(&self, sandbox: SandboxId) {
        self.write().forget(sandbox);
    }

    /// The binding under this variable.
    #[must_use]
    pub fn binding(&self, sandbox: SandboxId, env_key: &str) -> Option<BindingRow> {
        self.read().live_key(sandbox, env_key).cloned()
    }

    /// How many secrets are bound to a sandbox.
    #[must_use]
    pub fn count(&self, sandbox: SandboxId) -> usize {
        self.read().live_count(sandbox)
    }

    /// The variables of a sandbox that hold stand-ins.
    #[must_use]
    pub fn variables(&self, sandbox: SandboxId) -> BTreeMap<String, String> {
        self.read().variables(sandbox)
    }

    /// What is bound to a sandbox, as its owner sees it.
    #[must_use]
    pub fn shown(&self, sandbox: SandboxId) -> Vec<ShownBinding> {
        self.read().shown(sandbox)
    }

    /// The name of a secret that is known here, deleted or not.
    #[must_use]
    pub fn name(&self, id: SecretId) -> Option<String> {
        self.read().name(id).map(str::to_owned)
    }
}

fn new_binding(
    registry: &Registry,
    sandbox: SandboxId,
    env_key: String,
    secret: SecretId,
) -> Result<BindingRow, Problem> {
    let provider = registry.provider(secret).and_then(Provider::find);
    Ok(BindingRow {
        id: Uuid::new_v4(),
        sandbox,
        secret,
        env_key,
        stand_in: stand_in::generate(provider)?,
        created_at: Timestamp::now(),
        detached_at: None,
    })
}

impl Credentials for Secrets {
    fn bound(&self, sandbox: SandboxId) -> Arc<[BoundSecret]> {
        self.read().bound(sandbox)
    }

    fn find(&self, text: &str) -> Option<BoundSecret> {
        self.read().whose(text)
    }

    fn value(&self, bound: &BoundSecret) -> Result<Secret, NoValue> {
        let sealed = self.read().sealed(bound)?;
        self.keys.open(bound.secret, &sealed).map_err(|error| {
            let cause = &error as &dyn std::error::Error;
            tracing::error!(cause, secret = %bound.secret, "a secret cannot be opened");
            NoValue::Unavailable
        })
    }
}

/// Seals the keys of all values with the ring's first key, and says how many there were. No server may run meanwhile.
///
/// # Errors
/// When one of them cannot be opened; nothing changes then.
pub async fn rewrap_all(store: &Store, keys: &Keyring) -> Result<usize, SecretsError> {
    store.secret_rewrap_all(|id, sealed: &Sealed| keys.rewrap(id, sealed)).await
}
