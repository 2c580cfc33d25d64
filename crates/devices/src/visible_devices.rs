//! The environment by which each vendor's runtime chooses its devices.

use std::borrow::Cow;

use het_core::ContainerRuntime;

use crate::{mps, vnpu};

/// Stands between the variable of a declared device and what that calls it.
const DECLARED: char = '=';

/// Where Ascend's driver is installed.
const ASCEND_DRIVER: &str = "/usr/local/Ascend/driver";

/// How one driver's devices are chosen.
struct Visibility {
    driver: &'static str,
    variable: &'static str,
    /// Set beside it whenever devices are chosen.
    with: Option<(&'static str, &'static str)>,
    /// What hides every device; `None` where the runtime reads an empty list as "all" and knows
    /// no other value for none.
    hide: Option<(&'static str, &'static str)>,
}

const fn row(driver: &'static str, variable: &'static str) -> Visibility {
    Visibility { driver, variable, with: None, hide: None }
}

/// One row a driver. Sources: Ray 2.60's accelerator plug-ins and gpustack-runtime 0.2.6.
const TABLE: &[Visibility] = &[
    Visibility {
        driver: "cuda",
        variable: "CUDA_VISIBLE_DEVICES",
        // Without it CUDA numbers the fastest device first, unlike NVML.
        with: Some(("CUDA_DEVICE_ORDER", "PCI_BUS_ID")),
        hide: Some(("CUDA_VISIBLE_DEVICES", "")),
    },
    // MetaX, Iluvatar and T-Head answer to CUDA's name.
    row("maca", "CUDA_VISIBLE_DEVICES"),
    row("corex", "CUDA_VISIBLE_DEVICES"),
    row("ppu", "CUDA_VISIBLE_DEVICES"),
    Visibility {
        driver: "rocm",
        variable: "HIP_VISIBLE_DEVICES",
        with: None,
        // HIP reads an empty list as "no limit".
        hide: Some(("HIP_VISIBLE_DEVICES", "-1")),
    },
    Visibility {
        driver: "cann",
        variable: "ASCEND_RT_VISIBLE_DEVICES",
        with: None,
        hide: Some(("ASCEND_RT_VISIBLE_DEVICES", "")),
    },
    Visibility {
        driver: "level-zero",
        variable: "ZE_AFFINITY_MASK",
        with: None,
        // An empty mask means every device; SYCL's selector can say "processors only".
        hide: Some(("ONEAPI_DEVICE_SELECTOR", "*:cpu")),
    },
    Visibility {
        driver: "musa",
        variable: "MUSA_VISIBLE_DEVICES",
        with: None,
        hide: Some(("MUSA_VISIBLE_DEVICES", "")),
    },
    Visibility {
        driver: "mlu",
        variable: "MLU_VISIBLE_DEVICES",
        with: None,
        hide: Some(("MLU_VISIBLE_DEVICES", "")),
    },
    row("habana", "HABANA_VISIBLE_MODULES"),
    row("neuron", "NEURON_RT_VISIBLE_CORES"),
    row("tops", "TOPS_VISIBLE_DEVICES"),
    row("xpu", "XPU_VISIBLE_DEVICES"),
    row("tpu", "TPU_VISIBLE_CHIPS"),
    row("furiosa", "FURIOSA_DEVICES"),
];

/// The variables for a process that holds the devices with these visible ids through `driver`.
///
/// - A driver of the table: its variable, the ids joined by commas in the order given (rank order
///   is the caller's).
/// - `cpu`: the variables that hide every accelerator, so that a program which takes what it finds
///   (PyTorch, JAX, XLA) does not touch devices that are not its own. Ids are not looked at.
/// - Shares of a device: the device, and the part of its threads and memory that MPS grants.
/// - Declared devices ([`declared_id`]): the variable that was declared for them, if any.
/// - Virtual NPUs of Ascend: none, for only containers can be given them ([`container_access`]).
/// - Anything else, such as `vulkan` or `npu-ort`, has no such variable: nothing. The program reads
///   `HET_DEVICES`.
pub fn visible_devices(driver: &str, visible_ids: &[&str]) -> Vec<(Cow<'static, str>, String)> {
    let mut declared = declared(visible_ids);
    declared
        .extend(known(driver, visible_ids).into_iter().map(|(name, value)| (name.into(), value)));
    declared
}

