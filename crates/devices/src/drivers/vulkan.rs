//! Vulkan devices, listed by a process of their own: a driver that crashes takes only the probe
//! with it.
//!
//! The probe prints JSON lines on stdout: a greeting, a line a device, an end. What a driver prints
//! between them is passed over; without the end the probe has died on the way.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use ash::vk;
use serde::{Deserialize, Serialize};

use crate::PciAddress;

/// The hidden subcommand by which a program offers [`vulkan_probe_main`].
pub const VULKAN_PROBE_COMMAND: &str = "__probe-vulkan";

/// Set for the probe, so that a program that does not know the subcommand and discovers devices
/// instead does not start a probe of its own, and so on for ever.
const PROBE_VARIABLE: &str = "HET_VULKAN_PROBE";
/// A cold lavapipe takes 0.1 s, a machine with 16 GPUs some seconds.
const PROBE_LIMIT: Duration = Duration::from_secs(15);
const PROBE_OUTPUT_BYTES_MAX: u64 = 1 << 20;
const PROTOCOL_VERSION: u32 = 1;

/// What Vulkan says, or why it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum VulkanProbe {
    /// Nobody looked.
    #[default]
    NotAsked,
    /// There is no loader (`libvulkan.so.1`).
    Missing,
    /// The loader or the probe does not work.
    Failed {
        why: String,
    },
    /// A driver took the probe down: signal or exit code.
    Crashed {
        how: String,
    },
    TimedOut {
        limit: Duration,
    },
    Found(Vec<VulkanDevice>),
}

/// A physical device as Vulkan describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VulkanDevice {
    pub index: u32,
    pub name: String,
    pub vendor: u32,
    pub device: u32,
    pub kind: VulkanKind,
    /// The largest device-local heap.
    pub memory_bytes: u64,
    /// Where the driver has `VK_EXT_pci_bus_info`.
    pub address: Option<PciAddress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VulkanKind {
    Discrete,
    Integrated,
    Virtual,
    /// Imitated on the processor: lavapipe, SwiftShader.
    Software,
    Other,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Probe { version: u32 },
    Missing { why: String },
    Failed { why: String },
    Device(VulkanDevice),
    End,
}

impl VulkanProbe {
    /// Asks a child of the running program, which must offer [`VULKAN_PROBE_COMMAND`].
    pub fn this_program() -> Self {
        match std::env::current_exe() {
            Ok(program) => Self::run(&program, &[VULKAN_PROBE_COMMAND], PROBE_LIMIT),
            Err(error) => Self::Failed { why: error.to_string() },
        }
    }

    /// Runs `program` and reads its answer for at most `limit`.
    pub fn run(program: &Path, arguments: &[&str], limit: Duration) -> Self {
        if std::env::var_os(PROBE_VARIABLE).is_some() {
            return Self::NotAsked;
        }
        let child = Command::new(program)
            .args(arguments)
            .env(PROBE_VARIABLE, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => watch(child, limit),
            Err(error) => Self::Failed { why: error.to_string() },
        }
    }
}

fn watch(mut child: Child, limit: Duration) -> VulkanProbe {
    let Some(stdout) = child.stdout.take() else {
        return VulkanProbe::Failed { why: "the probe has no output".to_owned() };
    };
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = Vec::new();
        for line in BufReader::new(stdout.take(PROBE_OUTPUT_BYTES_MAX)).split(b'\n') {
            let Ok(line) = line else { break };
            lines.extend(serde_json::from_slice::<Line>(&line).ok());
            if matches!(lines.last(), Some(Line::End)) {
                break;
            }
        }
        // The receiver is gone only when the time was up.
        drop(sender.send(lines));
    });
    let lines = receiver.recv_timeout(limit).ok();
    // After its answer the probe has nothing left to do but fail in a driver's exit handler. One
    // that has died already keeps the status it died with.
    drop(child.kill());
    let status = child.wait().ok();
    match lines {
        Some(lines) => answer(lines, status),
        None => VulkanProbe::TimedOut { limit },
    }
}

fn answer(lines: Vec<Line>, status: Option<ExitStatus>) -> VulkanProbe {
    let mut greeted = false;
    let mut ended = false;
    let mut devices = Vec::new();
    for line in lines {
        match line {
            Line::Probe { version } => greeted = version == PROTOCOL_VERSION,
            Line::Missing { .. } => return VulkanProbe::Missing,
            Line::Failed { why } => return VulkanProbe::Failed { why },
            Line::Device(device) => devices.push(device),
            Line::End => ended = true,
        }
    }
    match (greeted, ended) {
        (true, true) => VulkanProbe::Found(devices),
        (true, false) => VulkanProbe::Crashed { how: death(status) },
        (false, _) => VulkanProbe::Failed {
            why: format!("this program does not know `{VULKAN_PROBE_COMMAND}`"),
        },
    }
}

fn death(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.signal(), status.code())) {
        Some((Some(signal), _)) => format!("signal {signal}"),
        Some((None, Some(code))) => format!("exit code {code}"),
        _ => "it ended without an answer".to_owned(),
    }
}

