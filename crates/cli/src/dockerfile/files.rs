//! The files of `COPY`: what of the build's directory is named, what `.dockerignore` leaves out, and the archive of it that
//! travels inside the steps. Nothing outside the directory is ever read.

use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use base64::Engine;
use flate2::Compression;
use flate2::write::GzEncoder;

/// A `.dockerignore` that is larger is none.
const MAX_IGNORE_BYTES: u64 = 1024 * 1024;
/// Files of one `COPY`. What has more is not small.
const MAX_FILES: usize = 10_000;
/// Bytes of one `COPY` before compression: what travels in steps is small.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// The build's directory.
#[derive(Debug)]
pub(super) struct Context {
    root: PathBuf,
    /// Patterns of `.dockerignore`, and whether they take back what an earlier one left out.
    ignored: Vec<(Vec<String>, bool)>,
}

/// Something to pack: where it is, and what it is called in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    from: PathBuf,
    to: PathBuf,
}

/// The files of one `COPY`.
#[derive(Debug)]
pub(super) struct Packed {
    /// An archive, compressed, as base64. The same content gives the same text.
    pub(super) base64: String,
    /// What is in it, relative to the destination.
    pub(super) names: Vec<String>,
}

impl Context {
    pub(super) fn open(root: &Path) -> Result<Self, String> {
        let file = root.join(".dockerignore");
        let text = match file.metadata() {
            // Others never end, or never begin.
            Ok(of) if !of.is_file() => return Err(".dockerignore is no regular file".to_owned()),
            Ok(_) => read_ignored(&file)?,
            Err(_) => String::new(),
        };
        let ignored = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| {
                let (pattern, back) = line.strip_prefix('!').map_or((line, false), |pattern| (pattern, true));
                (parts(pattern.trim()), back)
            });
        Ok(Self { root: root.to_owned(), ignored: ignored.collect() })
    }

    /// Whether `.dockerignore` leaves a path out: the last pattern that is about it, or a directory above, decides.
    fn leaves_out(&self, path: &Path) -> bool {
        let names: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let about = |pattern: &[String]| (1..=names.len()).any(|count| matches(pattern, &names[..count]));
        self.ignored.iter().rev().find(|(pattern, _)| about(pattern)).is_some_and(|(_, back)| !back)
    }

    /// What one source of a `COPY` names, relative to the directory.
    fn sources(&self, text: &str) -> Result<Vec<PathBuf>, String> {
        let relative = Path::new(text.trim_start_matches('/'));
        if relative.components().any(|part| matches!(part, Component::ParentDir)) {
            return Err(format!("`{text}` leads out of the build's directory"));
        }
        let pattern = parts(text);
        if pattern.iter().any(|part| part == "**") {
            return Err(format!("`{text}`: ** is for .dockerignore; name a directory"));
        }
        let mut found = vec![PathBuf::new()];
        for part in &pattern {
            let mut next = Vec::new();
            for dir in found {
                if part.contains(['*', '?', '[']) {
                    let mut names: Vec<_> = read_names(&self.root.join(&dir)).unwrap_or_default();
                    names.retain(|name| fits(part.as_bytes(), name.to_string_lossy().as_bytes()));
                    next.extend(names.into_iter().map(|name| dir.join(name)));
                } else {
                    next.push(dir.join(part));
                }
            }
            found = next;
        }
        // A directory on the way that is a link could lead anywhere; the last part is copied as the link it is.
        found.retain(|path| self.root.join(path).symlink_metadata().is_ok());
        for path in &found {
            let above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            if above.into_iter().any(|above| self.root.join(above).is_symlink()) {
                return Err(format!("`{text}` leads through a symbolic link"));
            }
        }
        if found.is_empty() {
            return Err(format!("there is no `{text}` in {}", self.root.display()));
        }
        found.retain(|path| !self.leaves_out(path) || self.root.join(path).is_dir());
        if found.is_empty() {
            return Err(format!("`{text}` is left out by .dockerignore"));
        }
        Ok(found)
    }

    /// Packs sources for a destination: directories by their content, files by their names, or by the destination's. Says
    /// which directory the archive is for.
    pub(super) fn pack(
        &self,
        sources: &[String],
        to: &str,
        mode: Option<u32>,
    ) -> Result<(Packed, String), String> {
        let mut found = Vec::new();
        for source in sources {
            found.extend(self.sources(source)?);
        }
        let into_directory = to.ends_with('/') || found.len() > 1 || self.is_directory(&found[0]);
        let (directory, name) = match (into_directory, to.rsplit_once('/')) {
            (true, _) => (to, None),
            (false, Some((directory, name))) => {
                (if directory.is_empty() { "/" } else { directory }, Some(name))
            }
            (false, None) => (".", Some(to)),
        };
        let mut entries = Vec::new();
        for source in &found {
            if self.is_directory(source) {
                self.below(source, Path::new(""), &mut entries)?;
            } else {
                let own = source.file_name().map_or(Path::new("file"), Path::new);
                entries.push(Entry { from: source.clone(), to: name.map_or(own, Path::new).to_owned() });
            }
        }
        let packed = self.archive(&entries, mode)?;
        Ok((packed, directory.to_owned()))
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.root.join(path).symlink_metadata().is_ok_and(|of| of.is_dir())
    }

    fn below(&self, from: &Path, to: &Path, entries: &mut Vec<Entry>) -> Result<(), String> {
        let failed = |error| format!("cannot read {}: {error}", from.display());
        for name in read_names(&self.root.join(from)).map_err(failed)? {
            let (from, to) = (from.join(&name), to.join(&name));
            let left_out = self.leaves_out(&from);
            if !left_out {
                if entries.len() >= MAX_FILES {
                    return Err(format!("COPY of more than {MAX_FILES} files"));
                }
                entries.push(Entry { from: from.clone(), to: to.clone() });
            }
            // Something in it may be taken back.
            if self.is_directory(&from) {
                self.below(&from, &to, entries)?;
            }
        }
        Ok(())
    }

    fn archive(&self, entries: &[Entry], mode: Option<u32>) -> Result<Packed, String> {
        let pack = || -> io::Result<Vec<u8>> {
            let mut left = MAX_BYTES;
            let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
            archive.follow_symlinks(false);
            for entry in entries {
                add(&mut archive, &self.root.join(&entry.from), &entry.to, mode, &mut left)?;
            }
            archive.into_inner()?.finish()
        };
        let bytes = pack().map_err(|error| format!("cannot read the files: {error}"))?;
        let names = entries.iter().map(|entry| entry.to.to_string_lossy().into_owned()).collect();
        Ok(Packed { base64: base64::prelude::BASE64_STANDARD.encode(bytes), names })
    }
}

