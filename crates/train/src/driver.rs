//! What training and evaluation ask of a device.
//!
//! A driver computes losses and adapter gradients. The adapter, the optimiser and the checkpoints
//! stay on the host, so they are the same for every driver.

use crate::batch::Batch;
use crate::error::Result;
use crate::lora::Adapter;

pub trait Driver {
    /// What really computes, in words for a report.
    fn detail(&self) -> String;

    /// Takes over new adapter values; before the first call the base weights are used as they are.
    fn use_adapter(&mut self, adapter: &Adapter) -> Result<()>;

    /// Loss summed over the scored rows.
    fn loss(&mut self, batch: &Batch) -> Result<f64>;

    /// As [`Driver::loss`], and adds the gradient of that sum to `gradient`, laid out as the
    /// adapter's values.
    fn gradients(&mut self, adapter: &Adapter, batch: &Batch, gradient: &mut [f32]) -> Result<f64>;
}