/// The body of the hidden subcommand: lists Vulkan devices on stdout. It must do nothing else, and
/// nothing may have been printed on stdout before.
pub fn vulkan_probe_main() -> ExitCode {
    match probe(&mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn probe(out: &mut dyn Write) -> io::Result<()> {
    let mut say = |line: &Line| {
        serde_json::to_writer(&mut *out, line)?;
        out.write_all(b"\n")?;
        // The next call into a driver may be the last.
        out.flush()
    };
    say(&Line::Probe { version: PROTOCOL_VERSION })?;
    // SAFETY: loading a library runs its initialisers; this process exists to take that risk.
    let entry = match unsafe { ash::Entry::load() } {
        Ok(entry) => entry,
        Err(error) => return say(&Line::Missing { why: error.to_string() }),
    };
    let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
    let request = vk::InstanceCreateInfo::default().application_info(&application);
    // SAFETY: `request` and what it points at outlive the call.
    let instance = match unsafe { entry.create_instance(&request, None) } {
        Ok(instance) => instance,
        // A loader without any driver: no devices, nothing broken.
        Err(vk::Result::ERROR_INCOMPATIBLE_DRIVER) => return say(&Line::End),
        Err(error) => return say(&Line::Failed { why: error.to_string() }),
    };
    // SAFETY: the instance is live.
    let devices = match unsafe { instance.enumerate_physical_devices() } {
        Ok(devices) => devices,
        Err(error) => return say(&Line::Failed { why: error.to_string() }),
    };
    for (index, &device) in (0..).zip(&devices) {
        say(&Line::Device(describe(&instance, index, device)))?;
    }
    say(&Line::End)?;
    // Unloading gives drivers one more chance to crash; the end of the process frees everything.
    std::mem::forget(entry);
    Ok(())
}

fn describe(instance: &ash::Instance, index: u32, device: vk::PhysicalDevice) -> VulkanDevice {
    // SAFETY: `device` was listed by the live `instance`, here and below.
    let properties = unsafe { instance.get_physical_device_properties(device) };
    // SAFETY: as above.
    let memory = unsafe { instance.get_physical_device_memory_properties(device) };
    let local = |heap: &&vk::MemoryHeap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
    let name = properties.device_name_as_c_str().map(|name| name.to_string_lossy().into_owned());
    VulkanDevice {
        index,
        name: name.unwrap_or_default(),
        vendor: properties.vendor_id,
        device: properties.device_id,
        kind: match properties.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => VulkanKind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => VulkanKind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => VulkanKind::Virtual,
            vk::PhysicalDeviceType::CPU => VulkanKind::Software,
            _ => VulkanKind::Other,
        },
        memory_bytes: memory
            .memory_heaps_as_slice()
            .iter()
            .filter(local)
            .map(|heap| heap.size)
            .max()
            .unwrap_or(0),
        address: address(instance, device, properties.api_version),
    }
}

fn address(
    instance: &ash::Instance,
    device: vk::PhysicalDevice,
    api_version: u32,
) -> Option<PciAddress> {
    // SAFETY: `device` was listed by the live `instance`.
    let extensions = unsafe { instance.enumerate_device_extension_properties(device) }.ok()?;
    let named = |extension: &vk::ExtensionProperties| {
        extension.extension_name_as_c_str() == Ok(ash::ext::pci_bus_info::NAME)
    };
    if api_version < vk::API_VERSION_1_1 || !extensions.iter().any(named) {
        return None;
    }
    let mut place = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut place);
    // SAFETY: the device is of version 1.1, which has the call, and has the extension whose
    // structure is chained.
    unsafe { instance.get_physical_device_properties2(device, &mut properties) };
    Some(PciAddress {
        domain: place.pci_domain,
        bus: u8::try_from(place.pci_bus).ok()?,
        device: u8::try_from(place.pci_device).ok()?,
        function: u8::try_from(place.pci_function).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(script: &str, expected: &VulkanProbe) {
        let limit = Duration::from_secs(2);
        assert_eq!(&VulkanProbe::run(Path::new("/bin/sh"), &["-c", script], limit), expected);
    }

    const HELLO: &str = r#"echo '{"probe":{"version":1}}';"#;

    #[test]
    fn noise_between_the_lines_is_passed_over() {
        let script = format!("{HELLO} echo 'MESA: warning'; echo '\"end\"'; kill -SEGV $$");
        check(&script, &VulkanProbe::Found(Vec::new()));
    }

    #[test]
    fn a_crash_is_a_value() {
        let how = "signal 11".to_owned();
        check(&format!("{HELLO} kill -SEGV $$"), &VulkanProbe::Crashed { how });
        let how = "exit code 3".to_owned();
        check(&format!("{HELLO} exit 3"), &VulkanProbe::Crashed { how });
    }

    #[test]
    fn a_program_without_the_subcommand_is_a_value() {
        let why = format!("this program does not know `{VULKAN_PROBE_COMMAND}`");
        check("echo usage: het", &VulkanProbe::Failed { why });
    }

    #[test]
    fn a_driver_that_hangs_is_given_up() {
        let limit = Duration::from_millis(50);
        let script = format!("{HELLO} exec sleep 60");
        let found = VulkanProbe::run(Path::new("/bin/sh"), &["-c", &script], limit);
        assert_eq!(found, VulkanProbe::TimedOut { limit });
    }

    #[test]
    fn the_probe_itself_always_ends_its_answer() {
        let mut out = Vec::new();
        probe(&mut out).expect("a vector takes everything");
        let lines: Vec<Line> = out
            .split(|&byte| byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        let found = answer(lines, None);
        assert!(
            matches!(found, VulkanProbe::Missing | VulkanProbe::Found(_)),
            "a machine without Vulkan says so, one with it lists its devices: {found:?}"
        );
        if found == VulkanProbe::Missing {
            report_skip("no Vulkan loader here, so no device was listed");
        }
    }
    fn report_skip(why: &str) {
        eprintln!("SKIPPED: {why}");
    }
}
