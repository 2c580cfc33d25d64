//! The worker's end: kernels of the same kind, over values that the program sends.

use super::kernels::{Kernel, Kernels, Learns};
use super::{unlike, vulkan};
use crate::architecture::Architecture;
use crate::drivers::WorkerDriver;
use crate::error::{Error, Result};
use crate::lora::Adapter;
use het_blocks::linear::Numbers;
use het_runtime::drivers::process::{self, Connection};
use std::sync::Arc;

/// Computes what a program asks for that has an executor of the same kind, until it ends.
///
/// # Errors
/// A program that is no such one, a connection that breaks, and a device that is not there.
pub fn serve(
    connection: Connection,
    architecture: Architecture,
    (adapter, numbers): (Option<&Adapter>, Numbers),
    driver: WorkerDriver,
) -> Result<()> {
    let learns =
        adapter.map_or(Learns::All(numbers), |own| Learns::Adapter(own.with_values(Vec::new())));
    let own = driver.name();
    let served = match driver {
        WorkerDriver::Cpu => {
            let kernels = Arc::new(Kernels::new(architecture, learns));
            let names = Kernel::ALL.into_iter().map(|(_, name)| name.to_owned());
            process::serve(connection, (own, own, u64::MAX), names.zip(kernels.code()).collect())
        }
        WorkerDriver::Vulkan(number) => {
            let failed = |error: het_vulkan::Error| Error::DriverFailed {
                driver: own.to_owned(),
                what: error.to_string(),
            };
            let device = het_vulkan::Device::open(number).map_err(failed)?;
            let kernels = Arc::new(vulkan::Kernels::new(device, architecture, learns));
            process::serve(connection, (own, own, u64::MAX), kernels.code())
        }
    };
    served.map_err(|error| unlike(error.to_string()))
}
