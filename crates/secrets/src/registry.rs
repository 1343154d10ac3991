//! What is bound where, in memory: the broker asks with every request. It is rebuilt from the database at the start and
//! changed only after the database was.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use domain::{BoundSecret, NoValue, SandboxId, SecretId, SecretPolicy, TeamId};
use jiff::Timestamp;
use store::{BindingRow, Sealed, SecretRow};
use uuid::Uuid;

/// A secret, as far as its use is concerned.
#[derive(Debug)]
struct Known {
    team: TeamId,
    name: String,
    provider: Option<String>,
    policy: Arc<SecretPolicy>,
    /// Gone when it is deleted.
    sealed: Option<Sealed>,
}

/// A binding as a sandbox's owner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownBinding {
    /// The variable.
    pub env_key: String,
    /// The secret's name when it was bound.
    pub secret_name: String,
    /// The secret was deleted.
    pub revoked: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    secrets: HashMap<SecretId, Known>,
    by_name: HashMap<(TeamId, String), SecretId>,
    bindings: HashMap<SandboxId, Vec<BindingRow>>,
    /// The same for the broker, made anew when anything about it changes.
    bound: HashMap<SandboxId, Arc<[BoundSecret]>>,
    by_stand_in: HashMap<Arc<str>, (SandboxId, Uuid)>,
}

impl Registry {
    pub(crate) fn new(secrets: Vec<SecretRow>, bindings: Vec<BindingRow>) -> Self {
        let mut registry = Self::default();
        for row in secrets {
            registry.add(row);
        }
        for binding in bindings {
            registry.bind(binding);
        }
        registry
    }

    pub(crate) fn add(&mut self, row: SecretRow) {
        if row.deleted_at.is_none() {
            self.by_name.insert((row.team, row.name.clone()), row.id);
        }
        let sealed = row.sealed.filter(|_| row.deleted_at.is_none());
        let (team, name, provider, policy) = (row.team, row.name, row.provider, Arc::new(row.policy));
        self.secrets.insert(row.id, Known { team, name, provider, policy, sealed });
    }

    pub(crate) fn find(&self, team: TeamId, name: &str) -> Option<SecretId> {
        self.by_name.get(&(team, name.to_owned())).copied()
    }

    pub(crate) fn count(&self, team: TeamId) -> usize {
        self.by_name.keys().filter(|(of, _)| *of == team).count()
    }

    pub(crate) fn provider(&self, id: SecretId) -> Option<&str> {
        self.secrets.get(&id)?.provider.as_deref()
    }

    pub(crate) fn is_alive(&self, id: SecretId) -> bool {
        self.secrets.get(&id).is_some_and(|known| known.sealed.is_some())
    }

    pub(crate) fn name(&self, id: SecretId) -> Option<&str> {
        Some(&self.secrets.get(&id)?.name)
    }

    pub(crate) fn reseal(&mut self, id: SecretId, sealed: Sealed) {
        if let Some(known) = self.secrets.get_mut(&id).filter(|known| known.sealed.is_some()) {
            known.sealed = Some(sealed);
        }
    }

    /// Ends a secret everywhere at once.
    pub(crate) fn delete(&mut self, id: SecretId) {
        let Some(known) = self.secrets.get_mut(&id) else { return };
        known.sealed = None;
        self.by_name.remove(&(known.team, known.name.clone()));
        let has_it = |(_, rows): &(&SandboxId, &Vec<BindingRow>)| rows.iter().any(|row| row.secret == id);
        let sandboxes: Vec<_> = self.bindings.iter().filter(has_it).map(|(sandbox, _)| *sandbox).collect();
        for sandbox in sandboxes {
            self.refresh(sandbox);
        }
    }

    pub(crate) fn bind(&mut self, row: BindingRow) {
        let sandbox = row.sandbox;
        self.by_stand_in.insert(row.stand_in.as_str().into(), (sandbox, row.id));
        self.bindings.entry(sandbox).or_default().push(row);
        self.refresh(sandbox);
    }

    /// Ends a binding; it is still known, in order to be refused. Of many ended ones the last are.
    pub(crate) fn detach(&mut self, sandbox: SandboxId, binding: Uuid, now: Timestamp, keep: usize) {
        let Some(rows) = self.bindings.get_mut(&sandbox) else { return };
        if let Some(row) = rows.iter_mut().find(|row| row.id == binding) {
            row.detached_at = Some(now);
        }
        let mut ended: Vec<_> = rows.iter().filter_map(|row| Some((row.detached_at?, row.id))).collect();
        ended.sort_unstable();
        let forgotten: Vec<Uuid> = ended.iter().rev().skip(keep).map(|(_, id)| *id).collect();
        for id in forgotten {
            self.unbind(sandbox, id);
        }
        self.refresh(sandbox);
    }

