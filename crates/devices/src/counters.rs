//! How busy the devices are right now.

use std::collections::BTreeMap;

use het_core::{Bytes, DeviceId};
use nvml_wrapper::Nvml;

use crate::drivers::nvml;
use crate::kernel::files::SystemFiles;
use crate::mps::whole_id;
use crate::{Discovery, System};

/// A device's counters; `None` where its driver has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Percent of the driver's last sample period in which something ran.
    pub busy_percent: Option<u32>,
    pub memory_used: Option<Bytes>,
}

enum Source {
    /// By UUID.
    Nvml(String),
    /// An amdgpu function's directory.
    Sysfs(String),
}

/// Open counters: keep it and read often, for loading NVML costs far more than a reading.
pub struct CounterSource {
    files: SystemFiles,
    nvml: Option<Nvml>,
    sources: BTreeMap<DeviceId, Source>,
}

impl std::fmt::Debug for CounterSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CounterSource").field("devices", &self.sources.len()).finish()
    }
}

impl CounterSource {
    /// Opens what the discovered devices need; NVML only if one of them is NVIDIA's.
    pub fn open(system: &System, discovery: &Discovery) -> Self {
        let files = SystemFiles::new(&system.root);
        let mut sources = BTreeMap::new();
        for id in discovery.topology.device_ids() {
            let device = discovery.topology.device(id);
            if device.drivers.iter().any(|driver| driver == "cuda") {
                sources.insert(id, Source::Nvml(whole_id(device.visible_id.as_str()).to_owned()));
                continue;
            }
            let address = discovery.places.get(&id).and_then(|place| place.address);
            let directory = address.map(|address| format!("sys/bus/pci/devices/{address}"));
            let has_counters = |path: &String| files.exists(&format!("{path}/gpu_busy_percent"));
            if let Some(directory) = directory.filter(has_counters) {
                sources.insert(id, Source::Sysfs(directory));
            }
        }
        let needs_nvml = sources.values().any(|source| matches!(source, Source::Nvml(_)));
        let nvml = needs_nvml.then(nvml::open).and_then(Result::ok);
        Self { files, nvml, sources }
    }

    /// One reading; devices that have no counters are absent.
    pub fn read(&self) -> BTreeMap<DeviceId, Counters> {
        self.sources.iter().map(|(&id, source)| (id, self.read_one(source))).collect()
    }

    fn read_one(&self, source: &Source) -> Counters {
        match source {
            Source::Nvml(uuid) => {
                let nvml = self.nvml.as_ref();
                let device = nvml.and_then(|nvml| nvml.device_by_uuid(uuid.as_str()).ok());
                let Some(device) = device else { return Counters::default() };
                Counters {
                    busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
                    memory_used: device.memory_info().ok().map(|memory| Bytes(memory.used)),
                }
            }
            Source::Sysfs(path) => Counters {
                busy_percent: self.files.number(&format!("{path}/gpu_busy_percent")),
                memory_used: self.files.number(&format!("{path}/mem_info_vram_used")).map(Bytes),
            },
        }
    }
}

/// A single reading of the discovered devices' counters.
pub fn counters(system: &System, discovery: &Discovery) -> BTreeMap<DeviceId, Counters> {
    CounterSource::open(system, discovery).read()
}
