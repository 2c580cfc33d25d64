//! A Vulkan device: buffers that the processor sees too, the kernels of `shaders/`, and one queue
//! on which they run in order.
//!
//! [`Device::run`] records kernels, submits them and waits: the processor never looks at a buffer
//! while the device does. [`kernels`] check that what a kernel touches lies in its buffers, so
//! that nothing here is unsafe to call. Record 57 says why it is Vulkan through `ash`, and 69 what
//! computes on it.
//!
//! It knows nothing of models, tasks or workers.

mod device;
pub mod kernels;
mod shaders;

pub use device::{Buffer, Device, Error, Recorder};
