//! Shells, interactive commands and sessions as a person at a terminal meets them: the real program on a real
//! pseudo-terminal, with connections that break.

#![expect(clippy::unwrap_used, reason = "the lint is for products; helpers of tests are tests")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use testing::{Platform, wait_for};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::{BIN, platform};

/// What a loaded machine may take for something that is felt at once.
const LIMIT: Duration = Duration::from_secs(30);

/// The program, speaking to a platform through the proxy of `Cuts` if there is one.
struct Cli {
    base_url: String,
    key: String,
}

impl Cli {
    fn to(platform: &Platform) -> Self {
        Self { base_url: platform.base_url().to_owned(), key: platform.key().to_owned() }
    }

    fn words<'a>(&self, words: &[&'a str]) -> Vec<&'a str> {
        [&[BIN, "sandbox"], words].concat()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("TERM", "xterm");
        command.env("SUPERSERVE_API_KEY", &self.key).env("SUPERSERVE_BASE_URL", &self.base_url);
        command
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.command(&self.words(words)).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What `sandbox sessions --json` knows of the sessions that run.
    fn running(&self, id: &str) -> Vec<Value> {
        let listed: Value = serde_json::from_str(&self.ok(&["sessions", "--json", id])).unwrap();
        let all = listed.as_array().unwrap().iter();
        all.filter(|one| one["kind"] == "connect" && one["ended_at"].is_null()).cloned().collect()
    }

    /// Starts the program on a terminal of its own.
    fn on_terminal(&self, words: &[&str], cols: u16, rows: u16) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&master, size(cols, rows)).unwrap();
        let before = modes(&slave);
        let whole = [&["setsid", "--ctty"], self.words(words).as_slice()].concat();
        let end = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
        let child = self.command(&whole).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let master = File::from(master);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, written) = (master.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = reader.read(&mut buffer) {
                written.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        Terminal { master, slave, before, screen, child }
    }
}

fn size(cols: u16, rows: u16) -> Winsize {
    Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }
}

/// All that raw mode changes.
fn modes(terminal: &File) -> String {
    let modes = tcgetattr(terminal).unwrap();
    format!("{:?} {:?} {:?}", modes.input_modes, modes.output_modes, modes.local_modes)
}

/// A person at a terminal.
struct Terminal {
    master: File,
    slave: File,
    before: String,
    screen: Arc<Mutex<String>>,
    child: Child,
}

