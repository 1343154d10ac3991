//! Paths inside a sandbox: what is accepted, and how one is quoted for a shell.

/// Accepts absolute paths without `..` segments and NUL bytes; the error is a clause that follows the argument's name.
pub(crate) fn check(path: &str) -> Result<(), &'static str> {
    if path.contains('\0') {
        Err("must not contain a NUL byte")
    } else if !path.starts_with('/') {
        Err("must be an absolute path, beginning with `/`")
    } else if path.split('/').any(|segment| segment == "..") {
        Err("must not contain a `..` segment")
    } else {
        Ok(())
    }
}

/// `path` as one word of a POSIX shell.
pub(crate) fn quote(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_absolute_paths_pass() {
        for good in ["/", "/a/b", "/a/..b/c..", "/with space/ü"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", "a", "./a", "/a/../b", "/..", "/a\0b"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn quoting_keeps_every_character() {
        assert_eq!(quote("/a/b"), "'/a/b'");
        assert_eq!(quote("/it's $x"), r"'/it'\''s $x'");
    }
}
