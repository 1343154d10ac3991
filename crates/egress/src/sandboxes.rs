//! Which sandbox an address belongs to, what it may reach now, and how much it may have open.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use domain::{EgressRules, SandboxId};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::budget::{Bandwidth, Budget};
use crate::config::GatewayConfig;

/// Questions of one sandbox to resolvers that wait for an answer.
pub(crate) const QUESTIONS: usize = 64;

/// A sandbox that is attached.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    guest: Ipv4Addr,
    rules: RwLock<Arc<EgressRules>>,
    /// One permit per open connection.
    pub(crate) connections: Arc<Semaphore>,
    /// One permit per question that waits.
    pub(crate) questions: Arc<Semaphore>,
    /// What it may send, and be sent.
    pub(crate) upward: Bandwidth,
    pub(crate) downward: Bandwidth,
    /// How much it may still write into the log.
    pub(crate) log: Budget,
    /// Cancelled when it is detached: everything of it ends.
    pub(crate) gone: CancellationToken,
    presence: Mutex<Presence>,
}

/// TCP connections of a sandbox, whatever becomes of them.
#[derive(Debug, Default)]
struct Presence {
    open: usize,
    /// When there was one for the last time.
    last: Option<Instant>,
}

/// One of them, while it lives.
#[derive(Debug)]
pub(crate) struct Present(Arc<Sandbox>);

impl Present {
    pub(crate) fn of(sandbox: &Arc<Sandbox>) -> Self {
        sandbox.presence().open += 1;
        Self(Arc::clone(sandbox))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut presence = self.0.presence();
        presence.open -= 1;
        presence.last = Some(Instant::now());
    }
}