/// The visible id of a device that a file declares: what its variable, if it has one, calls it.
pub fn declared_id(variable: Option<&str>, id: &str) -> String {
    format!("{}{DECLARED}{id}", variable.unwrap_or_default())
}

/// The variables of declared devices, in the order given; one that has none is only named in
/// `HET_DEVICES`.
fn declared(visible_ids: &[&str]) -> Vec<(Cow<'static, str>, String)> {
    let mut variables: Vec<(Cow<'static, str>, String)> = Vec::new();
    let named = visible_ids.iter().filter_map(|id| id.split_once(DECLARED));
    for (variable, id) in named.filter(|(variable, _)| !variable.is_empty()) {
        match variables.iter_mut().find(|(name, _)| name == variable) {
            Some((_, ids)) => ids.extend([",", id]),
            None => variables.push((variable.to_owned().into(), id.to_owned())),
        }
    }
    variables
}

/// The variables of devices that discovery finds.
fn known(driver: &str, visible_ids: &[&str]) -> Vec<(&'static str, String)> {
    if driver == "cpu" {
        let hides = TABLE.iter().filter_map(|row| row.hide);
        return hides.map(|(name, value)| (name, value.to_owned())).collect();
    }
    let Some(row) = TABLE.iter().find(|row| row.driver == driver) else { return Vec::new() };
    // No variable shows a virtual NPU, and a list without them shows nothing else.
    let is_chosen = |id: &&str| !vnpu::is_vnpu(id) && !id.contains(DECLARED);
    let chosen = whole(visible_ids).into_iter().filter(is_chosen);
    let mut variables = vec![(row.variable, chosen.collect::<Vec<_>>().join(","))];
    variables.extend(row.with.map(|(name, value)| (name, value.to_owned())));
    variables.extend(mps::limits(visible_ids));
    variables
}

/// Each device once, in the order given: of one whose shares are held, the device.
fn whole<'a>(visible_ids: &[&'a str]) -> Vec<&'a str> {
    let mut wholes = Vec::new();
    for id in visible_ids.iter().map(|id| mps::whole_id(id)) {
        if !wholes.contains(&id) {
            wholes.push(id);
        }
    }
    wholes
}

