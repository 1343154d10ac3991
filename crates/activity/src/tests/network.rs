//! The network log.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{
    Attempt, ConnectionAttempt, DnsAttempt, EgressRules, Engine, EnvVars, MatchRule, Metadata, NetworkEvent,
    NetworkKind, NetworkSink, NetworkVerdict, PreviewAccess, RuntimeDefaults, SandboxId, SandboxState, Shape,
    TemplateId, TemplateStatus, Timeouts,
};
use jiff::Timestamp;
use store::{
    NetworkFilter, NetworkRetention, SandboxRow, SandboxSummary, TemplateRow, TokenNumbers, Written,
    system_team,
};

use super::{Fixture, fixture};
use crate::NetworkLog;

const KEEP: NetworkRetention = NetworkRetention { rows: 10_000, days: 30 };

fn connection(sandbox: SandboxId, n: u64) -> NetworkEvent {
    let what = Attempt::Connection(ConnectionAttempt {
        host: Some("a.example".to_owned()),
        to: "198.51.100.7:443".parse().unwrap(),
        verdict: NetworkVerdict::Allowed,
        rule: MatchRule::Default,
        sent: n,
        received: 0,
        took: Duration::ZERO,
        error: None,
    });
    NetworkEvent { sandbox, at: Timestamp::now(), what }
}

fn lookup(sandbox: SandboxId) -> NetworkEvent {
    let what = Attempt::Dns(DnsAttempt {
        name: "a.example".to_owned(),
        record: "A".to_owned(),
        to: "1.1.1.1:53".parse().unwrap(),
        verdict: NetworkVerdict::Allowed,
        rule: MatchRule::Default,
        error: None,
    });
    NetworkEvent { sandbox, at: Timestamp::now(), what }
}

impl Fixture {
    async fn sandbox(&self) -> SandboxId {
        let template = TemplateRow {
            id: TemplateId::new(),
            team: system_team(),
            name: format!("t/{}", TemplateId::new()),
            status: TemplateStatus::Ready,
            shape: Shape { vcpu: 1, memory_mib: 1024, disk_mib: 4096 },
            engine: None,
            defaults: RuntimeDefaults::default(),
            layers: Vec::new(),
            size_bytes: None,
            created_at: Timestamp::now(),
            built_at: None,
            error: None,
            spec: None,
        };
        self.store.template_put(&template).await.unwrap();
        let row = SandboxRow {
            summary: SandboxSummary {
                id: SandboxId::new(),
                name: "box".to_owned(),
                state: SandboxState::Active,
                shape: template.shape,
                engine: Engine::Container,
                created_at: Timestamp::now(),
                metadata: Metadata::default(),
                timeouts: Timeouts::default(),
                auto_delete_at: None,
                preview_access: PreviewAccess::Public,
                network: EgressRules::default(),
                checkpoint: None,
                source_snapshot: None,
            },
            team: self.team,
            generation: 0,
            template: Some(template.id),
            layers: Vec::new(),
            defaults: RuntimeDefaults::default(),
            env: EnvVars::new(BTreeMap::new()).unwrap(),
            active_since: None,
            link: 0,
            memory_kept: false,
            token: TokenNumbers { epoch: 0, issued_ms: 0 },
        };
        let Written::Applied(row) = self.store.sandbox_create(row, &[], 100).await.unwrap() else { panic!() };
        row.summary.id
    }

    async fn sent(&self, id: SandboxId, kinds: &[NetworkKind]) -> Vec<u64> {
        let filter =
            NetworkFilter { kinds: kinds.to_vec(), verdict: None, before: None, since: None, limit: 10_000 };
        let (rows, _) = self.store.network_log_list(id, &filter).await.unwrap();
        let sent = |what: &Attempt| match what {
            Attempt::Connection(connection) => connection.sent,
            _ => 0,
        };
        rows.iter().map(|row| sent(&row.event.what)).collect()
    }
}

#[tokio::test]
async fn events_are_rows_within_a_second() {
    let f = fixture().await;
    let id = f.sandbox().await;
    let (log, writer) = NetworkLog::start(f.store.clone(), KEEP);
    for n in 0..600 {
        log.record(connection(id, n));
    }
    tokio::time::sleep(Duration::from_millis(900)).await;
    let rows = f.sent(id, &NetworkKind::PUBLISHED).await;
    assert_eq!(rows, (0..600).rev().collect::<Vec<_>>(), "all, newest first");
    log.record(connection(id, 600));
    writer.stop().await;
    assert_eq!(f.sent(id, &NetworkKind::PUBLISHED).await.len(), 601);
    assert_eq!((log.stats().written, log.stats().dropped, log.stats().queued), (601, 0, 0));
}

/// One sandbox that floods the queue must not cost another one its rows, nor itself its connections.
#[tokio::test]
async fn nobody_gets_the_whole_queue() {
    let f = fixture().await;
    let (loud, quiet) = (f.sandbox().await, f.sandbox().await);
    let (log, writer) = NetworkLog::with_queue(f.store.clone(), KEEP, 64);
    // The writer has had no turn yet: one thread, and nothing here waits.
    for _ in 0..100 {
        log.record(lookup(loud));
    }
    for n in 0..100 {
        log.record(connection(loud, n));
    }
    for n in 0..10 {
        log.record(connection(quiet, n));
    }
    log.flush().await;
    assert_eq!(f.sent(loud, &NetworkKind::EXTRA).await.len(), 4, "a sixteenth");
    assert_eq!(f.sent(loud, &NetworkKind::PUBLISHED).await.len(), 12, "the rest of its quarter");
    assert_eq!(f.sent(quiet, &NetworkKind::PUBLISHED).await.len(), 10);
    assert_eq!(log.stats().dropped, 96 + 88);
    // What has been written makes room again.
    log.record(lookup(loud));
    writer.stop().await;
    assert_eq!(f.sent(loud, &NetworkKind::EXTRA).await.len(), 5);
}

#[tokio::test]
async fn no_sandbox_has_more_rows_than_are_kept() {
    let f = fixture().await;
    let (busy, calm) = (f.sandbox().await, f.sandbox().await);
    let (log, writer) = NetworkLog::start(f.store.clone(), NetworkRetention { rows: 50, days: 1 });
    log.record(connection(calm, 7));
    for n in 0..1_500 {
        log.record(connection(busy, n));
        log.record(lookup(busy));
        if n % 100 == 0 {
            log.flush().await;
        }
    }
    log.flush().await;
    for _ in 0..200 {
        if f.sent(busy, NetworkKind::ALL).await.len() <= 100 + 999 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    writer.stop().await;
    // The next start looks at everybody.
    let (log, writer) = NetworkLog::start(f.store.clone(), NetworkRetention { rows: 50, days: 1 });
    for _ in 0..200 {
        if f.sent(busy, NetworkKind::ALL).await.len() == 100 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(f.sent(busy, &NetworkKind::EXTRA).await.len(), 50);
    let kept = f.sent(busy, &NetworkKind::PUBLISHED).await;
    assert_eq!((kept.len(), kept[0]), (50, 1_499), "the newest");
    assert_eq!(f.sent(calm, &NetworkKind::PUBLISHED).await, [7]);
    assert_eq!(log.stats().dropped, 0);
    writer.stop().await;
}
