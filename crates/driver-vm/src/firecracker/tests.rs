//! With the real programs, named by `SUPERSERVE_FIRECRACKER` and `SUPERSERVE_JAILER`: everything up to a guest's user space, for
//! which the hosts that test this have no usable KVM.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use driver::{Driver, DriverError, Machine, MachineSpec, Power, process};

use super::Firecracker;
use crate::bed::Bed;
use crate::{FirecrackerConfig, VmDriver, Words};

/// The kernel's first line comes after half a minute where every instruction is emulated.
const FIRST_LINE_LIMIT: Duration = Duration::from_secs(150);
/// Has the kernel speak as early as it can.
const LOUD: &str = "console=ttyS0 earlyprintk=ttyS0";

fn programs() -> Option<Firecracker> {
    let named = |variable| std::env::var_os(variable).map(PathBuf::from);
    let (Some(program), Some(jailer)) = (named("SUPERSERVE_FIRECRACKER"), named("SUPERSERVE_JAILER")) else {
        eprintln!("SKIPPED: SUPERSERVE_FIRECRACKER and SUPERSERVE_JAILER name no Firecracker to test with");
        return None;
    };
    if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/kvm") {
        eprintln!("SKIPPED: Firecracker needs /dev/kvm ({error})");
        return None;
    }
    Some(Firecracker { program, jailer })
}

fn driver(bed: &Bed, programs: &Firecracker) -> VmDriver {
    let config = FirecrackerConfig {
        programs: programs.clone(),
        kernel: Some(bed.kernel().clone()),
        boot_dir: bed.path("boot"),
    };
    VmDriver::firecracker(&config).unwrap()
}

/// Reads what guest and process say until it contains something.
async fn says(words: &mut Words, what: &str) -> String {
    let mut heard = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < FIRST_LINE_LIMIT {
        // Ends where there is nothing more at the moment.
        let _for_now = words.0.as_mut().unwrap().read_to_end(&mut heard);
        let text = String::from_utf8_lossy(&heard);
        if text.contains(what) {
            return text.into_owned();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what} was not said: {}", String::from_utf8_lossy(&heard));
}

fn heard(words: &mut Words) -> String {
    let mut heard = Vec::new();
    let _for_now = words.0.as_mut().unwrap().read_to_end(&mut heard);
    String::from_utf8_lossy(&heard).into_owned()
}

/// What could be left behind: descriptors, files, mounts, cgroups.
#[derive(Debug, PartialEq, Eq)]
struct Remains {
    descriptors: usize,
    names: BTreeSet<String>,
}

impl Remains {
    fn of(bed: &Bed) -> Self {
        let names = |dir: &str| -> BTreeSet<String> {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.path().display().to_string()).collect()
        };
        let mut found = names(bed.path("run").to_str().unwrap());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = mounts.lines().filter(|line| line.contains(bed.path("").to_str().unwrap()));
        found.extend(mounts.map(str::to_owned));
        for hierarchy in names("/sys/fs/cgroup").iter().map(String::as_str).chain(["/sys/fs/cgroup"]) {
            found.extend(names(&format!("{hierarchy}/superserve-vm/{}", bed.spec().id)));
        }
        Self { descriptors: names("/proc/self/fd").len(), names: found }
    }
}

fn pid_of(spec: &MachineSpec) -> i32 {
    crate::host_dir::HostDir::find(&spec.run_dir).unwrap().unwrap().recorded().unwrap().pid
}

