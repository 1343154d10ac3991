//! Listing a directory through a command, because the data plane of the published platform has no such call: one shell
//! script that carries three ways (GNU `find`, `ls` with ISO times, a POSIX loop) and says which one ran, and the parsers
//! of their output. All of it comes from a guest and is untrusted (`spec/mcp.md` §C.8).
//!
//! Output starts with a tag, `F`, `P` (rows `type TAB size TAB epoch TAB name NUL`) or `L` (lines of `ls`), then NUL.

use jiff::Timestamp;

use crate::path::quote;

/// Most entries in a result.
pub(crate) const MAX_ENTRIES: usize = 5000;

/// Exit code of the script when the path does not exist.
pub(crate) const EXIT_MISSING: i32 = 66;
/// Exit code of the script when the path is not a directory.
pub(crate) const EXIT_NOT_DIRECTORY: i32 = 67;

/// One row of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Base name.
    pub(crate) name: String,
    /// What it is.
    pub(crate) kind: EntryKind,
    /// Bytes; 0 when unknown.
    pub(crate) size: u64,
    /// RFC 3339, UTC, milliseconds.
    pub(crate) modified: Option<String>,
}

/// What an entry is. Directories sort first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EntryKind {
    Directory,
    File,
    Symlink,
    BlockDevice,
    CharDevice,
    Fifo,
    Socket,
    Other,
}

impl EntryKind {
    /// The published name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::File => "file",
            Self::Symlink => "symlink",
            Self::BlockDevice => "block-device",
            Self::CharDevice => "char-device",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Other => "other",
        }
    }

    /// The first column of the text.
    pub(crate) fn mark(self) -> char {
        match self {
            Self::Directory => 'd',
            Self::Symlink => 'l',
            _ => '-',
        }
    }

    /// From the letter `find -printf %y` and `ls -l` use; `ls` writes `-` for a regular file.
    fn from_letter(letter: char) -> Self {
        match letter {
            'd' => Self::Directory,
            'f' | '-' => Self::File,
            'l' => Self::Symlink,
            'b' => Self::BlockDevice,
            'c' => Self::CharDevice,
            'p' => Self::Fifo,
            's' => Self::Socket,
            _ => Self::Other,
        }
    }
}

/// The script that lists `path`, which must have passed `path::check`.
pub(crate) fn script(path: &str) -> String {
    let quoted = quote(path);
    format!(
        "if [ ! -d {quoted} ]; then\n\
         if [ -e {quoted} ] || [ -L {quoted} ]; then exit {EXIT_NOT_DIRECTORY}; fi\n\
         exit {EXIT_MISSING}\n\
         fi\n\
         if find {quoted} -maxdepth 0 -printf '' 2>/dev/null; then\n\
         printf 'F\\0'\n{find}\n\
         elif ls -d --time-style=long-iso {quoted} >/dev/null 2>&1; then\n\
         printf 'L\\0'\n{ls}\n\
         else\n\
         printf 'P\\0'\n{posix}\n\
         fi",
        find = find_command(path),
        ls = ls_command(path),
        posix = posix_command(path),
    )
}

/// The slash after the quotes makes `find` enter a directory behind a symbolic link.
fn find_command(path: &str) -> String {
    format!(r"find {}/ -maxdepth 1 -mindepth 1 -printf '%y\t%s\t%T@\t%f\0'", quote(path))
}

/// Numeric owners, because a user name may contain blanks.
fn ls_command(path: &str) -> String {
    format!("LC_ALL=C TZ=UTC0 ls -lan --time-style=long-iso {}/", quote(path))
}

fn posix_command(path: &str) -> String {
    format!(
        "cd {} && for f in * .*; do\n\
         case \"$f\" in .|..) continue;; esac\n\
         if [ -L \"$f\" ]; then t=l\n\
         elif [ -d \"$f\" ]; then t=d\n\
         elif [ -f \"$f\" ]; then t=f\n\
         elif [ -b \"$f\" ]; then t=b\n\
         elif [ -c \"$f\" ]; then t=c\n\
         elif [ -p \"$f\" ]; then t=p\n\
         elif [ -S \"$f\" ]; then t=s\n\
         elif [ -e \"$f\" ]; then t=o\n\
         else continue; fi\n\
         printf '%s\\t\\t\\t%s\\0' \"$t\" \"$f\"\n\
         done",
        quote(path)
    )
}

