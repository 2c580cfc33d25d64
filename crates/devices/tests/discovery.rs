//! Recorded machines and what is found on them.

mod tree;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use het_core::{Bytes, Share, Topology, Vertex};
use het_devices::{
    Clock, DeviceLoad, DeviceMonitor, Diagnostic, Discovery, LoadSource, Mig, MigInstance,
    NpuSmiProbe, NvLink, NvidiaDevice, NvidiaProbe, PartitionedChip, PciAddress, Pressure, System,
    VulkanDevice, VulkanKind, VulkanProbe, discover,
};
use proptest::prelude::*;

fn found(name: &str) -> Discovery {
    found_with(name, NvidiaProbe::NotAsked, VulkanProbe::NotAsked)
}

fn found_with(name: &str, nvidia: NvidiaProbe, vulkan: VulkanProbe) -> Discovery {
    let root = tree::recorded(name);
    let system = System { nvidia, vulkan, ..System::recorded(root.path()) };
    let discovery = discover(&system);
    discovery.topology.validate().expect("the topology fits together");
    discovery
}

/// One line a device: name, class, kind, units, GiB, drivers, visible id.
fn devices(discovery: &Discovery) -> String {
    let topology = &discovery.topology;
    let mut out = String::new();
    for id in topology.device_ids() {
        let (device, class) = (topology.device(id), topology.class_of(id));
        let drivers: Vec<&str> = device.drivers.iter().map(|name| name.as_str()).collect();
        let (units, gib) = (device.capacity.whole_units(), device.memory.0 >> 30);
        let (name, drivers) = (&device.name, drivers.join("+"));
        let visible = &device.visible_id;
        writeln!(out, "{name} {} {} {units} {gib} {drivers} {visible}", class.id, class.kind)
            .expect("a string takes everything");
    }
    out
}

fn check(discovery: &Discovery, expected: &str) {
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let found = devices(discovery);
    assert_eq!(found.lines().collect::<Vec<_>>(), expected, "{:#?}", discovery.diagnostics);
}

fn check_diagnostics(discovery: &Discovery, expected: &[&str]) {
    let found: Vec<String> = discovery.diagnostics.iter().map(Diagnostic::to_string).collect();
    assert_eq!(found, expected);
}

fn vertex(topology: &Topology, vertex: &Vertex) -> String {
    match vertex {
        Vertex::Node(_) => "node".to_owned(),
        Vertex::Device(id) => topology.device(*id).name.to_string(),
        Vertex::Switch(name) => name.to_string(),
    }
}

/// The links of one end, upwards: `kind to MB/s`.
fn links_of(discovery: &Discovery, from: &str) -> Vec<String> {
    let topology = &discovery.topology;
    let links = topology.links.iter().filter(|link| vertex(topology, &link.from) == from);
    links
        .map(|link| {
            let speed = link.bandwidth.map_or("?".to_owned(), |it| (it.0 / 1_000_000).to_string());
            format!("{} {} {speed}", link.kind, vertex(topology, &link.to))
        })
        .collect()
}

fn address(text: &str) -> PciAddress {
    text.parse().expect("an address")
}

const H100_ADDRESSES: [&str; 8] = [
    "0000:0a:00.0",
    "0000:1a:00.0",
    "0000:3a:00.0",
    "0000:4a:00.0",
    "0000:8a:00.0",
    "0000:9a:00.0",
    "0000:aa:00.0",
    "0000:ba:00.0",
];

/// Eight H100 SXM5, each with 18 links to NVSwitches (MLPerf's system descriptions).
fn eight_h100() -> NvidiaProbe {
    let switch =
        NvLink { peer: Some(address("0000:c6:00.0")), bandwidth: Some(Bytes(25_000_000_000)) };
    let device = |(index, at): (usize, &&str)| {
        Ok(NvidiaDevice {
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            uuid: format!("GPU-{index}"),
            memory: Some(Bytes(81_559 << 20)),
            address: address(at),
            numa: None,
            mig: Mig::Off,
            nvlinks: vec![switch; 18],
        })
    };
    // NVML's order need not be the bus's.
    NvidiaProbe::Found(H100_ADDRESSES.iter().enumerate().rev().map(device).collect())
}

fn vulkan_device(name: &str, kind: VulkanKind, at: Option<&str>) -> VulkanDevice {
    VulkanDevice {
        index: 0,
        name: name.to_owned(),
        vendor: 0x10005,
        device: 0,
        kind,
        memory_bytes: 8 << 30,
        address: at.map(address),
    }
}

