//! What works on this machine and what is missing, each with the command that mends it. `up` asks the same questions
//! before it starts, so the two can never disagree.

mod engines;

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;

use crate::config::{Config, Oauth};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// Works.
    Ok,
    /// Works without it, with less.
    Limited,
    /// `up` would fail.
    Missing,
}

/// One line of the report.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Check {
    /// What was looked at.
    pub(crate) what: &'static str,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// What was found.
    pub(crate) found: String,
    /// The command or step that mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mend: Option<String>,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.outcome {
            Outcome::Ok => "ok     ",
            Outcome::Limited => "limited",
            Outcome::Missing => "MISSING",
        };
        write!(f, "{mark}  {:<18} {}", self.what, self.found)?;
        if let Some(mend) = &self.mend {
            write!(f, "\n         {:<18} fix: {mend}", "")?;
        }
        Ok(())
    }
}

fn ok(what: &'static str, found: impl Into<String>) -> Check {
    Check { what, outcome: Outcome::Ok, found: found.into(), mend: None }
}

fn limited(what: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
    Check { what, outcome: Outcome::Limited, found: found.into(), mend: Some(mend.into()) }
}

fn missing(what: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
    Check { what, outcome: Outcome::Missing, found: found.into(), mend: Some(mend.into()) }
}

/// Everything, in the order in which a user would mend it. `base_ready` says whether the base template is there
/// already; `own_server` whether the addresses are in use by the platform itself.
pub(crate) fn examine(config: &Config, base_ready: bool, own_server: bool) -> Vec<Check> {
    let mut checks = vec![privileges()];
    checks.push(program("nft", "refuses what may not leave", "apt-get install -y nftables"));
    checks.push(program("mke2fs", "makes the sandboxes' disks", "apt-get install -y e2fsprogs"));
    if !base_ready && config.base_tar.is_none() && config.base_image.is_none() {
        checks.push(program("mmdebstrap", "makes the base template", "apt-get install -y mmdebstrap"));
    }
    checks.extend([cgroups(), overlay(), user_namespaces(), loop_devices(), fuse()]);
    checks.push(agent(&config.agent));
    checks.push(state_directory(&config.state_dir));
    checks.extend(engines::checks(config));
    checks.extend(oauth(&config.oauth));
    if !own_server {
        checks.push(address("control plane", "--listen", config.listen));
        checks.push(address("edge", "--edge-listen", config.edge_listen));
    }
    checks
}

fn privileges() -> Check {
    if rustix::process::geteuid().is_root() {
        ok("privileges", "running as root")
    } else {
        missing(
            "privileges",
            "not running as root, which making namespaces, mounts and links needs",
            "sudo superserve up",
        )
    }
}

fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    // System tools live in sbin, which an ordinary user's PATH may lack.
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|dir| dir.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn program(name: &'static str, why: &str, mend: &str) -> Check {
    match find_program(name) {
        Some(path) => ok(name, format!("{} {why}", path.display())),
        None => missing(name, format!("not installed; it {why}"), mend),
    }
}

fn cgroups() -> Check {
    const NEEDED: [&str; 4] = ["cpu", "memory", "pids", "freezer"];
    let v2 = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let v1 = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let has_v2 = |name: &str| name == "freezer" || v2.split_whitespace().any(|c| c == name);
    let has_v1 = |name: &str| {
        v1.lines().any(|line| {
            let mut fields = line.split(' ').skip(2);
            fields.next() == Some("cgroup") && fields.next().is_some_and(|o| o.split(',').any(|c| c == name))
        })
    };
    if !v2.is_empty() && NEEDED.iter().all(|c| has_v2(c)) {
        return ok("cgroups", "version 2 with cpu, memory, pids");
    }
    let absent: Vec<_> = NEEDED.into_iter().filter(|c| !has_v1(c)).collect();
    if absent.is_empty() {
        return ok("cgroups", "version 1 with cpu, memory, pids, freezer");
    }
    missing(
        "cgroups",
        format!("no controller for {}", absent.join(", ")),
        "boot with cgroup_enable=memory, and mount the cgroup controllers (systemd does)",
    )
}

fn overlay() -> Check {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.ends_with("\toverlay")) {
        ok("overlayfs", "layers can be shared")
    } else {
        missing("overlayfs", "the kernel does not offer it", "modprobe overlay")
    }
}