fn is_home(bed: &Bed) -> bool {
    bed.ip(&["link", "show", "g0"]).contains("UP")
        && bed.ip(&["address", "show", "g0"]).contains("100.96.0.0/31")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_firecracker_boots_pauses_is_written_and_continued() {
    let Some(programs) = programs() else { return };
    let Some(bed) = Bed::with_kernel(&[]) else { return };
    let (driver, spec) = (driver(&bed, &programs), bed.spec());
    let before = Remains::of(&bed);
    let dir = bed.path("checkpoint");

    // Every request is accepted, and the kernel says its first lines.
    let mut words = Words::default();
    let begun = Instant::now();
    let machine = driver.bring_up(&programs, &spec, None, LOUD, &mut words).await.unwrap();
    println!("accepted and started after {:?}", begun.elapsed());
    let pid = pid_of(&spec);
    what_it_is(pid, &spec);
    assert!(is_home(&bed), "the link is where it was");
    assert_eq!(machine.power().await.unwrap(), Power::Running);
    let said = says(&mut words, "superserve.vsock=1010").await;
    println!("the kernel's first line after {:?}", begun.elapsed());
    assert!(said.contains("Linux version"), "{said}");
    // At once: a freeze asks the guest to stand still first, in which time this kernel comes to where it is silent for minutes.
    machine.firecracker().unwrap().set_running(false).await.unwrap();
    // Nobody answers.
    let why = machine.wait_ready(Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(why, DriverError::Timeout { .. }), "{why}");

    for _ in 0..2 {
        machine.freeze().await.unwrap();
    }
    assert_eq!(machine.power().await.unwrap(), Power::Frozen);
    // A server that finds it again.
    drop(machine);
    let machine = self::driver(&bed, &programs).recover(&spec).await.unwrap().unwrap();
    assert_eq!(machine.power().await.unwrap(), Power::Frozen);
    let begun = Instant::now();
    if let Err(error) = machine.checkpoint(&dir).await {
        panic!("{error}: {}", heard(&mut words));
    }
    println!("written after {:?}", begun.elapsed());
    use std::os::unix::fs::MetadataExt;
    let memory = std::fs::metadata(dir.join("memory")).unwrap();
    assert_eq!(memory.len(), 224 * 1024 * 1024);
    assert_eq!((memory.uid(), memory.mode() & 0o777), (0, 0o444));
    assert!(machine.checkpoint(&dir).await.is_err(), "there is one");
    assert_eq!(memory.len(), std::fs::metadata(dir.join("memory")).unwrap().len());
    machine.destroy().await.unwrap();
    assert!(process::start_of(pid).is_none());
    drop((machine, words));
    assert_eq!(Remains::of(&bed), before);

    // Continued, as often as one likes; the kernel goes on from where it was.
    for _ in 0..2 {
        let mut words = Words::default();
        let begun = Instant::now();
        let machine = driver.bring_up(&programs, &spec, Some(&dir), LOUD, &mut words).await.unwrap();
        println!("loaded after {:?}", begun.elapsed());
        assert_eq!(machine.power().await.unwrap(), Power::Frozen);
        assert!(is_home(&bed), "the link is where it was");
        machine.firecracker().unwrap().set_running(true).await.unwrap();
        assert_eq!(machine.power().await.unwrap(), Power::Running);
        println!("goes on with: {}", says(&mut words, "[    0.").await.lines().last().unwrap());
        let exit = machine.exit_fd().unwrap();
        machine.destroy().await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), driver::exited(exit)).await.unwrap().unwrap();
        assert!(matches!(machine.freeze().await, Err(DriverError::Gone)));
        drop((machine, words));
        assert_eq!(Remains::of(&bed), before);
    }

    // One that is none, or not whole, leaves nothing and stays.
    std::fs::remove_file(dir.join("state")).unwrap();
    assert!(driver.restore(&spec, &dir).await.is_err());
    std::fs::write(dir.join("state"), "rubbish").unwrap();
    let why = driver.restore(&spec, &dir).await.unwrap_err().to_string();
    println!("a broken checkpoint: {why}");
    assert_eq!(std::fs::read(dir.join("state")).unwrap(), b"rubbish");
    assert_eq!(Remains::of(&bed), before);
    assert!(is_home(&bed), "the link is where it was");
}

impl VmDriver {
    /// A process that answers and is no machine yet, as a server leaves it that ends there.
    async fn half(&self, programs: &Firecracker, spec: &MachineSpec, words: &mut Words) -> i32 {
        let host = crate::host_dir::HostDir::create(&spec.run_dir).unwrap();
        let (jail, tap) = self.jail(programs, spec, None, &host).unwrap();
        let netns = crate::sys::new_netns().unwrap();
        self.spawn(programs, spec, jail, &host, netns.try_clone().unwrap(), words).unwrap();
        let _home_at_the_end = super::link::Visiting::begin(&spec.link, tap, netns).await.unwrap();
        let machine = self.handle(spec.id, &spec.run_dir).unwrap().unwrap();
        machine.firecracker().unwrap().wait().await.unwrap();
        pid_of(spec)
    }
}

