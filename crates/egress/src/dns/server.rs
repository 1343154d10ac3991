//! The two resolvers that a guest has. Its questions are ordinary traffic to their addresses (`spec/semantics.md` §7.3),
//! except in strict mode, where the name decides.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use domain::{Attempt, DnsAttempt, EgressRules, MatchRule, NetworkVerdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::message::{Code, Question, code_name};
use crate::gateway::Shared;
use crate::sandboxes::Sandbox;

/// Questions that a sandbox may have open however many others there are.
const FEW: usize = 8;

/// The resolvers in a guest's `/etc/resolv.conf`.
pub(crate) const RESOLVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(1, 1, 1, 1), Ipv4Addr::new(8, 8, 8, 8)];
const PORT: u16 = 53;
/// Largest question: a name has at most 255 bytes, the rest is options.
const MAX_QUESTION: usize = 2_048;
/// Questions over one TCP connection.
const MAX_PER_STREAM: usize = 1_000;
/// Between two of them.
const IDLE: Duration = Duration::from_secs(10);
/// A receive error of a socket that nobody can close: nothing to do but go on.
const AFTER_ERROR: Duration = Duration::from_millis(50);

/// Answers questions that come in packets to one resolver, until it is dropped.
pub(crate) async fn serve_packets(shared: Arc<Shared>, socket: Arc<UdpSocket>, resolver: Ipv4Addr) {
    let mut buffer = vec![0; MAX_QUESTION];
    loop {
        let (read, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "cannot receive a question");
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            }
        };
        let SocketAddr::V4(guest) = from else { continue };
        let Some(sandbox) = shared.sandboxes.at(*guest.ip()) else { continue };
        let message = buffer[..read].to_vec();
        let (task, socket) = (Arc::clone(&shared), Arc::clone(&socket));
        // At most as many as the sandbox has permits wait; the others are answered at once.
        shared.tasks.spawn(async move {
            let work = async {
                if let Some(answer) = answer(&task, &sandbox, resolver, &message, false).await {
                    let _a_lost_packet = socket.send_to(&answer, from).await;
                }
            };
            tokio::select! {
                () = work => {}
                () = sandbox.gone.cancelled() => {}
                () = task.stop.cancelled() => {}
            }
        });
    }
}

/// Answers questions that come over one connection.
pub(crate) async fn serve_stream(
    shared: &Shared,
    sandbox: &Sandbox,
    mut guest: TcpStream,
    resolver: Ipv4Addr,
) {
    for _ in 0..MAX_PER_STREAM {
        let Ok(Ok(message)) = timeout(IDLE, read_message(&mut guest)).await else { break };
        let Some(answer) = answer(shared, sandbox, resolver, &message, true).await else { break };
        let Ok(length) = u16::try_from(answer.len()) else { break };
        let framed = [&length.to_be_bytes()[..], &answer].concat();
        match timeout(IDLE, guest.write_all(&framed)).await {
            Ok(Ok(())) => {}
            _ => break,
        }
    }
    crate::relay::close_cleanly(guest);
}

async fn read_message(guest: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(guest.read_u16().await?);
    if length > MAX_QUESTION {
        return Err(io::Error::other("a question too long"));
    }
    let mut message = vec![0; length];
    guest.read_exact(&mut message).await?;
    Ok(message)
}

/// The answer to a question, whatever becomes of it; `None` for what is no question at all.
async fn answer(
    shared: &Shared,
    sandbox: &Sandbox,
    resolver: Ipv4Addr,
    message: &[u8],
    whole: bool,
) -> Option<Vec<u8>> {
    let Some(question) = Question::read(message) else { return malformed(message) };
    let (permitted, rule, code) = judge(shared, &sandbox.rules(), &question, resolver);
    let (answer, verdict, error) = if permitted {
        let asking = async {
            // When little is left, those who wait for many answers make room first.
            let waiting = crate::sandboxes::QUESTIONS.saturating_sub(sandbox.questions.available_permits());
            if waiting >= FEW && shared.questions.available_permits() < crate::gateway::QUESTIONS / 4 {
                return None;
            }
            let _waiting = sandbox.questions.try_acquire().ok()?;
            let _everybody = shared.questions.try_acquire().ok()?;
            shared.upstreams.ask(&question, whole).await
        };
        match asking.await {
            Some(answer) => {
                let verdict = NetworkVerdict::Allowed;
                let error = code_name(answer.code());
                (if whole { answer.message } else { question.fitted(answer.message) }, verdict, error)
            }
            None => (question.refusal(Code::ServerFailed, None), NetworkVerdict::Failed, Some("no_answer")),
        }
    } else {
        let why = "this sandbox's network rules do not permit it";
        (question.refusal(code, Some(why)), NetworkVerdict::Blocked, code_name(code as u16))
    };
    shared.report(
        sandbox,
        Attempt::Dns(DnsAttempt {
            name: question.shown.chars().take(domain::MAX_LOGGED_HOST).collect(),
            record: kind_name(question.kind),
            to: SocketAddrV4::new(resolver, PORT),
            verdict,
            rule,
            error: error.map(str::to_owned),
        }),
    );
    Some(answer)
}

/// Whether a question may be asked, which rule says so, and how it is refused.
fn judge(
    shared: &Shared,
    rules: &EgressRules,
    question: &Question,
    resolver: Ipv4Addr,
) -> (bool, MatchRule, Code) {
    if rules.strict {
        // A name that does not exist ends a look-up at once; a refusal makes programs ask the next resolver.
        return match &question.name {
            Some(name) if rules.resolves(name.as_str()) => (true, MatchRule::Domain, Code::Refused),
            _ => (false, MatchRule::ImplicitDeny, Code::NoSuchName),
        };
    }
    match shared.blocked.why(resolver) {
        Some(rule) => (false, rule, Code::Refused),
        None => {
            let ruling = rules.rule_on(None, resolver);
            (ruling.permitted, ruling.rule, Code::Refused)
        }
    }
}

/// What is no question but came with a number is told so.
fn malformed(message: &[u8]) -> Option<Vec<u8>> {
    const FORMAT_ERROR: u8 = 1;
    let is_answer = *message.get(2)? & 0x80 != 0;
    (message.len() >= 12 && !is_answer).then(|| {
        vec![message[0], message[1], 0x80 | (message[2] & 0x78), FORMAT_ERROR, 0, 0, 0, 0, 0, 0, 0, 0]
    })
}

fn kind_name(kind: u16) -> String {
    let known = match kind {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        33 => "SRV",
        64 => "SVCB",
        65 => "HTTPS",
        255 => "ANY",
        other => return format!("TYPE{other}"),
    };
    known.to_owned()
}