fn read_ignored(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = std::fs::File::open(file)
        .and_then(|file| file.take(MAX_IGNORE_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| format!("cannot read .dockerignore: {error}"))?;
    if read as u64 > MAX_IGNORE_BYTES { Err(".dockerignore is too large".to_owned()) } else { Ok(text) }
}

fn read_names(dir: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    let names = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn add<W: Write>(
    archive: &mut tar::Builder<W>,
    from: &Path,
    to: &Path,
    mode: Option<u32>,
    left: &mut u64,
) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    /// The first of 2000: no file is dated by when a checkout happened, and none before what archives know.
    const TIME: u64 = 946_684_800;
    let of = from.symlink_metadata()?;
    let mut header = tar::Header::new_gnu();
    header.set_metadata_in_mode(&of, tar::HeaderMode::Deterministic);
    header.set_mode(mode.unwrap_or(if of.mode() & 0o111 == 0 { 0o644 } else { 0o755 }));
    header.set_mtime(TIME);
    if of.is_symlink() {
        archive.append_link(&mut header, to, std::fs::read_link(from)?)
    } else if of.is_dir() {
        archive.append_data(&mut header, to, io::empty())
    } else if of.is_file() {
        *left = left.checked_sub(of.len()).ok_or_else(|| {
            io::Error::other(format!("they have more than {} MiB", MAX_BYTES / (1024 * 1024)))
        })?;
        archive.append_data(&mut header, to, std::fs::File::open(from)?)
    } else {
        Ok(())
    }
}

/// The parts of a pattern or path.
fn parts(text: &str) -> Vec<String> {
    text.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect()
}

/// Whether a whole path is what a pattern means; `**` stands for any number of directories.
fn matches(pattern: &[String], path: &[String]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first == "**" => {
            matches(rest, path) || path.split_first().is_some_and(|(_, below)| matches(pattern, below))
        }
        (Some((first, rest)), Some((name, below))) => {
            fits(first.as_bytes(), name.as_bytes()) && matches(rest, below)
        }
        _ => false,
    }
}