#[test]
fn the_briefs_node() {
    let on_bus = vulkan_device("NVIDIA H100", VulkanKind::Discrete, Some(H100_ADDRESSES[0]));
    let software = vulkan_device("llvmpipe (LLVM 15.0.6, 256 bits)", VulkanKind::Software, None);
    let vulkan = VulkanProbe::Found(vec![on_bus, software.clone(), software]);
    let discovery = found_with("epyc-h100x8-910b", eight_h100(), vulkan);
    check(
        &discovery,
        "cpu0 epyc-9654 cpu 96 0 cpu 0
         cpu1 epyc-9654 cpu 96 0 cpu 1
         cuda0 h100-sxm5-80 gpu 1 79 cuda+vulkan GPU-0
         cuda1 h100-sxm5-80 gpu 1 79 cuda GPU-1
         cuda2 h100-sxm5-80 gpu 1 79 cuda GPU-2
         cuda3 h100-sxm5-80 gpu 1 79 cuda GPU-3
         cuda4 h100-sxm5-80 gpu 1 79 cuda GPU-4
         cuda5 h100-sxm5-80 gpu 1 79 cuda GPU-5
         cuda6 h100-sxm5-80 gpu 1 79 cuda GPU-6
         cuda7 h100-sxm5-80 gpu 1 79 cuda GPU-7
         npu0 ascend-910b npu 1 0 cann+npu-ort 0
         vulkan0 lavapipe gpu 1 0 vulkan 0",
    );
    check_diagnostics(&discovery, &["the memory of `npu0` is not known and counts as zero"]);
    let software: Vec<bool> = discovery.topology.classes.iter().map(|it| it.software).collect();
    assert_eq!(software, [false, false, false, true]);
    let numa: Vec<(u32, usize, u64)> =
        discovery.numa.iter().map(|it| (it.id, it.cores.len(), it.memory.0 >> 30)).collect();
    assert_eq!(numa, [(0, 96, 755), (1, 96, 755)]);
    let nodes = discovery.device_nodes();
    assert_eq!(nodes["cuda1"], [Path::new("/dev/nvidia3")]);
    assert_eq!(nodes["npu0"], ["/dev/davinci0", "/dev/davinci_manager"].map(Path::new));
}

#[test]
fn a_device_is_offered_in_shares() {
    let mut discovery = found_with("epyc-h100x8-910b", eight_h100(), VulkanProbe::NotAsked);
    let links = links_of(&discovery, "cuda1");
    assert_eq!(discovery.share("cuda1", 2), Ok(()));
    check(
        &discovery,
        "cpu0 epyc-9654 cpu 96 0 cpu 0
         cpu1 epyc-9654 cpu 96 0 cpu 1
         cuda0 h100-sxm5-80 gpu 1 79 cuda GPU-0
         cuda1-0 h100-sxm5-80-mps-2 gpu 1 39 cuda GPU-1/2/40779
         cuda2 h100-sxm5-80 gpu 1 79 cuda GPU-2
         cuda3 h100-sxm5-80 gpu 1 79 cuda GPU-3
         cuda4 h100-sxm5-80 gpu 1 79 cuda GPU-4
         cuda5 h100-sxm5-80 gpu 1 79 cuda GPU-5
         cuda6 h100-sxm5-80 gpu 1 79 cuda GPU-6
         cuda7 h100-sxm5-80 gpu 1 79 cuda GPU-7
         npu0 ascend-910b npu 1 0 cann+npu-ort 0
         cuda1-1 h100-sxm5-80-mps-2 gpu 1 39 cuda GPU-1/2/40779",
    );
    assert_eq!(links_of(&discovery, "cuda1-1"), links);
    assert_eq!(discovery.topology.validate(), Ok(()));
    let mut refused = |device: &str, ways| {
        discovery.share(device, ways).map_err(|error| error.to_string()).expect_err("refused")
    };
    assert_eq!(refused("cuda9", 2), "there is no device `cuda9`");
    assert_eq!(refused("npu0", 2), "`npu0` cannot be shared: only CUDA's driver can");
    assert_eq!(refused("cuda1-0", 2), "`cuda1-0` cannot be shared: it is a share already");
    assert_eq!(refused("cuda0", 49), "a device has 2 to 48 shares, not 49");
}

