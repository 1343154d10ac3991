//! From create to destroy, over restarts of the server and of the host.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use domain::{Code, SandboxId};
use node::{Found, Host};

use crate::bed::{Bed, left_over, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_lives_and_leaves_nothing() {
    let bed = Bed::new().await;
    let spec = bed.create().await;
    let id = spec.id;
    assert!(!left_over(&bed.instance, bed.state()).is_empty(), "the leak counter sees a running sandbox");

    let short: String = id.to_string().chars().take(8).collect();
    assert_eq!(bed.sh(id, "hostname").await, format!("sandbox-{short}\n"));
    assert_eq!(bed.sh(id, "id -u").await, "0\n");
    assert_eq!(bed.sh(id, "cat /etc/resolv.conf").await, "nameserver 1.1.1.1\nnameserver 8.8.8.8\n");
    assert!(bed.sh(id, "cat /etc/hosts").await.contains(&format!("sandbox-{short}")));
    assert_eq!(bed.sh(id, "stat -c %u:%a /").await, "0:755\n");
    bed.sh(id, "echo kept > /home/user/file && mkdir /bin/x && mv /home /house && ls /house/user/file").await;
    // Again is fine, and configures anew.
    bed.node.create(&spec).await.unwrap();
    assert_eq!(bed.sh(id, "cat /house/user/file").await, "kept\n");

    bed.node.destroy(id).await.unwrap();
    bed.node.destroy(id).await.unwrap();
    let gone = bed.node.agent(id).await.err().unwrap();
    assert_eq!(gone.code, Code::SandboxUnavailable);
    bed.finish().await;
}

/// Steps of a build that write the same, and images with the same layer twice, make such lists.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_may_be_in_the_list_twice() {
    let bed = Bed::new().await;
    let mut spec = bed.spec();
    spec.layers.extend(spec.layers.clone());
    bed.node.create(&spec).await.map_err(|problem| problem.chain()).unwrap();
    assert_eq!(bed.sh(spec.id, "echo alive").await, "alive\n");
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn freezing_stops_and_keeps() {
    let bed = Bed::new().await;
    let spec = bed.create().await;
    bed.sh(spec.id, "(while :; do echo x >> /tmp/ticks; sleep 0.01; done) >/dev/null 2>&1 &").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    for _ in 0..3 {
        bed.node.freeze(spec.id).await.unwrap();
        bed.node.freeze(spec.id).await.unwrap();
        let ticks = || {
            let root = bed.run_dir.join("m").join(spec.id.to_string()).join("root/tmp/ticks");
            std::fs::metadata(root).unwrap().len()
        };
        let before = ticks();
        assert!(before > 0);
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!(ticks(), before, "a frozen sandbox does nothing");
        bed.node.thaw(&spec).await.unwrap();
        bed.node.thaw(&spec).await.unwrap();
        wait_for("the loop to go on", || ticks() > before).unwrap();
    }
    // Frozen ones can be destroyed.
    bed.node.freeze(spec.id).await.unwrap();
    bed.node.destroy(spec.id).await.unwrap();
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_server_takes_over_what_runs() {
    let mut bed = Bed::new().await;
    let running = bed.create().await;
    let frozen = bed.create().await;
    let unknown = bed.create().await;
    let died = bed.create().await;
    bed.sh(running.id, "echo here > /tmp/mark").await;
    bed.sh(died.id, "echo here > /home/user/mark").await;
    bed.node.freeze(frozen.id).await.unwrap();
    let absent = bed.spec();
    // Half made: a disk under its first name, a link without a machine, an empty machine directory.
    let half = [SandboxId::new(), SandboxId::new(), SandboxId::new()];
    std::fs::write(bed.state().join(format!("disks/{}.new", half[0])), "x").unwrap();
    std::fs::write(bed.run_dir.join(format!("n/{}", half[1])), "").unwrap();
    std::fs::create_dir(bed.run_dir.join(format!("m/{}", half[2]))).unwrap();

    bed.restart().await;
    kill_machine(&bed, died.id);
    let known = vec![running.clone(), frozen.clone(), died.clone(), absent.clone()];
    let found = bed.node.adopt(known, BTreeSet::new()).await.map_err(|problem| problem.chain()).unwrap();
    assert_eq!(found[&running.id], Found::Running);
    assert_eq!(found[&frozen.id], Found::Frozen);
    assert_eq!(found[&died.id], Found::Disk);
    assert_eq!(found[&absent.id], Found::Nothing);
    assert_eq!(found.len(), 4);

    assert_eq!(bed.sh(running.id, "cat /tmp/mark").await, "here\n");
    bed.node.thaw(&frozen).await.unwrap();
    assert_eq!(bed.sh(frozen.id, "echo awake").await, "awake\n");
    bed.node.boot(&died).await.unwrap();
    assert_eq!(bed.sh(died.id, "cat /home/user/mark").await, "here\n");
    for id in [unknown.id, half[0], half[1], half[2]] {
        let left = left_over(&bed.instance, bed.state());
        assert!(!left.iter().any(|line| line.contains(&id.to_string())), "{id}: {left:#?}");
    }
    bed.finish().await;
}

/// Kills a sandbox's first process from the host, as the kernel would.
fn kill_machine(bed: &Bed, id: SandboxId) {
    let state = bed.run_dir.join(format!("m/{id}/host/runc/{id}/state.json"));
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
    let pid = i32::try_from(state["init_process_pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let proc = format!("/proc/{pid}");
    wait_for("the machine to end", || !std::path::Path::new(&proc).exists()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_of_its_own_is_announced_and_a_destroy_is_not() {
    let bed = Bed::new().await;
    let mut exits = bed.node.exits();
    let (wanted, crashed) = (bed.create().await, bed.create().await);
    bed.node.destroy(wanted.id).await.unwrap();
    kill_machine(&bed, crashed.id);
    let told = tokio::time::timeout(Duration::from_secs(5), exits.recv()).await.unwrap();
    assert_eq!(told, Some(crashed.id));
    bed.node.destroy(crashed.id).await.unwrap();
    assert!(exits.try_recv().is_err());
    assert!(bed.node.exits().recv().await.is_none(), "asked for once");
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_create_leaves_nothing() {
    let bed = Bed::new().await;
    let mut spec = bed.spec();
    spec.layers = vec!["b".repeat(64)];
    let missing = bed.node.create(&spec).await.err().unwrap();
    assert_eq!(missing.code, Code::ServiceUnavailable, "{}", missing.chain());
    spec.layers = vec!["../../../etc".to_owned()];
    assert_eq!(bed.node.create(&spec).await.err().unwrap().code, Code::Internal);
    spec = bed.spec();
    spec.link = 40_000;
    assert_eq!(bed.node.create(&spec).await.err().unwrap().code, Code::Internal);
    // A template without a shell starts; one whose root is a file system without room for a mount point does not.
    assert!(bed.node.boot(&bed.spec()).await.is_err(), "nothing to boot");
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_create_is_mended_by_the_next() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    for delay in [1, 5, 10, 15, 20, 25, 30] {
        let cancelled =
            tokio::time::timeout(Duration::from_millis(delay), bed.node.create(&spec)).await.is_err();
        bed.node.create(&spec).await.map_err(|problem| problem.chain()).unwrap();
        assert_eq!(bed.sh(spec.id, "echo up").await, "up\n", "{delay} ms, cancelled: {cancelled}");
        bed.node.destroy(spec.id).await.unwrap();
    }
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once() {
    const MANY: usize = 20;
    let bed = Bed::new().await;
    let specs: Vec<_> = (0..MANY).map(|_| bed.spec()).collect();
    let start = Instant::now();
    let created = futures_util::future::join_all(specs.iter().map(|spec| bed.node.create(spec))).await;
    for result in created {
        result.map_err(|problem| problem.chain()).unwrap();
    }
    let up = start.elapsed();
    let answers = futures_util::future::join_all(specs.iter().map(|spec| bed.sh(spec.id, "hostname"))).await;
    let unique: std::collections::BTreeSet<_> = answers.into_iter().collect();
    assert_eq!(unique.len(), MANY);
    let start = Instant::now();
    for result in futures_util::future::join_all(specs.iter().map(|spec| bed.node.destroy(spec.id))).await {
        result.map_err(|problem| problem.chain()).unwrap();
    }
    println!("{MANY} at once: created in {up:?}, destroyed in {:?}", start.elapsed());
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_whole_after_boots_among_starts() {
    const ROUNDS: usize = 12;
    let mut bed = Bed::new().await;
    let spec = bed.create().await;
    for round in 0..ROUNDS {
        let written =
            format!("echo {round} >> /home/user/rounds && cp /bin/busybox /home/user/b{round} && sync");
        bed.sh(spec.id, &written).await;
        bed.restart().await;
        // Starts copy the host's mounts, the booting sandbox's disk among them.
        let others: Vec<_> = (0..3).map(|_| bed.spec()).collect();
        let starts = futures_util::future::join_all(others.iter().map(|other| bed.node.create(other)));
        let (booted, started) = tokio::join!(bed.node.boot(&spec), starts);
        booted.map_err(|problem| problem.chain()).unwrap();
        for (start, other) in started.into_iter().zip(&others) {
            start.map_err(|problem| problem.chain()).unwrap();
            bed.node.destroy(other.id).await.unwrap();
        }
    }
    let expected: String = (0..ROUNDS).map(|round| format!("{round}\n")).collect();
    assert_eq!(bed.sh(spec.id, "cat /home/user/rounds").await, expected);
    bed.sh(spec.id, "for f in /home/user/b*; do cmp $f /bin/busybox || exit 1; done").await;
    bed.finish().await;
}

/// Says to a child of the test where it is the server: instance, state directory, run directory.
const CHILD: &str = "SUPERSERVE_TEST_CHILD";

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_at_any_moment_leaves_nothing_behind_the_next() {
    let mut bed = Bed::new().await;
    for delay in [5, 15, 25, 35, 45, 55, 70, 90, 120, 160] {
        bed.stop();
        let place = format!("{}:{}:{}", bed.instance, bed.state().display(), bed.run_dir.display());
        let mut server = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "life::as_the_child_it_creates_and_destroys", "--nocapture"])
            .env(CHILD, place)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Counted from the moment it is at work, not from its start.
        let mut said = String::new();
        let mut output = std::io::BufReader::new(server.stdout.take().unwrap());
        while !said.contains("at work") {
            assert_ne!(std::io::BufRead::read_line(&mut output, &mut said).unwrap(), 0, "{said}");
        }
        tokio::time::sleep(Duration::from_millis(delay)).await;
        server.kill().unwrap();
        server.wait().unwrap();

        bed.restart().await;
        bed.node.adopt(Vec::new(), BTreeSet::new()).await.map_err(|problem| problem.chain()).unwrap();
        // What a node without sandboxes has: its router, and cgroups to put machines in.
        let parent = format!("superserve-{}", bed.instance);
        let ours = |line: &String| !line.contains("/n/router") && !line.ends_with(&parent);
        wait_for("all of it to be gone", || !left_over(&bed.instance, bed.state()).iter().any(ours))
            .unwrap_or_else(|_| panic!("{delay} ms: {:#?}", left_over(&bed.instance, bed.state())));
    }
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_the_child_it_creates_and_destroys() {
    let Ok(place) = std::env::var(CHILD) else { return };
    let [instance, state, run] = place.split(':').collect::<Vec<_>>().try_into().unwrap();
    let node = crate::bed::open(instance, state.as_ref(), run.as_ref()).await;
    println!("at work");
    // Until it is killed; the bound is for a parent that forgets.
    for round in 0..100 {
        let spec = crate::bed::spec(round);
        node.create(&spec).await.map_err(|problem| problem.chain()).unwrap();
        node.destroy(spec.id).await.unwrap();
    }
}

/// What is wrong with one sandbox stays with it: the others are taken over, and what nobody may touch is not touched.
#[tokio::test(flavor = "multi_thread")]
async fn one_broken_sandbox_does_not_keep_the_others_down() {
    let mut bed = Bed::new().await;
    let (good, cut, unread, untouched) =
        (bed.create().await, bed.create().await, bed.create().await, bed.create().await);
    bed.sh(unread.id, "echo here > /home/user/mark; sync").await;
    // A first server sees one machine end and lets go of its disk. Then the disk is cut off, and the record of another
    // machine becomes unreadable.
    kill_machine(&bed, cut.id);
    bed.restart().await;
    let all: Vec<_> = [&good, &cut, &unread, &untouched].map(Clone::clone).into();
    assert_eq!(bed.node.adopt(all, BTreeSet::new()).await.unwrap()[&cut.id], Found::Disk);
    bed.restart().await;
    let image = bed.state().join(format!("disks/{}.img", cut.id));
    std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(512).unwrap();
    let record = bed.run_dir.join(format!("m/{0}/host/runc/{0}/state.json", unread.id));
    std::fs::write(&record, "no record").unwrap();

    let known = vec![cut.clone(), unread.clone(), good.clone()];
    let found = bed.node.adopt(known, BTreeSet::from([untouched.id])).await.unwrap();
    assert_eq!(found[&cut.id], Found::Broken);
    assert_eq!(found[&unread.id], Found::Disk, "its machine is ended and its disk kept");
    assert_eq!(found[&good.id], Found::Running);
    assert_eq!(found.len(), 3);
    assert_eq!(bed.sh(good.id, "echo works").await, "works\n");
    bed.node.boot(&unread).await.unwrap();
    assert_eq!(bed.sh(unread.id, "cat /home/user/mark").await, "here\n");
    // The untouched one runs on, and is there for a server that knows it.
    let found =
        bed.node.adopt(vec![untouched.clone(), good], BTreeSet::from([cut.id, unread.id])).await.unwrap();
    assert_eq!(found[&untouched.id], Found::Running);
    bed.node.destroy(cut.id).await.unwrap();
    assert!(!image.exists());
    bed.finish().await;
}
