//! The drivers of this trainer, and the choice of one.

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::weights::Weights;
use serde::Deserialize;
use std::sync::Arc;

/// The driver of the processor's cores.
pub const CPU: &str = "cpu";

/// Every driver this trainer knows, and whether this binary has it.
pub const KNOWN: [(&str, bool); 4] = [
    (CPU, true),
    ("flex", cfg!(feature = "flex")),
    ("vulkan", cfg!(feature = "vulkan")),
    ("cuda", cfg!(feature = "cuda")),
];

/// One entry of `HET_DEVICES`.
#[derive(Debug, Deserialize)]
struct GivenDevice {
    driver: Option<String>,
    kind: Option<String>,
}

/// Resolves `auto` to the driver of the first device that the scheduler gave, else `cpu`.
pub fn resolve(wanted: &str, devices: Option<&str>) -> Result<String> {
    let name = match (wanted, devices) {
        ("auto", None | Some("")) => "cpu".to_owned(),
        ("auto", Some(json)) => {
            let given: Vec<GivenDevice> = serde_json::from_str(json).map_err(|error| {
                let what = format!("`HET_DEVICES` is not a list of devices: {error}");
                Error::Usage { what, hint: "unset `HET_DEVICES`, or pass `--driver cpu`" }
            })?;
            let first = given.into_iter().next();
            first.and_then(|device| device.driver.or(device.kind)).unwrap_or_else(|| "cpu".into())
        }
        (name, _) => name.to_owned(),
    };
    match KNOWN.iter().find(|(known, _)| *known == name) {
        Some((_, true)) => Ok(name),
        Some((_, false)) => Err(Error::DriverMissing { driver: name }),
        None => Err(Error::Usage {
            what: format!("the trainer has no driver `{name}`"),
            hint: "use `cpu`, `flex`, `vulkan` or `cuda`, or run another program in the job",
        }),
    }
}

/// Starts a driver that [`resolve`] accepted.
pub fn start(name: &str, weights: &Arc<Weights>) -> Result<Box<dyn Driver>> {
    match name {
        "cpu" => Ok(Box::new(crate::cpu::Cpu::new(weights.clone()))),
        #[cfg(any(feature = "flex", feature = "vulkan", feature = "cuda"))]
        other => crate::burn_driver::start(other, weights),
        #[cfg(not(any(feature = "flex", feature = "vulkan", feature = "cuda")))]
        other => Err(Error::DriverMissing { driver: other.to_owned() }),
    }
}
