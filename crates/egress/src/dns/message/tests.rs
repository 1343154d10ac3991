use super::*;

fn name(text: &str) -> Name {
    Name::parse(text.as_bytes()).unwrap()
}

fn wire(text: &str) -> Vec<u8> {
    let label = |label: &str| [&[u8::try_from(label.len()).unwrap()][..], label.as_bytes()].concat();
    text.split('.').flat_map(label).chain([0]).collect()
}

fn record(owner: &[u8], kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap().to_be_bytes();
    [owner, &kind.to_be_bytes(), &[0, 1], &ttl.to_be_bytes(), &length, data].concat()
}

fn answer(question: &Question, id: u16, records: &[Vec<u8>]) -> Vec<u8> {
    let mut message = question.header(id, FLAG_RESPONSE);
    message[7] = u8::try_from(records.len()).unwrap();
    message.extend(records.concat());
    message
}

#[test]
fn questions_are_written_anew() {
    let mut asked = vec![0xAB, 0xCD, 1, 0x10, 0, 1, 0, 0, 0, 0, 0, 1];
    asked.extend(wire("Www.Example.COM"));
    asked.extend([0, 28, 0, 1]);
    let end = asked.len();
    // An option that would carry data out.
    asked.extend([0, 0, 41, 0x10, 0, 0, 0, 0x80, 0, 0, 9, 0xFF, 0xDE, 0, 5, b's', b'e', b'c', b'r', b't']);
    let question = Question::read(&asked).unwrap();
    assert_eq!(question.shown, "Www.Example.COM");
    assert_eq!((question.name.as_ref().unwrap().as_str(), question.kind), ("www.example.com", 28));
    let written = question.write(0x1234);
    assert_eq!(written[..4], [0x12, 0x34, 1, 0x10]);
    assert_eq!(written[12..end], asked[12..end]);
    assert_eq!(written[end..], [0, 0, 41, 0x10, 0, 0, 0, 0x80, 0, 0, 0]);
}

#[test]
fn what_is_not_one_question_is_none() {
    let good = Question::address_of(&name("a.example")).write(1);
    assert!(Question::read(&good).is_some());
    for cut in 0..good.len() {
        assert!(Question::read(&good[..cut]).is_none(), "{cut}");
    }
    for (at, byte) in [(2, 0x80), (2, 0x28), (5, 0), (5, 2), (7, 1), (9, 1), (12, 0xC0), (12, 64)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert!(Question::read(&bad).is_none(), "{at} {byte}");
    }
    let mut odd = good;
    odd[13] = b'.';
    assert_eq!(Question::read(&odd).unwrap().name, None);
    odd[13] = 0;
    let odd = Question::read(&odd).unwrap();
    assert_eq!((odd.shown.as_str(), odd.name), ("\\x00.example", None));
}

#[test]
fn answers_are_for_the_one_who_asked() {
    let question = Question::address_of(&name("a.example"));
    let good = answer(&question, 7, &[]);
    assert!(question.answered(7, good.clone()).is_some());
    assert!(question.answered(8, good.clone()).is_none());
    let other = Question::address_of(&name("b.example"));
    assert!(other.answered(7, good.clone()).is_none());
    assert!(question.answered(7, question.write(7)).is_none());
    assert!(question.answered(7, good[..20].to_vec()).is_none());
}

#[test]
fn addresses_are_those_of_the_name() {
    let question = Question::address_of(&name("a.example"));
    let pointer = [0xC0, 12];
    let records = [
        record(&wire("c.example"), TYPE_A, 5, &[192, 0, 2, 66]),
        record(&pointer, TYPE_CNAME, 60, &wire("B.example")),
        record(&wire("b.EXAMPLE"), TYPE_A, 30, &[198, 51, 100, 1]),
        record(&wire("b.example"), TYPE_A, 90, &[198, 51, 100, 2]),
        record(&wire("b.example"), 28, 9, &[0; 16]),
    ];
    let found = question.answered(1, answer(&question, 1, &records)).unwrap();
    let addresses = found.addresses(&name("a.example"));
    assert_eq!(addresses, (vec!["198.51.100.1".parse().unwrap(), "198.51.100.2".parse().unwrap()], 30));
    // Aliases that go round, a record of a wrong length, one that ends too early, and a pointer to what follows.
    for records in [
        vec![record(&pointer, TYPE_CNAME, 60, &pointer)],
        vec![record(&pointer, TYPE_A, 60, &[1, 2, 3])],
        vec![record(&pointer, TYPE_A, 60, &[1, 2, 3, 4])[..14].to_vec()],
        vec![record(&[0xC0, 0xFF], TYPE_A, 60, &[1, 2, 3, 4])],
    ] {
        let found = question.answered(1, answer(&question, 1, &records)).unwrap();
        assert!(found.addresses(&name("a.example")).0.is_empty());
    }
}

#[test]
fn refusals_say_why_and_large_answers_are_cut() {
    let question = Question::address_of(&name("a.example"));
    let refusal = question.refusal(Code::Refused, Some("not permitted"));
    assert_eq!(refusal[3] & 15, 5);
    assert!(refusal.ends_with(b"not permitted"));
    assert!(question.answered(0, refusal).is_some());
    let long = answer(&question, 0, &[record(&[0xC0, 12], TYPE_A, 1, &[0; 2_000])]);
    let cut = question.fitted(long);
    assert!(cut.len() < 512 && cut[2] & 2 != 0);
}

proptest::proptest! {
    #[test]
    fn reads_anything_without_a_panic(bytes in proptest::collection::vec(0u8.., 0..300), at in 0usize..300) {
        let _either = Question::read(&bytes);
        let _either = name_at(&bytes, at);
        let question = Question::address_of(&name("a.example"));
        let mut message = question.header(1, FLAG_RESPONSE);
        message[6..8].copy_from_slice(&[1, 0]);
        message.extend(bytes);
        if let Some(answer) = question.answered(1, message) {
            let _any = answer.addresses(&name("a.example"));
        }
    }
}
