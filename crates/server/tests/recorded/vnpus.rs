//! Virtual NPUs on a recorded machine with one Ascend 910B, cut in two: who may have them.

use std::collections::BTreeMap;

use het_core::{Bytes, JobSpec};
use het_devices::{NpuSmiProbe, PartitionedChip, System};
use het_server::{Machine, impossible, machine};
use het_wire::job::{Context, parse};

use crate::record;

/// What `npu-smi info -t info-vnpu` prints, without what frames it.
const LISTING: &str = "0/20  0/64  0/6
    100 | 0 | 000000000000 | 0 | vir10_3c_32g
    101 | 1 | 000000000000 | 0 | vir10_3c_32g";

fn cut_machine() -> Machine {
    let root = tempfile::tempdir().expect("a temporary directory");
    record(root.path(), &["dev/vdavinci100", "dev/vdavinci101"]);
    let npu_smi = NpuSmiProbe::Found(PartitionedChip::read(LISTING).into_iter().collect());
    machine(System { npu_smi, ..System::recorded(root.path()) })
}

fn resolved(machine: &Machine, text: &str) -> JobSpec {
    let job = parse(text, "job.yaml").unwrap_or_else(|problems| panic!("{problems}"));
    let env = BTreeMap::new();
    let classes = &machine.topology.classes;
    let context = Context { workdir: "/w", ..Context::new(classes, &[], &env) };
    job.resolve(&context).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn a_virtual_npu_has_its_part_of_memory_and_peak() {
    let machine = cut_machine();
    let topology = &machine.topology;
    let npus: Vec<_> = topology.device_ids().skip(1).collect();
    assert_eq!(npus.len(), 2);
    for id in npus {
        let class = topology.class_of(id);
        assert_eq!(class.id.as_str(), "ascend-910b-vir10_3c_32g");
        assert_eq!(class.peak_gflops, Some(160_000), "half of 320 Tflop/s");
        assert_eq!(topology.memory_of(id), Bytes::gib(32));
    }
}

#[test]
fn only_containers_of_podman_may_have_virtual_npus() {
    let machine = cut_machine();
    let check = |words: &str, container: &str, refused: Option<&str>| {
        let text = format!("name: x\nkind: custom\nrun: [x]\ndevices: \"{words}\"\n{container}");
        let found = impossible(&machine.topology, &resolved(&machine, &text));
        let told = found.first().map(|one| format!("{one}, hint: {}", one.hint()));
        assert_eq!(told.is_some(), refused.is_some(), "{words} {container}: {told:?}");
        assert!(told.unwrap_or_default().contains(refused.unwrap_or_default()), "{words}");
    };
    let without = Some("cannot give it `npu:1` without a container, hint: they are virtual NPUs");
    check("npu:1", "", without);
    check("npu:1", "container: { image: x.sif, runtime: apptainer }", without);
    check("npu:1", "container: x", None);
    check("vnpu:2", "container: x", None);
    check("910b:1", "container: x", None);
    check("any:1", "", None);
    check("npu:1 | cpu:1", "", None);
    let named = "ascend-910b-vir10_3c_32g:1";
    check(named, "container: { image: x, runtime: podman }", None);
    check(named, "", Some("add `container: IMAGE`"));
    // The chip is not there as a whole, with or without.
    check("ascend-910b:1", "container: x", Some("the nearest request that fits is"));
    check("npu:3", "", Some("the nearest request that fits is `devices: \"cpu:"));
}
