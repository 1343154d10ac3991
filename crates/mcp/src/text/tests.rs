//! Every text a failure can have, as a golden file, and the words other software relies on.

use std::fmt::Write;

use client::ApiError;
use expect_test::expect_file;

use super::*;

const ID: &str = "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b";
const SANDBOX: Target<'_> = Target::Sandbox(ID);
const PATH: Target<'_> = Target::Path { sandbox: ID, path: "/app/main.py" };

fn api(plane: Plane, status: u16, code: &str, message: &str) -> ClientError {
    ClientError::Api(ApiError {
        plane,
        status,
        code: code.to_owned(),
        message: message.to_owned(),
        retry_after: None,
        request_id: None,
        may_have_taken_effect: status >= 500,
    })
}

fn safe(error: &ClientError, target: Target<'_>) -> String {
    explain(error, About { target, repeat: Repeat::Safe }).text
}

fn unsafe_to_repeat(error: &ClientError) -> String {
    let repeat = Repeat::LookFirst("look for it with sandbox_list");
    explain(error, About { target: Target::NewSandbox, repeat }).text
}

/// Codes other deployments send that `domain::Code` does not have.
const FOREIGN: &[(&str, u16)] = &[
    ("unauthorized", 401),
    ("host_state_missing", 503),
    ("not_implemented", 501),
    ("", 418),
    ("", 400),
    ("", 404),
    ("", 502),
];

#[test]
fn golden() {
    let mut all = String::new();
    let ours = domain::Code::ALL.iter().map(|code| (code.as_str(), code.status()));
    for (code, status) in ours.chain(FOREIGN.iter().copied()) {
        let _ = writeln!(all, "## {status} {code}");
        for (plane, name, target) in [
            (Plane::Control, "control, sandbox", SANDBOX),
            (Plane::Control, "control, new sandbox", Target::NewSandbox),
            (Plane::Control, "control, new template", Target::NewTemplate),
            (Plane::Control, "control, list", Target::Team),
            (Plane::Data, "data, sandbox", SANDBOX),
            (Plane::Data, "data, path", PATH),
        ] {
            let _ = writeln!(
                all,
                "{name}: {}",
                safe(&api(plane, status, code, "what the platform said"), target)
            );
        }
        let _ = writeln!(all, "not repeatable: {}", unsafe_to_repeat(&api(Plane::Control, status, code, "")));
    }
    let others = [
        ClientError::Timeout {
            what: "the command",
            after: Duration::from_secs(65),
            may_have_taken_effect: true,
        },
        ClientError::Timeout {
            what: "the command",
            after: Duration::from_secs(65),
            may_have_taken_effect: false,
        },
        ClientError::Connect { host: "api.example:443".into(), reason: "connection refused".into() },
        ClientError::Interrupted { what: "the upload", may_have_taken_effect: true },
        ClientError::TooLarge { what: "the file", limit: 5 },
        ClientError::Invalid {
            field: "API key",
            accepted: "only printable ASCII characters are accepted".into(),
        },
        ClientError::Protocol {
            what: "the list",
            detail: "secret detail".into(),
            may_have_taken_effect: true,
        },
        ClientError::Local("secret detail".into()),
    ];
    for error in &others {
        let shown = safe(error, SANDBOX) + &unsafe_to_repeat(error);
        assert!(!shown.contains("secret detail"), "{shown}");
        let _ = writeln!(all, "## {error}");
        let _ = writeln!(all, "repeatable: {}", safe(error, SANDBOX));
        let _ = writeln!(all, "not repeatable: {}", unsafe_to_repeat(error));
    }
    for name in crate::server::tests::tool_names_in(&all) {
        assert!(tools::listed(&name), "{name} is not listed");
    }
    expect_file!["../../tests/golden/errors.txt"].assert_eq(&all);
}