#[test]
fn the_briefs_links() {
    let discovery = found_with("epyc-h100x8-910b", eight_h100(), VulkanProbe::NotAsked);
    // The idle link reads 2.5 GT/s now; what counts is what it can do: 32 GT/s × 16 lanes.
    // NVLink: 18 × 25 GB/s.
    assert_eq!(
        links_of(&discovery, "cuda4"),
        ["pcie epyc-h100x8/0000:88:00.0 63015", "nvlink epyc-h100x8/nvswitch 450000",]
    );
    assert_eq!(
        links_of(&discovery, "epyc-h100x8/0000:88:00.0"),
        ["pcie epyc-h100x8/pci0000:87 63015"]
    );
    assert_eq!(links_of(&discovery, "epyc-h100x8/pci0000:87"), ["pcie cpu1 ?"]);
    assert_eq!(links_of(&discovery, "epyc-h100x8/pci0000:07"), ["pcie cpu0 ?"]);
    assert_eq!(links_of(&discovery, "npu0"), ["pcie epyc-h100x8/pci0000:e0 31507"]);
    assert_eq!(links_of(&discovery, "cpu1"), ["memory node ?"]);
    // A network card beside each pair of GPUs, behind the same switch; 400 Gbit/s are 50 GB/s.
    assert_eq!(
        links_of(&discovery, "epyc-h100x8/nic0"),
        ["pcie epyc-h100x8/0000:08:00.0 63015", "nic epyc-h100x8/network0 50000"]
    );
    assert_eq!(
        links_of(&discovery, "epyc-h100x8/nic1"),
        ["pcie epyc-h100x8/0000:18:00.0 63015", "nic epyc-h100x8/network0 25000"]
    );
}

#[test]
fn nvlink_between_gpus_is_one_link_with_the_sum_of_its_lanes() {
    let gpu = |index: usize, peer: usize, lanes: usize| {
        let lane = NvLink {
            peer: Some(address(H100_ADDRESSES[peer])),
            bandwidth: Some(Bytes(25_000_000_000)),
        };
        Ok(NvidiaDevice {
            name: "NVIDIA RTX A6000".to_owned(),
            uuid: format!("GPU-{index}"),
            memory: None,
            address: address(H100_ADDRESSES[index]),
            numa: None,
            mig: Mig::Off,
            nvlinks: vec![lane; lanes],
        })
    };
    let probe = NvidiaProbe::Found(vec![gpu(0, 1, 4), gpu(1, 0, 4)]);
    let discovery = found_with("no-sys", probe, VulkanProbe::NotAsked);
    assert_eq!(links_of(&discovery, "cuda0"), ["nvlink cuda1 100000"]);
    assert_eq!(links_of(&discovery, "cuda1"), [""; 0]);
}

#[test]
fn nvidia_devices_without_the_library_are_diagnostics() {
    let discovery = found_with("container-cgroup-v2", NvidiaProbe::Missing, VulkanProbe::Missing);
    check(&discovery, "cpu1 epyc-7763 cpu 64 0 cpu 1");
    check_diagnostics(
        &discovery,
        &[
            "a cgroup quota of 8000/1000 cores is below the 64 cores that this process may use",
            "NVIDIA device 0000:21:00.0 is present, but its management library is not installed",
            "NVIDIA device 0000:a1:00.0 is present, but its management library is not installed",
            "the Vulkan loader is not installed",
        ],
    );
    assert_eq!(discovery.topology.nodes[0].host.memory, Bytes::gib(64));
}

#[test]
fn a_device_that_is_cut_is_offered_by_instance() {
    let instance = |uuid: &str, profile: &str, gib| MigInstance {
        uuid: uuid.to_owned(),
        profile: profile.to_owned(),
        memory: Some(Bytes::gib(gib)),
    };
    let gpu = |at: &str, instances| {
        Ok(NvidiaDevice {
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            uuid: "GPU-a".to_owned(),
            memory: Some(Bytes::gib(80)),
            address: address(at),
            numa: None,
            mig: Mig::On(instances),
            nvlinks: Vec::new(),
        })
    };
    let cut = vec![instance("MIG-a", "3g.40gb", 40), instance("MIG-b", "1g.10gb", 10)];
    let found = vec![gpu("0000:21:00.0", cut), gpu("0000:a1:00.0", Vec::new())];
    let probe = NvidiaProbe::Found(found);
    let discovery = found_with("container-cgroup-v2", probe, VulkanProbe::NotAsked);
    check(
        &discovery,
        "cpu1 epyc-7763 cpu 64 0 cpu 1
         cuda0 h100-sxm5-80-mig-3g.40gb gpu 1 40 cuda MIG-a
         cuda1 h100-sxm5-80-mig-1g.10gb gpu 1 10 cuda MIG-b",
    );
    check_diagnostics(
        &discovery,
        &[
            "a cgroup quota of 8000/1000 cores is below the 64 cores that this process may use",
            "NVIDIA H100 80GB HBM3 at 0000:a1:00.0 is in MIG mode and has no instance that could \
             be used",
        ],
    );
}

