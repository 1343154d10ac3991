//! `POST /exec/stream`.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wire::data_plane::StreamEvent;

use crate::harness::{Agent, Answer, agent, alive, below, peak_kib, wait_for};

fn stream(agent: &Agent, request: &Value) -> Vec<StreamEvent> {
    let answer = agent.send("POST", "/exec/stream", request.to_string().as_bytes());
    events(&answer)
}

fn events(answer: &Answer) -> Vec<StreamEvent> {
    assert_eq!((answer.status, answer.complete), (200, true));
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(answer.headers["cache-control"], "no-cache");
    assert_eq!(answer.headers["x-accel-buffering"], "no");
    answer
        .text()
        .split_terminator("\n\n")
        .filter(|record| !record.starts_with(':'))
        .map(|record| serde_json::from_str(record.strip_prefix("data: ").unwrap()).unwrap())
        .collect()
}

#[test]
fn events_come_in_order_and_end_with_the_exit_code() {
    let events =
        stream(&agent(), &json!({"command": "echo a; sleep 0.1; echo b >&2; sleep 0.1; echo c; exit 9"}));
    let texts: Vec<_> =
        events.iter().map(|event| (event.stdout.as_deref(), event.stderr.as_deref())).collect();
    assert_eq!(texts, [(Some("a\n"), None), (None, Some("b\n")), (Some("c\n"), None), (None, None)]);
    assert!(events.iter().all(|event| event.timestamp.as_deref().is_some_and(|time| time.ends_with('Z'))));
    let last = events.last().unwrap();
    assert_eq!((last.exit_code, last.finished), (Some(9), true));
    assert!(events.iter().rev().skip(1).all(|event| !event.finished));
}

#[test]
fn pieces_are_small_and_never_split_a_character() {
    let command = "i=0; while [ $i -lt 100 ]; do printf '%01000d' 0 | sed 's/0/한/g'; i=$((i+1)); done; printf '\\355\\225'";
    let events = stream(&agent(), &json!({"command": command}));
    let pieces: Vec<String> = events.into_iter().filter_map(|event| event.stdout).collect();
    assert!(pieces.iter().all(|piece| piece.len() <= 32 * 1024 + 3));
    let whole = pieces.concat();
    assert_eq!(whole.matches('한').count(), 100_000);
    assert_eq!(whole.matches('\u{fffd}').count(), 1, "only the broken end");
}

#[test]
fn time_limit() {
    let events = stream(&agent(), &json!({"command": "echo a; exec sleep 60", "timeout_s": 1}));
    assert_eq!(events[0].stdout.as_deref(), Some("a\n"));
    assert_eq!((events[1].exit_code, events[1].finished), (Some(124), true));
}

#[test]
fn failed_starts_are_events() {
    let agent = agent();
    for request in [
        json!({"command": "true", "working_dir": "/no/such/place"}),
        json!({"command": "no-such-command", "args": []}),
        json!({"command": "a\u{0}b"}),
    ] {
        let events = stream(&agent, &request);
        assert_eq!(events.len(), 1, "{request}");
        assert_eq!((events[0].code.as_deref(), events[0].finished), (Some("bad_request"), true), "{request}");
        assert!(events[0].error.as_deref().is_some_and(|error| !error.is_empty()));
    }
    assert_eq!(agent.send("POST", "/exec/stream", b"{}").refusal(), (400, "bad_request".to_owned()));
}

#[test]
fn a_command_outlives_its_client_until_its_time_limit() {
    let agent = agent();
    let command = json!({"command": "echo $$ > pid; sleep 0.5; yes | head -c 1000000; echo done > done; exec sleep 60",
                         "timeout_s": 2});
    let connection = agent.open("POST", "/exec/stream", &[], command.to_string().as_bytes());
    let pid = agent.wait_for("pid");
    drop(connection);
    assert_eq!(agent.wait_for("done"), "done\n");
    assert!(alive(&pid));
    wait_for(|| (!alive(&pid) && below(agent.pid()).is_empty()).then_some(()));
}

#[test]
fn a_slow_client_slows_the_command_and_costs_no_memory() {
    let agent = agent();
    let command = json!({"command": "echo $$ > pid; yes 0123456789abcde | head -c 50000000; exit 4"});
    let mut connection = agent.open("POST", "/exec/stream", &[], command.to_string().as_bytes());
    let pid = agent.wait_for("pid");
    std::thread::sleep(Duration::from_secs(1));
    assert!(alive(&pid), "the command must wait for its reader");
    let mut head = [0; 1000];
    connection.read_exact(&mut head).unwrap();
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).unwrap();
    let text = String::from_utf8([head.as_slice(), rest.as_slice()].concat()).unwrap();
    assert!(text.contains("\"exit_code\":4"));
    assert_eq!(text.matches("0123456789abcde\\n").count() / 100_000, 31, "nearly all lines are in one piece");
    assert!(peak_kib(agent.pid()) < 24 * 1024, "{}", peak_kib(agent.pid()));
}

#[test]
fn the_time_limit_holds_for_a_client_that_reads_nothing() {
    let agent = agent();
    let command = json!({"command": "echo $$ > pid; yes", "timeout_s": 1});
    let connection = agent.open("POST", "/exec/stream", &[], command.to_string().as_bytes());
    let pid = agent.wait_for("pid");
    wait_for(|| (!alive(&pid)).then_some(()));
    let events = events(&Answer::read(connection, "POST"));
    assert_eq!(events.last().unwrap().exit_code, Some(124));
}

#[test]
fn silence_is_broken_by_keep_alives() {
    let agent = agent();
    let before = Instant::now();
    let answer = agent.send("POST", "/exec/stream", br#"{"command": "sleep 16; echo a"}"#);
    assert!(answer.text().starts_with(": keepalive\n\n"), "{} after {:?}", answer.text(), before.elapsed());
    assert_eq!(events(&answer).len(), 2);
}

#[test]
fn a_daemon_does_not_keep_the_stream_open() {
    let agent = agent();
    let before = Instant::now();
    let events = stream(&agent, &json!({"command": "sleep 60 & echo $! > pid; echo a"}));
    assert!(before.elapsed() < Duration::from_secs(1));
    assert_eq!(events.last().unwrap().exit_code, Some(0));
    assert!(alive(&agent.wait_for("pid")));
}
