//! What a client costs before it does anything, and that its futures can be moved between threads.

use client::{Client, ClientConfig, ExecRequest};
use domain::Secret;

fn config(base_url: &str) -> ClientConfig {
    ClientConfig::new(base_url, Secret::new("k"))
}

#[test]
fn futures_are_send() {
    fn check<T: Send>(_: T) {}
    let client = Client::new(config("http://127.0.0.1:1")).unwrap();
    check(client.exec("a", &ExecRequest::default()));
    check(client.exec_stream("a", &ExecRequest::default()));
    check(client.pause_sandbox("a"));
    check(client.read_file("a", "/x", 1));
}

#[test]
fn bad_addresses_and_keys_are_refused_at_once() {
    for url in ["", "127.0.0.1:80", "ftp://x", "http://u:p@x", "http://x?y=z", "unix:/x"] {
        let refused = Client::new(config(url)).unwrap_err();
        assert!(refused.to_string().contains("http://"), "{url}: {refused}");
    }
    assert_eq!(Client::new(config("http://x/base//")).unwrap().base_url(), "http://x/base");
    let refused = Client::new(ClientConfig::new("http://x", Secret::new("hunter\n2"))).unwrap_err();
    assert!(!refused.to_string().contains("hunter"), "{refused}");
    let debug = format!("{:?}", Client::new(ClientConfig::new("http://x", Secret::new("hunter2"))).unwrap());
    assert!(!debug.contains("hunter2"), "{debug}");
}
