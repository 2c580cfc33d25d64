//! How loaded a node and its devices are: what works, how fast its clock runs, what waits.

use std::collections::BTreeMap;

use het_core::{Bytes, DeviceId};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::Clock as NvmlClock;
use nvml_wrapper::{Device, Nvml};

use crate::drivers::nvml;
use crate::kernel::files::SystemFiles;
use crate::kernel::parse::{clock_levels, core_ticks, pressure};
use crate::mps::whole_id;
use crate::{Discovery, System};

/// What a device does; `None` where nothing says so.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DeviceLoad {
    /// Part of the time in which it worked: since the reading before (a CPU: of all its cores), or
    /// in the last period of its driver.
    pub busy: Option<f64>,
    pub memory_used: Option<Bytes>,
    pub clock: Option<Clock>,
    /// The part of its speed to which heat or a lack of power holds it down, while they do. A
    /// power limit that it works up to by design does not count.
    pub throttled_to: Option<f64>,
}

/// A clock in MHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    pub mhz: u32,
    /// At which its maker rates it; of a CPU without its turbo.
    pub rated_mhz: u32,
}

impl Clock {
    /// Part of the rated clock, at most all of it.
    pub fn part(self) -> f64 {
        (f64::from(self.mhz) / f64::from(self.rated_mhz.max(1))).min(1.0)
    }
}

/// Parts of the last ten seconds in which tasks of the node waited: the kernel's pressure stall
/// information, for some of the tasks or for all of them at once.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pressure {
    pub cpu_some: f64,
    pub memory_full: f64,
    pub io_full: f64,
}

/// A node at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeLoad {
    pub devices: BTreeMap<DeviceId, DeviceLoad>,
    /// `None` where the kernel does not measure it.
    pub pressure: Option<Pressure>,
}

enum Source {
    /// By UUID.
    Nvml(String),
    /// An amdgpu function's directory.
    Amdgpu(String),
    Socket(Socket),
}

/// A CPU socket.
struct Socket {
    cores: Vec<u32>,
    /// Sums of its cores at the reading before: busy and in all, in ticks.
    ticks: Option<(u64, u64)>,
    /// How often each core was slowed because it was hot, since boot.
    throttlings: BTreeMap<u32, u64>,
}

/// Open sources: keep it and read often, for loading NVML costs far more than a reading.
pub struct LoadSource {
    files: SystemFiles,
    nvml: Option<Nvml>,
    sources: BTreeMap<DeviceId, Source>,
}

impl std::fmt::Debug for LoadSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadSource").field("devices", &self.sources.len()).finish()
    }
}

impl LoadSource {
    /// Opens what the discovered devices need; NVML only if one of them is NVIDIA's.
    pub fn open(system: &System, discovery: &Discovery) -> Self {
        let files = SystemFiles::new(&system.root);
        let mut sources = BTreeMap::new();
        for id in discovery.topology.device_ids() {
            let device = discovery.topology.device(id);
            if let Some(cores) = discovery.cores.get(&id) {
                let socket =
                    Socket { cores: cores.clone(), ticks: None, throttlings: BTreeMap::new() };
                sources.insert(id, Source::Socket(socket));
                continue;
            }
            if device.drivers.iter().any(|driver| driver == "cuda") {
                sources.insert(id, Source::Nvml(whole_id(device.visible_id.as_str()).to_owned()));
                continue;
            }
            let address = discovery.places.get(&id).and_then(|place| place.address);
            let directory = address.map(|address| format!("sys/bus/pci/devices/{address}"));
            let has_counters = |path: &String| files.exists(&format!("{path}/gpu_busy_percent"));
            if let Some(directory) = directory.filter(has_counters) {
                sources.insert(id, Source::Amdgpu(directory));
            }
        }
        let needs_nvml = sources.values().any(|source| matches!(source, Source::Nvml(_)));
        let nvml = needs_nvml.then(nvml::open).and_then(Result::ok);
        Self { files, nvml, sources }
    }

    /// One reading; devices that have no counters are absent. How busy a CPU was is known from the
    /// second reading on.
    pub fn read(&mut self) -> NodeLoad {
        let Self { files, nvml, sources } = self;
        let cores = core_ticks(&files.text("proc/stat").unwrap_or_default());
        let read_one = |source: &mut Source| match source {
            Source::Nvml(uuid) => {
                let device = nvml.as_ref().and_then(|it| it.device_by_uuid(uuid.as_str()).ok());
                device.map(|device| of_nvml(&device)).unwrap_or_default()
            }
            Source::Amdgpu(path) => of_amdgpu(files, path),
            Source::Socket(socket) => socket.read(files, &cores),
        };
        let devices = sources.iter_mut().map(|(&id, source)| (id, read_one(source))).collect();
        NodeLoad { devices, pressure: read_pressure(files) }
    }
}