#[test]
fn a_container_is_given_some_of_the_gpus_and_one_socket() {
    let gpu = NvidiaDevice {
        name: "NVIDIA H100 PCIe".to_owned(),
        uuid: "GPU-a".to_owned(),
        memory: Some(Bytes::gib(80)),
        address: address("0000:21:00.0"),
        numa: None,
        mig: Mig::Off,
        nvlinks: Vec::new(),
    };
    let lost = (1, "GPU is lost".to_owned());
    let probe = NvidiaProbe::Found(vec![Ok(gpu), Err(lost)]);
    let discovery = found_with("container-cgroup-v2", probe, VulkanProbe::NotAsked);
    check(
        &discovery,
        "cpu1 epyc-7763 cpu 64 0 cpu 1
         cuda0 h100-pcie-80 gpu 1 80 cuda GPU-a",
    );
    // The socket whose cores are out of reach is still where the GPU hangs.
    assert_eq!(links_of(&discovery, "pod-1/pci0000:20"), ["pcie pod-1/socket0 ?"]);
    assert_eq!(links_of(&discovery, "pod-1/socket0"), ["memory node ?"]);
    let cores: Vec<_> = discovery.cores.values().cloned().collect();
    assert_eq!(cores, [(64..128).collect::<Vec<u32>>()]);
}

#[test]
fn atlas_800t_a2() {
    let discovery = found("atlas-800t-a2");
    let mut expected = String::new();
    for socket in 0..4 {
        writeln!(expected, "cpu{socket} kunpeng-920 cpu 48 0 cpu {socket}").expect("a string");
    }
    for npu in 0..8 {
        writeln!(expected, "npu{npu} ascend-910b npu 1 0 cann+npu-ort {npu}").expect("a string");
    }
    check(&discovery, &expected);
    assert_eq!(links_of(&discovery, "atlas-800t-a2/pci0000:c0"), ["pcie cpu3 ?"]);
    // A port that is down has no speed.
    assert_eq!(links_of(&discovery, "atlas-800t-a2/nic0"), ["pcie atlas-800t-a2/pci0000:7c ?"]);
    let unknown = |diagnostic: &&Diagnostic| matches!(diagnostic, Diagnostic::MemoryUnknown { .. });
    assert_eq!(discovery.diagnostics.iter().filter(unknown).count(), discovery.diagnostics.len());
}

#[test]
fn an_ascend_card_without_its_node_is_a_finding() {
    let root = tree::recorded("epyc-h100x8-910b");
    fs::remove_file(root.path().join("dev/davinci0")).expect("the node exists");
    let discovery = discover(&System::recorded(root.path()));
    check_diagnostics(
        &discovery,
        &["Huawei Ascend 910B at 0000:e1:00.0 has no device node `/dev/davinci0`"],
    );
    let hint = discovery.diagnostics[0].hint().expect("there is something to do");
    assert!(hint.starts_with("load the Ascend driver"), "{hint}");
}

/// What `npu-smi info -t info-vnpu` prints of a 910B3: in the layout of 25.5, with made-up rows.
fn listing(vnpus: &[(u32, &str)]) -> Option<PartitionedChip> {
    let mut text = String::from(
        "+-------------------------------------------------------------------------------+\n\
         | NPU resource static info as follow:                                           |\n\
         | Format:Free/Total                   NA: Currently, query is not supported.    |\n\
         | AICORE    Memory    AICPU    VPC    VENC    VDEC    JPEGD    JPEGE    PNGD    |\n\
         |            GB                                                                 |\n\
         |===============================================================================|\n\
         | 0/20      0/64      1/7      1/9    0/0     0/2     0/24     0/4      NA/NA   |\n\
         +-------------------------------------------------------------------------------+\n",
    );
    writeln!(text, "| Total number of vnpu: {}     |", vnpus.len()).expect("a string");
    text += "|  Vnpu ID  |  Vgroup ID     |  Container ID  |  Status  |  Template Name       |\n";
    for (number, template) in vnpus {
        writeln!(text, "|  {number}  |  0  |  000000000000  |  0  |  {template}  |")
            .expect("a string");
    }
    PartitionedChip::read(&text)
}

/// The first two of eight chips are cut, not all as it should be.
fn cut_atlas() -> (tempfile::TempDir, System) {
    let root = tree::recorded("atlas-800t-a2");
    for number in [100, 101, 116, 117, 119] {
        let node = root.path().join(format!("dev/vdavinci{number}"));
        fs::write(node, "").expect("writable");
    }
    let listings = [
        listing(&[(100, "vir10_3c_32g"), (101, "vir10")]),
        listing(&[(116, "vir05_1c_16g"), (118, "vir05_1c_16g"), (119, "NA")]),
        listing(&[]),
    ];
    let npu_smi = NpuSmiProbe::Found(listings.into_iter().flatten().collect());
    let system = System { npu_smi, ..System::recorded(root.path()) };
    (root, system)
}

