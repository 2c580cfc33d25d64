//! The drivers of this trainer, and the choice of one.

use crate::error::{Error, Result};
use serde::Deserialize;

/// The driver of the processor's cores.
pub const CPU: &str = "cpu";

/// Every driver this trainer has.
pub const KNOWN: [&str; 1] = [CPU];

/// What a worker computes with: its own cores, or a device that it alone opens, so that what a
/// driver crashes is a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WorkerDriver {
    #[default]
    Cpu,
    /// The device of this number.
    Vulkan(usize),
}

impl WorkerDriver {
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => CPU,
            Self::Vulkan(_) => "vulkan",
        }
    }
}

impl std::str::FromStr for WorkerDriver {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, number) = text.split_once(':').unwrap_or((text, "0"));
        match (name, number.parse()) {
            (CPU, _) if name == text => Ok(Self::Cpu),
            ("vulkan", Ok(number)) => Ok(Self::Vulkan(number)),
            _ => Err("there are `cpu`, `vulkan` and `vulkan:N`".to_owned()),
        }
    }
}

/// One entry of `HET_DEVICES`.
#[derive(Debug, Deserialize)]
struct GivenDevice {
    driver: Option<String>,
    kind: Option<String>,
}

/// Resolves `auto` to the driver of the first device that the scheduler gave, else `cpu`.
pub fn resolve(wanted: &str, devices: Option<&str>) -> Result<String> {
    let name = match (wanted, devices) {
        ("auto", None | Some("")) => CPU.to_owned(),
        ("auto", Some(json)) => {
            let given: Vec<GivenDevice> = serde_json::from_str(json).map_err(|error| {
                let what = format!("`HET_DEVICES` is not a list of devices: {error}");
                Error::Usage { what, hint: "unset `HET_DEVICES`, or pass `--driver cpu`" }
            })?;
            let first = given.into_iter().next();
            first.and_then(|device| device.driver.or(device.kind)).unwrap_or_else(|| CPU.into())
        }
        (name, _) => name.to_owned(),
    };
    if KNOWN.contains(&name.as_str()) {
        return Ok(name);
    }
    Err(Error::Usage {
        what: format!("the trainer has no driver `{name}`"),
        hint: "use `--driver cpu`, or run another program in the job",
    })
}

/// As [`resolve`], for the devices in this process's environment.
pub fn chosen(wanted: &str) -> Result<String> {
    resolve(wanted, std::env::var("HET_DEVICES").ok().as_deref())
}
