//! Drivers, a folder or file a kind of device.

pub mod cpu;
pub mod dummy;
pub mod process;