/// Arguments that give a container these devices of `driver`; none for a CPU, which every container
/// has. With podman, NVIDIA's and Ascend's devices are the only ones of their vendor in the
/// container; else all of the vendor's are there, and variables choose ([`visible_devices`]).
///
/// NVIDIA's devices go by the names of the Container Device Interface, which
/// `nvidia-ctk cdi generate` writes down for each UUID; Ascend's by their nodes, with the nodes and
/// the driver's directory that Huawei's documentation asks for. Inside, Ascend numbers what it was
/// given from zero. For virtual NPUs Ascend Docker Runtime adds the same nodes where
/// `ASCEND_VISIBLE_DEVICES` and `ASCEND_RUNTIME_OPTIONS=VIRTUAL` ask for them: they are given here,
/// so nothing but podman is needed, and those variables are left alone.
///
/// # Errors
/// Why the runtime cannot show one of them, and what to do instead.
pub fn container_access(
    runtime: ContainerRuntime,
    driver: &str,
    visible_ids: &[&str],
) -> Result<Vec<String>, String> {
    let arguments = |fixed: &[&str]| fixed.iter().map(|one| (*one).to_owned()).collect();
    Ok(match (runtime, driver) {
        (ContainerRuntime::Podman, "cuda") => {
            let device = |id| format!("--device=nvidia.com/gpu={id}");
            let devices = whole(visible_ids).into_iter().map(device);
            devices.chain(mps::container_arguments(visible_ids)).collect()
        }
        (ContainerRuntime::Podman, "rocm") => {
            arguments(&["--device=/dev/kfd", "--device=/dev/dri"])
        }
        (ContainerRuntime::Podman, "cann") => {
            let own = |id: &&str| {
                vnpu::container_argument(id).unwrap_or_else(|| format!("--device=/dev/davinci{id}"))
            };
            let own = visible_ids.iter().map(own);
            let shared = ["davinci_manager", "devmm_svm", "hisi_hdc"];
            let shared = shared.iter().map(|node| format!("--device=/dev/{node}"));
            let numbers: Vec<String> = (0..visible_ids.len()).map(|id| id.to_string()).collect();
            let rest = [
                format!("--volume={ASCEND_DRIVER}:{ASCEND_DRIVER}:ro"),
                format!("--env=ASCEND_RT_VISIBLE_DEVICES={}", numbers.join(",")),
            ];
            own.chain(shared).chain(rest).collect()
        }
        (ContainerRuntime::Apptainer, "cuda") => arguments(&["--nv"]),
        (ContainerRuntime::Apptainer, "rocm") => arguments(&["--rocm"]),
        (ContainerRuntime::Apptainer, "cann") => {
            if let Some(id) = visible_ids.iter().find(|id| vnpu::is_vnpu(id)) {
                return Err(format!(
                    "Apptainer shows `/dev` as it is, so it cannot give `{id}` the name that \
                     programs look for, hint: install podman"
                ));
            }
            arguments(&["--bind", ASCEND_DRIVER])
        }
        _ => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(driver: &str, ids: &[&str], expected: &[(&str, &str)]) {
        let found = visible_devices(driver, ids);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(k, v)| (k.as_ref(), v.as_str())).collect();
        assert_eq!(found, expected, "{driver}");
    }

    #[test]
    fn each_driver_has_its_variable() {
        check(
            "cuda",
            &["GPU-1", "GPU-0"],
            &[("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-0"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")],
        );
        check(
            "cuda",
            &["GPU-1/2/100", "GPU-1/2/100", "GPU-0/2/100"],
            &[
                ("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-0"),
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
                ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
                ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=200M,1=100M"),
            ],
        );
        check("cann", &["3"], &[("ASCEND_RT_VISIBLE_DEVICES", "3")]);
        check("cann", &["vdavinci100"], &[("ASCEND_RT_VISIBLE_DEVICES", "")]);
        check("neuron", &["0-1", "2-3"], &[("NEURON_RT_VISIBLE_CORES", "0-1,2-3")]);
        check("vulkan", &["0"], &[]);
        check("photon", &["PHOTONS=b", "PHOTONS=a"], &[("PHOTONS", "b,a")]);
        check("photon", &["=0"], &[]);
    }

    #[test]
    fn a_container_gets_its_own_devices() {
        let check = |driver, ids: &[&str], expected: &str| {
            let arguments = container_access(ContainerRuntime::Podman, driver, ids);
            assert_eq!(
                arguments.map(|arguments| arguments.join(" ")),
                Ok(expected.to_owned()),
                "{driver}"
            );
        };
        check("cuda", &["GPU-1"], "--device=nvidia.com/gpu=GPU-1");
        check(
            "cuda",
            &["GPU-1/2/100"],
            "--device=nvidia.com/gpu=GPU-1 --ipc=host --volume=/tmp/nvidia-mps:/tmp/nvidia-mps",
        );
        check("cpu", &["0"], "");
        check(
            "cann",
            &["3", "5"],
            "--device=/dev/davinci3 --device=/dev/davinci5 --device=/dev/davinci_manager \
             --device=/dev/devmm_svm --device=/dev/hisi_hdc \
             --volume=/usr/local/Ascend/driver:/usr/local/Ascend/driver:ro \
             --env=ASCEND_RT_VISIBLE_DEVICES=0,1",
        );
        check(
            "cann",
            &["vdavinci101"],
            "--device=/dev/vdavinci101:/dev/davinci101 --device=/dev/davinci_manager \
             --device=/dev/devmm_svm --device=/dev/hisi_hdc \
             --volume=/usr/local/Ascend/driver:/usr/local/Ascend/driver:ro \
             --env=ASCEND_RT_VISIBLE_DEVICES=0",
        );
    }

    #[test]
    fn apptainer_cannot_rename_a_virtual_npu() {
        let arguments = |ids: &[&str]| container_access(ContainerRuntime::Apptainer, "cann", ids);
        assert_eq!(arguments(&["3"]), Ok(vec!["--bind".to_owned(), ASCEND_DRIVER.to_owned()]));
        let error = arguments(&["3", "vdavinci101"]).expect_err("it has no name inside");
        assert!(error.contains("hint: install podman"), "{error}");
    }

    #[test]
    fn a_processor_stage_sees_no_accelerator() {
        check(
            "cpu",
            &["0"],
            &[
                ("CUDA_VISIBLE_DEVICES", ""),
                ("HIP_VISIBLE_DEVICES", "-1"),
                ("ASCEND_RT_VISIBLE_DEVICES", ""),
                ("ONEAPI_DEVICE_SELECTOR", "*:cpu"),
                ("MUSA_VISIBLE_DEVICES", ""),
                ("MLU_VISIBLE_DEVICES", ""),
            ],
        );
    }
}
