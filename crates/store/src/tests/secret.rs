//! Secrets, bindings, audit.

use std::time::Duration;

use domain::{
    Attempt, Auth, AuthRule, AuthScheme, NetworkEvent, RequestAttempt, SandboxId, SecretId, SecretPolicy,
    StandIn,
};
use jiff::Timestamp;
use uuid::Uuid;

use super::{Fixture, fixture};
use crate::{AuditFilter, BindingRow, Sealed, SecretRow, Store, StoreError, Written};

fn now() -> Timestamp {
    Timestamp::from_microsecond(Timestamp::now().as_microsecond()).unwrap()
}

fn sealed(text: &str) -> Sealed {
    Sealed { by: "k1".to_owned(), key: text.as_bytes().to_vec(), value: vec![0, 255, 7] }
}

fn row(f: &Fixture, name: &str, auth: Auth) -> SecretRow {
    SecretRow {
        id: SecretId::new(),
        team: f.team,
        name: name.to_owned(),
        provider: None,
        policy: SecretPolicy {
            hosts: vec!["*.example.com".parse().unwrap(), "a.test".parse().unwrap()],
            auth,
            options: domain::SecretOptions { scrub_bodies: true, in_query: false },
        },
        sealed: Some(sealed(name)),
        created_at: now(),
        updated_at: now(),
        last_used_at: None,
        deleted_at: None,
    }
}

fn binding(sandbox: SandboxId, secret: SecretId, env_key: &str) -> BindingRow {
    let id = Uuid::new_v4();
    BindingRow {
        id,
        sandbox,
        secret,
        env_key: env_key.to_owned(),
        stand_in: StandIn::new(format!("ssrv_proxy_{id}")),
        created_at: now(),
        detached_at: None,
    }
}

#[tokio::test]
async fn every_policy_comes_back() {
    let f = fixture().await;
    let custom = AuthScheme::Custom {
        headers: vec![("X-B".into(), "b {{ value }}".into()), ("X-A".into(), "{{ value }}".into())],
    };
    let schemes = [
        AuthScheme::Bearer,
        AuthScheme::Basic { username: None },
        AuthScheme::Basic { username: Some("x-access-token".into()) },
        AuthScheme::ApiKey { header: "X-Api-Key".into(), prefix: None },
        AuthScheme::ApiKey { header: "Authorization".into(), prefix: Some("Token ".into()) },
        custom,
    ];
    let rule =
        |scheme: &AuthScheme| AuthRule { hosts: vec!["a.test".parse().unwrap()], scheme: scheme.clone() };
    let all = Auth::PerHost(schemes.iter().map(rule).collect());
    let auths = schemes.into_iter().map(Auth::Same).chain([all]);
    let rows: Vec<_> = auths.enumerate().map(|(n, auth)| row(&f, &format!("s{n}"), auth)).collect();
    for row in &rows {
        f.store.secret_create(row).await.unwrap();
    }
    f.store.close().await;
    let store = Store::open(&f.path).await.unwrap();
    assert_eq!(store.secret_list(f.team).await.unwrap(), rows);
    assert_eq!(store.secret_find(f.team, "s3").await.unwrap().as_ref(), Some(&rows[3]));
    let other = store.team_ensure("other", now()).await.unwrap().id;
    assert_eq!(
        (store.secret_find(other, "s3").await.unwrap(), store.secret_list(other).await.unwrap()),
        (None, vec![])
    );
}

#[tokio::test]
async fn a_deleted_secret_keeps_its_bindings_and_loses_its_value_and_its_name() {
    let f = fixture().await;
    let secret = row(&f, "prod", Auth::Same(AuthScheme::Bearer));
    f.store.secret_create(&secret).await.unwrap();
    let again = row(&f, "prod", Auth::Same(AuthScheme::Bearer));
    assert!(matches!(f.store.secret_create(&again).await, Err(StoreError::NameTaken { .. })));
    let mut sandbox = f.row("a", &[]);
    let bound = binding(sandbox.summary.id, secret.id, "KEY");
    let Written::Applied(made) =
        f.store.sandbox_create(sandbox.clone(), std::slice::from_ref(&bound), 9).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(f.store.binding_all().await.unwrap(), std::slice::from_ref(&bound));
    let used = f.store.binding_sandboxes(secret.id).await.unwrap();
    assert_eq!(
        (used[0].sandbox, used[0].name.as_str(), used[0].env_key.as_str()),
        (made.summary.id, "a", "KEY")
    );
    assert!(f.store.secret_reseal(secret.id, &sealed("new"), now()).await.unwrap());
    assert!(f.store.secret_delete(secret.id, now()).await.unwrap());
    assert!(!f.store.secret_delete(secret.id, now()).await.unwrap());
    assert!(!f.store.secret_reseal(secret.id, &sealed("late"), now()).await.unwrap());
    f.store.secret_create(&again).await.unwrap();
    let all = f.store.secret_all().await.unwrap();
    let kept = all.iter().find(|row| row.id == secret.id).unwrap();
    assert!(kept.deleted_at.is_some() && kept.sealed.is_none());
    // With the sandbox the binding goes, and with the last binding what is known of the secret.
    sandbox = *made;
    sandbox.summary.state = domain::SandboxState::Deleted;
    f.store.sandbox_transition(sandbox.clone(), None).await.unwrap();
    f.store.sandbox_remove(sandbox.summary.id).await.unwrap();
    assert_eq!(f.store.binding_all().await.unwrap(), []);
    assert_eq!(f.store.secret_all().await.unwrap(), [again]);
}

