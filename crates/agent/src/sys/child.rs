//! Starts a command. Two processes are forked:
//!
//! ```text
//! agent ─ supervisor (a child subreaper) ─ leader (the command, own session) ─ its tree
//! ```
//!
//! A command on a terminal is no session leader: the supervisor is, and gives the terminal up before it leaves. Were
//! the command the leader, the kernel would hang the terminal up at its end and drop what it had written last.
//!
//! Whatever the command forks, however often and into whatever session, stays below the supervisor, so a timeout finds
//! all of it; when the leader ends the supervisor goes too, and daemons it left behind pass to the agent and live on.
//! The supervisor stays outside the workload's cgroup, so the workload's process limit does not hinder it.
//!
//! Between `fork` and `exec` only system calls happen: no allocation, no locks, no panics. All is prepared before.

#![expect(unsafe_code, reason = "fork and everything between fork and exec")]

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;

use rustix::process::{Pid, Rlimit};

use super::identity::Identity;

/// The descriptor on which a command too long for an argument is read by the shell; one digit, as shells want.
pub(crate) const SCRIPT_FD: RawFd = 9;
/// Children are the first to go when memory runs out; the agent's own score stays.
const OOM_SCORE: &[u8] = b"500";

/// The kernel's 64 signals.
const SIGNAL_SET_BYTES: usize = 8;

/// All that a command starts with.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Paths to try in order, as `execvp` would.
    pub(crate) programs: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) directory: CString,
    pub(crate) identity: Identity,
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// The three above are one terminal, which becomes the command's own.
    pub(crate) terminal: bool,
    /// Becomes [`SCRIPT_FD`].
    pub(crate) script: Option<OwnedFd>,
    pub(crate) cgroups: &'a [OwnedFd],
    pub(crate) nproc: Option<u64>,
    pub(crate) nofile: Rlimit,
    /// Takes [`Report`]s; must be 10 or higher.
    pub(crate) reports: OwnedFd,
}

/// Where a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Stage {
    Fork = 1,
    Terminal,
    Limits,
    User,
    Directory,
    Exec,
}

const STAGES: [Stage; 6] =
    [Stage::Fork, Stage::Terminal, Stage::Limits, Stage::User, Stage::Directory, Stage::Exec];

/// What the supervisor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// The leader's process id, also its session.
    Started(i32),
    /// No command ran; an error number.
    Failed(Stage, i32),
    /// The leader's wait status.
    Ended(i32),
}

impl Report {
    /// Bytes of one report; far below what a pipe writes at once.
    pub(crate) const SIZE: usize = 12;

    pub(crate) fn parse(bytes: [u8; Self::SIZE]) -> Option<Self> {
        let word = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(match word(0) {
            1 => Self::Started(word(4)),
            2 => {
                let stage = STAGES.into_iter().find(|stage| *stage as i32 == word(4))?;
                Self::Failed(stage, word(8))
            }
            3 => Self::Ended(word(4)),
            _ => return None,
        })
    }
}

/// The same plan as bare pointers and numbers, for use after `fork`.
struct Raw {
    programs: Vec<*const libc::c_char>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    cgroups: Vec<RawFd>,
}

/// Forks the supervisor. Fails when this very fork does; all later failures come as [`Report::Failed`].
pub(crate) fn start(plan: &Plan<'_>) -> io::Result<Pid> {
    let pointers = |texts: &[CString]| {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect::<Vec<*const libc::c_char>>()
    };
    let raw = Raw {
        programs: plan.programs.iter().map(|text| text.as_ptr()).collect(),
        argv: pointers(&plan.argv),
        env: pointers(&plan.env),
        cgroups: plan.cgroups.iter().map(AsRawFd::as_raw_fd).collect(),
    };
    // No handler of the agent may run in a child: all signals stay blocked from here until the leader resets them.
    // SAFETY: both sets are plain memory, filled before they are read; fork in a process with threads is followed in
    // the child by system calls only.
    let pid = unsafe {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let pid = libc::fork();
        if pid == 0 {
            supervise(plan, &raw);
        }
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        if pid < 0 {
            return Err(error);
        }
        pid
    };
    Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork gave no process id"))
}

/// SAFETY: only after `fork`, in the child.
unsafe fn supervise(plan: &Plan<'_>, raw: &Raw) -> ! {
    let reports = plan.reports.as_raw_fd();
    // SAFETY: system calls on numbers and on memory prepared before the fork.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"superserve-exec".as_ptr());
        let terminal = plan.terminal.then(|| plan.stdin.as_raw_fd());
        if let Some(terminal) = terminal {
            libc::setsid();
            if libc::ioctl(terminal, libc::TIOCSCTTY, 0) < 0 {
                fail(reports, Stage::Terminal);
            }
        }
        let leader = libc::fork();
        if leader == 0 {
            lead(plan, raw);
        }
        if leader < 0 {
            tell(reports, [2, Stage::Fork as i32, errno()]);
            libc::_exit(0);
        }
        // Nothing of the agent may stay open here: a copy of a connection would hide its end from the client.
        // The terminal stays, so that its other end is not told too early that everybody left.
        let kept = match terminal {
            Some(terminal) => libc::dup2(terminal, 0) + 1,
            None => 0,
        };
        close_range(kept, reports - 1);
        close_range(reports + 1, i32::MAX);
        tell(reports, [1, leader, 0]);
        loop {
            let mut status = 0;
            let pid = libc::waitpid(-1, &raw mut status, libc::__WALL);
            if pid == leader {
                if terminal.is_some() {
                    libc::ioctl(0, libc::TIOCNOTTY);
                }
                tell(reports, [3, status, 0]);
                libc::_exit(0);
            }
            if pid < 0 && errno() != libc::EINTR {
                libc::_exit(1);
            }
        }
    }
}

