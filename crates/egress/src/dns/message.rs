//! DNS messages (RFC 1035 §4), as little of them as a forwarder needs. Questions are written anew instead of being passed
//! on, so that nothing but a name and a type leaves; answers are read with every length and pointer checked.

use std::net::Ipv4Addr;

use crate::name::Name;

/// Bytes before the question.
const HEADER: usize = 12;
/// Longest name in wire form.
const MAX_WIRE_NAME: usize = 255;
/// Largest answer that is accepted over UDP.
pub(super) const MAX_UDP: u16 = 4_096;
/// What every resolver and path carries (DNS flag day 2020).
const OWN_UDP: u16 = 1_232;
/// Records that are looked at in one answer.
const MAX_RECORDS: u16 = 256;
/// Aliases that are followed in one answer.
const MAX_ALIASES: usize = 16;

pub(super) const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_OPT: u16 = 41;
const CLASS_IN: u16 = 1;

const FLAG_RESPONSE: u16 = 1 << 15;
const FLAG_TRUNCATED: u16 = 1 << 9;
const FLAG_RECURSE: u16 = 1 << 8;
const FLAG_CAN_RECURSE: u16 = 1 << 7;
/// Authentic data, checking disabled: the sandbox's wish.
const FLAGS_DNSSEC: u16 = 0b11 << 4;
const OPCODE: u16 = 0b1111 << 11;

/// Why there is no answer (RFC 1035 §4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    ServerFailed = 2,
    NoSuchName = 3,
    Refused = 5,
}

/// How a code is written in the log.
pub(super) fn code_name(code: u16) -> Option<&'static str> {
    match code {
        0 => None,
        1 => Some("FORMERR"),
        2 => Some("SERVFAIL"),
        3 => Some("NXDOMAIN"),
        4 => Some("NOTIMP"),
        5 => Some("REFUSED"),
        _ => Some("OTHER"),
    }
}

/// A question that can be asked on somebody's behalf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    id: u16,
    flags: u16,
    /// Name, type and class as they were written.
    wire: Vec<u8>,
    /// Text of the name, what is not printable escaped; for people.
    pub(super) shown: String,
    /// The name, if it is one of a host.
    pub(super) name: Option<Name>,
    pub(super) kind: u16,
    edns: Option<Edns>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Edns {
    /// What the asker takes over UDP.
    size: u16,
    dnssec: bool,
}

impl Question {
    /// Reads a question; `None` for whatever is not exactly one.
    pub(super) fn read(message: &[u8]) -> Option<Self> {
        let flags = u16_at(message, 2)?;
        let counts = [u16_at(message, 4)?, u16_at(message, 6)?, u16_at(message, 8)?];
        if flags & (FLAG_RESPONSE | OPCODE) != 0 || counts != [1, 0, 0] {
            return None;
        }
        let (shown, name, end) = plain_name(message, HEADER)?;
        let (kind, class) = (u16_at(message, end)?, u16_at(message, end + 2)?);
        let mut at = end + 4;
        let mut edns = None;
        for _ in 0..u16_at(message, 10)?.min(4) {
            let record = Record::read(message, at)?;
            if record.kind == TYPE_OPT {
                let dnssec = record.ttl & (1 << 15) != 0;
                edns = Some(Edns { size: record.class.clamp(512, MAX_UDP), dnssec });
            }
            at = record.end;
        }
        (class == CLASS_IN).then(|| Self {
            id: u16_at(message, 0).unwrap_or_default(),
            flags,
            wire: message[HEADER..end + 4].to_vec(),
            shown,
            name,
            kind,
            edns,
        })
    }

    /// Asks for the addresses of a name.
    pub(super) fn address_of(name: &Name) -> Self {
        let mut wire = Vec::new();
        for label in name.as_str().split('.') {
            // A `Name` has no label longer than 63.
            wire.push(u8::try_from(label.len()).unwrap_or_default());
            wire.extend(label.as_bytes());
        }
        wire.push(0);
        wire.extend(TYPE_A.to_be_bytes());
        wire.extend(CLASS_IN.to_be_bytes());
        Self {
            id: 0,
            flags: FLAG_RECURSE,
            wire,
            shown: name.to_string(),
            name: Some(name.clone()),
            kind: TYPE_A,
            edns: Some(Edns { size: OWN_UDP, dnssec: false }),
        }
    }