/// Those of the accelerators of a machine with four sockets.
fn npus(discovery: &Discovery) -> Vec<String> {
    devices(discovery).lines().skip(4).map(str::to_owned).collect()
}

#[test]
fn a_cut_chip_is_offered_by_its_virtual_npus() {
    let (_root, system) = cut_atlas();
    let discovery = discover(&system);
    discovery.topology.validate().expect("the topology fits together");
    assert_eq!(
        npus(&discovery)[..5],
        [
            "npu0 ascend-910b-vir10_3c_32g npu 1 32 cann+vnpu vdavinci100",
            // Its name does not say how much: as much of the memory as of the cores.
            "npu1 ascend-910b-vir10 npu 1 32 cann+vnpu vdavinci101",
            "npu2 ascend-910b-vir05_1c_16g npu 1 16 cann+vnpu vdavinci116",
            "npu3 ascend-910b npu 1 0 cann+npu-ort 2",
            "npu4 ascend-910b npu 1 0 cann+npu-ort 3",
        ]
    );
    assert_eq!(npus(&discovery).len(), 9);
    let other = |it: &&Diagnostic| !matches!(it, Diagnostic::MemoryUnknown { .. });
    let of_vnpus = discovery.diagnostics.iter().filter(other);
    assert_eq!(
        of_vnpus.map(Diagnostic::to_string).collect::<Vec<_>>(),
        [
            "there is nothing behind `/dev/vdavinci117`: `npu-smi` lists no such virtual NPU",
            "virtual NPU 118 of Huawei Ascend 910B at 0000:02:00.0 has no device node \
             `/dev/vdavinci118`",
            "virtual NPU 119 is made by the template `NA`, which is not known",
        ]
    );
    // The parts of a chip hang where it does.
    assert_eq!(links_of(&discovery, "npu0"), links_of(&discovery, "npu1"));
    assert_eq!(links_of(&discovery, "npu0"), ["pcie atlas-800t-a2/pci0000:00 31507"]);
}

#[test]
fn virtual_npus_that_nobody_lists_are_not_offered_and_their_chip_is_not_whole() {
    let (_root, system) = cut_atlas();
    let check = |npu_smi, why: &str| {
        let discovery = discover(&System { npu_smi, ..system.clone() });
        assert_eq!(npus(&discovery).len(), 6, "{why}");
        let told = Diagnostic::VnpusUnlisted { why: why.to_owned() };
        assert_eq!(discovery.diagnostics[0], told);
        let other = |it: &&Diagnostic| !matches!(it, Diagnostic::MemoryUnknown { .. });
        assert_eq!(discovery.diagnostics.iter().filter(other).count(), 1);
    };
    check(NpuSmiProbe::Missing, "it is not installed");
    check(NpuSmiProbe::Failed { why: "no answer".to_owned() }, "no answer");
}

#[test]
fn a_stranger_in_a_container_is_seen_at_a_virtual_npu() {
    let (root, system) = cut_atlas();
    let discovery = discover(&system);
    let mut monitor = DeviceMonitor::open(&system, &discovery).expect("there are devices");
    let open = |pid: u32, node: &str| {
        let fd = root.path().join(format!("proc/{pid}/fd"));
        fs::create_dir_all(&fd).expect("writable");
        std::os::unix::fs::symlink(node, fd.join("3")).expect("writable");
    };
    // The name inside of its container, the machine's own, and that of a whole chip.
    open(11, "/dev/davinci101");
    open(12, "/dev/vdavinci101");
    open(13, "/dev/davinci2");
    let name = |id| discovery.topology.device(id).name.to_string();
    let observed = monitor.observe().processes.into_iter();
    let processes: Vec<(String, Vec<u32>)> =
        observed.map(|(id, pids)| (name(id), pids.into_iter().collect())).collect();
    assert_eq!(processes, [("npu1".to_owned(), vec![11, 12]), ("npu3".to_owned(), vec![13])]);
}

#[test]
fn a_virtual_npu_that_is_destroyed_is_broken() {
    let (root, system) = cut_atlas();
    let discovery = discover(&system);
    let mut monitor = DeviceMonitor::open(&system, &discovery).expect("there are devices");
    assert_eq!(monitor.observe().faults.len(), 0);
    fs::remove_file(root.path().join("dev/vdavinci116")).expect("the node exists");
    let told: Vec<String> = monitor.observe().faults.into_values().collect();
    assert_eq!(told, ["its device node `/dev/vdavinci116` is gone"]);
}