fn user_namespaces() -> Check {
    let max = std::fs::read_to_string("/proc/sys/user/max_user_namespaces");
    let enough = max.ok().and_then(|text| text.trim().parse::<u64>().ok()).is_some_and(|max| max > 0);
    if enough && Path::new("/proc/self/ns/user").exists() {
        ok("user namespaces", "root in a sandbox is nobody outside")
    } else {
        missing("user namespaces", "switched off", "sysctl -w user.max_user_namespaces=10000")
    }
}

fn loop_devices() -> Check {
    if Path::new("/dev/loop-control").exists() {
        ok("loop devices", "disk limits can be enforced")
    } else {
        missing("loop devices", "/dev/loop-control is absent", "modprobe loop")
    }
}

fn fuse() -> Check {
    if Path::new("/dev/fuse").exists() {
        ok("fuse", "sandboxes can mount FUSE file systems")
    } else {
        limited("fuse", "/dev/fuse is absent; FUSE mounts in sandboxes will fail", "modprobe fuse")
    }
}

fn agent(path: &Path) -> Check {
    if is_executable(path) {
        ok("guest agent", path.display().to_string())
    } else {
        missing(
            "guest agent",
            format!("{} is not an executable file", path.display()),
            "make build, or name it with --agent",
        )
    }
}

/// Looks without making anything: the nearest directory that exists decides.
fn state_directory(path: &Path) -> Check {
    let what = "state directory";
    let other = "choose another with --state-dir";
    let nearest = path.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    if !nearest.is_dir() {
        return missing(what, format!("{} is not a directory", nearest.display()), other);
    }
    if let Err(error) = rustix::fs::access(nearest, rustix::fs::Access::WRITE_OK) {
        return missing(what, format!("{} cannot be written: {error}", nearest.display()), other);
    }
    match rustix::fs::statvfs(nearest) {
        Ok(fs) if fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NODEV) => missing(
            what,
            format!(
                "{} is on a file system mounted nodev, where sandboxes get no devices",
                nearest.display()
            ),
            other,
        ),
        _ => ok(what, path.display().to_string()),
    }
}

/// Nothing when it is off, as everywhere.
fn oauth(wanted: &Oauth) -> Option<Check> {
    let mend = "a proxy with TLS that passes /mcp, /authorize, /token, /register, /revoke and /.well-known/oauth-* on, and \
                --oauth-url https://HOST";
    match wanted {
        Oauth::Off => None,
        Oauth::At(url) if url.https() => {
            Some(ok("oauth", format!("MCP clients connect at {}/mcp", url.origin())))
        }
        Oauth::At(_) | Oauth::Local => {
            Some(limited("oauth", "for clients on this machine only; hosted ones cannot reach it", mend))
        }
    }
}

fn address(what: &'static str, flag: &str, address: SocketAddr) -> Check {
    match TcpListener::bind(address) {
        Ok(_) => ok(what, address.to_string()),
        Err(error) => missing(
            what,
            format!("cannot listen on {address}: {error}"),
            format!("free it, or choose another with {flag}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_thing_comes_with_its_remedy() {
        let check = program("no-such-program-at-all", "does nothing", "apt-get install -y it");
        assert_eq!(check.outcome, Outcome::Missing);
        assert!(check.to_string().contains("fix: apt-get install -y it"));
        assert_eq!(program("sh", "runs", "").outcome, Outcome::Ok);
    }

    #[test]
    fn a_state_directory_is_judged_before_it_is_made() {
        assert_eq!(state_directory(Path::new("/tmp/not/there/yet")).outcome, Outcome::Ok);
        let check = state_directory(Path::new("/etc/passwd/below"));
        assert_eq!(check.outcome, Outcome::Missing);
        assert!(check.to_string().contains("--state-dir"), "{check}");
    }

    #[test]
    fn oauth_shows_only_when_it_is_on_and_says_whom_it_serves() {
        assert!(oauth(&Oauth::Off).is_none());
        assert_eq!(oauth(&Oauth::Local).unwrap().outcome, Outcome::Limited);
        let url = oauth::PublicUrl::parse("https://mcp.example.com").unwrap();
        assert_eq!(oauth(&Oauth::At(url)).unwrap().outcome, Outcome::Ok);
    }

    #[test]
    fn a_taken_port_names_the_flag() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let check = address("edge", "--edge-listen", held.local_addr().unwrap());
        assert_eq!(check.outcome, Outcome::Missing);
        assert!(check.to_string().contains("--edge-listen"));
    }
}
