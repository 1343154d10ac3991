//! The query of `/files`: which path, and how.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode;

use crate::reply::Refusal;

/// The kernel's `PATH_MAX`.
const MAX_PATH_BYTES: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) path: PathBuf,
    pub(super) format: Option<Format>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Zip,
    Json,
    /// Of no meaning; files are sent whatever the format is.
    Unknown,
}

/// Takes file names of any bytes, also ones that are no UTF-8.
pub(super) fn parse(query: Option<&str>) -> Result<Query, Refusal> {
    let mut path = None;
    let mut format = None;
    for pair in query.unwrap_or_default().split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "path" if path.is_none() => path = Some(decode(value)),
            "format" if format.is_none() => format = Some(decode(value)),
            _ => {}
        }
    }
    let path = path.filter(|path| !path.is_empty()).ok_or_else(|| Refusal::bad_request("path is missing"))?;
    let format = match format.as_deref() {
        None | Some(b"") => None,
        Some(b"zip") => Some(Format::Zip),
        Some(b"json") => Some(Format::Json),
        Some(_) => Some(Format::Unknown),
    };
    Ok(Query { path: check(path)?, format })
}

/// As in forms, where `+` is a space and a plus comes encoded.
fn decode(text: &str) -> Vec<u8> {
    percent_decode(text.replace('+', " ").as_bytes()).collect()
}

fn check(path: Vec<u8>) -> Result<PathBuf, Refusal> {
    if path[0] != b'/' {
        return Err(Refusal::bad_request("path must be absolute"));
    }
    if path.contains(&0) {
        return Err(Refusal::bad_request("path contains a NUL character"));
    }
    if path.len() >= MAX_PATH_BYTES {
        return Err(Refusal::bad_request(format!("path must be shorter than {MAX_PATH_BYTES} bytes")));
    }
    if path.split(|&byte| byte == b'/').any(|segment| segment == b"..") {
        return Err(Refusal::bad_request("path must not contain .. segments"));
    }
    // Rebuilding from components removes doubled slashes and dots.
    let path: PathBuf = PathBuf::from(OsString::from_vec(path)).components().collect();
    if is_reserved(&path) {
        return Err(Refusal::bad_request(
            "path lies under /proc, /sys, /dev or /.superserve, which are not served",
        ));
    }
    Ok(path)
}

/// Kernel interfaces, whose files have no size, may block for ever, or do something when touched; and the place where
/// engines put the agent.
pub(super) fn is_reserved(path: &Path) -> bool {
    ["/proc", "/sys", "/dev", "/.superserve"].iter().any(|root| path.starts_with(root))
}

/// The last part of a path, for names shown to clients.
pub(super) fn base_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(|| "root".to_owned(), |name| String::from_utf8_lossy(name.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str, expected: Result<(&[u8], Option<Format>), &str>) {
        let parsed = parse(Some(query));
        let parsed = parsed
            .as_ref()
            .map(|query| (query.path.as_os_str().as_bytes(), query.format))
            .map_err(|refusal| refusal.message.as_str());
        assert_eq!(parsed, expected, "{query}");
    }

    #[test]
    fn queries() {
        check("path=/a/b.txt", Ok((b"/a/b.txt", None)));
        check("path=%2Fa%20b+c%2Bd&format=zip", Ok((b"/a b c+d", Some(Format::Zip))));
        check("path=/%ff%FE", Ok((b"/\xff\xfe", None)));
        check("format=json&path=//a/./b/", Ok((b"/a/b", Some(Format::Json))));
        check("path=/a..b/...", Ok((b"/a..b/...", None)));
        check("path=/development", Ok((b"/development", None)));
        check("path=/a/../b", Err("path must not contain .. segments"));
        check("path=/a/%2e%2E", Err("path must not contain .. segments"));
        check("path=a", Err("path must be absolute"));
        check("path=", Err("path is missing"));
        check("", Err("path is missing"));
        check("path=/a%00b", Err("path contains a NUL character"));
        check(
            "path=/./proc/1/environ",
            Err("path lies under /proc, /sys, /dev or /.superserve, which are not served"),
        );
        check("path=/dev", Err("path lies under /proc, /sys, /dev or /.superserve, which are not served"));
        check("path=/a&format=tar", Ok((b"/a", Some(Format::Unknown))));
    }

    #[test]
    fn long_paths() {
        assert!(parse(Some(&format!("path=/{}", "a".repeat(MAX_PATH_BYTES)))).is_err());
    }
}
