//! Failed file operations as answers.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use http::StatusCode;

use crate::reply::{Fault, Mount, Refusal};

pub(super) fn refusal(path: &Path, error: &io::Error) -> Refusal {
    let shown = path.display();
    // A job that was dropped for want of rights carries a kind without a number.
    let errno = error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::PermissionDenied => libc::EACCES,
        _ => libc::EIO,
    });
    match errno {
        libc::ENOENT => Refusal::not_found(format!("{shown} does not exist")),
        libc::ENOTDIR => Refusal::not_found(format!("a part of {shown} is not a directory")),
        libc::EACCES | libc::EPERM => Refusal::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            format!("the sandbox's user may not access {shown}"),
        ),
        libc::EISDIR => Refusal::bad_request(format!("{shown} is a directory")),
        libc::ENAMETOOLONG => Refusal::bad_request(format!("{shown} is too long a name for the file system")),
        libc::ELOOP => Refusal::bad_request(format!("{shown} runs in a circle of symbolic links")),
        libc::ENOSPC | libc::EDQUOT => Refusal::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "sandbox_storage_full",
            format!("the sandbox's disk is full; remove files and write {shown} again"),
        ),
        errno => Refusal {
            fault: Some(Box::new(Fault { errno, path: shown.to_string(), mount: mount(path) })),
            ..Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "sandbox_filesystem_error",
                format!("{shown}: {}", io::Error::from_raw_os_error(errno)),
            )
        },
    }
}

fn mount(path: &Path) -> Mount {
    // Without a table the mount is unknown.
    mount_in(path, &crate::proc::read("self/mountinfo").unwrap_or_default())
}

/// The innermost mount over `path`; later lines lie over earlier ones.
fn mount_in(path: &Path, table: &[u8]) -> Mount {
    let unknown = Mount { mountpoint: "/".to_owned(), fstype: "unknown".to_owned() };
    table
        .split(|&byte| byte == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|&byte| byte == b' ');
            let point = unescape(fields.nth(4)?);
            let fstype = fields.skip_while(|field| *field != b"-").nth(1)?;
            path.starts_with(Path::new(std::ffi::OsStr::from_bytes(&point))).then_some((point, fstype))
        })
        .max_by_key(|(point, _)| point.len())
        .map_or(unknown, |(point, fstype)| Mount {
            mountpoint: String::from_utf8_lossy(&point).into_owned(),
            fstype: String::from_utf8_lossy(fstype).into_owned(),
        })
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        if let (b'\\', Some(digits)) = (byte, octal) {
            plain.push(
                digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
            );
            rest = &after[3..];
        } else {
            plain.push(byte);
            rest = after;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_mount() {
        let table = b"21 1 0:20 / / rw,relatime - overlay overlay rw\n\
                      22 21 0:21 / /mnt/my\\040disk rw shared:1 - fuse.s3fs s3fs rw\n\
                      23 21 0:22 / /mnt ro - tmpfs tmpfs rw\n";
        let check = |path: &str, point: &str, fstype: &str| {
            let expected = Mount { mountpoint: point.to_owned(), fstype: fstype.to_owned() };
            assert_eq!(mount_in(Path::new(path), table), expected);
        };
        check("/mnt/my disk/a", "/mnt/my disk", "fuse.s3fs");
        check("/mnt/my", "/mnt", "tmpfs");
        check("/mntx", "/", "overlay");
        assert_eq!(mount_in(Path::new("/a"), b"").fstype, "unknown");
    }

    #[test]
    fn full_disks_and_quotas_are_507() {
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            let refusal = refusal(Path::new("/a"), &io::Error::from_raw_os_error(errno));
            assert_eq!((refusal.status.as_u16(), refusal.code), (507, "sandbox_storage_full"));
        }
        let refusal = refusal(Path::new("/a"), &io::Error::from_raw_os_error(libc::EIO));
        assert_eq!((refusal.status.as_u16(), refusal.fault.unwrap().errno), (500, libc::EIO));
    }
}