    /// The question as it is asked, under another number.
    pub(super) fn write(&self, id: u16) -> Vec<u8> {
        let flags = (self.flags & FLAGS_DNSSEC) | FLAG_RECURSE;
        let mut message = self.header(id, flags);
        if let Some(edns) = self.edns {
            message[11] = 1;
            opt(&mut message, edns, None);
        }
        message
    }

    /// Makes a resolver's answer the answer to this question; `None` when it answers another one.
    pub(super) fn answered(&self, id: u16, mut answer: Vec<u8>) -> Option<Answer> {
        let flags = u16_at(&answer, 2)?;
        let asked = answer.get(HEADER..HEADER + self.wire.len())?;
        let ours = u16_at(&answer, 0)? == id
            && flags & FLAG_RESPONSE != 0
            && u16_at(&answer, 4)? == 1
            && asked.eq_ignore_ascii_case(&self.wire);
        if !ours {
            return None;
        }
        answer[..2].copy_from_slice(&self.id.to_be_bytes());
        answer[HEADER..HEADER + self.wire.len()].copy_from_slice(&self.wire);
        Some(Answer { message: answer, records: HEADER + self.wire.len() })
    }

    /// An answer of our own without an address. Whoever speaks EDNS is told why (RFC 8914).
    pub(super) fn refusal(&self, code: Code, why: Option<&str>) -> Vec<u8> {
        let flags = FLAG_RESPONSE | FLAG_CAN_RECURSE | (self.flags & FLAG_RECURSE) | code as u16;
        let mut message = self.header(self.id, flags);
        if self.edns.is_some() {
            message[11] = 1;
            opt(&mut message, Edns { size: OWN_UDP, dnssec: false }, why);
        }
        message
    }

    /// The answer as it fits into one packet for the asker.
    pub(super) fn fitted(&self, answer: Vec<u8>) -> Vec<u8> {
        let room = self.edns.map_or(512, |edns| usize::from(edns.size));
        if answer.len() <= room {
            return answer;
        }
        let flags = u16_at(&answer, 2).unwrap_or_default() | FLAG_RESPONSE | FLAG_TRUNCATED;
        self.header(self.id, flags)
    }

    fn header(&self, id: u16, flags: u16) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER + self.wire.len() + 64);
        message.extend(id.to_be_bytes());
        message.extend(flags.to_be_bytes());
        message.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        message.extend(&self.wire);
        message
    }
}

/// Appends the record of EDNS, with a reason why something is blocked.
fn opt(message: &mut Vec<u8>, edns: Edns, why: Option<&str>) {
    const EXTENDED_ERROR: u16 = 15;
    const BLOCKED: u16 = 15;
    /// Keeps the record within any packet.
    const MAX_REASON: usize = 200;
    message.push(0);
    message.extend(TYPE_OPT.to_be_bytes());
    message.extend(edns.size.to_be_bytes());
    message.extend([0, 0, if edns.dnssec { 0x80 } else { 0 }, 0]);
    let Some(why) = why else {
        message.extend([0, 0]);
        return;
    };
    let text = &why.as_bytes()[..why.len().min(MAX_REASON)];
    let length = u16::try_from(text.len()).unwrap_or_default();
    message.extend((length + 6).to_be_bytes());
    message.extend(EXTENDED_ERROR.to_be_bytes());
    message.extend((length + 2).to_be_bytes());
    message.extend(BLOCKED.to_be_bytes());
    message.extend(text);
}

/// An answer to a question.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) message: Vec<u8>,
    /// Where the records begin.
    records: usize,
}

impl Answer {
    pub(super) fn code(&self) -> u16 {
        u16_at(&self.message, 2).unwrap_or_default() & 0b1111
    }

    pub(super) fn is_truncated(&self) -> bool {
        u16_at(&self.message, 2).unwrap_or_default() & FLAG_TRUNCATED != 0
    }