#[test]
fn words_that_must_appear() {
    let auth = safe(&api(Plane::Control, 401, "auth_failed", "invalid key"), Target::Team);
    assert!(
        auth.contains("Authentication failed")
            && auth.contains("SUPERSERVE_API_KEY")
            && auth.contains("ss_live_")
    );
    let missing = safe(&api(Plane::Control, 404, "not_found", "sandbox x not found; list them"), SANDBOX);
    assert!(missing.to_lowercase().contains("not found") && missing.contains("sandbox_list"));
    let stale = safe(&api(Plane::Data, 404, "sandbox_route_stale", ""), PATH);
    assert!(stale.contains("not found") && stale.contains("sandbox_list"));
    // What the client's activation says of an unknown sandbox, while a path was asked for.
    let unknown = safe(&api(Plane::Control, 404, "not_found", "sandbox x not found"), PATH);
    assert!(unknown.contains("Sandbox x not found") && unknown.contains("sandbox_list"));
    let denied =
        safe(&api(Plane::Data, 403, "forbidden", "the sandbox's user may not access /app/main.py"), PATH);
    assert!(denied.starts_with("Permission denied: /app/main.py.") && denied.contains("sudo"), "{denied}");
    assert!(safe(&api(Plane::Data, 404, "", "no such file"), PATH).contains("sandbox_files_list"));
    let ours = "sandbox x not found; list the existing ones: GET /sandboxes";
    assert!(
        !safe(&api(Plane::Control, 404, "not_found", ours), SANDBOX).contains("GET"),
        "the next step is in our terms"
    );
    let ours =
        safe(&api(Plane::Control, 400, "bad_request", "invalid request; name: 1 to 64 bytes"), SANDBOX);
    assert_eq!(ours, "Invalid request: name: 1 to 64 bytes.");
    let no_id = safe(
        &api(Plane::Control, 400, "bad_request", "invalid request; sandbox id: a UUID is expected"),
        SANDBOX,
    );
    assert!(no_id.contains("not found") && no_id.contains("sandbox_list"), "{no_id}");
    let invalid = safe(&api(Plane::Control, 400, "bad_request", "name: 1 to 64 bytes"), Target::NewSandbox);
    assert!(invalid.starts_with("Invalid request: name: 1 to 64 bytes"));
    assert!(safe(&api(Plane::Control, 409, "conflict", "is pausing"), SANDBOX).contains("sandbox_info"));
    assert!(safe(&api(Plane::Control, 429, "too_many_sandboxes", ""), SANDBOX).contains("quota"));
    assert!(safe(&api(Plane::Control, 500, "internal_error", ""), SANDBOX).contains("safe to retry"));
    let created = unsafe_to_repeat(&api(Plane::Control, 500, "internal_error", ""));
    assert!(!created.contains("safe to retry") && created.contains("may have taken effect"));
    assert_eq!(safe(&ClientError::Local("x".into()), SANDBOX), "Unexpected error.");
}

#[test]
fn waiting_times_and_request_ids_are_passed_on() {
    let mut error = ApiError {
        plane: Plane::Control,
        status: 429,
        code: "rate_limited".into(),
        message: String::new(),
        retry_after: Some(Duration::from_millis(1500)),
        request_id: Some("req-1".into()),
        may_have_taken_effect: false,
    };
    assert!(safe(&ClientError::Api(error.clone()), SANDBOX).contains("Wait 2 s"));
    error.status = 500;
    error.code = "internal_error".into();
    assert!(safe(&ClientError::Api(error.clone()), SANDBOX).contains("request req-1"));
    error.status = 302;
    error.code = String::new();
    assert_eq!(safe(&ClientError::Api(error), SANDBOX), "Unexpected error. Request id: req-1.");
}

#[test]
fn nothing_private_is_quoted() {
    let token = "0a".repeat(32);
    let message = format!("bad key ss_live_abcdef at https://h/x?token=abc token {token}");
    let hostile = ApiError {
        plane: Plane::Control,
        status: 400,
        code: format!("ss_live_code {token}"),
        message,
        retry_after: None,
        request_id: Some(token.clone()),
        may_have_taken_effect: false,
    };
    for status in [400, 401, 404, 409, 418, 429, 500, 503, 507] {
        let error = ClientError::Api(ApiError { status, ..hostile.clone() });
        for target in [SANDBOX, PATH, Target::Team, Target::NewSandbox] {
            let failure = explain(&error, About { target, repeat: Repeat::Safe });
            for private in ["ss_live_abcdef", "token=abc", token.as_str(), "ss_live_code"] {
                assert!(!failure.text.contains(private), "{status}: {}", failure.text);
                assert!(!failure.class.contains(private), "{status}: {}", failure.class);
            }
        }
    }
    let long = safe(&api(Plane::Control, 400, "bad_request", &"x ".repeat(5000)), SANDBOX);
    assert!(long.chars().count() < 700, "{}", long.len());
}

#[test]
fn values_are_shown_on_one_line() {
    assert_eq!(line("a\nb\u{1b}[31m"), "a?b?[31m");
    assert_eq!(line(&"ü".repeat(5000)).chars().count(), 4097);
    assert_eq!(normalise_time("2026-01-02T03:04:05.678901Z"), "2026-01-02T03:04:05.678Z");
    assert_eq!(normalise_time("2026-01-02T05:04:05+02:00"), "2026-01-02T03:04:05.000Z");
    assert_eq!(normalise_time("soon"), "soon");
}
