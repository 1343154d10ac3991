//! How a layer of an image says that something below it is gone: entries named `.wh.<name>`, and `.wh..wh..opq` for "of
//! this directory, nothing from below" (OCI image specification, layer.md). The tree turns them into overlayfs's own
//! marks, so that the names never appear in a sandbox. Every archive is read this way, images' or not: one digest is
//! one tree.

use crate::error::TemplateError;

const PREFIX: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What an entry with a whiteout's name asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark<'a> {
    /// This name beside it, as far as lower layers have it.
    Gone(&'a [u8]),
    /// Everything that lower layers have in its directory.
    Opaque,
}

/// Reads the parts of a path; `None` for an ordinary entry.
pub(crate) fn mark<'a>(parts: &[&'a [u8]], entry: &[u8]) -> Result<Option<Mark<'a>>, TemplateError> {
    let Some((name, above)) = parts.split_last() else { return Ok(None) };
    if above.iter().any(|part| part.starts_with(PREFIX)) {
        return Err(TemplateError::refused(entry, "lies below a whiteout"));
    }
    let Some(target) = name.strip_prefix(PREFIX) else { return Ok(None) };
    if *name == OPAQUE {
        return Ok(Some(Mark::Opaque));
    }
    // `.wh..wh.<anything else>` is the private data of a file system that no longer exists; the rest would reach out of
    // the directory or mark a mark.
    if matches!(target, b"" | b"." | b"..") || target.starts_with(PREFIX) {
        return Err(TemplateError::refused(entry, "is a whiteout of nothing"));
    }
    Ok(Some(Mark::Gone(target)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_the_specification_says() {
        let read = |path: &'static str| {
            let parts: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
            mark(&parts, path.as_bytes()).map_err(|error| error.to_string())
        };
        assert_eq!(read("etc/passwd"), Ok(None));
        assert_eq!(read("etc/a.wh.b"), Ok(None));
        assert_eq!(read("etc/.wh.passwd"), Ok(Some(Mark::Gone(b"passwd"))));
        assert_eq!(read(".wh..bashrc"), Ok(Some(Mark::Gone(b".bashrc"))));
        assert_eq!(read(".wh...."), Ok(Some(Mark::Gone(b"..."))));
        assert_eq!(read("etc/.wh..wh..opq"), Ok(Some(Mark::Opaque)));
        for bad in
            [".wh.", ".wh..", ".wh...", ".wh..wh.", ".wh..wh.plnk", ".wh..wh..wh..opq", ".wh.a/b", ".wh.../x"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
