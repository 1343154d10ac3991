//! The network log.

use std::net::SocketAddrV4;
use std::time::Duration;

use domain::{
    Attempt, ConnectionAttempt, DnsAttempt, MatchRule, NetworkEvent, NetworkKind, NetworkVerdict,
    PacketAttempt, RequestAttempt, SandboxId, SecretId,
};
use jiff::Timestamp;

use super::fixture;
use crate::{NetworkBefore, NetworkFilter, Written};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn resolver() -> SocketAddrV4 {
    "1.1.1.1:53".parse().unwrap()
}

fn connection(sandbox: SandboxId, second: i64, verdict: NetworkVerdict) -> NetworkEvent {
    let what = Attempt::Connection(ConnectionAttempt {
        host: Some("api.example.com".to_owned()),
        to: "198.51.100.7:443".parse().unwrap(),
        verdict,
        rule: MatchRule::Domain,
        sent: 5,
        received: 7,
        took: Duration::from_millis(12),
        error: (verdict == NetworkVerdict::Failed).then(|| "refused".to_owned()),
    });
    NetworkEvent { sandbox, at: at(second), what }
}

fn lookup(sandbox: SandboxId, second: i64) -> NetworkEvent {
    let what = Attempt::Dns(DnsAttempt {
        name: "evil.test".to_owned(),
        record: "A".to_owned(),
        to: resolver(),
        verdict: NetworkVerdict::Blocked,
        rule: MatchRule::ImplicitDeny,
        error: None,
    });
    NetworkEvent { sandbox, at: at(second), what }
}

fn any() -> NetworkFilter {
    NetworkFilter { kinds: NetworkKind::ALL.to_vec(), verdict: None, before: None, since: None, limit: 1_000 }
}

#[tokio::test]
async fn every_kind_comes_back_as_it_went_and_as_asked_for() {
    let f = fixture().await;
    let (id, other) = (f.add(f.row("a", &[])).await.summary.id, f.add(f.row("b", &[])).await.summary.id);
    let request = |secret, upstream_status, error| {
        Attempt::Request(RequestAttempt {
            secret,
            method: "POST".to_owned(),
            host: "api.example.com".to_owned(),
            path: "/v1/messages".to_owned(),
            status: 403,
            upstream_status,
            latency: Duration::from_millis(80),
            error,
        })
    };
    let packet = |to: Option<&str>, port| {
        Attempt::Packet(PacketAttempt {
            protocol: "udp".to_owned(),
            to: to.map(|to| to.parse().unwrap()),
            port,
            count: 3,
            rule: MatchRule::Protocol,
        })
    };
    let event = |second, what| NetworkEvent { sandbox: id, at: at(second), what };
    let mut bare = connection(id, 5, NetworkVerdict::Blocked);
    if let Attempt::Connection(c) = &mut bare.what {
        (c.host, c.sent, c.received) = (None, 0, 0);
    }
    let events = [
        connection(id, 0, NetworkVerdict::Allowed),
        event(1, request(Some(SecretId::new()), Some(200), None)),
        event(2, request(None, None, Some("credential_host_mismatch".to_owned()))),
        lookup(id, 3),
        event(4, packet(Some("2001:db8::1"), Some(53))),
        bare,
        event(6, packet(None, None)),
        connection(id, 7, NetworkVerdict::Failed),
    ];
    f.store.network_log_add(&events[..4]).await.unwrap();
    f.store.network_log_add(&[connection(other, 3, NetworkVerdict::Allowed)]).await.unwrap();
    f.store.network_log_add(&events[4..]).await.unwrap();

    let check = async |filter: NetworkFilter, expected: &[usize], more: bool| {
        let (rows, has_more) = f.store.network_log_list(id, &filter).await.unwrap();
        let found: Vec<_> = rows.into_iter().map(|row| row.event).collect();
        let expected: Vec<_> = expected.iter().map(|n| events[*n].clone()).collect();
        assert_eq!((found, has_more), (expected, more), "{filter:?}");
    };
    check(any(), &[7, 6, 5, 4, 3, 2, 1, 0], false).await;
    check(NetworkFilter { kinds: NetworkKind::PUBLISHED.to_vec(), ..any() }, &[7, 5, 2, 1, 0], false).await;
    check(NetworkFilter { kinds: vec![], ..any() }, &[], false).await;
    check(NetworkFilter { verdict: Some(NetworkVerdict::Blocked), ..any() }, &[6, 5, 4, 3], false).await;
    check(NetworkFilter { before: Some(NetworkBefore::Time(at(3))), ..any() }, &[2, 1, 0], false).await;
    check(NetworkFilter { since: Some(at(6)), ..any() }, &[7, 6], false).await;
    let first = NetworkFilter { limit: 3, ..any() };
    check(first.clone(), &[7, 6, 5], true).await;
    let (rows, _) = f.store.network_log_list(id, &first).await.unwrap();
    let next = NetworkFilter { before: Some(NetworkBefore::Row(rows[2].id)), limit: 5, ..any() };
    check(next, &[4, 3, 2, 1, 0], false).await;
}