#[test]
fn a_laptop_with_an_npu() {
    let name = "Intel(R) Arc(tm) Graphics (MTL)";
    // Without `VK_EXT_pci_bus_info`: the only function with its ids is it.
    let arc = VulkanDevice {
        vendor: 0x8086,
        device: 0x7d55,
        ..vulkan_device(name, VulkanKind::Integrated, None)
    };
    let vulkan = VulkanProbe::Found(vec![arc]);
    let discovery = found_with("laptop-intel-npu", NvidiaProbe::Missing, vulkan);
    check(
        &discovery,
        "cpu0 core-ultra-7-155h cpu 22 0 cpu 0
         gpu0 intel-gpu-7d55 gpu 1 0 level-zero+vulkan 0
         npu0 intel-npu-mtl npu 1 0 npu-ort 0",
    );
    assert_eq!(links_of(&discovery, "npu0"), ["pcie laptop/pci0000:00 ?"]);
    assert_eq!(links_of(&discovery, "laptop/pci0000:00"), ["pcie cpu0 ?"]);
}

#[test]
fn intel_gpus_under_either_kernel_driver() {
    let discovery = found("xeon-intel-gpus");
    check(
        &discovery,
        "cpu0 xeon-8480 cpu 56 0 cpu 0
         cpu1 xeon-8480 cpu 56 0 cpu 1
         gpu0 gpu-max-1550 gpu 1 0 level-zero 0
         gpu1 gpu-flex-170 gpu 1 0 level-zero 1
         gpu2 intel-gpu-e20b gpu 1 0 level-zero 2",
    );
    let unbound = "Intel device e20b at 0000:b1:00.0 has no kernel driver bound";
    assert_eq!(discovery.diagnostics.first().map(Diagnostic::to_string).as_deref(), Some(unbound));
    assert_eq!(links_of(&discovery, "gpu2"), ["pcie intel-gpus/pci0000:97 31507"]);
    assert_eq!(links_of(&discovery, "intel-gpus/pci0000:97"), ["pcie cpu1 ?"]);
}

#[test]
fn xdna_without_a_driver_and_two_radeons() {
    let discovery = found("ryzen-xdna-radeon");
    check(
        &discovery,
        "cpu0 ryzen-9-7940hs cpu 16 0 cpu 0
         gpu0 amd-gpu-744c gpu 1 23 rocm 0
         gpu1 amd-gpu-15bf gpu 1 0 rocm 1",
    );
    check_diagnostics(
        &discovery,
        &[
            "AMD XDNA NPU at 0000:c5:00.1 has no kernel driver bound",
            "the PCIe link of 0000:01:00.0 runs at 8 of 16 lanes",
        ],
    );
}

#[test]
fn loads_come_from_sysfs_and_procfs() {
    let root = tree::recorded("ryzen-xdna-radeon");
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("writable");
        fs::write(path, text).expect("writable");
    };
    let system = System::recorded(root.path());
    let discovery = discover(&system);
    let gpu = discovery.places.iter().find(|(_, place)| place.address.is_some()).expect("one");
    let levels = "0: 500Mhz\n1: 1700Mhz *\n2: 2500Mhz";
    write(&format!("sys/bus/pci/devices/{}/pp_dpm_sclk", gpu.1.address.expect("seen")), levels);
    let core =
        |number: u32, busy: u64, idle: u64| format!("cpu{number} {busy} 0 0 {idle} 0 0 0 0\n");
    let cores = |busy: u64, idle: u64| (0..16).map(|core_id| core(core_id, busy, idle)).collect();
    let (before, after): (String, String) = (cores(100, 900), cores(130, 970));
    let hot = "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count";
    let frequency = |name: &str, khz: &str| {
        write(&format!("sys/devices/system/cpu/cpu0/cpufreq/{name}"), khz);
    };
    frequency("scaling_cur_freq", "2000000");
    frequency("base_frequency", "4000000");
    write(hot, "4");
    write("proc/stat", &before);
    let mut source = LoadSource::open(&system, &discovery);
    let first = source.read();
    assert_eq!(first.pressure, None);
    for resource in ["cpu", "memory", "io"] {
        let text = "some avg10=25.00 avg60=0 total=1\nfull avg10=50.00 avg60=0 total=1";
        write(&format!("proc/pressure/{resource}"), text);
    }
    write("proc/stat", &after);
    write(hot, "5");
    let second = source.read();
    let clock = Clock { mhz: 2_000, rated_mhz: 4_000 };
    let socket = DeviceLoad { clock: Some(clock), ..DeviceLoad::default() };
    let card = DeviceLoad {
        busy: Some(0.37),
        memory_used: Some(Bytes::gib(1)),
        clock: Some(Clock { mhz: 1_700, rated_mhz: 2_500 }),
        throttled_to: None,
    };
    assert_eq!(first.devices.into_values().collect::<Vec<_>>(), [socket, card]);
    // One of sixteen cores has half of its clock.
    let throttled_to = Some(1.0 - 0.5 / 16.0);
    let socket = DeviceLoad { busy: Some(0.3), throttled_to, ..socket };
    assert_eq!(second.devices.into_values().collect::<Vec<_>>(), [socket, card]);
    let pressure = Pressure { cpu_some: 0.25, memory_full: 0.5, io_full: 0.5 };
    assert_eq!(second.pressure, Some(pressure));
}

