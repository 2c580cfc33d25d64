//! What training and evaluation ask of a device.
//!
//! A driver computes losses and gradients. What learns, the optimiser and the checkpoints stay on
//! the host, so they are the same for every driver; parameters that all learn lie with the driver,
//! so that there is one copy of them.

use crate::batch::Batch;
use crate::error::Result;
use crate::lora::Adapter;
use crate::weights::Parameters;

/// What a backward computes again instead of keeping it since the forward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Recompute {
    #[default]
    Nothing,
    /// All of a layer but its input (Chen et al. 2016): a third more work. The results are the
    /// same bits.
    Layers,
}

pub trait Driver {
    /// What really computes, in words for a report.
    fn detail(&self) -> String;

    /// Takes over new adapter values; before the first call the base weights are used as they are.
    fn use_adapter(&mut self, adapter: &Adapter) -> Result<()>;

    /// The values that it computes with, for an optimiser that changes all of them.
    fn parameters(&mut self) -> &mut Parameters;

    fn set_recompute(&mut self, recompute: Recompute);

    /// The likeliest tokens after each prompt, up to and without `end`, at most `new_max` of them.
    fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        end: Option<u32>,
        new_max: usize,
    ) -> Result<Vec<Vec<u32>>>;

    /// Loss summed over the scored rows.
    fn loss(&mut self, batch: &Batch) -> Result<f64>;

    /// As [`Driver::loss`], and adds the gradient of that sum to `gradient`, laid out as the
    /// adapter's values.
    fn gradients(&mut self, adapter: &Adapter, batch: &Batch, gradient: &mut [f32]) -> Result<f64>;

    /// As [`Driver::loss`], and adds the gradients of that sum for every parameter.
    fn full_gradients(&mut self, batch: &Batch, gradient: &mut Parameters) -> Result<f64>;
}