/// Whether a name is what a pattern with `*`, `?` and `[a-z]` means. Steps are bounded by both lengths.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut here) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while here < name.len() {
        let taken = match pattern.get(at) {
            Some(b'*') => {
                back = Some((at + 1, here));
                at += 1;
                continue;
            }
            Some(b'?') => Some(1),
            Some(b'[') => class(&pattern[at..], name[here]),
            Some(byte) => (*byte == name[here]).then_some(1),
            None => None,
        };
        match (taken, &mut back) {
            (Some(length), _) => {
                at += length;
                here += 1;
            }
            (None, Some((after, from))) => {
                *from += 1;
                (at, here) = (*after, *from);
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// The length of `[…]` at the beginning of a pattern, if a byte is in it.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let end = pattern.iter().skip(2).position(|byte| *byte == b']')? + 2;
    let inner = &pattern[1..end];
    let (inner, not) = match inner.strip_prefix(b"^") {
        Some(rest) => (rest, true),
        None => (inner, false),
    };
    let mut within = false;
    let mut at = 0;
    while at < inner.len() {
        if inner.get(at + 1) == Some(&b'-') && at + 2 < inner.len() {
            within |= (inner[at]..=inner[at + 2]).contains(&byte);
            at += 3;
        } else {
            within |= inner[at] == byte;
            at += 1;
        }
    }
    (within != not).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_dockerignore() {
        for (pattern, path, expected) in [
            ("*.log", "a.log", true),
            ("*.log", "sub/a.log", false),
            ("**/*.log", "a.log", true),
            ("**/*.log", "x/y/a.log", true),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("a*b*c", "aXbYbc", true),
            ("a*b*c", "aXbY", false),
            ("./a/", "a", true),
            ("*", ".hidden", true),
            ("[", "[", false),
        ] {
            assert_eq!(matches(&parts(pattern), &parts(path)), expected, "{pattern} {path}");
        }
        // No pattern takes long.
        assert!(!fits("*a".repeat(200).as_bytes(), "a".repeat(190).as_bytes()));
    }

    #[test]
    fn only_a_file_of_some_size_says_what_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(".dockerignore");
        let error = || Context::open(dir.path()).unwrap_err();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert!(error().contains("no regular file"));
        std::fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        assert!(error().contains("no regular file"));
        std::fs::remove_file(&file).unwrap();
        let most = usize::try_from(MAX_IGNORE_BYTES).unwrap();
        std::fs::write(&file, "#".repeat(most)).unwrap();
        assert!(Context::open(dir.path()).is_ok());
        std::fs::write(&file, "#".repeat(most + 1)).unwrap();
        assert!(error().contains("too large"));
    }

    #[test]
    fn what_is_left_out_stays_here() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["src/a.py", "src/a.log", "src/deep/b.log", "src/deep/kept.log", "secret/key", ".git/config"]
        {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        std::os::unix::fs::symlink("/etc", dir.path().join("src/link")).unwrap();
        let ignore = "# comment\n\n**/*.log\n!src/deep/kept.log\n/secret\n.git/\n.dockerignore\n";
        std::fs::write(dir.path().join(".dockerignore"), ignore).unwrap();
        let context = Context::open(dir.path()).unwrap();
        let names =
            |source: &str| context.pack(&[source.to_owned()], "/x/", None).map(|(packed, _)| packed.names);
        assert_eq!(names(".").unwrap(), ["src", "src/a.py", "src/deep", "src/deep/kept.log", "src/link"]);
        assert_eq!(names("src/*.py").unwrap(), ["a.py"]);
        assert_eq!(names("s*/d*").unwrap(), ["kept.log"]);
        for (source, told) in [
            ("src/a.log", "left out"),
            ("nothing", "there is no"),
            ("../x", "leads out"),
            ("src/link/passwd", "symbolic link"),
            ("**/x", "**"),
        ] {
            let error = names(source).unwrap_err();
            assert!(error.contains(told), "{source}: {error}");
        }
        assert!(names("secret").unwrap().is_empty());
    }
}