#[test]
fn memory_errors_are_faults_when_there_are_more_of_them_than_before() {
    let root = tree::recorded("ryzen-xdna-radeon");
    let system = System::recorded(root.path());
    let discovery = discover(&system);
    let (&gpu, place) = discovery.places.iter().find(|(_, it)| it.address.is_some()).expect("one");
    let address = place.address.expect("it is on the bus");
    let function = root.path().join(format!("sys/bus/pci/devices/{address}"));
    let count = |errors: u64| {
        fs::create_dir_all(function.join("ras")).expect("writable");
        fs::write(function.join("ras/umc_err_count"), format!("ue: {errors}\nce: 9\n"))
            .expect("writable");
    };
    let mut monitor = DeviceMonitor::open(&system, &discovery).expect("there are devices");
    let mut faults = |errors| {
        count(errors);
        monitor.observe().faults.keys().filter(|id| **id == gpu).count()
    };
    assert_eq!([faults(2), faults(2), faults(3), faults(3)], [0, 0, 1, 0]);
    fs::rename(&function, root.path().join("gone")).expect("writable");
    let gone = |monitor: &mut DeviceMonitor| monitor.observe().faults.contains_key(&gpu);
    assert!(gone(&mut monitor) && gone(&mut monitor), "it stays gone");
    fs::rename(root.path().join("gone"), &function).expect("writable");
    assert!(!gone(&mut monitor));
}

#[test]
fn gaudi_modules_are_named_by_their_board() {
    let discovery = found("gaudi2x8");
    check(
        &discovery,
        "cpu0 xeon-8480 cpu 112 0 cpu 0
         cpu1 xeon-8480 cpu 112 0 cpu 1
         npu0 gaudi2 npu 1 0 habana 5
         npu1 gaudi2 npu 1 0 habana 3
         npu2 gaudi2 npu 1 0 habana 0
         npu3 gaudi2 npu 1 0 habana 1
         npu4 gaudi2 npu 1 0 habana 7
         npu5 gaudi2 npu 1 0 habana 6
         npu6 gaudi2 npu 1 0 habana 2
         npu7 gaudi2 npu 1 0 habana 4",
    );
}

#[test]
fn a_container_of_cgroup_v1_keeps_to_its_limits() {
    let discovery = found("container-cgroup-v1");
    check(&discovery, "cpu0 epyc-7763 cpu 2 0 cpu 0");
    check_diagnostics(
        &discovery,
        &["a cgroup quota of 1500/1000 cores is below the 2 cores that this process may use"],
    );
    assert_eq!(discovery.topology.nodes[0].host.memory, Bytes::gib(4));
    assert_eq!(discovery.cores.values().next(), Some(&vec![0, 1]));
}

#[test]
fn a_sandbox_without_sys_and_proc_still_has_its_cores() {
    let root = tree::recorded("no-sys");
    let system = System { fallback_cores: vec![2, 3], ..System::recorded(root.path()) };
    let discovery = discover(&system);
    assert_eq!(discovery.topology.devices[0].capacity, Share::units(2));
    check_diagnostics(
        &discovery,
        &[
            "`/sys` does not list this machine's processors, so 2 usable cores are assumed",
            "the memory of this machine cannot be read from `/proc/meminfo`",
            "no PCI bus is visible, so only devices that drivers report themselves are found",
        ],
    );
}

#[test]
fn a_probe_that_died_is_a_finding() {
    let vulkan = VulkanProbe::Crashed { how: "signal 11".to_owned() };
    let discovery = found_with("laptop-intel-npu", NvidiaProbe::NotAsked, vulkan);
    assert!(
        discovery.diagnostics.contains(&Diagnostic::VulkanCrashed { how: "signal 11".to_owned() })
    );
}

