//! The private protocol, and HTTP itself.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::json;

use crate::harness::{Agent, Answer, Setup, agent};

#[test]
fn nothing_runs_before_the_first_configuration() {
    let agent = Agent::start(Setup { config: None, ..Setup::default() });
    let unavailable = (503, "sandbox_unavailable".to_owned());
    assert_eq!(agent.send("POST", "/exec", br#"{"command": "true"}"#).refusal(), unavailable);
    assert_eq!(agent.send("POST", "/exec/stream", br#"{"command": "true"}"#).refusal(), unavailable);
    assert_eq!(agent.get("/files?path=/etc/passwd").refusal(), unavailable);
    assert_eq!(agent.send("POST", &agent.files("a"), b"x").refusal(), unavailable);
    assert_eq!(agent.send("PUT", "/_agent/config", b"{\"env\": {\"A=\": \"b\"}}").refusal().0, 400);
    assert_eq!(agent.send("PUT", "/_agent/config", b"{\"env\": {\"A\": 5}}").refusal().0, 400);
    assert_eq!(agent.send("POST", "/exec", br#"{"command": "true"}"#).refusal(), unavailable);
    assert_eq!(agent.send("PUT", "/_agent/config", b"{}").status, 204);
    assert_eq!(agent.exec(json!({"command": "echo ok", "working_dir": "/"})).stdout, "ok\n");
}

#[test]
fn a_configuration_replaces_the_one_before() {
    let agent = agent();
    let configure = |config: serde_json::Value| {
        assert_eq!(agent.send("PUT", "/_agent/config", config.to_string().as_bytes()).status, 204);
        agent.exec(json!({"command": "echo $A$B", "working_dir": "/"})).stdout
    };
    assert_eq!(configure(json!({"env": {"A": "1"}})), "1\n");
    assert_eq!(configure(json!({"env": {"B": "2"}})), "2\n");
    assert_eq!(configure(json!({})), "\n");
}

#[test]
fn unknown_paths_and_methods() {
    let agent = agent();
    assert_eq!(agent.get("/").refusal(), (404, "not_found".to_owned()));
    assert_eq!(agent.get("/exec/other").refusal().0, 404);
    assert_eq!(agent.get("/exec/sessions/UP/attach").refusal().0, 404);
    assert_eq!(agent.send("POST", "/exec/connect", b"").refusal().0, 405);
    assert_eq!(agent.get("/_agent/other").refusal().0, 404);
    assert_eq!(agent.get("/_agent/config").refusal().0, 405);
    assert_eq!(agent.send("POST", "/_agent/health", b"").refusal().0, 405);
}

#[test]
fn a_connection_serves_many_requests() {
    let agent = agent();
    let mut connection = agent.connect();
    for number in 0..3 {
        let body = json!({"command": format!("echo {number}")}).to_string();
        write!(connection, "POST /exec HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .unwrap();
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"}") {
            let mut buffer = [0; 1024];
            let length = connection.read(&mut buffer).unwrap();
            assert_ne!(length, 0);
            bytes.extend_from_slice(&buffer[..length]);
        }
        assert!(String::from_utf8(bytes).unwrap().contains(&format!("\"stdout\":\"{number}\\n\"")));
    }
}

#[test]
fn monstrous_heads_are_refused() {
    let agent = agent();
    let long = "x".repeat(200_000);
    assert_eq!(
        Answer::read(agent.open("GET", "/_agent/health", &[("x-long", &long)], b""), "GET").status,
        431
    );
    let many: Vec<(&str, &str)> = (0..500).map(|_| ("x-many", "1")).collect();
    assert_eq!(Answer::read(agent.open("GET", "/_agent/health", &many, b""), "GET").status, 431);
    assert_eq!(agent.get("/_agent/health").status, 200);
}

const UPGRADE: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "tcp")];

#[test]
fn dialling_a_port() {
    let agent = agent();
    for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "127.0.0.77:0"] {
        // A machine without IPv6 has no such listener to find.
        let Ok(listener) = TcpListener::bind(address) else {
            eprintln!("SKIPPED: cannot listen on {address}");
            continue;
        };
        let port = listener.local_addr().unwrap().port();
        let target = format!("/_agent/dial?port={port}");
        if address.starts_with("127.0.0.77") {
            assert_eq!(agent.get_with(&target, &UPGRADE).refusal().0, 502, "not an address of an interface");
            continue;
        }
        let mut connection = agent.open("GET", &target, &UPGRADE, b"");
        let (mut guest, _) = listener.accept().unwrap();
        guest.write_all(b"hello from the guest").unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello from the guest") {
            let mut buffer = [0; 256];
            let length = connection.read(&mut buffer).unwrap();
            assert_ne!(length, 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&buffer[..length]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
        // Half-closing goes through, and the other direction stays open.
        connection.write_all(b"and back").unwrap();
        connection.shutdown(std::net::Shutdown::Write).unwrap();
        let mut heard = String::new();
        guest.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "and back");
        guest.write_all(b"bye").unwrap();
        drop(guest);
        let mut rest = String::new();
        connection.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "bye");
    }
}

#[test]
fn refused_dials() {
    let agent = agent();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let answer = agent.get_with(&format!("/_agent/dial?port={free}"), &UPGRADE);
    assert_eq!(answer.refusal(), (502, "bad_gateway".to_owned()));
    for port in ["0", "65536", "x", ""] {
        assert_eq!(agent.get_with(&format!("/_agent/dial?port={port}"), &UPGRADE).refusal().0, 400, "{port}");
    }
    assert_eq!(agent.get(&format!("/_agent/dial?port={free}")).refusal().0, 400);
}
