//! What root inside a sandbox tries against the host, and what it must still be able to do.

use std::os::unix::fs::PermissionsExt;

use crate::bed::Bed;

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_files_are_out_of_reach() {
    let bed = Bed::new().await;
    let spec = bed.create().await;
    // World-readable on the host, so that only the missing path protects it.
    let secret = bed.state().join("secret");
    std::fs::write(&secret, "host secret").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o644)).unwrap();
    let path = secret.display();
    for attempt in [
        format!("cat {path}"),
        format!("cat /proc/1/root{path}"),
        format!("chroot /proc/1/root cat {path}"),
        format!("cd /; i=0; while [ $i -lt 30 ]; do cd ..; i=$((i+1)); done; cat .{path}"),
        // A second chroot does not free a first one.
        format!("mkdir -p /tmp/r; chroot /tmp/r /bin/sh -c 'cat ../../../../..{path}'"),
        "cat /proc/1/environ".to_owned(),
        "readlink /proc/1/fd/3".to_owned(),
        "cat /proc/1/mem".to_owned(),
    ] {
        bed.refused(spec.id, &attempt).await;
    }
    // Nothing in the sandbox names a place on the host.
    let mounts = bed.sh(spec.id, "cat /proc/mounts /proc/self/mountinfo").await;
    assert!(!mounts.contains(bed.run_dir.to_str().unwrap()), "{mounts}");
    assert!(!bed.sh(spec.id, "env").await.contains("superserve-test"));
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn masks_cannot_be_taken_off() {
    let bed = Bed::new().await;
    let spec = bed.create().await;
    assert_eq!(bed.sh(spec.id, "head -c 100 /proc/kallsyms | wc -c").await.trim(), "0");
    for attempt in [
        "umount /proc/kallsyms",
        "umount -l /proc/kallsyms",
        "umount -l /proc",
        "umount /sys",
        "umount /proc/sys",
        "mount -o remount,rw /proc/sys",
        "mount -o remount,bind,rw /proc/sys",
        "mount -o remount,rw /sys",
        "mount -o remount,bind,rw,exec,suid,dev /.superserve/agent",
        "echo x > /.superserve/agent",
        "mount -t proc proc /mnt",
        "mount -t sysfs sysfs /mnt",
        "mount -t cgroup2 cgroup2 /mnt",
        "mount -t cgroup -o memory cgroup /mnt",
        "mount -t devtmpfs devtmpfs /mnt",
        "mount -t debugfs debugfs /mnt",
        // A bind without what is mounted below would uncover what a mask hides.
        "mount --bind /proc /mnt && head -c 100 /mnt/kallsyms | grep .",
        "mount --bind / /mnt && ls /mnt/proc/kallsyms",
        "mount --rbind /proc /mnt && umount /mnt/kallsyms",
        "mount --move /proc /mnt",
        "mkdir -p /tmp/o; mount -t overlay -o lowerdir=/proc:/home o /tmp/o && head -c 100 /tmp/o/kallsyms | grep .",
        "echo h > /proc/sysrq-trigger",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo x > /proc/sys/kernel/hostname",
    ] {
        bed.refused(spec.id, attempt).await;
    }
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_and_namespaces_are_refused() {
    let bed = Bed::new().await;
    let spec = bed.create().await;
    for attempt in [
        "mknod /tmp/disk b 254 0 && cat /tmp/disk",
        "mknod /tmp/mem c 1 1 && cat /tmp/mem",
        "mknod /dev/kmsg c 1 11 && cat /dev/kmsg",
        "unshare -U true",
        "unshare -n true",
        "unshare -C true",
        "unshare -m -U -r true",
        "nsenter -t 1 -m true",
        "nsenter -t 1 -U true",
        "chroot /proc/1/root true",
        "dmesg",
        "date -s 2001-01-01; date +%Y | grep 2001",
        "swapon /tmp/x",
        "losetup /dev/loop0 /bin/busybox",
        "insmod /tmp/x.ko",
        "reboot -f",
        "kill -9 1; sleep 0.1; kill -0 1 && false",
        "echo -1000 > /proc/self/oom_score_adj",
        "renice -n -20 1",
    ] {
        bed.refused(spec.id, attempt).await;
    }
    assert_eq!(bed.sh(spec.id, "echo alive").await, "alive\n");
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_cannot_be_killed_or_traced() {
    let bed = Bed::new().await;
    let spec = bed.create().await;
    for signal in 1..=64 {
        bed.exec(spec.id, &format!("kill -{signal} 1")).await;
    }
    assert_eq!(bed.sh(spec.id, "echo alive").await, "alive\n");
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_can_still_do_what_a_computer_is_for() {
    let bed = Bed::new().await;
    let spec = bed.create().await;
    for wanted in [
        // A FUSE mount without a server: the kernel's part of it is what is in question.
        "exec 3<>/dev/fuse && mount -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0,allow_other x /mnt && umount -l /mnt",
        "mount -t tmpfs tmpfs /mnt && echo x > /mnt/x && umount /mnt",
        "mkdir -p /tmp/b && mount --bind /home /tmp/b && umount /tmp/b",
        "chown 1234:65534 /home/user && stat -c %u /home/user | grep -q 1234",
        "chmod u+s /bin/busybox",
        "unshare -m true",
        "echo x > /dev/null && head -c 8 /dev/urandom | wc -c | grep -q 8",
        "test -c /dev/ptmx && test -d /dev/pts && test -d /dev/shm && test -e /dev/stdout",
        "ls /sys/devices/system/cpu/online",
        "hostname",
        "mkfifo /tmp/f && ln -s f /tmp/l && ln /tmp/f /tmp/h",
    ] {
        bed.sh(spec.id, wanted).await;
    }
    bed.finish().await;
}