    /// The IPv4 addresses of the name that was asked for, through its aliases, and how many seconds they may be
    /// remembered. Records of other names, which nobody asked for, are not looked at.
    pub(super) fn addresses(&self, of: &Name) -> (Vec<Ipv4Addr>, u32) {
        let mut records = Vec::new();
        let mut at = self.records;
        for _ in 0..u16_at(&self.message, 6).unwrap_or_default().min(MAX_RECORDS) {
            let Some(record) = Record::read(&self.message, at) else { break };
            at = record.end;
            if record.class == CLASS_IN {
                records.push(record);
            }
        }
        let mut name = of.as_str().as_bytes().to_vec();
        let mut ttl = u32::MAX;
        for _ in 0..MAX_ALIASES {
            let of_kind = |kind: u16| {
                let name = &name;
                records.iter().filter(move |record| record.kind == kind && record.owner == *name)
            };
            let found: Vec<(Ipv4Addr, u32)> = of_kind(TYPE_A)
                .filter_map(|record| {
                    let octets: [u8; 4] = self.message.get(record.data..record.end)?.try_into().ok()?;
                    Some((Ipv4Addr::from(octets), record.ttl))
                })
                .collect();
            if !found.is_empty() {
                let ttl = found.iter().fold(ttl, |least, (_, ttl)| least.min(*ttl));
                return (found.into_iter().map(|(address, _)| address).collect(), ttl);
            }
            let Some(alias) = of_kind(TYPE_CNAME).next() else { break };
            let Some((target, _)) = name_at(&self.message, alias.data) else { break };
            ttl = ttl.min(alias.ttl);
            name = target;
        }
        (Vec::new(), 0)
    }
}

/// A resource record.
struct Record {
    /// In lower case, labels joined by dots: good for comparing only.
    owner: Vec<u8>,
    kind: u16,
    class: u16,
    ttl: u32,
    data: usize,
    end: usize,
}

impl Record {
    fn read(message: &[u8], at: usize) -> Option<Self> {
        let (owner, at) = name_at(message, at)?;
        let ttl = message.get(at + 4..at + 8)?.try_into().ok().map(u32::from_be_bytes)?;
        let data = at + 10;
        let end = data + usize::from(u16_at(message, at + 8)?);
        (end <= message.len()).then_some(Self {
            owner,
            kind: u16_at(message, at)?,
            class: u16_at(message, at + 2)?,
            ttl,
            data,
            end,
        })
    }
}

/// A name with its pointers followed, in lower case, and where it ends. A label with a dot in it could pass for two, so
/// such a name is none.
fn name_at(message: &[u8], start: usize) -> Option<(Vec<u8>, usize)> {
    let mut name = Vec::new();
    let (mut at, mut end) = (start, None);
    loop {
        let length = usize::from(*message.get(at)?);
        match length {
            0 => return Some((name, end.unwrap_or(at + 1))),
            1..=63 => {
                let label = message.get(at + 1..=at + length)?;
                if label.contains(&b'.') || name.len() + length >= MAX_WIRE_NAME {
                    return None;
                }
                if !name.is_empty() {
                    name.push(b'.');
                }
                name.extend(label.to_ascii_lowercase());
                at += 1 + length;
            }
            0xC0.. => {
                let target = usize::from(u16_at(message, at)? & 0x3FFF);
                // Only backwards, so that it ends.
                if target >= at {
                    return None;
                }
                end.get_or_insert(at + 2);
                at = target;
            }
            _ => return None,
        }
    }
}

/// The name of a question, which has no pointers: how it is shown, what host it names, and where it ends.
fn plain_name(message: &[u8], start: usize) -> Option<(String, Option<Name>, usize)> {
    let mut labels: Vec<&[u8]> = Vec::new();
    let mut at = start;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if at - start > MAX_WIRE_NAME {
            return None;
        }
        match length {
            0 => break,
            1..=63 => labels.push(message.get(at..at + length)?),
            _ => return None,
        }
        at += length;
    }
    let shown = labels.iter().map(|label| label.escape_ascii().to_string()).collect::<Vec<_>>().join(".");
    // A dot inside a label would make two of it.
    let split = labels.iter().any(|label| label.contains(&b'.'));
    let name = if split { None } else { Name::parse(&labels.join(&b'.')) };
    Some((shown, name, at))
}

fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(message.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
