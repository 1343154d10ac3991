//! Several engines on one host. The second one here is the first under another name and with cgroups of its own: whoever
//! mixed the two up would not find, or not end, a machine. With real virtual machines: `superserve/tests/it/vm.rs`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use domain::{Code, Engine, SandboxId};
use driver::{Driver, DriverError, Machine, MachineSpec, Promises};
use driver_oci::OciDriver;
use node::{Engines, Found, Host, SandboxSpec};

use crate::bed::{self, Bed, left_over, wait_for};

#[derive(Debug)]
struct Second(OciDriver);

#[async_trait]
impl Driver for Second {
    fn promises(&self) -> Promises {
        Promises { engine: Engine::Gvisor, ..self.0.promises() }
    }

    async fn create(&self, spec: &MachineSpec) -> Result<Arc<dyn Machine>, DriverError> {
        self.0.create(spec).await
    }

    async fn recover(&self, spec: &MachineSpec) -> Result<Option<Arc<dyn Machine>>, DriverError> {
        self.0.recover(spec).await
    }

    async fn purge(&self, id: SandboxId, run_dir: &Path) -> Result<(), DriverError> {
        self.0.purge(id, run_dir).await
    }
}

fn second_instance(bed: &Bed) -> String {
    format!("{}-second", bed.instance)
}

fn first(bed: &Bed) -> Engines {
    Engines::default().with(Arc::new(bed::oci(&bed.instance, bed.state())))
}

fn both(bed: &Bed) -> Engines {
    first(bed).with(Arc::new(Second(bed::oci(&second_instance(bed), bed.state()))))
}

/// The processes of a machine of the second engine.
fn processes(bed: &Bed, id: SandboxId) -> usize {
    let group = format!("superserve-{}/{id}", second_instance(bed));
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter(|p| std::fs::read_to_string(p.path().join("cgroup")).is_ok_and(|text| text.contains(&group)))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_sandbox_has_its_own_engine_and_no_other_takes_it() {
    let mut bed = Bed::new().await;
    bed.restart_with(both(&bed)).await;
    let one = bed.create().await;
    let other = SandboxSpec { engine: Engine::Gvisor, ..bed.spec() };
    bed.node.create(&other).await.map_err(|problem| problem.chain()).unwrap();
    for spec in [&one, &other] {
        assert_eq!(bed.sh(spec.id, "echo mine > /home/user/file && sync && echo done").await, "done\n");
    }
    assert!(processes(&bed, other.id) > 0 && processes(&bed, one.id) == 0);
    assert!(bed.node.captures(Engine::Gvisor) && !bed.node.captures(Engine::Qemu));
    assert!(bed.node.can_start(other.id, Engine::Gvisor).is_ok());
    let refused = bed.node.can_start(other.id, Engine::Qemu).unwrap_err();
    assert_eq!(refused.code, Code::ServiceUnavailable);
    let absent = SandboxSpec { engine: Engine::Qemu, ..bed.spec() };
    assert_eq!(bed.node.create(&absent).await.unwrap_err().code, Code::ServiceUnavailable);
    bed.node.freeze(other.id).await.unwrap();
    bed.node.thaw(&other).await.unwrap();

    // Both are found again, each by its own engine.
    let known = vec![one.clone(), other.clone()];
    bed.restart_with(both(&bed)).await;
    let found = bed.node.adopt(known.clone(), BTreeSet::new()).await.unwrap();
    assert_eq!((found[&one.id], found[&other.id]), (Found::Running, Found::Running));

    // Without it nothing of the sandbox is touched, and whoever wants it learns why.
    bed.restart_with(first(&bed).without(Engine::Gvisor, "runsc is missing".to_owned())).await;
    let found = bed.node.adopt(known.clone(), BTreeSet::new()).await.unwrap();
    assert_eq!((found[&one.id], found[&other.id]), (Found::Running, Found::Disk));
    assert!(processes(&bed, other.id) > 0, "its machine is left alone");
    let refused = bed.node.boot(&other).await.unwrap_err();
    assert_eq!(refused.code, Code::ServiceUnavailable);
    assert!(
        refused.message.contains("gvisor") && refused.message.contains("runsc is missing"),
        "{refused:?}"
    );
    // Nor is it taken for removed when it cannot be.
    assert_eq!(bed.node.destroy(other.id).await.unwrap_err().code, Code::ServiceUnavailable);
    assert!(processes(&bed, other.id) > 0);
    assert_eq!(bed.sh(one.id, "cat /home/user/file").await, "mine\n");

    // An engine that can only remove does that.
    let removing = Arc::new(Second(bed::oci(&second_instance(&bed), bed.state())));
    bed.restart_with(first(&bed).only_removing(removing, "no kernel".to_owned())).await;
    let found = bed.node.adopt(known.clone(), BTreeSet::new()).await.unwrap();
    assert_eq!(found[&other.id], Found::Disk);
    assert!(bed.node.boot(&other).await.is_err() && processes(&bed, other.id) > 0);

    bed.restart_with(both(&bed)).await;
    let found = bed.node.adopt(known, BTreeSet::new()).await.unwrap();
    assert_eq!(found[&other.id], Found::Running);
    assert_eq!(bed.sh(other.id, "cat /home/user/file").await, "mine\n");
    bed.node.destroy(other.id).await.unwrap();
    wait_for("its processes to be gone", || processes(&bed, other.id) == 0).unwrap();
    let second = second_instance(&bed);
    assert!(
        left_over(&second, Path::new("/nowhere")).iter().all(|left| !left.contains(&other.id.to_string()))
    );
    bed.finish().await;
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        let _shared_by_its_machines =
            std::fs::remove_dir(hierarchy.path().join(format!("superserve-{second}")));
    }
}

/// Machines without rows are removed by the engine that made them, without a database to say which.
#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_nobody_is_removed_by_its_own_engine() {
    let mut bed = Bed::new().await;
    bed.restart_with(both(&bed)).await;
    let other = SandboxSpec { engine: Engine::Gvisor, ..bed.spec() };
    bed.node.create(&other).await.map_err(|problem| problem.chain()).unwrap();
    bed.restart_with(both(&bed)).await;
    assert!(processes(&bed, other.id) > 0);
    bed.node.adopt(Vec::new(), BTreeSet::new()).await.unwrap();
    wait_for("its processes to be gone", || processes(&bed, other.id) == 0).unwrap();
    let second = second_instance(&bed);
    bed.finish().await;
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        let _shared_by_its_machines =
            std::fs::remove_dir(hierarchy.path().join(format!("superserve-{second}")));
    }
}

/// Whatever the database says: the name of the disk says that a guest's kernel wrote it.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_a_guest_wrote_is_never_mounted_here() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let disk = bed.state().join(format!("disks/{}.guest", spec.id));
    std::fs::write(&disk, "what a hostile kernel wrote").unwrap();
    let found = bed.node.adopt(vec![spec.clone()], BTreeSet::new()).await.unwrap();
    assert_eq!(found[&spec.id], Found::Broken);
    assert!(bed.node.boot(&spec).await.is_err());
    assert_eq!(std::fs::read(&disk).unwrap(), b"what a hostile kernel wrote");
    assert_eq!(left_over(&bed.instance, bed.state()).len(), 2, "the disk, and the router's namespace");
    bed.node.destroy(spec.id).await.unwrap();
    assert!(!disk.exists());
    bed.finish().await;
}