impl Sandbox {
    /// The rules as they are now.
    pub(crate) fn rules(&self) -> Arc<EgressRules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does something that the rules decide on. Nobody can change them in between, and whoever has changed them knows that
    /// nothing decided by the former ones is still about to happen. `act` must not wait.
    pub(crate) fn decide<T>(&self, act: impl FnOnce(&EgressRules) -> T) -> T {
        act(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        // Numbers are whole after each statement that changes them.
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quiet(&self) -> Duration {
        let presence = self.presence();
        match (presence.open, presence.last) {
            (0, None) => Duration::MAX,
            (0, Some(last)) => last.elapsed(),
            _ => Duration::ZERO,
        }
    }

    fn set_rules(&self, rules: EgressRules) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Sandboxes(Mutex<Directory>);

#[derive(Debug, Default)]
struct Directory {
    by_id: HashMap<SandboxId, Arc<Sandbox>>,
    by_address: HashMap<Ipv4Addr, Arc<Sandbox>>,
}

impl Sandboxes {
    /// Enters a sandbox, or gives one that is there already these rules.
    pub(crate) fn attach(&self, id: SandboxId, guest: Ipv4Addr, rules: EgressRules, config: &GatewayConfig) {
        let mut directory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = directory.by_id.get(&id).filter(|there| there.guest == guest) {
            return there.set_rules(rules);
        }
        let sandbox = Arc::new(Sandbox {
            id,
            guest,
            rules: RwLock::new(Arc::new(rules)),
            connections: Arc::new(Semaphore::new(config.sandbox_connections)),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            upward: Bandwidth::new(config.sandbox_bandwidth),
            downward: Bandwidth::new(config.sandbox_bandwidth),
            log: Budget::new(),
            gone: CancellationToken::new(),
            presence: Mutex::default(),
        });
        // Whoever had the id or the address before is gone.
        let former = directory.by_id.insert(id, Arc::clone(&sandbox));
        if let Some(former) = former {
            former.gone.cancel();
            directory.by_address.remove(&former.guest);
        }
        if let Some(former) = directory.by_address.insert(guest, sandbox) {
            former.gone.cancel();
            directory.by_id.remove(&former.id);
        }
    }

    /// Replaces the rules of a sandbox; `false` when it is not attached.
    pub(crate) fn update(&self, id: SandboxId, rules: EgressRules) -> bool {
        let sandbox = self.0.lock().unwrap_or_else(PoisonError::into_inner).by_id.get(&id).cloned();
        sandbox.map(|sandbox| sandbox.set_rules(rules)).is_some()
    }

    /// Ends everything of a sandbox.
    pub(crate) fn detach(&self, id: SandboxId) {
        let mut directory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sandbox) = directory.by_id.remove(&id) {
            directory.by_address.remove(&sandbox.guest);
            sandbox.gone.cancel();
        }
    }

    /// For how long it has had no TCP connection; not at all when it is not attached.
    pub(crate) fn quiet(&self, id: SandboxId) -> Duration {
        let sandbox = self.0.lock().unwrap_or_else(PoisonError::into_inner).by_id.get(&id).cloned();
        sandbox.map_or(Duration::ZERO, |sandbox| sandbox.quiet())
    }

    /// It may have had one until now.
    pub(crate) fn assume_present(&self, id: SandboxId) {
        let sandbox = self.0.lock().unwrap_or_else(PoisonError::into_inner).by_id.get(&id).cloned();
        if let Some(sandbox) = sandbox {
            drop(Present::of(&sandbox));
        }
    }

    /// Whose address this is.
    pub(crate) fn at(&self, guest: Ipv4Addr) -> Option<Arc<Sandbox>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).by_address.get(&guest).cloned()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_whoever_was_attached_last() {
        let (all, config) = (Sandboxes::default(), GatewayConfig::default());
        let (first, second) = (SandboxId::new(), SandboxId::new());
        let (here, there) = (Ipv4Addr::new(100, 96, 0, 1), Ipv4Addr::new(100, 96, 0, 3));
        all.attach(first, here, EgressRules::default(), &config);
        let attached = all.at(here).unwrap();
        // Again is no news: connections stay, rules change.
        let strict = EgressRules { strict: true, ..EgressRules::default() };
        all.attach(first, here, strict.clone(), &config);
        assert!(!attached.gone.is_cancelled() && *attached.rules() == strict);

        all.attach(second, here, EgressRules::default(), &config);
        assert!(attached.gone.is_cancelled());
        assert_eq!((all.at(here).unwrap().id, all.count()), (second, 1));
        assert!(!all.update(first, strict));
        all.attach(second, there, EgressRules::default(), &config);
        assert!(all.at(here).is_none());
        all.detach(first);
        all.detach(second);
        assert_eq!((all.at(there).is_none(), all.count()), (true, 0));
    }

    #[test]
    fn a_sandbox_is_quiet_from_its_last_connection_on() {
        let (all, config) = (Sandboxes::default(), GatewayConfig::default());
        let (id, here) = (SandboxId::new(), Ipv4Addr::new(100, 96, 0, 1));
        assert_eq!(all.quiet(id), Duration::ZERO, "nobody knows");
        all.attach(id, here, EgressRules::default(), &config);
        assert_eq!(all.quiet(id), Duration::MAX, "it has just begun");
        let (one, other) = (all.at(here).unwrap(), all.at(here).unwrap());
        let (one, other) = (Present::of(&one), Present::of(&other));
        drop(one);
        assert_eq!(all.quiet(id), Duration::ZERO);
        drop(other);
        assert!(all.quiet(id) < Duration::MAX);
        std::thread::sleep(Duration::from_millis(2));
        assert!(all.quiet(id) >= Duration::from_millis(2));
        all.assume_present(id);
        assert!(all.quiet(id) < Duration::from_secs(60));
    }

    /// Nanoseconds of finding a sandbox by its address and asking its rules, among this many.
    fn lookup(sandboxes: u32) -> f64 {
        let all = Sandboxes::default();
        let config = GatewayConfig::default();
        let text = |list: std::ops::Range<u32>, what: &str| -> Vec<String> {
            list.map(|number| what.replace('N', &number.to_string())).collect()
        };
        let guest = |number: u32| Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 96, 0, 1)) + 2 * number);
        for number in 0..sandboxes {
            let mut allow = text(0..128, &format!("N.{number}.example"));
            allow.extend(text(0..128, "198.18.N.0/24"));
            let rules = EgressRules::parse(&allow, &["0.0.0.0/0".to_owned()]).unwrap();
            all.attach(SandboxId::new(), guest(number), rules, &config);
        }
        let rounds = 2_000;
        let mut best = f64::MAX;
        for _ in 0..5 {
            let begun = std::time::Instant::now();
            for round in 0..rounds {
                let sandbox = all.at(guest(round % sandboxes)).unwrap();
                // The last of its entries, and one it does not have.
                let name = format!("127.{}.example", round % sandboxes);
                assert!(sandbox.rules().rule_on(Some(&name), Ipv4Addr::new(9, 9, 9, 9)).permitted);
                assert!(!sandbox.rules().rule_on(Some("other.example"), Ipv4Addr::new(9, 9, 9, 9)).permitted);
            }
            best = best.min(begun.elapsed().as_secs_f64() * 1e9 / f64::from(rounds));
        }
        best
    }

    #[test]
    fn a_thousand_sandboxes_with_full_lists_do_not_slow_a_lookup() {
        let (one, thousand) = (lookup(1), lookup(1_000));
        println!(
            "look-up and two judgements over 257 entries: {one:.0} ns alone, {thousand:.0} ns among 1,000"
        );
        // Caches are smaller than a thousand lists; the number of sandboxes must not show otherwise.
        assert!(thousand < one * 4.0 + 2_000.0, "{one} {thousand}");
    }
}