/// SAFETY: only after `fork`, in the grandchild.
unsafe fn lead(plan: &Plan<'_>, raw: &Raw) -> ! {
    let reports = plan.reports.as_raw_fd();
    // SAFETY: system calls on numbers and on memory prepared before the fork.
    unsafe {
        if plan.terminal {
            // The terminal's foreground from the start; the signal that would stop a background process is blocked.
            libc::setpgid(0, 0);
            let group = libc::getpid();
            if libc::ioctl(plan.stdin.as_raw_fd(), libc::TIOCSPGRP, &raw const group) < 0 {
                fail(reports, Stage::Terminal);
            }
        } else {
            libc::setsid();
        }
        // Best effort: without it the command merely is not the kernel's first choice.
        let score = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if score >= 0 {
            libc::write(score, OOM_SCORE.as_ptr().cast(), OOM_SCORE.len());
            libc::close(score);
        }
        for &group in &raw.cgroups {
            if libc::write(group, b"0".as_ptr().cast(), 1) != 1 {
                fail(reports, Stage::Limits);
            }
        }
        if let Some(most) = plan.nproc {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            if libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) < 0 {
                fail(reports, Stage::Limits);
            }
        }
        let files = libc::rlimit {
            rlim_cur: plan.nofile.current.unwrap_or(libc::RLIM_INFINITY),
            rlim_max: plan.nofile.maximum.unwrap_or(libc::RLIM_INFINITY),
        };
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);

        libc::dup2(plan.stdin.as_raw_fd(), 0);
        libc::dup2(plan.stdout.as_raw_fd(), 1);
        libc::dup2(plan.stderr.as_raw_fd(), 2);
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        if let Some(script) = &plan.script {
            libc::dup2(script.as_raw_fd(), SCRIPT_FD);
            libc::fcntl(SCRIPT_FD, libc::F_SETFD, 0);
        }

        become_user(reports, &plan.identity);
        if libc::chdir(plan.directory.as_ptr()) < 0 {
            fail(reports, Stage::Directory);
        }
        reset_signals();

        // As execvp: go on past what is not there, remember what was there and could not be run.
        let mut worst = libc::ENOENT;
        for &program in &raw.programs {
            libc::execve(program, raw.argv.as_ptr(), raw.env.as_ptr());
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => worst = libc::EACCES,
                other => {
                    worst = other;
                    break;
                }
            }
        }
        tell(reports, [2, Stage::Exec as i32, worst]);
        libc::_exit(127);
    }
}

/// SAFETY: as [`lead`]. The raw calls avoid the library's broadcast to threads that do not exist here.
unsafe fn become_user(reports: RawFd, who: &Identity) {
    // SAFETY: the slice lives; the rest are numbers.
    unsafe {
        let (uid, gid) = (libc::c_long::from(who.uid), libc::c_long::from(who.gid));
        if libc::syscall(libc::SYS_setgroups, who.groups.len(), who.groups.as_ptr()) < 0
            || libc::syscall(libc::SYS_setresgid, gid, gid, gid) < 0
            || libc::syscall(libc::SYS_setresuid, uid, uid, uid) < 0
        {
            fail(reports, Stage::User);
        }
    }
}

/// SAFETY: as [`lead`].
unsafe fn reset_signals() {
    // SAFETY: all zero is the kernel's form of the default action with an empty mask; numbers that cannot be set only
    // fail. The raw call also reaches the signals that the library keeps for itself.
    unsafe {
        let default = [0u64; 4];
        for signal in 1..=64 {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null_mut::<u64>(),
                SIGNAL_SET_BYTES,
            );
        }
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// SAFETY: as [`lead`].
unsafe fn fail(reports: RawFd, stage: Stage) -> ! {
    // SAFETY: system calls only.
    unsafe {
        tell(reports, [2, stage as i32, errno()]);
        libc::_exit(127);
    }
}

/// SAFETY: as [`lead`].
unsafe fn tell(reports: RawFd, words: [i32; 3]) {
    // SAFETY: the array lives through the call, and its size is `Report::SIZE`.
    unsafe {
        libc::write(reports, words.as_ptr().cast(), Report::SIZE);
    }
}

/// SAFETY: as [`lead`].
unsafe fn close_range(first: RawFd, last: RawFd) {
    // SAFETY: closes numbers this process does not use.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, last, 0) < 0 {
            for fd in first..last.min(1024) {
                libc::close(fd);
            }
        }
    }
}

/// SAFETY: the location is always valid in this thread.
unsafe fn errno() -> i32 {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}
