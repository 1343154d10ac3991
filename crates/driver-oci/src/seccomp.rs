//! Which system calls a guest may make: a list of what ordinary programs, package managers, compilers and FUSE need.
//! Everything else is refused. Absent on purpose: what loads code into the kernel or reaches around paths and
//! namespaces (`bpf`, `perf_event_open`, `io_uring_*`, `userfaultfd`, `keyctl`, `open_by_handle_at`, `kexec_*`,
//! `init_module`, `setns`, `syslog`, …), and 32-bit calls as a whole.
//!
//! New user and network namespaces are refused by the agent's own filter (`agent/src/init.rs`), since it needs to make
//! one itself before the workload starts.

use driver::DriverError;
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};

use crate::spec::built;

/// Calls permitted with any argument. Names unknown to the runtime's library are skipped by it.
const ALLOWED: &str = "
accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown chroot clock_getres
clock_gettime clock_nanosleep clone close close_range connect copy_file_range creat dup dup2 dup3 epoll_create
epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat
faccessat2 fadvise64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr
flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv
futex_wake futimesat get_mempolicy get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid
getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_init
inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_setup io_submit ioctl ioprio_get ioprio_set kill
landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listmount listxattr
llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack mbind membarrier memfd_create memfd_secret mincore
mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt mount mount_setattr move_mount mprotect mq_getsetattr
mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall
munmap name_to_handle_at nanosleep newfstatat open open_tree openat openat2 fsopen fsconfig fsmount fspick pause
pidfd_open pidfd_send_signal pipe pipe2 pivot_root pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv
preadv2 prlimit64 process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2 read
readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat renameat2
restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto
set_mempolicy set_mempolicy_home_node set_robust_list set_thread_area set_tid_address setdomainname setfsgid setfsuid
setgid setgroups sethostname setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid
setsockopt setuid setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair splice stat
statfs statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete
timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask
umount2 uname unlink unlinkat unshare utime utimensat utimes vfork vmsplice wait4 waitid write writev
";

/// `AF_UNIX`, `AF_INET`, `AF_INET6`: no packet, VM, Bluetooth or kernel-crypto sockets.
const SOCKET_FAMILIES: [u64; 3] = [1, 2, 10];
const AF_NETLINK: u64 = 16;
/// `NETLINK_ROUTE` (which addresses exist), `NETLINK_SOCK_DIAG` (which sockets exist) and `NETLINK_AUDIT`, whose messages
/// the kernel refuses from a user namespace, but without whose socket `useradd` does not run.
const NETLINK_PROTOCOLS: [u64; 3] = [0, 4, 9];
/// Personalities that only describe: Linux, 32-bit limits off and on, "what is yours".
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
const ENOSYS: u32 = 38;
const EPERM: u32 = 1;

pub(crate) fn filter() -> Result<LinuxSeccomp, DriverError> {
    let names = ALLOWED.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut rules = vec![built(
        LinuxSyscallBuilder::default().names(names).action(LinuxSeccompAction::ScmpActAllow).build(),
    )?];
    for family in SOCKET_FAMILIES {
        rules.push(allow_if("socket", &[(0, family)])?);
    }
    for protocol in NETLINK_PROTOCOLS {
        rules.push(allow_if("socket", &[(0, AF_NETLINK), (2, protocol)])?);
    }
    for persona in PERSONALITIES {
        rules.push(allow_if("personality", &[(0, persona)])?);
    }
    // Its flags lie behind a pointer, out of a filter's reach; libraries fall back to `clone`, which can be judged.
    rules.push(built(
        LinuxSyscallBuilder::default()
            .names(vec!["clone3".to_owned()])
            .action(LinuxSeccompAction::ScmpActErrno)
            .errno_ret(ENOSYS)
            .build(),
    )?);
    built(
        LinuxSeccompBuilder::default()
            .default_action(LinuxSeccompAction::ScmpActErrno)
            .default_errno_ret(EPERM)
            .architectures(vec![native()])
            .syscalls(rules)
            .build(),
    )
}

fn native() -> Arch {
    if cfg!(target_arch = "aarch64") { Arch::ScmpArchAarch64 } else { Arch::ScmpArchX86_64 }
}

fn allow_if(name: &str, arguments: &[(usize, u64)]) -> Result<LinuxSyscall, DriverError> {
    let arguments = arguments
        .iter()
        .map(|&(index, value)| {
            built(
                LinuxSeccompArgBuilder::default()
                    .index(index)
                    .value(value)
                    .op(LinuxSeccompOperator::ScmpCmpEq)
                    .build(),
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    built(
        LinuxSyscallBuilder::default()
            .names(vec![name.to_owned()])
            .action(LinuxSeccompAction::ScmpActAllow)
            .args(arguments)
            .build(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_calls_are_not_on_the_list() {
        let allowed: Vec<&str> = ALLOWED.split_ascii_whitespace().collect();
        for call in [
            "add_key",
            "acct",
            "bpf",
            "clock_settime",
            "clone3",
            "delete_module",
            "finit_module",
            "init_module",
            "io_uring_enter",
            "io_uring_register",
            "io_uring_setup",
            "ioperm",
            "iopl",
            "kcmp",
            "kexec_file_load",
            "kexec_load",
            "keyctl",
            "lookup_dcookie",
            "open_by_handle_at",
            "perf_event_open",
            "personality",
            "pidfd_getfd",
            "quotactl",
            "reboot",
            "request_key",
            "setns",
            "settimeofday",
            "socket",
            "swapon",
            "syslog",
            "userfaultfd",
            "fanotify_init",
            "vhangup",
        ] {
            assert!(!allowed.contains(&call), "{call}");
        }
        let mut unique = allowed.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), allowed.len(), "a call is listed twice");
        assert!(filter().is_ok());
    }
}