#[tokio::test]
async fn rows_go_with_their_sandbox_and_none_comes_afterwards() {
    let f = fixture().await;
    let (row, kept) = (f.add(f.row("a", &[])).await, f.add(f.row("b", &[])).await.summary.id);
    let id = row.summary.id;
    let both = [connection(id, 0, NetworkVerdict::Allowed), connection(kept, 0, NetworkVerdict::Allowed)];
    f.store.network_log_add(&both).await.unwrap();
    let mut gone = row;
    gone.summary.state = domain::SandboxState::Deleted;
    let Written::Applied(_) = f.store.sandbox_transition(gone, None).await.unwrap() else { panic!() };
    f.store.sandbox_remove(id).await.unwrap();
    // The last connections end when the sandbox does.
    f.store.network_log_add(&both).await.unwrap();
    assert_eq!(f.store.network_log_list(id, &any()).await.unwrap().0, []);
    assert_eq!(f.store.network_log_list(kept, &any()).await.unwrap().0.len(), 2);
}

#[tokio::test]
async fn what_guests_chose_is_cut_and_never_breaks_a_row() {
    let f = fixture().await;
    let id = f.add(f.row("a", &[])).await.summary.id;
    let mut event = connection(id, 0, NetworkVerdict::Allowed);
    if let Attempt::Connection(c) = &mut event.what {
        c.host = Some("ä".repeat(4_000));
        c.sent = u64::MAX;
    }
    let what = Attempt::Request(RequestAttempt {
        secret: None,
        method: "M".repeat(9_999),
        host: "\0\u{1b}[2J".to_owned(),
        path: "/".repeat(99_999),
        status: u16::MAX,
        upstream_status: None,
        latency: Duration::MAX,
        error: Some("e".repeat(9_999)),
    });
    f.store.network_log_add(&[event, NetworkEvent { sandbox: id, at: at(1), what }]).await.unwrap();
    let (rows, _) = f.store.network_log_list(id, &any()).await.unwrap();
    let Attempt::Request(request) = &rows[0].event.what else { panic!("{rows:?}") };
    assert_eq!((request.method.len(), request.path.len()), (32, 1_024));
    assert_eq!(request.host, "\0\u{1b}[2J");
    let Attempt::Connection(connection) = &rows[1].event.what else { panic!("{rows:?}") };
    assert_eq!(connection.host.as_ref().unwrap().len(), 252, "at a character's end");
}

#[tokio::test]
async fn old_rows_go_by_number_for_each_class_and_by_age() {
    let f = fixture().await;
    let (id, other) = (f.add(f.row("a", &[])).await.summary.id, f.add(f.row("b", &[])).await.summary.id);
    let mut events: Vec<_> = (0..700).map(|n| connection(id, n, NetworkVerdict::Allowed)).collect();
    events.extend((0..900).map(|n| lookup(id, n)));
    events.push(connection(other, 900, NetworkVerdict::Allowed));
    f.store.network_log_add(&events).await.unwrap();
    let count = async |kinds: &[NetworkKind]| {
        let filter = NetworkFilter { kinds: kinds.to_vec(), ..any() };
        f.store.network_log_list(id, &filter).await.unwrap().0.len()
    };
    let (shown, extra) = (NetworkKind::PUBLISHED, NetworkKind::EXTRA);
    assert_eq!(f.store.network_log_crowded(&shown, 100).await.unwrap(), [id]);
    assert_eq!(f.store.network_log_crowded(&shown, 700).await.unwrap(), []);
    for expected in [500, 100, 0] {
        assert_eq!(f.store.network_log_prune(id, &shown, 100).await.unwrap(), expected);
    }
    assert_eq!((count(&shown).await, count(&extra).await), (100, 900));
    let newest =
        f.store.network_log_list(id, &NetworkFilter { limit: 1, kinds: shown.to_vec(), ..any() }).await;
    assert_eq!(newest.unwrap().0[0].event.at, at(699));
    assert_eq!(f.store.network_log_prune_old(at(650)).await.unwrap(), 450, "of the oldest 500 rows");
    for _ in 0..3 {
        f.store.network_log_prune_old(at(901)).await.unwrap();
    }
    assert_eq!(count(NetworkKind::ALL).await, 0);
    assert_eq!(f.store.network_log_list(other, &any()).await.unwrap().0.len(), 0);
}

#[tokio::test]
async fn strict_mode_survives() {
    let f = fixture().await;
    let mut row = f.row("a", &[]);
    row.summary.network.strict = true;
    let row = f.add(row).await;
    assert!(f.store.sandbox_get(row.summary.id).await.unwrap().unwrap().summary.network.strict);
}
