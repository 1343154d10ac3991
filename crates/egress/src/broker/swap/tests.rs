use std::sync::Arc;

use domain::{Auth, AuthRule, SecretPolicy};

use super::*;

#[derive(Debug)]
struct Bound(Vec<(BoundSecret, Result<&'static str, NoValue>)>);

impl Credentials for Bound {
    fn bound(&self, sandbox: SandboxId) -> Arc<[BoundSecret]> {
        self.0.iter().filter(|(bound, _)| bound.sandbox == sandbox).map(|(bound, _)| bound.clone()).collect()
    }
    fn find(&self, text: &str) -> Option<BoundSecret> {
        self.0.iter().find(|(bound, _)| bound.stand_in.as_str() == text).map(|(bound, _)| bound.clone())
    }
    fn value(&self, bound: &BoundSecret) -> Result<Secret, NoValue> {
        self.0.iter().find(|(other, _)| other == bound).unwrap().1.map(Secret::new)
    }
}

fn bound(sandbox: SandboxId, stand_in: &str, auth: Auth) -> BoundSecret {
    BoundSecret {
        binding: uuid::Uuid::new_v4(),
        secret: SecretId::new(),
        sandbox,
        stand_in: StandIn::new(stand_in),
        policy: Arc::new(SecretPolicy { hosts: vec!["api.example".parse().unwrap()], auth }),
        revoked: false,
    }
}

fn headers(list: &[(&str, &str)]) -> HeaderMap {
    list.iter().map(|(n, v)| (n.parse::<HeaderName>().unwrap(), HeaderValue::from_str(v).unwrap())).collect()
}

fn host(text: &str) -> Name {
    Name::parse(text.as_bytes()).unwrap()
}

/// What is sent to api.example of a request with this header.
fn sent(scheme: AuthScheme, header: (&str, &str)) -> Result<String, &'static str> {
    let sandbox = SandboxId::new();
    let all = Bound(vec![(bound(sandbox, "stand-in", Auth::Same(scheme)), Ok("real"))]);
    let mut headers = headers(&[("x-other", "1"), header]);
    swap(&mut headers, &host("api.example"), sandbox, &all).map_err(|refusal| refusal.reason)?;
    Ok(headers[header.0].to_str().unwrap().to_owned())
}

fn basic_of(text: &str) -> String {
    format!("Basic {}", STANDARD.encode(text))
}

#[test]
fn every_scheme_puts_the_value_in_its_place() {
    let key = |prefix: Option<&str>| AuthScheme::ApiKey {
        header: "X-Api-Key".into(),
        prefix: prefix.map(Into::into),
    };
    let custom = AuthScheme::Custom { headers: vec![("X-Sig".into(), "v1 {{ value }};q".into())] };
    let basic = |user: Option<&str>| AuthScheme::Basic { username: user.map(Into::into) };
    for (scheme, name, before, after) in [
        (AuthScheme::Bearer, "authorization", "Bearer stand-in".to_owned(), "Bearer real".to_owned()),
        (AuthScheme::Bearer, "authorization", "bEARER stand-in".to_owned(), "Bearer real".to_owned()),
        (key(None), "x-api-key", "stand-in".to_owned(), "real".to_owned()),
        (key(Some("Key ")), "x-api-key", "Key stand-in".to_owned(), "Key real".to_owned()),
        (key(Some("Key ")), "x-api-key", "stand-in".to_owned(), "Key real".to_owned()),
        (basic(None), "authorization", basic_of("me:stand-in"), basic_of("me:real")),
        (basic(None), "authorization", basic_of(":stand-in"), basic_of("x:real")),
        (basic(Some("fixed")), "authorization", basic_of("me:stand-in"), basic_of("fixed:real")),
        (custom, "x-sig", "v1 stand-in;q".to_owned(), "v1 real;q".to_owned()),
        // Not where the scheme looks: it stays what it is, which is worth nothing.
        (AuthScheme::Bearer, "x-else", "stand-in".to_owned(), "stand-in".to_owned()),
        (AuthScheme::Bearer, "authorization", "Bearer stand-in2".to_owned(), "Bearer stand-in2".to_owned()),
        (AuthScheme::Bearer, "authorization", "Bearer other".to_owned(), "Bearer other".to_owned()),
    ] {
        assert_eq!(sent(scheme, (name, &before)), Ok(after), "{before}");
    }
}

#[test]
fn what_may_not_be_sent_is_refused() {
    let (sandbox, other) = (SandboxId::new(), SandboxId::new());
    let mine = bound(sandbox, "mine", Auth::Same(AuthScheme::Bearer));
    let revoked = BoundSecret { revoked: true, ..bound(sandbox, "revoked", Auth::Same(AuthScheme::Bearer)) };
    let gone = bound(sandbox, "gone", Auth::Same(AuthScheme::Bearer));
    let sealed = bound(sandbox, "sealed", Auth::Same(AuthScheme::Bearer));
    let broken = bound(sandbox, "broken", Auth::Same(AuthScheme::Bearer));
    let theirs = bound(other, "theirs", Auth::Same(AuthScheme::Bearer));
    let elsewhere = Auth::PerHost(vec![AuthRule {
        hosts: vec!["b.example".parse().unwrap()],
        scheme: AuthScheme::Bearer,
    }]);
    let ruled = bound(sandbox, "ruled", elsewhere);
    let all = Bound(vec![
        (mine, Ok("real")),
        (revoked, Ok("real")),
        (gone, Err(NoValue::Revoked)),
        (sealed, Err(NoValue::Unavailable)),
        (broken, Ok("re\nal")),
        (theirs, Ok("theirs")),
        (ruled, Ok("real")),
    ]);
    for (to, header, reason, status) in [
        ("evil.example", ("authorization", "Bearer mine".to_owned()), "credential_host_mismatch", 403),
        ("evil.example", ("x-hidden", "a mine b".to_owned()), "credential_host_mismatch", 403),
        ("evil.example", ("authorization", basic_of("u:mine")), "credential_host_mismatch", 403),
        ("api.example", ("authorization", "Bearer revoked".to_owned()), "credential_revoked", 503),
        ("api.example", ("authorization", "Bearer gone".to_owned()), "credential_revoked", 503),
        ("api.example", ("authorization", "Bearer sealed".to_owned()), "policy_unavailable", 503),
        ("api.example", ("authorization", "Bearer broken".to_owned()), "inject_error", 502),
        ("api.example", ("authorization", "Bearer theirs".to_owned()), "credential_host_mismatch", 403),
        ("api.example", ("authorization", basic_of("u:theirs")), "credential_host_mismatch", 403),
        ("api.example", ("authorization", "Bearer ruled".to_owned()), "credential_host_mismatch", 403),
    ] {
        let mut headers = headers(&[(header.0, &header.1)]);
        let refusal = swap(&mut headers, &host(to), sandbox, &all).unwrap_err();
        assert_eq!((refusal.reason, refusal.status.as_u16()), (reason, status), "{to} {header:?}");
        assert!(refusal.secret.is_some());
    }
}

#[test]
fn several_secrets_and_repeated_headers() {
    let sandbox = SandboxId::new();
    let key = AuthScheme::ApiKey { header: "x-key".into(), prefix: None };
    let all = Bound(vec![
        (bound(sandbox, "one", Auth::Same(AuthScheme::Bearer)), Ok("first")),
        (bound(sandbox, "two", Auth::Same(key)), Ok("second")),
    ]);
    let mut headers = headers(&[("authorization", "Bearer one"), ("x-key", "other"), ("x-key", "two")]);
    let used = swap(&mut headers, &host("api.example"), sandbox, &all).unwrap();
    assert_eq!(used.len(), 2);
    assert_eq!(headers["authorization"], "Bearer first");
    assert!(headers["authorization"].is_sensitive());
    let keys: Vec<_> = headers.get_all("x-key").into_iter().collect();
    assert_eq!(keys, ["other", "second"]);
    assert!(!format!("{headers:?} {used:?}").contains("first"), "values must not print");

    // An answer that repeats a value gives the stand-in back.
    let mut answer = super::tests::headers(&[("x-echo", "got first and second"), ("x-else", "firs")]);
    scrub(&mut answer, &used);
    assert_eq!(answer["x-echo"], "got one and two");
    assert_eq!(answer["x-else"], "firs");
}
