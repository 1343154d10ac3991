use std::sync::Arc;

use domain::{Auth, AuthRule, DomainPattern, SecretOptions, SecretPolicy, StandIn};
use http::Request;
use uuid::Uuid;

use super::*;

const STAND_IN: &str = "ssrv_proxy_abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG";
const VALUE: &str = "the+real/value=1";

#[derive(Debug)]
struct Kept(Vec<BoundSecret>);

impl Credentials for Kept {
    fn bound(&self, sandbox: SandboxId) -> Arc<[BoundSecret]> {
        self.0.iter().filter(|one| one.sandbox == sandbox).cloned().collect()
    }

    fn find(&self, text: &str) -> Option<BoundSecret> {
        self.0.iter().find(|one| one.stand_in.as_str() == text).cloned()
    }

    fn value(&self, bound: &BoundSecret) -> Result<Secret, NoValue> {
        if bound.revoked { Err(NoValue::Revoked) } else { Ok(Secret::new(VALUE)) }
    }
}

fn patterns(list: &[&str]) -> Vec<DomainPattern> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

fn bound(sandbox: SandboxId, hosts: &[&str], auth: Auth) -> BoundSecret {
    let options = SecretOptions::default();
    BoundSecret {
        binding: Uuid::new_v4(),
        secret: SecretId::new(),
        sandbox,
        stand_in: StandIn::new(STAND_IN),
        policy: Arc::new(SecretPolicy { hosts: patterns(hosts), auth, options }),
        revoked: false,
    }
}

/// What the headers become at `api.example.com`.
fn swapped(scheme: AuthScheme, headers: &[(&str, &str)]) -> Vec<(String, String)> {
    let sandbox = SandboxId::new();
    let kept = Kept(vec![bound(sandbox, &["api.example.com"], Auth::Same(scheme))]);
    let mut request = Request::builder().uri("/p");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut parts = request.body(()).unwrap().into_parts().0;
    let all = kept.bound(sandbox);
    let judgement = judge(&parts, "api.example.com", sandbox, &all, &kept).unwrap();
    apply(&mut parts, judgement, &kept).unwrap();
    let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
    let mut all: Vec<_> = parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    all.sort();
    all
}

fn check(scheme: AuthScheme, header: (&str, &str), expected: &str) {
    let came = header.1.replace("STANDIN", STAND_IN);
    let expected = expected.replace("VALUE", VALUE).replace("STANDIN", STAND_IN);
    let got = swapped(scheme, &[(header.0, &came)]);
    assert_eq!(got, [(header.0.to_ascii_lowercase(), expected)], "{header:?}");
}

fn basic(text: &str) -> String {
    format!("Basic {}", STANDARD.encode(text.replace("STANDIN", STAND_IN).replace("VALUE", VALUE)))
}

#[test]
fn bearer() {
    for (came, sent) in [
        ("Bearer STANDIN", "Bearer VALUE"),
        ("bearer STANDIN", "Bearer VALUE"),
        ("BEARER   STANDIN", "Bearer VALUE"),
        ("token STANDIN", "token VALUE"),
        ("STANDIN", "STANDIN"),
        ("Bearer STANDINx", "Bearer STANDINx"),
        ("Digest STANDIN", "Digest STANDIN"),
    ] {
        check(AuthScheme::Bearer, ("Authorization", came), sent);
    }
    check(AuthScheme::Bearer, ("X-Other", "Bearer STANDIN"), "Bearer STANDIN");
    check(AuthScheme::Bearer, ("Authorization", &basic("x:STANDIN")), &basic("x:STANDIN"));
}