#[test]
fn a_render_node_without_permission_is_a_finding() {
    if nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: root may open every file, so no permission can be missing");
        return;
    }
    let root = tree::recorded("laptop-intel-npu");
    let node = root.path().join("dev/dri/renderD128");
    fs::set_permissions(&node, fs::Permissions::from_mode(0o000)).expect("our own file");
    let discovery = discover(&System::recorded(root.path()));
    let title = "Intel device 7d55 at 0000:00:02.0";
    check_diagnostics(
        &discovery,
        &[
            &format!("{title} cannot be opened: no permission for `/dev/dri/renderD128`"),
            "the memory of `npu0` is not known and counts as zero",
        ],
    );
}

#[test]
fn this_machine_has_a_processor() {
    let system = System { vulkan: VulkanProbe::NotAsked, ..System::this_machine() };
    let discovery = discover(&system);
    discovery.topology.validate().expect("the topology fits together");
    let cores: usize = discovery.cores.values().map(Vec::len).sum();
    let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(cores >= parallelism, "{cores} cores for {parallelism} threads");
}

/// Files that decide much, to be filled with rubbish.
const FILES: &[&str] = &[
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/self/cgroup",
    "proc/self/status",
    "proc/sys/kernel/hostname",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node0/meminfo",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/cpuset.cpus.effective",
    "sys/fs/cgroup/memory.max",
    "sys/devices/pci0000:00/0000:00:02.0/class",
    "sys/devices/pci0000:00/0000:00:02.0/vendor",
    "sys/devices/pci0000:00/0000:00:02.0/device",
    "sys/devices/pci0000:00/0000:00:02.0/numa_node",
    "sys/devices/pci0000:00/0000:00:02.0/mem_info_vram_total",
    "sys/devices/pci0000:00/0000:00:02.0/current_link_width",
    "sys/devices/pci0000:00/0000:00:02.0/max_link_speed",
];

const RUBBISH: &[&[u8]] = &[
    b"",
    b"\xff\xfe\x00",
    b"-1",
    b"99999999999999999999999",
    b"18446744073709551615",
    b"0-4294967295",
    b"0x",
    b"0xffffffff",
    b"MemTotal: x kB",
    b"Cpus_allowed_list: 9-3",
    b"0::/../../../etc",
    b"9:cpu:",
    b"999999.9 GT/s PCIe",
    b"0 0",
    "model name: Ω(R)".as_bytes(),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn rubbish_never_panics(
        wrong in proptest::collection::vec((0..FILES.len(), 0..RUBBISH.len()), 1..12),
    ) {
        let root = tree::recorded("laptop-intel-npu");
        for (file, content) in wrong {
            let path = root.path().join(FILES[file]);
            fs::create_dir_all(path.parent().expect("a file")).expect("writable");
            fs::write(path, RUBBISH[content]).expect("writable");
        }
        let discovery = discover(&System::recorded(root.path()));
        prop_assert!(discovery.topology.validate().is_ok());
        prop_assert!(!discovery.topology.devices.is_empty());
    }

    #[test]
    fn any_text_reads_as_a_tree_without_panic(text in ".{0,60}", file in 0..FILES.len()) {
        let root = tree::recorded("laptop-intel-npu");
        let path = root.path().join(FILES[file]);
        fs::create_dir_all(path.parent().expect("a file")).expect("writable");
        fs::write(path, text).expect("writable");
        prop_assert!(discover(&System::recorded(root.path())).topology.validate().is_ok());
    }
}

#[test]
fn directories_pipes_and_dangling_links_in_place_of_files() {
    let root = tree::recorded("laptop-intel-npu");
    let at = |path: &str| root.path().join(path);
    for path in ["proc/cpuinfo", "proc/meminfo", "sys/devices/system/cpu/online"] {
        fs::remove_file(at(path)).expect("the file exists");
        fs::create_dir(at(path)).expect("writable");
    }
    fs::remove_file(at("proc/self/status")).expect("the file exists");
    let mode = nix::sys::stat::Mode::S_IRWXU;
    nix::unistd::mkfifo(&at("proc/self/status"), mode).expect("writable");
    std::os::unix::fs::symlink("nowhere", at("sys/bus/pci/devices/0000:00:1f.0"))
        .expect("writable");
    std::os::unix::fs::symlink("0000:00:1e.0", at("sys/bus/pci/devices/0000:00:1e.0"))
        .expect("writable");
    let discovery = discover(&System::recorded(root.path()));
    assert!(discovery.topology.validate().is_ok());
    assert_eq!(discovery.topology.devices[0].capacity, Share::units(22));
}