/// Reads the output of the script: all entries, sorted, directories first. `None` when there is no tag.
pub(crate) fn parse(output: &str) -> Option<Vec<Entry>> {
    let (tag, rows) = output.split_once('\0')?;
    let mut entries: Vec<Entry> = match tag {
        // The text after the last NUL is an incomplete row, if the platform cut the output.
        "F" | "P" => {
            rows.split_inclusive('\0').filter_map(|row| parse_row(row.strip_suffix('\0')?)).collect()
        }
        "L" => rows.lines().filter_map(parse_ls_line).collect(),
        _ => return None,
    };
    entries.sort_by(|a, b| {
        let files = |entry: &Entry| entry.kind != EntryKind::Directory;
        files(a).cmp(&files(b)).then_with(|| a.name.cmp(&b.name))
    });
    Some(entries)
}

/// `type TAB size TAB epoch TAB name`; the name may contain tabs and line breaks.
fn parse_row(row: &str) -> Option<Entry> {
    let mut fields = row.splitn(4, '\t');
    let letter = fields.next()?;
    let size = fields.next()?;
    let epoch = fields.next()?;
    let name = fields.next()?;
    let mut letters = letter.chars();
    let (Some(letter), None) = (letters.next(), letters.next()) else { return None };
    named(name)?;
    Some(Entry {
        name: name.to_owned(),
        kind: EntryKind::from_letter(letter),
        size: if size.is_empty() { 0 } else { size.parse().ok()? },
        modified: from_epoch(epoch),
    })
}

/// `-rw-r--r-- 1 0 0 11 2026-06-19 10:01 name`, devices with `major, minor` in place of the size, links with a target.
fn parse_ls_line(line: &str) -> Option<Entry> {
    let letter = line.chars().next()?;
    let kind = match letter {
        'd' | '-' | 'l' | 'b' | 'c' | 'p' | 's' => EntryKind::from_letter(letter),
        _ => return None,
    };
    let mut rest = line;
    let mut word = || {
        let trimmed = rest.trim_start_matches(' ');
        let (word, after) = trimmed.split_once(' ')?;
        rest = after;
        Some(word)
    };
    for _mode_links_owner_group in 0..4 {
        word()?;
    }
    let size = word()?;
    let size = if size.ends_with(',') {
        word()?;
        0
    } else {
        size.parse().ok()?
    };
    let (day, time) = (word()?, word()?);
    let mut name = rest;
    if kind == EntryKind::Symlink
        && let Some((link, _target)) = name.split_once(" -> ")
    {
        name = link;
    }
    named(name)?;
    let modified = format!("{day}T{time}:00Z").parse::<Timestamp>().ok().map(crate::text::timestamp);
    Some(Entry { name: name.to_owned(), kind, size, modified })
}

fn named(name: &str) -> Option<()> {
    (!matches!(name, "" | "." | "..")).then_some(())
}

/// `1718791260.1234567890` as a time. The digits are read as text: a float would round across milliseconds.
fn from_epoch(epoch: &str) -> Option<String> {
    let (seconds, fraction) = epoch.split_once('.').unwrap_or((epoch, ""));
    let whole: i64 = seconds.parse().ok()?;
    let mut millis: i64 = 0;
    for digit in fraction.chars().chain("000".chars()).take(3) {
        millis = millis * 10 + i64::from(digit.to_digit(10)?);
    }
    let signed = if seconds.starts_with('-') { -millis } else { millis };
    let time = Timestamp::from_millisecond(whole.checked_mul(1000)?.checked_add(signed)?).ok()?;
    Some(crate::text::timestamp(time))
}

#[cfg(test)]
mod tests;
