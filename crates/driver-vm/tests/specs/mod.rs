//! Descriptions that lead elsewhere. No machine boots here.

use std::path::{Path, PathBuf};
use std::process::Command;

use driver::{Driver, MachineSpec, Root};

use crate::bed::Bed;

fn links(bed: &Bed) -> String {
    let netns = bed.spec().link.netns;
    let name = netns.file_name().unwrap().to_str().unwrap();
    let output = Command::new("ip").args(["-n", name, "-o", "link"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split(':').nth(1).unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_description_that_leads_elsewhere_starts_nothing() {
    let Some(bed) = Bed::new() else { return };
    let driver = bed.driver();
    let outside = bed.path("outside");
    std::fs::write(&outside, "intact").unwrap();
    let link = bed.path("link");
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    let disks = |base: PathBuf, own: PathBuf| Root::Disks { base, own };
    let (base, own) = (bed.path("base"), bed.path("own"));
    let root = |root: Root| MachineSpec { root, ..bed.spec() };
    let tap = |name: &str| {
        let mut spec = bed.spec();
        spec.link.tap = Some(name.to_owned());
        spec
    };
    let hostname = |name: &str| MachineSpec { hostname: name.to_owned(), ..bed.spec() };
    let mut specs = vec![
        root(disks(base.clone(), link.clone())),
        root(disks(link, own.clone())),
        root(disks(base.clone(), "/dev/null".into())),
        root(disks("/dev/zero".into(), own.clone())),
        root(disks(base.clone(), bed.path("tree"))),
        root(disks(bed.path("missing"), own)),
        root(disks(base, bed.path("missing"))),
        root(Root::Tree(bed.path("tree"))),
    ];
    specs.extend(["lo", "", "g%d", "missing", "../../g0", &"g".repeat(300)].map(tap));
    specs.extend(["", "a b", "a rdinit=/bin/sh", "a\nb", "\u{e9}"].map(hostname));
    let mut elsewhere = bed.spec();
    elsewhere.link.netns = outside.clone();
    specs.push(elsewhere);
    let before = links(&bed);
    for spec in specs {
        let started = driver.create(&spec).await;
        assert!(started.is_err(), "{spec:?}");
        assert!(std::fs::read_dir(bed.path("run")).unwrap().next().is_none(), "left of {spec:?}");
    }
    assert_eq!(links(&bed), before, "and no link was made");
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(&outside).unwrap().uid(), 0, "nor a file given away");
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "intact");
    assert_eq!(std::fs::metadata("/dev/null").unwrap().uid(), 0);

    // A checkpoint that is none of ours.
    let state = bed.path("checkpoint");
    std::fs::create_dir(&state).unwrap();
    std::os::unix::fs::symlink(&outside, state.join("state")).unwrap();
    for from in [state.as_path(), Path::new("/dev"), &bed.path("missing"), &outside] {
        assert!(driver.restore(&bed.spec(), from).await.is_err(), "{}", from.display());
        assert!(std::fs::read_dir(bed.path("run")).unwrap().next().is_none());
    }
}
