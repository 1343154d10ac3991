//! The way out of sandboxes, against a test internet: what rules permit works as it does without a gateway, and what they
//! refuse never leaves.

mod attacks;
mod clients;
mod names;
mod rules;
mod secrets;
mod speed;
mod streams;

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::{Value, json};
use testing::{Internet, Platform};

/// Connects to each address, sends what it is given and reads to the end; says in one word how each ended.
const PROBE: &str = r#"
import concurrent.futures, json, socket, sys, time
def probe(target):
    host, port, data = target
    begun, got = time.time(), b''
    try:
        s = socket.create_connection((host, port), timeout=5)
        s.settimeout(3)
        s.sendall(bytes.fromhex(data))
        while True:
            part = s.recv(65536)
            if not part: how = 'END'; break
            got += part
    except ConnectionRefusedError: how = 'REFUSED'
    except (ConnectionResetError, BrokenPipeError): how = 'RESET'
    except TimeoutError: how = 'TIMEOUT'
    except OSError as e: how = 'ERROR ' + str(e.errno)
    return [how, time.time() - begun, got.decode('latin1')]
with concurrent.futures.ThreadPoolExecutor(20) as pool:
    print(json.dumps(list(pool.map(probe, json.load(open('/tmp/probe.json'))))))
"#;
/// Refused means refused at once.
const AT_ONCE: f64 = 1.0;

/// What a probe found.
#[derive(Debug)]
struct Probe {
    how: String,
    seconds: f64,
    said: String,
}

impl Probe {
    /// Nothing came back, and it did not take long to know.
    fn assert_refused(&self, what: &str) {
        assert!(self.how == "RESET" || self.how == "REFUSED", "{what}: {self:?}");
        assert!(self.said.is_empty() && self.seconds < AT_ONCE, "{what}: {self:?}");
    }

    /// A page that explains itself came back at once.
    fn assert_explained(&self, what: &str, has: &str) {
        assert!(self.said.starts_with("HTTP/1.1 403 ") && self.said.contains(has), "{what}: {self:?}");
        assert!(self.seconds < AT_ONCE, "{what}: {self:?}");
    }
}

/// A platform whose sandboxes go out into a test internet.
struct Bed {
    platform: Platform,
    internet: Internet,
}

/// A sandbox in it.
struct Guest {
    id: String,
    token: String,
}

impl Bed {
    async fn new() -> Option<Self> {
        Self::with(&[]).await
    }

    /// One whose broker believes the test internet's services.
    async fn trusting() -> Option<Self> {
        let internet = Internet::start()?;
        let flags = internet.trusted_flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Some(Self { platform: crate::platform_with(&flags).await?, internet })
    }

    async fn with(flags: &[&str]) -> Option<Self> {
        let internet = Internet::start()?;
        let own = internet.flags();
        let flags: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let platform = crate::platform_with(&flags).await?;
        Some(Self { platform, internet })
    }

    /// A sandbox with these lists.
    async fn guest(&self, allow: &[&str], deny: &[&str]) -> Guest {
        self.guest_with(json!({"allow_out": allow, "deny_out": deny})).await
    }

    async fn guest_with(&self, network: Value) -> Guest {
        let (id, token) = self.platform.create(json!({"network": network})).await;
        Guest { id, token }
    }

    /// Runs a command and gives exit code and all it said.
    async fn run(&self, guest: &Guest, command: &str) -> (i64, String) {
        let answer = self.platform.exec(&guest.id, &guest.token, command).await;
        assert_eq!(answer.status, 200, "{command}: {:?}", answer.body);
        let text = |key: &str| answer.body[key].as_str().unwrap_or_default().to_owned();
        (answer.body["exit_code"].as_i64().unwrap(), text("stdout") + &text("stderr"))
    }

    /// Runs a command that must succeed.
    async fn sh(&self, guest: &Guest, command: &str) -> String {
        let (code, text) = self.run(guest, command).await;
        assert_eq!(code, 0, "{command}: {text}\n{}", self.platform.log());
        text
    }
    /// Runs a Python program that must succeed.
    async fn python(&self, guest: &Guest, program: &str) -> String {
        self.upload(guest, "/tmp/program.py", program.as_bytes().to_vec()).await;
        self.sh(guest, "python3 /tmp/program.py").await
    }

    async fn upload(&self, guest: &Guest, path: &str, content: Vec<u8>) {
        let answer = self
            .platform
            .data("POST", &format!("/files?path={path}"), &guest.id, &guest.token, content)
            .await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
    }
    /// Connects, sends, and reads until the end.
    async fn probe(&self, guest: &Guest, host: &str, port: u16, data: &[u8]) -> Probe {
        self.probes(guest, &[(host.to_owned(), port, data.to_vec())]).await.remove(0)
    }

    /// Several at once.
    async fn probes(&self, guest: &Guest, targets: &[(String, u16, Vec<u8>)]) -> Vec<Probe> {
        let hex = |data: &[u8]| data.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let targets: Vec<Value> =
            targets.iter().map(|(host, port, data)| json!([host, port, hex(data)])).collect();
        self.upload(guest, "/tmp/probe.json", json!(targets).to_string().into_bytes()).await;
        let said = self.python(guest, PROBE).await;
        let found: Vec<(String, f64, String)> = serde_json::from_str(&said).unwrap();
        let probe = |(how, seconds, said): (String, f64, String)| Probe {
            how,
            seconds,
            said: said.trim_end().to_owned(),
        };
        found.into_iter().map(probe).collect()
    }

    /// An HTTP request with this head, to an address.
    async fn request(&self, guest: &Guest, address: &str, head: &str) -> Probe {
        self.probe(guest, address, 80, head.as_bytes()).await
    }

    async fn patch(&self, guest: &Guest, network: Value) {
        let path = format!("/sandboxes/{}", guest.id);
        let answer = self.platform.rest("PATCH", &path, Some(json!({"network": network}))).await;
        assert_eq!(answer.status, 204, "{:?}", answer.body);
    }

    /// Rows of the network log, newest first.
    async fn log(&self, guest: &Guest, query: &str) -> Vec<Value> {
        let answer =
            self.platform.rest("GET", &format!("/sandboxes/{}/network?{query}", guest.id), None).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        answer.body["data"].as_array().unwrap().clone()
    }

    /// The newest row, once it satisfies the condition.
    async fn row(&self, guest: &Guest, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let look = || async { self.log(guest, "limit=200").await.into_iter().find(|row| wanted(row)) };
        testing::wait_for(what, Duration::from_secs(3), look).await
    }

    /// How often these addresses were reached.
    fn reached(&self, address: &str) -> usize {
        let address: Ipv4Addr = address.parse().unwrap();
        self.internet.arrivals().iter().filter(|to| *to.ip() == address).count()
    }
}