#[test]
fn api_key() {
    let plain = AuthScheme::ApiKey { header: "X-Api-Key".to_owned(), prefix: None };
    check(plain.clone(), ("x-api-key", "STANDIN"), "VALUE");
    check(plain, ("x-other", "STANDIN"), "STANDIN");
    let prefixed =
        AuthScheme::ApiKey { header: "Authorization".to_owned(), prefix: Some("ApiKey ".to_owned()) };
    for came in ["ApiKey STANDIN", "STANDIN"] {
        check(prefixed.clone(), ("authorization", came), "ApiKey VALUE");
    }
    check(prefixed, ("authorization", "Other STANDIN"), "Other STANDIN");
}

#[test]
fn basic_credentials() {
    let own = AuthScheme::Basic { username: Some("x-access-token".to_owned()) };
    let any = AuthScheme::Basic { username: None };
    for (scheme, came, sent) in [
        (&own, "me:STANDIN", "x-access-token:VALUE"),
        (&own, "STANDIN:", "x-access-token:VALUE"),
        (&own, "STANDIN:x-oauth-basic", "x-access-token:VALUE"),
        (&any, "me:STANDIN", "me:VALUE"),
        (&any, ":STANDIN", "x:VALUE"),
        (&any, "STANDIN:", "VALUE:"),
        (&any, "me:STANDIN:more", "me:STANDIN:more"),
        (&any, "STANDIN:other", "STANDIN:other"),
    ] {
        check(scheme.clone(), ("Authorization", &basic(came)), &basic(sent));
    }
    check(any, ("Authorization", &basic("me:STANDIN").replace("Basic", "bAsIc")), &basic("me:VALUE"));
    check(own, ("Authorization", "Bearer STANDIN"), "Bearer STANDIN");
}

#[test]
fn custom_headers() {
    let headers = [("X-Key", "{{ value }}"), ("X-Sign", "v1={{ value }};again={{ value }}")];
    let scheme = AuthScheme::Custom {
        headers: headers.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec(),
    };
    check(scheme.clone(), ("X-Key", "STANDIN"), "VALUE");
    check(scheme.clone(), ("X-Sign", "v1=STANDIN;again=STANDIN"), "v1=VALUE;again=VALUE");
    check(scheme.clone(), ("X-Sign", "STANDIN"), "STANDIN");
    let both =
        swapped(scheme, &[("x-key", STAND_IN), ("x-sign", &format!("v1={STAND_IN};again={STAND_IN}"))]);
    assert_eq!(both[0].1, VALUE);
    assert_eq!(both[1].1, format!("v1={VALUE};again={VALUE}"));
}

#[test]
fn every_copy_of_a_header_is_seen() {
    let bearer = format!("Bearer {STAND_IN}");
    let got = swapped(
        AuthScheme::Bearer,
        &[("authorization", &bearer), ("x-a", "1"), ("authorization", &bearer), ("x-b", "2")],
    );
    assert_eq!(got.iter().filter(|(_, value)| value == &format!("Bearer {VALUE}")).count(), 2, "{got:?}");
}

/// The reason for which a request to `host` is refused.
fn refusal(kept: &Kept, sandbox: SandboxId, host: &str, header: (&str, &str)) -> Option<Reason> {
    let parts = Request::builder().uri("/").header(header.0, header.1).body(()).unwrap().into_parts().0;
    let refused = judge(&parts, host, sandbox, &kept.bound(sandbox), kept).err()?;
    assert!(!refused.detail.contains(STAND_IN) && refused.secret == Some(kept.0[0].secret));
    Some(refused.reason)
}

