//! Users and groups from the guest's own `/etc/passwd` and `/etc/group`, read by hand: a static binary has no name
//! service. The files are the guest's and may hold anything.

use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::reply::Refusal;
use crate::sys::identity::Identity;

/// Larger account files are cut.
const MAX_BYTES: u64 = 1024 * 1024;
/// `NGROUPS_MAX` is 65536; nobody sane has more than this.
const MAX_GROUPS: usize = 1024;
/// Root's home here: the place where examples of the platform write (`semantics.md` open point 5).
pub(crate) const DEFAULT_HOME: &str = "/home/user";
const DEFAULT_NAME: &str = "user";

/// An account commands run as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) identity: Identity,
}

/// The account named by a configuration: a name or number, optionally followed by `:` and a group as in images. `None`
/// when there is no such user or group. Blocking.
pub(crate) fn find(wanted: Option<&str>) -> Option<User> {
    find_in(wanted, &read(Path::new("/etc/passwd")), &read(Path::new("/etc/group")))
}

/// What to answer when there is no such account.
pub(crate) fn unknown(wanted: Option<&str>) -> Refusal {
    Refusal::bad_request(format!("unknown user {:?}", wanted.unwrap_or("root")))
}

fn find_in(wanted: Option<&str>, passwd: &str, group: &str) -> Option<User> {
    let wanted = wanted.filter(|text| !text.is_empty()).unwrap_or("root");
    let (wanted, wanted_group) = match wanted.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (wanted, None),
    };
    let number: Option<u32> = wanted.parse().ok();
    let entry = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let &[name, _, uid, gid, _, home, ..] = fields.as_slice() else { return None };
        let (uid, gid) = (uid.parse::<u32>().ok()?, gid.parse::<u32>().ok()?);
        (name == wanted || Some(uid) == number).then_some((name, uid, gid, home))
    });
    let (name, uid, gid, home) = match (entry, number) {
        (Some(entry), _) => entry,
        (None, Some(uid)) => (wanted, uid, uid, ""),
        (None, None) if wanted == "root" => (wanted, 0, 0, ""),
        (None, None) => return None,
    };
    let gid = match wanted_group {
        None => gid,
        Some(wanted) => wanted
            .parse()
            .ok()
            .or_else(|| groups(group).find_map(|(group, gid, _)| (group == wanted).then_some(gid)))?,
    };
    let mut member_of: Vec<u32> = groups(group)
        .filter(|(_, _, members)| members.split(',').any(|member| member == name))
        .map(|(_, gid, _)| gid)
        .take(MAX_GROUPS)
        .collect();
    member_of.push(gid);
    member_of.sort_unstable();
    member_of.dedup();
    let identity = Identity { uid, gid, groups: member_of };
    if uid == 0 {
        return Some(User { name: DEFAULT_NAME.to_owned(), home: DEFAULT_HOME.to_owned(), identity });
    }
    let home = if home.starts_with('/') && home != "/" { home } else { DEFAULT_HOME };
    Some(User { name: name.to_owned(), home: home.to_owned(), identity })
}

fn groups(text: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _, gid) = (fields.next()?, fields.next()?, fields.next()?);
        Some((name, gid.parse().ok()?, fields.next().unwrap_or("")))
    })
}

/// The text, or nothing: a missing file means no accounts. Never waits on a pipe put in its place.
fn read(path: &Path) -> String {
    let open = || -> std::io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let mut bytes = Vec::new();
        if file.metadata()?.is_file() {
            file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    open().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nnobody:x:65534:65534::/nonexistent:/bin/false\n\
                          desktop:x:1000:1001:,,,:/home/desktop:/bin/bash\n";
    const GROUP: &str = "root:x:0:\nsudo:x:27:desktop,other\nvideo:x:44:other,desktop\ndesktop:x:1001:\n";

    fn check(wanted: Option<&str>, expected: Option<(&str, &str, u32, u32, &[u32])>) {
        let found = find_in(wanted, PASSWD, GROUP);
        let found = found.as_ref().map(|user| {
            let Identity { uid, gid, groups } = &user.identity;
            (user.name.as_str(), user.home.as_str(), *uid, *gid, groups.as_slice())
        });
        assert_eq!(found, expected, "{wanted:?}");
    }

    #[test]
    fn accounts() {
        check(None, Some(("user", "/home/user", 0, 0, &[0])));
        check(Some("root"), Some(("user", "/home/user", 0, 0, &[0])));
        check(Some("desktop"), Some(("desktop", "/home/desktop", 1000, 1001, &[27, 44, 1001])));
        check(Some("1000"), Some(("desktop", "/home/desktop", 1000, 1001, &[27, 44, 1001])));
        check(Some("desktop:video"), Some(("desktop", "/home/desktop", 1000, 44, &[27, 44])));
        check(Some("4242:17"), Some(("4242", "/home/user", 4242, 17, &[17])));
        check(Some("4242"), Some(("4242", "/home/user", 4242, 4242, &[4242])));
        check(Some("ghost"), None);
        check(Some("desktop:ghosts"), None);
    }

    #[test]
    fn root_without_any_account_file() {
        assert_eq!(find_in(None, "", "").map(|user| user.identity.uid), Some(0));
    }
}