fn read_pressure(files: &SystemFiles) -> Option<Pressure> {
    let of = |resource: &str, who: &str| {
        pressure(&files.text(&format!("proc/pressure/{resource}"))?, who)
    };
    Some(Pressure {
        cpu_some: of("cpu", "some")?,
        memory_full: of("memory", "full")?,
        io_full: of("io", "full")?,
    })
}

fn of_nvml(device: &Device<'_>) -> DeviceLoad {
    let (now, rated) =
        (device.clock_info(NvmlClock::SM).ok(), device.max_clock_info(NvmlClock::SM).ok());
    let held_down = ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::SW_THERMAL_SLOWDOWN;
    let reasons = device.current_throttle_reasons();
    let is_held_down = reasons.is_ok_and(|reasons| reasons.intersects(held_down));
    let busy = device.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 100.0);
    let clock = now.zip(rated).map(|(mhz, rated_mhz)| Clock { mhz, rated_mhz });
    // The clock of one that has nothing to do is low anyhow.
    let works = busy.is_some_and(|busy| busy > 0.1);
    DeviceLoad {
        busy,
        memory_used: device.memory_info().ok().map(|memory| Bytes(memory.used)),
        clock,
        throttled_to: clock.filter(|_| is_held_down && works).map(Clock::part),
    }
}

fn of_amdgpu(files: &SystemFiles, path: &str) -> DeviceLoad {
    let busy = files.number(&format!("{path}/gpu_busy_percent"));
    let levels = files.text(&format!("{path}/pp_dpm_sclk"));
    let clock = levels.as_deref().and_then(clock_levels);
    DeviceLoad {
        busy: busy.map(|percent: u32| f64::from(percent) / 100.0),
        memory_used: files.number(&format!("{path}/mem_info_vram_used")).map(Bytes),
        clock: clock.map(|(mhz, rated_mhz)| Clock { mhz, rated_mhz }),
        throttled_to: None,
    }
}

impl Socket {
    fn read(&mut self, files: &SystemFiles, cores: &BTreeMap<u32, (u64, u64)>) -> DeviceLoad {
        let of_socket = self.cores.iter().filter_map(|core| cores.get(core));
        let now = of_socket.fold((0, 0), |sum, ticks| (sum.0 + ticks.0, sum.1 + ticks.1));
        let before = self.ticks.replace(now);
        let span =
            before.map(|(busy, all)| (now.0.saturating_sub(busy), now.1.saturating_sub(all)));
        let busy = span.filter(|(_, all)| *all > 0).map(|(busy, all)| busy as f64 / all as f64);
        DeviceLoad {
            busy,
            memory_used: None,
            clock: clock_of(files, &self.cores),
            throttled_to: self.throttled_to(files),
        }
    }

    /// What is left of it where cores were slowed since the reading before: the others have all of
    /// their speed, however slow the clocks of those are that have nothing to do.
    fn throttled_to(&mut self, files: &SystemFiles) -> Option<f64> {
        let mut lost = 0.0;
        for &core in &self.cores {
            let path = format!("sys/devices/system/cpu/cpu{core}/thermal_throttle");
            let count = files.number(&format!("{path}/core_throttle_count"));
            let Some(count): Option<u64> = count else { continue };
            let before = self.throttlings.insert(core, count);
            if before.is_some_and(|before| count > before) {
                lost += clock_of(files, &[core]).map_or(0.0, |clock| 1.0 - clock.part());
            }
        }
        (lost > 0.0).then(|| 1.0 - lost / self.cores.len() as f64)
    }
}

/// The mean of these cores.
fn clock_of(files: &SystemFiles, cores: &[u32]) -> Option<Clock> {
    let khz = |core: &u32, name: &str| -> Option<u64> {
        files.number(&format!("sys/devices/system/cpu/cpu{core}/cpufreq/{name}"))
    };
    let now: Vec<u64> = cores.iter().filter_map(|core| khz(core, "scaling_cur_freq")).collect();
    let first = cores.first()?;
    let rated = khz(first, "base_frequency").or_else(|| khz(first, "cpuinfo_max_freq"))?;
    let mean = now.iter().sum::<u64>().checked_div(now.len() as u64)?;
    let mhz = |khz: u64| u32::try_from(khz / 1_000).unwrap_or(u32::MAX);
    Some(Clock { mhz: mhz(mean), rated_mhz: mhz(rated) })
}