impl Terminal {
    fn type_in(&self, text: &str) {
        (&self.master).write_all(text.as_bytes()).unwrap();
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    /// Waits until the text is on the screen, and takes everything up to it away.
    async fn see(&self, text: &str) {
        let until = Instant::now() + LIMIT;
        loop {
            {
                let mut screen = self.screen.lock().unwrap();
                if let Some(start) = screen.find(text) {
                    screen.drain(..start + text.len());
                    return;
                }
            }
            assert!(Instant::now() < until, "{text:?} is not on the screen:\n{}", self.screen());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// The end of the program, which must leave the terminal as it was.
    async fn end(mut self) -> (Option<i32>, String) {
        let status = ended(&mut self.child).await;
        assert_eq!(modes(&self.slave), self.before, "the terminal is as it was");
        // What was written last is read by a thread of its own.
        tokio::time::sleep(Duration::from_millis(200)).await;
        (status.code(), self.screen())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended already when the test passes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn ended(child: &mut Child) -> ExitStatus {
    let child = Mutex::new(child);
    wait_for("the end of the program", LIMIT, || async { child.lock().unwrap().try_wait().unwrap() }).await
}

#[tokio::test]
async fn a_shell_follows_the_terminal_and_ends_with_its_own_code() {
    let Some(p) = platform().await else { return };
    let cli = Cli::to(&p);
    let (id, _) = p.create(serde_json::json!({})).await;
    let terminal = cli.on_terminal(&["shell", &id, "--cwd", "/tmp", "--env", "WORD=given"], 100, 30);
    terminal.type_in("stty size; echo in $PWD as $TERM, $WORD$((40 + 2))\r");
    terminal.see("30 100\r\n").await;
    terminal.see("in /tmp as xterm, given42\r\n").await;
    assert_ne!(modes(&terminal.slave), terminal.before, "keys come one by one");

    // The shell prints the size as soon as it hears of the change.
    terminal.type_in("trap 'stty size' WINCH; echo trap is set$((1 + 1))\r");
    terminal.see("trap is set2\r\n").await;
    tcsetwinsize(&terminal.master, size(132, 44)).unwrap();
    terminal.type_in("\r");
    terminal.see("44 132\r\n").await;

    // Ctrl-C, and job control.
    terminal.type_in("echo now$((1 + 1)); sleep 1000\r");
    terminal.see("now2\r\n").await;
    terminal.type_in("\x03");
    terminal.type_in("echo code $?\r");
    terminal.see("code 130\r\n").await;
    terminal.type_in("exit 7\r");
    assert_eq!(terminal.end().await.0, Some(7));
    assert!(cli.running(&id).is_empty());
}

#[tokio::test]
async fn a_session_is_left_and_come_back_to() {
    let Some(p) = platform().await else { return };
    let cli = Cli::to(&p);
    let (id, _) = p.create(serde_json::json!({})).await;
    let terminal = cli.on_terminal(&["shell", &id], 80, 24);
    terminal.type_in("kept=secret$((1 + 1)); echo was $kept\r");
    terminal.see("was secret2\r\n").await;
    terminal.type_in("~.");
    let (code, screen) = terminal.end().await;
    let session = cli.running(&id)[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(code, Some(0));
    assert!(screen.contains(&format!("superserve sandbox sessions {id} attach {session}")), "{screen}");
    let table = cli.ok(&["sessions", &id]);
    assert!(table.contains(&session) && table.contains("running"), "{table}");

    let terminal = cli.on_terminal(&["sessions", &id, "attach", &session], 90, 20);
    terminal.see("was secret2\r\n").await;
    terminal.type_in("echo still $kept; stty size\r");
    terminal.see("still secret2\r\n").await;
    terminal.see("20 90\r\n").await;
    // A closed window, a stop of the machine: the shell goes on, the terminal is given back.
    terminal.signal(rustix::process::Signal::TERM);
    assert_eq!(terminal.end().await.0, Some(143));
    assert_eq!(cli.running(&id).len(), 1);

    assert_eq!(cli.ok(&["sessions", &id, "kill", &session]), format!("killed {session}\n"));
    assert!(cli.running(&id).is_empty());
    let unknown = cli.command(&cli.words(&["sessions", &id, "attach", "0"])).output().unwrap();
    assert_eq!(unknown.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&unknown.stderr).starts_with("error: session 0 not found\n"));
}

#[tokio::test]
async fn a_command_gets_our_input_and_ends_by_itself() {
    let Some(p) = platform().await else { return };
    let cli = Cli::to(&p);
    let (id, _) = p.create(serde_json::json!({})).await;
    let spawn = |words: &[&str]| {
        let mut command = cli.command(&cli.words(words));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // Our input stays open, and nobody writes to it.
    let mut child = spawn(&["exec", "-i", &id, "read line; echo got $line; echo bad >&2; exit 3"]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"one\n").unwrap();
    assert_eq!(ended(&mut child).await.code(), Some(3));
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"got one\n"[..], &b"bad\n"[..]));
    drop(input);

    let mut child = spawn(&["exec", "-i", &id, "--", "sort", "-r"]);
    child.stdin.take().unwrap().write_all(b"a\nb\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"b\na\n", "the end of our input is the end of its");

    // Far more output than input, with more input than is taken unread: neither waits for the other for ever.
    let mut child = spawn(&["exec", "-i", &id, "--", "awk", "{ for (i = 0; i < 8; i++) print }"]);
    let (mut input, line) = (child.stdin.take().unwrap(), [&[b'x'; 1023][..], b"\n"].concat());
    let writer = std::thread::spawn(move || (0..2048).for_each(|_| input.write_all(&line).unwrap()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 16 * 1024 * 1024));

    // Ctrl-C is the command's; with a second one we leave, and it is gone.
    let mut child =
        spawn(&["exec", "-i", &id, "trap 'echo caught' INT; echo on; while :; do sleep 0.1; done"]);
    let mut output = child.stdout.take().unwrap();
    let mut line = [0; 3];
    output.read_exact(&mut line).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut line = [0; 7];
    output.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"caught\n");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(ended(&mut child).await.code(), Some(130));
    assert!(cli.running(&id).is_empty());

    let refused = cli.command(&cli.words(&["exec", "-it", &id, "sh"])).stdin(Stdio::null()).output().unwrap();
    assert_eq!(refused.status.code(), Some(125));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("standard input is none") && said.contains("exec -i"), "{said}");
    let missing = cli.command(&cli.words(&["exec", "-i", "--cwd", "/none", &id, "true"])).output().unwrap();
    assert_eq!(missing.status.code(), Some(125));
}

#[tokio::test]
async fn a_paused_sandbox_stays_paused_until_somebody_types() {
    let Some(p) = platform().await else { return };
    let cli = Cli::to(&p);
    let (id, _) = p.create(serde_json::json!({})).await;
    let status = async || p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["status"].clone();
    let terminal = cli.on_terminal(&["shell", &id], 80, 24);
    terminal.type_in("kept=yes; echo ready$((1 + 1))\r");
    terminal.see("ready2\r\n").await;
    cli.ok(&["pause", &id]);
    terminal.see("the sandbox is paused; it resumes when you type").await;
    // Longer than the looks at it are apart.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(status().await, "paused");
    terminal.type_in("echo kept $kept\r");
    terminal.see("reconnected").await;
    terminal.see("kept yes\r\n").await;

    // Somebody else resumes it.
    cli.ok(&["pause", &id]);
    terminal.see("the sandbox is paused").await;
    cli.ok(&["resume", &id]);
    terminal.see("reconnected").await;
    terminal.type_in("exit 4\r");
    assert_eq!(terminal.end().await.0, Some(4));
}

/// A network that can be cut: in front of the edge, with a control plane that sends clients to it.
struct Cuts {
    base_url: String,
    open: Arc<Mutex<Vec<AbortHandle>>>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Cuts {
    fn drop(&mut self) {
        self.cut();
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Cuts {
    async fn before(platform: &Platform) -> Self {
        let (edge, open) = (platform.edge(), Arc::new(Mutex::new(Vec::new())));
        let data = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let data_url = format!("http://{}", data.local_addr().unwrap());
        let connections = Arc::clone(&open);
        let relay = tokio::spawn(async move {
            loop {
                let (mut near, _) = data.accept().await.unwrap();
                let carry = tokio::spawn(async move {
                    let mut far = TcpStream::connect(edge).await.unwrap();
                    let _cut = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
                connections.lock().unwrap().push(carry.abort_handle());
            }
        });
        let control = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}", control.local_addr().unwrap());
        let (real, http) =
            (platform.base_url().to_owned(), reqwest::Client::builder().no_proxy().build().unwrap());
        let app = axum::Router::new().fallback(move |request: axum::extract::Request| {
            let (real, data_url, http) = (real.clone(), data_url.clone(), http.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
                let sent = http.request(parts.method, format!("{real}{}", parts.uri)).headers(parts.headers);
                let answer = sent.body(body).send().await.unwrap();
                let status = answer.status();
                let mut body = answer.bytes().await.unwrap().to_vec();
                if parts.uri.path().starts_with("/.well-known/") {
                    let mut descriptor: Value = serde_json::from_slice(&body).unwrap();
                    descriptor["data_plane_url"] = data_url.into();
                    body = descriptor.to_string().into_bytes();
                }
                (status, body)
            }
        });
        let control = tokio::spawn(async move { axum::serve(control, app).await.unwrap() });
        Self { base_url, open, tasks: vec![relay.abort_handle(), control.abort_handle()] }
    }

    /// Breaks every connection there is, in both directions, without a word.
    fn cut(&self) -> usize {
        let open = std::mem::take(&mut *self.open.lock().unwrap());
        let live = open.iter().filter(|connection| !connection.is_finished()).count();
        open.iter().for_each(AbortHandle::abort);
        live
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_loses_nothing_in_either_direction() {
    let Some(p) = platform().await else { return };
    let cuts = Cuts::before(&p).await;
    let cli = Cli { base_url: cuts.base_url.clone(), key: p.key().to_owned() };
    let (id, _) = p.create(serde_json::json!({})).await;

    let terminal = cli.on_terminal(&["shell", &id], 80, 24);
    terminal.type_in("here=before; echo $here the cut\r");
    terminal.see("before the cut\r\n").await;
    assert!(cuts.cut() > 0);
    terminal.see("reconnecting").await;
    terminal.type_in("echo $here and after\r");
    terminal.see("reconnected").await;
    terminal.see("before and after\r\n").await;
    terminal.type_in("exit\r");
    assert_eq!(terminal.end().await.0, Some(0));

    // Sixteen mebibytes there and back while the connection breaks again and again.
    let content: Vec<u8> =
        (0..4 * 1024 * 1024_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let mut child = cli
        .command(&cli.words(&["exec", "-i", &id, "cat"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, sent) = (child.stdin.take().unwrap(), content.clone());
    let writer = std::thread::spawn(move || input.write_all(&sent).unwrap());
    let (mut output, received) = (child.stdout.take().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let echoed = Arc::clone(&received);
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 64 * 1024];
        while let Ok(length @ 1..) = output.read(&mut buffer) {
            echoed.lock().unwrap().extend_from_slice(&buffer[..length]);
        }
    });
    for mebibytes in [1, 5, 9, 13] {
        wait_for("output", LIMIT, || async {
            (received.lock().unwrap().len() > mebibytes * 1024 * 1024).then_some(())
        })
        .await;
        assert!(cuts.cut() > 0, "the session's connection was there");
    }
    let status = ended(&mut child).await;
    writer.join().unwrap();
    reader.join().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(0), "{said}");
    assert_eq!(said.matches("superserve: reconnected\n").count(), 4, "{said}");
    assert!(*received.lock().unwrap() == content, "the bytes that came back are the ones that were sent");
}