#[test]
fn a_stand_in_is_worth_something_at_its_hosts_in_its_sandbox_only() {
    let (sandbox, other) = (SandboxId::new(), SandboxId::new());
    let mut kept =
        Kept(vec![bound(sandbox, &["api.example.com", "*.example.org"], Auth::Same(AuthScheme::Bearer))]);
    let bearer = ("authorization", &*format!("Bearer {STAND_IN}"));
    let hidden = ("authorization", &*basic("a:STANDIN"));
    let inside = ("cookie", &*format!("a=b; key={STAND_IN}"));
    for header in [bearer, hidden, inside] {
        for host in ["api.example.com", "a.b.example.org"] {
            assert_eq!(refusal(&kept, sandbox, host, header), None);
        }
        for host in ["example.org", "evil.example", "xapi.example.com"] {
            assert_eq!(refusal(&kept, sandbox, host, header), Some(Reason::CredentialHostMismatch), "{host}");
        }
        assert_eq!(refusal(&kept, other, "api.example.com", header), Some(Reason::SandboxRevoked));
    }
    kept.0[0].revoked = true;
    assert_eq!(refusal(&kept, sandbox, "api.example.com", bearer), Some(Reason::CredentialRevoked));

    let rules = vec![AuthRule { hosts: patterns(&["api.example.com"]), scheme: AuthScheme::Bearer }];
    let kept = Kept(vec![bound(sandbox, &["*.example.com"], Auth::PerHost(rules))]);
    assert_eq!(refusal(&kept, sandbox, "api.example.com", bearer), None);
    assert_eq!(refusal(&kept, sandbox, "www.example.com", bearer), Some(Reason::UnmatchedHostDenied));
}

#[test]
fn queries_only_when_asked_and_escaped() {
    let sandbox = SandboxId::new();
    let mut one = bound(sandbox, &["a.example"], Auth::Same(AuthScheme::Bearer));
    let target = format!("/p/{STAND_IN}?key={STAND_IN}&x=1");
    let swap = |one: &BoundSecret| {
        let kept = Kept(vec![one.clone()]);
        let mut parts = Request::builder().uri(&target).body(()).unwrap().into_parts().0;
        let judgement = judge(&parts, "a.example", sandbox, &kept.0, &kept).unwrap();
        apply(&mut parts, judgement, &kept).unwrap();
        parts.uri.to_string()
    };
    assert_eq!(swap(&one), target);
    let options = SecretOptions { in_query: true, ..SecretOptions::default() };
    one.policy = Arc::new(SecretPolicy { options, ..(*one.policy).clone() });
    assert_eq!(swap(&one), format!("/p/{STAND_IN}?key=the%2Breal%2Fvalue%3D1&x=1"));
}

#[test]
fn a_value_that_no_header_can_hold_is_not_sent() {
    #[derive(Debug)]
    struct Broken(BoundSecret);
    impl Credentials for Broken {
        fn bound(&self, _: SandboxId) -> Arc<[BoundSecret]> {
            Arc::new([self.0.clone()])
        }
        fn find(&self, _: &str) -> Option<BoundSecret> {
            None
        }
        fn value(&self, _: &BoundSecret) -> Result<Secret, NoValue> {
            Ok(Secret::new("two\r\nlines"))
        }
    }
    let sandbox = SandboxId::new();
    let kept = Broken(bound(sandbox, &["a.example"], Auth::Same(AuthScheme::Bearer)));
    let request = Request::builder().uri("/").header("authorization", format!("Bearer {STAND_IN}"));
    let mut parts = request.body(()).unwrap().into_parts().0;
    let judgement = judge(&parts, "a.example", sandbox, &kept.bound(sandbox), &kept).unwrap();
    let refused = apply(&mut parts, judgement, &kept).err().unwrap();
    assert_eq!(refused.reason, Reason::InjectError);
    assert!(!refused.detail.contains("lines"));
}

proptest::proptest! {
    #[test]
    fn any_header_is_judged_without_a_panic(value in proptest::collection::vec(32u8..127, 0..200)) {
        let sandbox = SandboxId::new();
        let kept = Kept(vec![bound(sandbox, &["a.example"], Auth::Same(AuthScheme::Basic { username: None }))]);
        let request = Request::builder().uri("/").header("authorization", &value[..]);
        if let Ok(request) = request.body(()) {
            let parts = request.into_parts().0;
            proptest::prop_assert!(judge(&parts, "a.example", sandbox, &kept.0, &kept).is_ok());
        }
    }
}
