//! Looks for a value where it must not be: files, logs, and the memory of a sandbox's processes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Mappings larger than this, a virtual machine's whole memory, are reservations, not content.
const MAX_MAPPING: u64 = 1536 * 1024 * 1024;

/// The value as text that may be searched for: itself, escaped for URLs, and in base64 at any offset.
pub(super) fn forms(value: &str) -> Vec<String> {
    let mut forms = vec![value.to_owned()];
    let escaped = |upper: bool| {
        let escape = |b: u8| match (b.is_ascii_alphanumeric(), upper) {
            (true, _) => char::from(b).to_string(),
            (false, true) => format!("%{b:02X}"),
            (false, false) => format!("%{b:02x}"),
        };
        value.bytes().map(escape).collect::<String>()
    };
    forms.extend([escaped(true), escaped(false)]);
    for before in 0..3 {
        let padded = [&[b'x'; 3][..before], value.as_bytes()].concat();
        let (first, end) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
        forms.push(STANDARD_NO_PAD.encode(&padded)[first..end].to_owned());
        forms.push(URL_SAFE_NO_PAD.encode(&padded)[first..end].to_owned());
    }
    forms.sort();
    forms.dedup();
    forms
}

/// Files below a directory that have one of the forms in them. Of disk images, whose holes are most of them, only what
/// is there is read.
pub(super) fn in_files(dir: &Path, forms: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(in_files(&path, forms));
        } else if kind.is_file() && in_file(&path, forms) {
            found.push(path);
        }
    }
    found
}

fn in_file(path: &Path, forms: &[String]) -> bool {
    // What goes meanwhile is nowhere.
    let Ok(mut file) = File::open(path) else { return false };
    let mut grep = grep(forms);
    let mut into = grep.stdin.take().unwrap();
    let mut at = 0;
    while let Ok(from) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(from)).unwrap();
        file.seek(SeekFrom::Start(from)).unwrap();
        // It ends at the first find, before everything is written.
        if std::io::copy(&mut Read::by_ref(&mut file).take(at - from), &mut into).is_err() {
            break;
        }
    }
    drop(into);
    verdict(grep)
}

pub(super) fn in_text(text: &str, forms: &[String]) -> bool {
    forms.iter().any(|form| text.contains(form.as_str()))
}

/// All processes below this one, itself included.
pub(super) fn tree(root: i32) -> Vec<i32> {
    let mut all = vec![root];
    let mut at = 0;
    while at < all.len() {
        let children = format!("/proc/{0}/task/{0}/children", all[at]);
        let text = std::fs::read_to_string(children).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        at += 1;
    }
    all
}

/// Whether the memory of a process, its environment or its arguments have one of the forms; how many bytes were looked at.
pub(super) fn in_process(pid: i32, forms: &[String]) -> (bool, usize) {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let mut all = [read("environ"), read("cmdline")].concat();
    let Ok(mut memory) = File::open(format!("/proc/{pid}/mem")) else { return (has(&all, forms), 0) };
    for line in String::from_utf8_lossy(&read("maps")).lines() {
        let mut fields = line.split(' ');
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else {
            continue;
        };
        if !rights.starts_with('r') || to - from > MAX_MAPPING {
            continue;
        }
        if memory.seek(SeekFrom::Start(from)).is_ok() {
            let _what_is_not_there = Read::by_ref(&mut memory).take(to - from).read_to_end(&mut all);
        }
    }
    (has(&all, forms), all.len())
}

fn has(bytes: &[u8], forms: &[String]) -> bool {
    let mut grep = grep(forms);
    let _it_ends_at_the_first_find = grep.stdin.take().unwrap().write_all(bytes);
    verdict(grep)
}

/// Reads bytes and looks for the forms, a hundred times faster than what this build would do.
fn grep(forms: &[String]) -> Child {
    let mut grep = Command::new("grep");
    grep.args(["-qaF"]).stdin(Stdio::piped());
    for form in forms {
        grep.arg("-e").arg(form);
    }
    grep.spawn().unwrap()
}

fn verdict(mut grep: Child) -> bool {
    match grep.wait().unwrap().code() {
        Some(0) => true,
        Some(1) => false,
        other => panic!("grep ended with {other:?}"),
    }
}

#[test]
fn what_is_there_is_found() {
    let value = "a-value/with+signs=and-more";
    let forms = forms(value);
    let dir = tempfile::tempdir().unwrap();
    let texts = [
        format!("x{value}x"),
        STANDARD_NO_PAD.encode(format!("me:{value}")),
        "a%2Dvalue%2Fwith%2Bsigns%3Dand%2Dmore".to_owned(),
    ];
    for (number, text) in texts.iter().enumerate() {
        assert!(in_text(text, &forms), "{text}");
        std::fs::write(dir.path().join(number.to_string()), text).unwrap();
    }
    std::fs::write(dir.path().join("clean"), "a-value").unwrap();
    assert_eq!(in_files(dir.path(), &forms).len(), 3);
    let mut child = Command::new("sleep").arg("30").env("HELD", value).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    until(|| in_process(pid, &forms).0);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A program that was just started has its environment a moment later.
fn until(ready: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !ready() {
        assert!(begun.elapsed().as_secs() < 5, "not found");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
