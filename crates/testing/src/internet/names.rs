//! The test internet's one DNS server.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;

/// What names lead to.
#[derive(Debug, Default)]
pub(super) struct Zone {
    /// Each question gets the next of these answers, and the last one again and again.
    answers: HashMap<String, Vec<Vec<Ipv4Addr>>>,
    six: HashMap<String, [u8; 16]>,
    /// Seconds an answer may be remembered; without an entry not at all, so that each test decides what the next one is.
    ages: HashMap<String, u32>,
    asked: Vec<String>,
}

pub(super) type Names = Arc<Mutex<Zone>>;

impl Zone {
    pub(super) fn set(&mut self, name: &str, answers: &[&[&str]]) {
        let parse = |list: &&[&str]| list.iter().map(|text| text.parse().expect("an IPv4 address")).collect();
        self.answers.insert(name.to_owned(), answers.iter().map(parse).collect());
    }

    pub(super) fn set_age(&mut self, name: &str, seconds: u32) {
        self.ages.insert(name.to_owned(), seconds);
    }

    pub(super) fn set_six(&mut self, name: &str, address: &str) {
        let address: std::net::Ipv6Addr = address.parse().expect("an IPv6 address");
        self.six.insert(name.to_owned(), address.octets());
    }

    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.clone()
    }

    fn answer(&mut self, question: &[u8]) -> Option<Vec<u8>> {
        let mut labels = Vec::new();
        let mut at = 12;
        while *question.get(at)? != 0 {
            let length = usize::from(question[at]);
            labels.push(String::from_utf8_lossy(question.get(at + 1..at + 1 + length)?).into_owned());
            at += 1 + length;
        }
        let kind = u16::from_be_bytes(question.get(at + 1..at + 3)?.try_into().ok()?);
        let end = at + 5;
        let name = labels.join(".").to_ascii_lowercase();
        self.asked.push(name.clone());
        let known = self.answers.contains_key(&name) || self.six.contains_key(&name);
        let mut records: Vec<Vec<u8>> = Vec::new();
        if kind == TYPE_A
            && let Some(answers) = self.answers.get_mut(&name)
        {
            let now = if answers.len() > 1 {
                answers.remove(0)
            } else {
                answers.first().cloned().unwrap_or_default()
            };
            records.extend(now.iter().map(|address| address.octets().to_vec()));
        }
        if kind == TYPE_AAAA {
            records.extend(self.six.get(&name).map(|address| address.to_vec()));
        }
        let mut message = question.get(..2)?.to_vec();
        message.extend([
            0x81,
            if known { 0x80 } else { 0x83 },
            0,
            1,
            0,
            u8::try_from(records.len()).ok()?,
            0,
            0,
            0,
            0,
        ]);
        message.extend(question.get(12..end)?);
        for record in records {
            message.extend([0xC0, 12]);
            message.extend(kind.to_be_bytes());
            message.extend([0, 1]);
            message.extend(self.ages.get(&name).copied().unwrap_or_default().to_be_bytes());
            message.extend(u16::try_from(record.len()).ok()?.to_be_bytes());
            message.extend(record);
        }
        Some(message)
    }
}

pub(super) async fn over_udp(socket: UdpSocket, names: Names) {
    let mut buffer = vec![0; 4096];
    while let Ok((read, from)) = socket.recv_from(&mut buffer).await {
        let answer = names.lock().expect("nobody panics while holding it").answer(&buffer[..read]);
        if let Some(answer) = answer {
            let _whoever_asked_is_gone = socket.send_to(&answer, from).await;
        }
    }
}

pub(super) async fn over_tcp(listener: TcpListener, names: Names) {
    let mut connections = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let names = Arc::clone(&names);
        connections.spawn(async move {
            while let Ok(length) = stream.read_u16().await {
                let mut question = vec![0; usize::from(length)];
                stream.read_exact(&mut question).await?;
                let answer = names.lock().expect("nobody panics while holding it").answer(&question);
                let answer = answer.unwrap_or_default();
                stream.write_u16(u16::try_from(answer.len()).unwrap_or_default()).await?;
                stream.write_all(&answer).await?;
            }
            std::io::Result::Ok(())
        });
    }
}
