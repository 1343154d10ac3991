//! The name in a TLS ClientHello (RFC 8446 §4.1.2, RFC 6066 §3), however it is cut into records and segments.

use crate::name::Name;

/// Content type of handshake records.
pub(super) const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
/// Longest fragment of a record.
const MAX_FRAGMENT: usize = 1 << 14;
/// Hellos with post-quantum keys have some 1,800 bytes; several tickets make them a little longer.
const MAX_HELLO: usize = 16 * 1024;

/// What the bytes so far say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// The hello goes on.
    More,
    /// It is whole, or it is none: no name will come.
    Whole(Option<Name>),
}

/// Reads the first bytes of a connection.
pub(super) fn read(bytes: &[u8]) -> Hello {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        match length(&message) {
            Some(length) if length > MAX_HELLO => return Hello::Whole(None),
            Some(length) if message.len() >= MESSAGE_HEADER + length => {
                return Hello::Whole(server_name(&message[MESSAGE_HEADER..MESSAGE_HEADER + length]));
            }
            _ => {}
        }
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Hello::Whole(None);
        }
        let Some((header, after)) = rest.split_at_checked(RECORD_HEADER) else {
            return if plausible(rest) { Hello::More } else { Hello::Whole(None) };
        };
        let fragment = usize::from(u16::from_be_bytes([header[3], header[4]]));
        // An empty fragment is not allowed, and would let a peer go on without end.
        if !plausible(header) || fragment == 0 || fragment > MAX_FRAGMENT {
            return Hello::Whole(None);
        }
        let there = after.len().min(fragment);
        message.extend_from_slice(&after[..there]);
        if there < fragment && length(&message).is_none_or(|length| message.len() < MESSAGE_HEADER + length) {
            let kind_ok = message.first().is_none_or(|kind| *kind == CLIENT_HELLO);
            return if kind_ok { Hello::More } else { Hello::Whole(None) };
        }
        rest = &after[there..];
    }
}

/// Whether this may be the beginning of a handshake record.
fn plausible(header: &[u8]) -> bool {
    header.first().is_none_or(|kind| *kind == HANDSHAKE) && header.get(1).is_none_or(|major| *major == 3)
}

/// Length of the message, once its header is there.
fn length(message: &[u8]) -> Option<usize> {
    let header = message.get(..MESSAGE_HEADER)?;
    Some(usize::from(header[1]) << 16 | usize::from(header[2]) << 8 | usize::from(header[3]))
}

/// The one host name of a hello; `None` when there is none, or more than one.
fn server_name(hello: &[u8]) -> Option<Name> {
    let mut hello = Reader(hello);
    hello.take(2 + 32)?;
    hello.vector8()?;
    hello.vector16()?;
    hello.vector8()?;
    let mut extensions = Reader(hello.vector16()?);
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let data = extensions.vector16()?;
        if kind != SERVER_NAME {
            continue;
        }
        if found.is_some() {
            return None;
        }
        let mut list = Reader(Reader(data).vector16()?);
        let kind = *list.take(1)?.first()?;
        let name = list.vector16()?;
        if kind != HOST_NAME || !list.0.is_empty() {
            return None;
        }
        found = Some(name);
    }
    Name::parse(found?)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = *self.take(1)?.first()?;
        self.take(usize::from(length))
    }

    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A hello with these server names, each an extension of its own.
    pub(in crate::sniff) fn hello(names: &[&[u8]]) -> Vec<u8> {
        let with16 = |data: &[u8]| [&u16::try_from(data.len()).unwrap().to_be_bytes()[..], data].concat();
        let mut extensions = Vec::new();
        for name in names {
            let list = with16(&[&[HOST_NAME][..], &with16(name)].concat());
            extensions.extend([&[0, 0][..], &with16(&list)].concat());
        }
        extensions.extend([&[0, 43][..], &with16(&[2, 3, 4])].concat());
        let body = [&[3, 3][..], &[7; 32], &[0], &with16(&[0x13, 1]), &[1, 0], &with16(&extensions)].concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    /// The message in records of at most `size` bytes.
    pub(in crate::sniff) fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| {
            [&[HANDSHAKE, 3, 1][..], &u16::try_from(part.len()).unwrap().to_be_bytes(), part].concat()
        };
        message.chunks(size).flat_map(record).collect()
    }

    fn found(bytes: &[u8]) -> Option<String> {
        match read(bytes) {
            Hello::Whole(name) => name.map(|name| name.to_string()),
            Hello::More => panic!("not whole"),
        }
    }

    #[test]
    fn finds_the_name_in_any_number_of_records_and_segments() {
        let message = hello(&[b"Api.Example.com"]);
        for size in [1, 2, 3, 5, 17, 100, 16_384] {
            let bytes = records(&message, size);
            assert_eq!(found(&bytes).as_deref(), Some("api.example.com"), "{size}");
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), Hello::More, "{size} {cut}");
            }
        }
        // What follows the hello in the same segment changes nothing.
        let more = [records(&message, 4096), records(b"later", 4096)].concat();
        assert_eq!(found(&more).as_deref(), Some("api.example.com"));
    }

    #[test]
    fn no_name_or_a_doubtful_one() {
        assert_eq!(found(&records(&hello(&[]), 4096)), None);
        assert_eq!(found(&records(&hello(&[b"a.example", b"b.example"]), 4096)), None);
        for bad in
            [&b"a.example\0"[..], b"a.example\r\n", b"127.0.0.1", b"", b"user@a.example", b"a%00.example"]
        {
            assert_eq!(found(&records(&hello(&[bad]), 4096)), None, "{bad:?}");
        }
        for other in [
            &b"SSH-2.0-x"[..],
            b"GET / HTTP/1.1",
            &[22, 2, 0, 0, 1],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0xff, 0xff],
        ] {
            assert_eq!(read(other), Hello::Whole(None), "{other:?}");
        }
        // Another handshake message, and a hello that would never end.
        assert_eq!(read(&records(&[2, 0, 0, 4, 1, 2, 3, 4], 4096)), Hello::Whole(None));
        assert_eq!(read(&records(&[1, 0xff, 0xff, 0xff], 4096)), Hello::Whole(None));
    }

    proptest::proptest! {
        #[test]
        fn reads_anything_without_a_panic(bytes in proptest::collection::vec(0u8.., 0..600)) {
            let _either = read(&bytes);
            let _either = server_name(&bytes);
        }

        #[test]
        fn a_damaged_hello_names_nobody_else(at in 0usize..120, to in 0u8..) {
            let mut bytes = records(&hello(&[b"a.example"]), 4096);
            let at = at % bytes.len();
            bytes[at] = to;
            if let Hello::Whole(Some(name)) = read(&bytes) {
                proptest::prop_assert!(name.as_str().len() <= 9);
            }
        }
    }
}
