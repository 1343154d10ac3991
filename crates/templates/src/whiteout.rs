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
    use std::process::Command;

    use super::*;
    use crate::tests::{Archive, Place, place};

    /// What the layers show when they are mounted as for a sandbox, in a mount namespace that goes away.
    fn shown(place: &Place, layers: Vec<Archive>, script: &str) -> String {
        let import = |layer| {
            let digest = place.import(layer).unwrap().digest;
            place.store.path(&digest).unwrap().display().to_string()
        };
        let lower: Vec<_> = layers.into_iter().map(import).rev().collect();
        let scratch = tempfile::tempdir_in(place.dir.path()).unwrap();
        let script = format!(
            "set -e; cd '{}'; mkdir upper work root\nmount -t overlay x root -o \
             lowerdir='{}',upperdir=upper,workdir=work,redirect_dir=on,xino=off\ncd root; {script}",
            scratch.path().display(),
            lower.join(":"),
        );
        let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

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

    #[test]
    fn whiteouts_hide_what_is_below_and_only_that() {
        let below = || {
            Archive::default()
                .file("gone", "1")
                .file("kept", "1")
                .file("file-again", "1")
                .file("dir/old", "1")
                .file("dir-again/old", "1")
                .file("again-dir/old", "1")
                .file("deep-again/a/old", "1")
                .file("opaque/old", "1")
                .file("opaque/sub/old", "1")
                .file("late/old", "1")
                .file("now-file/old", "1")
                .file("now-dir", "1")
        };
        let above = Archive::default()
            .file(".wh.gone", "")
            .file(".wh.file-again", "")
            .file("file-again", "2")
            .file(".wh.dir", "")
            // In both orders, and by a directory that is only implied.
            .file(".wh.dir-again", "")
            .directory("dir-again")
            .file("dir-again/new", "2")
            .file("again-dir/new", "2")
            .file(".wh.again-dir", "")
            .file(".wh.deep-again", "")
            .file("deep-again/a/new", "2")
            .file("opaque/.wh..wh..opq", "")
            .file("opaque/new", "2")
            .file("opaque/.wh.old", "")
            .file("late/new", "2")
            .hard_link("late/.wh..wh..opq", "anywhere")
            .file(".wh.now-file", "")
            .file("now-file", "2")
            .directory("now-dir")
            .file("now-dir/new", "2")
            .file(".wh.never-there", "");
        let place = place();
        let found = shown(&place, vec![below(), above], "find . -type f | sort; ls -A opaque; ls -A");
        let expected = [
            "./again-dir/new",
            "./deep-again/a/new",
            "./dir-again/new",
            "./file-again",
            "./kept",
            "./late/new",
            "./now-dir/new",
            "./now-file",
            "./opaque/new",
            "new",
            "again-dir",
            "deep-again",
            "dir-again",
            "file-again",
            "kept",
            "late",
            "now-dir",
            "now-file",
            "opaque",
        ];
        assert_eq!(found.lines().collect::<Vec<_>>(), expected);

        // A third layer may bring back what the second took away.
        let third = Archive::default().file("gone", "3").file("dir/new", "3");
        let above = Archive::default().file(".wh.gone", "").file(".wh.dir", "");
        let found = shown(&place, vec![below(), above, third], "cat gone dir/new; ls dir");
        assert_eq!(found, "33new\n");
    }

    #[test]
    fn an_opaque_root_hides_every_layer_below() {
        let place = place();
        let layer = |archive| place.import(archive).unwrap().digest;
        let plain = layer(Archive::default().file("a", "1"));
        let opaque = layer(Archive::default().file(".wh..wh..opq", "").file("b", "2"));
        let inner = layer(Archive::default().file("d/.wh..wh..opq", ""));
        assert_eq!(
            [&plain, &opaque, &inner].map(|digest| place.store.hides_all_below(digest)),
            [false, true, false]
        );
    }

    proptest::proptest! {
        #[test]
        fn no_mark_leads_out_of_its_directory(name in r"(\.wh\.){0,3}[./a-z]{0,8}") {
            let parts: Vec<&[u8]> = name.split('/').map(str::as_bytes).collect();
            if let Ok(Some(Mark::Gone(target))) = mark(&parts, name.as_bytes()) {
                assert!(!target.is_empty() && target != b"." && target != b".." && !target.contains(&b'/'));
                assert!(!target.starts_with(PREFIX));
            }
        }
    }
}