/// What the process may and sees.
fn what_it_is(pid: i32, spec: &MachineSpec) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap().trim().to_owned()
    };
    let owner = crate::owner(spec).to_string();
    assert!(field("Uid").split_whitespace().all(|id| id == owner), "{status}");
    assert!(field("Gid").split_whitespace().all(|id| id == owner), "{status}");
    assert_eq!(field("CapEff"), "0000000000000000");
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
    let names = |dir: &str| {
        let read = std::fs::read_dir(format!("/proc/{pid}/root{dir}")).unwrap().flatten();
        read.map(|entry| entry.file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
    };
    let root = names("/");
    assert!(root.contains("own") && !root.contains("proc") && !root.contains("etc"), "{root:?}");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    assert!(
        limits.lines().any(|line| line.starts_with("Max core file size") && line.contains(" 0 ")),
        "{limits}"
    );
    assert!(
        limits.lines().any(|line| line.starts_with("Max open files") && line.contains(" 1024 ")),
        "{limits}"
    );
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(cgroups.contains(&format!("/superserve-vm/{}", spec.id)), "{cgroups}");
    let links = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
    let mut links = links.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
    // Kernels may make some of their own in every namespace.
    assert!(links.all(|link| link == "lo" || link.ends_with("tnl0") || link.ends_with("vti0")));
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_it_nothing_is_left() {
    let Some(programs) = programs() else { return };
    let Some(bed) = Bed::with_kernel(&[]) else { return };
    let (driver, spec) = (driver(&bed, &programs), bed.spec());
    let before = Remains::of(&bed);
    // It dies by itself.
    let mut words = Words::default();
    let machine = driver.bring_up(&programs, &spec, None, LOUD, &mut words).await.unwrap();
    let exit = machine.exit_fd().unwrap();
    let pid = rustix::process::Pid::from_raw(pid_of(&spec)).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    tokio::time::timeout(Duration::from_secs(10), driver::exited(exit)).await.unwrap().unwrap();
    assert!(matches!(machine.agent().await, Err(DriverError::Gone)));
    drop((machine, words));
    assert!(driver.recover(&spec).await.unwrap().is_none());
    assert_eq!(Remains::of(&bed), before);

    // A server that ends before the process has become a machine: the next finds none, and no process either.
    let mut words = Words::default();
    let mut tap_is_elsewhere = spec.clone();
    tap_is_elsewhere.link.tap = Some("g1".to_owned());
    assert!(driver.create(&tap_is_elsewhere).await.is_err());
    assert_eq!(Remains::of(&bed), before);
    let half = driver.half(&programs, &spec, &mut words).await;
    drop(words);
    assert!(process::start_of(half).is_some());
    assert!(self::driver(&bed, &programs).recover(&spec).await.unwrap().is_none());
    assert!(process::start_of(half).is_none());
    // Its record is lost as well.
    let mut words = Words::default();
    let half = driver.half(&programs, &spec, &mut words).await;
    std::fs::remove_file(spec.run_dir.join("host/process.json")).unwrap();
    for _ in 0..2 {
        driver.purge(spec.id, &spec.run_dir).await.unwrap();
    }
    assert!(process::start_of(half).is_none());
    drop(words);
    assert_eq!(Remains::of(&bed), before);

    // Programs that are none.
    for (program, jailer) in [
        ("/nonexistent/firecracker", "/bin/true"),
        ("/bin/true", "/nonexistent/jailer"),
        ("/bin/true", "/bin/true"),
    ] {
        let broken = Firecracker { program: program.into(), jailer: jailer.into() };
        let why = self::driver(&bed, &broken).create(&spec).await.unwrap_err();
        println!("{program}, {jailer}: {why}");
        assert_eq!(Remains::of(&bed), before);
    }
    assert!(is_home(&bed), "the link is where it was");
}
