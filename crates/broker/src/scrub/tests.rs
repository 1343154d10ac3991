use std::sync::Arc;

use base64::engine::general_purpose::STANDARD;
use domain::{
    Auth, AuthScheme, BoundSecret, SandboxId, Secret, SecretId, SecretOptions, SecretPolicy, StandIn,
};
use percent_encoding::NON_ALPHANUMERIC;
use uuid::Uuid;

use super::*;

const STAND_IN: &str = "stand-in";

fn used(value: &str) -> Used {
    let policy = SecretPolicy {
        hosts: Vec::new(),
        auth: Auth::Same(AuthScheme::Bearer),
        options: SecretOptions::default(),
    };
    let bound = BoundSecret {
        binding: Uuid::new_v4(),
        secret: SecretId::new(),
        sandbox: SandboxId::new(),
        stand_in: StandIn::new(STAND_IN),
        policy: Arc::new(policy),
        revoked: false,
    };
    Used { bound, value: Secret::new(value), basic: None }
}

fn scrub(value: &str, text: &[u8], piece: usize) -> String {
    let mut scrubber = Scrubber::new([&used(value)]);
    let mut out: Vec<u8> = text.chunks(piece).flat_map(|piece| scrubber.push(piece)).collect();
    out.extend(scrubber.finish());
    String::from_utf8(out).unwrap()
}

#[test]
fn every_form_is_found_however_it_is_cut() {
    let value = r#"se"cret/va\lue+1"#;
    let strict = utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
    let json = r#"{"a":"se\"cret/va\\lue+1","b":"se\"cret\/va\\lue+1"}"#;
    for piece in [1, 2, 3, 7, 1000] {
        assert_eq!(scrub(value, format!("a {value}, {value}.").as_bytes(), piece), "a stand-in, stand-in.");
        assert_eq!(scrub(value, json.as_bytes(), piece), r#"{"a":"stand-in","b":"stand-in"}"#);
        assert_eq!(scrub(value, format!("?k={strict}&x").as_bytes(), piece), "?k=stand-in&x");
        assert_eq!(scrub(value, strict.to_ascii_lowercase().as_bytes(), piece), "stand-in");
    }
}

#[test]
fn base64_is_found_at_any_offset() {
    let value = "a-long-enough-value";
    for before in ["", "x", "me", "abc", "user"] {
        for after in ["", "x", "yz", "123"] {
            let text = STANDARD.encode(format!("{before}{value}{after}"));
            let clean = scrub(value, format!("<{text}>").as_bytes(), 5);
            let decoded = clean.trim_matches(['<', '>']).replace('*', "A");
            let decoded = STANDARD.decode(decoded).unwrap();
            let common =
                decoded.windows(6).any(|part| value.as_bytes().windows(6).any(|other| other == part));
            assert!(clean.contains('*') && !common, "{before} {after} {clean}");
        }
    }
}

#[test]
fn nothing_else_changes_and_nothing_waits() {
    let mut scrubber = Scrubber::new([&used("secret-value")]);
    assert_eq!(scrubber.push(b"data: one\n\n"), b"data: one\n\n", "no byte of it begins a form");
    assert_eq!(scrubber.push(b"x sec"), b"x ");
    assert_eq!(scrubber.push(b"ond"), b"second");
    assert_eq!(scrubber.push(b"secret-valu"), b"");
    assert_eq!(scrubber.finish(), b"secret-valu");
    assert!(Scrubber::new([&used("short")]).is_empty());
}

#[test]
fn sent_credentials_become_what_came() {
    let sent = STANDARD.encode("me:pw");
    let mut one = used("pw");
    one.basic = Some((Secret::new(sent.clone()), "bWU6c3RhbmQtaW4=".to_owned()));
    let mut headers = HeaderMap::new();
    headers.insert("x-echo", HeaderValue::from_str(&format!("Basic {sent}")).unwrap());
    Scrubber::new([&one]).headers(&mut headers);
    assert_eq!(headers["x-echo"], "Basic bWU6c3RhbmQtaW4=");
}

proptest::proptest! {
    #[test]
    fn the_value_never_passes(
        value in "[a-zA-Z0-9/+\"\\\\=&-]{8,40}",
        before in "[a-z\"\\\\]{0,20}",
        after in "[a-z]{0,20}",
        piece in 1usize..50,
    ) {
        let clean = scrub(&value, format!("{before}{value}{after}{value}").as_bytes(), piece);
        proptest::prop_assert!(!clean.contains(&value));
    }
}