#[tokio::test]
async fn bindings_change_with_their_sandboxs_generation() {
    let f = fixture().await;
    let secret = row(&f, "prod", Auth::Same(AuthScheme::Bearer));
    f.store.secret_create(&secret).await.unwrap();
    let old = f.add(f.row("a", &[])).await;
    let id = old.summary.id;
    let one = binding(id, secret.id, "KEY");
    let Written::Applied(mut row) = f.store.binding_attach(old.clone(), &one).await.unwrap() else {
        panic!()
    };
    assert_eq!(
        f.store.binding_attach(old.clone(), &binding(id, secret.id, "B")).await.unwrap(),
        Written::Stale
    );
    assert_eq!(f.store.binding_detach(old, one.id, now()).await.unwrap(), Written::Stale);
    let twice = f.store.binding_attach((*row).clone(), &binding(id, secret.id, "KEY")).await;
    assert!(twice.is_err(), "one of a name");
    for _ in 0..70 {
        let live: Vec<_> =
            f.store.binding_all().await.unwrap().into_iter().filter(|b| b.detached_at.is_none()).collect();
        let Written::Applied(next) = f.store.binding_detach(*row, live[0].id, now()).await.unwrap() else {
            panic!()
        };
        let Written::Applied(next) =
            f.store.binding_attach(*next, &binding(id, secret.id, "KEY")).await.unwrap()
        else {
            panic!()
        };
        row = next;
    }
    let all = f.store.binding_all().await.unwrap();
    assert_eq!(all.len(), 65, "the last detached ones are remembered");
    assert_eq!(f.store.binding_sandboxes(secret.id).await.unwrap().len(), 1);
    let live = all.iter().find(|binding| binding.detached_at.is_none()).unwrap();
    f.store.binding_forget(live.id).await.unwrap();
    assert_eq!(f.store.binding_sandboxes(secret.id).await.unwrap(), []);
}

#[tokio::test]
async fn each_request_is_in_the_audit_too_and_stays_there() {
    let f = fixture().await;
    let secret = row(&f, "prod", Auth::Same(AuthScheme::Bearer));
    f.store.secret_create(&secret).await.unwrap();
    let id = f.add(f.row("box", &[])).await.summary.id;
    let request = |n: u16, secret| NetworkEvent {
        sandbox: id,
        at: Timestamp::from_second(1_700_000_000 + i64::from(n)).unwrap(),
        what: Attempt::Request(RequestAttempt {
            secret,
            method: "GET".into(),
            host: "a.test".into(),
            path: "/x".into(),
            status: n,
            upstream_status: (n < 500).then_some(n),
            latency: Duration::from_millis(u64::from(n)),
            error: (n == 403).then(|| "credential_host_mismatch".to_owned()),
        }),
    };
    let mut events: Vec<_> = [200, 301, 403, 503].map(|n| request(n, Some(secret.id))).into();
    events.push(request(200, None));
    events.push(request(200, Some(SecretId::new())));
    f.store.network_log_add(&events).await.unwrap();
    let audit = async |filter: AuditFilter| {
        let rows = f.store.secret_audit_list(secret.id, filter).await.unwrap();
        rows.into_iter().map(|row| row.status).collect::<Vec<_>>()
    };
    let any = AuditFilter { limit: 50, ..AuditFilter::default() };
    assert_eq!(audit(any).await, [503, 403, 301, 200]);
    assert_eq!(audit(AuditFilter { status: Some((400, 600)), ..any }).await, [503, 403]);
    assert_eq!(audit(AuditFilter { limit: 1, ..any }).await, [503]);
    let rows = f.store.secret_audit_list(secret.id, any).await.unwrap();
    assert_eq!(audit(AuditFilter { before: Some(rows[1].id), ..any }).await, [301, 200]);
    assert_eq!(
        (rows[1].sandbox_name.as_deref(), rows[1].error.as_deref()),
        (Some("box"), Some("credential_host_mismatch"))
    );
    let used = f.store.secret_find(f.team, "prod").await.unwrap().unwrap().last_used_at;
    assert_eq!(used, Some(events[3].at));
    // The sandbox's own log goes with it, the audit does not, and goes on with what comes late.
    assert_eq!(f.store.sandbox_forget_all().await.unwrap(), 1);
    f.store.network_log_add(&events[..1]).await.unwrap();
    let rows = f.store.secret_audit_list(secret.id, any).await.unwrap();
    assert_eq!((rows.len(), rows[0].sandbox, rows[0].sandbox_name.as_deref()), (5, id, None));
    assert_eq!(f.store.secret_audit_prune(secret.id, 2).await.unwrap(), 3);
    assert_eq!(f.store.secret_audit_prune_old(Timestamp::now()).await.unwrap(), 2);
}

#[tokio::test]
async fn all_values_are_sealed_anew_or_none() {
    let f = fixture().await;
    for name in ["a", "b"] {
        f.store.secret_create(&row(&f, name, Auth::Same(AuthScheme::Bearer))).await.unwrap();
    }
    let before = f.store.secret_list(f.team).await.unwrap();
    let mut count = 0;
    let failed = f.store.secret_rewrap_all(|_, sealed| {
        count += 1;
        if count == 1 {
            Ok(sealed.clone())
        } else {
            Err(StoreError::Corrupt { column: "sealed_key", found: String::new() })
        }
    });
    assert!(failed.await.is_err());
    assert_eq!(f.store.secret_list(f.team).await.unwrap(), before);
    let done = f
        .store
        .secret_rewrap_all(|_, sealed| Ok::<_, StoreError>(Sealed { by: "k2".to_owned(), ..sealed.clone() }));
    assert_eq!(done.await.unwrap(), 2);
    let by: Vec<_> =
        f.store.secret_list(f.team).await.unwrap().into_iter().map(|row| row.sealed.unwrap().by).collect();
    assert_eq!(by, ["k2", "k2"]);
    assert!(!format!("{:?}", before[0].sealed).contains("255"), "sealed values do not print");
}