    /// Forgets a binding altogether.
    pub(crate) fn unbind(&mut self, sandbox: SandboxId, binding: Uuid) {
        let Some(rows) = self.bindings.get_mut(&sandbox) else { return };
        if let Some(place) = rows.iter().position(|row| row.id == binding) {
            let row = rows.remove(place);
            self.by_stand_in.remove(row.stand_in.as_str());
        }
        self.refresh(sandbox);
    }

    /// Forgets a sandbox with all its stand-ins, and what is only known because of it.
    pub(crate) fn forget(&mut self, sandbox: SandboxId) {
        self.bound.remove(&sandbox);
        for row in self.bindings.remove(&sandbox).unwrap_or_default() {
            self.by_stand_in.remove(row.stand_in.as_str());
        }
        let bindings = &self.bindings;
        let bound = |id: SecretId| bindings.values().flatten().any(|row| row.secret == id);
        self.secrets.retain(|id, known| known.sealed.is_some() || bound(*id));
    }

    fn refresh(&mut self, sandbox: SandboxId) {
        let Some(rows) = self.bindings.get(&sandbox).filter(|rows| !rows.is_empty()) else {
            self.bindings.remove(&sandbox);
            self.bound.remove(&sandbox);
            return;
        };
        let bound = rows.iter().filter_map(|row| {
            let known = self.secrets.get(&row.secret)?;
            Some(BoundSecret {
                binding: row.id,
                secret: row.secret,
                sandbox,
                stand_in: row.stand_in.clone(),
                policy: Arc::clone(&known.policy),
                revoked: known.sealed.is_none() || row.detached_at.is_some(),
            })
        });
        let bound = bound.collect();
        self.bound.insert(sandbox, bound);
    }

    pub(crate) fn bound(&self, sandbox: SandboxId) -> Arc<[BoundSecret]> {
        self.bound.get(&sandbox).cloned().unwrap_or_default()
    }

    pub(crate) fn whose(&self, text: &str) -> Option<BoundSecret> {
        let (sandbox, binding) = self.by_stand_in.get(text)?;
        self.bound.get(sandbox)?.iter().find(|bound| bound.binding == *binding).cloned()
    }

    /// The value as it is kept, if it may be used now.
    pub(crate) fn sealed(&self, bound: &BoundSecret) -> Result<Sealed, NoValue> {
        let now = self
            .bound
            .get(&bound.sandbox)
            .and_then(|all| all.iter().find(|now| now.binding == bound.binding));
        if now.is_none_or(|now| now.revoked) {
            return Err(NoValue::Revoked);
        }
        self.secrets.get(&bound.secret).and_then(|known| known.sealed.clone()).ok_or(NoValue::Revoked)
    }

    fn live(&self, sandbox: SandboxId) -> impl Iterator<Item = &BindingRow> {
        self.bindings.get(&sandbox).into_iter().flatten().filter(|row| row.detached_at.is_none())
    }

    pub(crate) fn live_key(&self, sandbox: SandboxId, env_key: &str) -> Option<&BindingRow> {
        self.live(sandbox).find(|row| row.env_key == env_key)
    }

    pub(crate) fn live_count(&self, sandbox: SandboxId) -> usize {
        self.live(sandbox).count()
    }

    pub(crate) fn variables(&self, sandbox: SandboxId) -> BTreeMap<String, String> {
        self.live(sandbox).map(|row| (row.env_key.clone(), row.stand_in.as_str().to_owned())).collect()
    }

    pub(crate) fn secrets_of(&self, sandbox: SandboxId) -> BTreeMap<String, SecretId> {
        self.live(sandbox).map(|row| (row.env_key.clone(), row.secret)).collect()
    }

    pub(crate) fn shown(&self, sandbox: SandboxId) -> Vec<ShownBinding> {
        let shown = self.live(sandbox).filter_map(|row| {
            let known = self.secrets.get(&row.secret)?;
            let (env_key, secret_name) = (row.env_key.clone(), known.name.clone());
            Some(ShownBinding { env_key, secret_name, revoked: known.sealed.is_none() })
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort_by(|a, b| a.env_key.cmp(&b.env_key));
        shown
    }
}
