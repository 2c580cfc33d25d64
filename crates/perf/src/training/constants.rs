//! The constants of the model: what each means, its unit, and what it was fitted to.
//!
//! Those fitted are of `cargo run --release -p het-lab --example planner_constants FOLDER`: robust
//! least squares on the logarithm of step times. `Efficiency::A100` is fitted to vTrain's many-node
//! rows up to tensor 8, its single-node rows, MosaicML's A100 rows at once; `Efficiency::H100` to
//! MosaicML's H100 rows, NeMo 24.07's pretraining rows and Megatron-Bridge's H100 rows, with the
//! host's constants kept of the A100. Korthikanti's table, BLOOM, MT-NLG, fine-tuning and rows
//! with tensor 16 took no part. `docs/studies/planner.md` has the errors.

use super::{ParallelConfig, Precision, Transformer};

/// What a device class and the software on it reach. Shares are fractions of the peak.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Efficiency {
    /// Of the peak of 16 bits (and of 32), by matrix products.
    pub matrix: f64,
    /// Of the peak of 8 bits, with the conversions that come with them.
    pub matrix_fp8: f64,
    /// Of memory bandwidth, by element-wise kernels that touch everything once.
    pub stream: f64,
    /// Of the 16-bit peak, by `Flash1`, `Flash2` and `Flash3` attention, counting masked products
    /// too: a kernel that skips them may pass 1.
    pub flash: [f64; 3],
    /// Seconds for the host to start the kernels of a layer, forward and backward.
    pub launch_forward_s: f64,
    pub launch_backward_s: f64,
    /// More of them for each doubling of the tensor group.
    pub launch_tensor_s: f64,
    /// Seconds of a step that nothing else explains: reading samples, clipping, bookkeeping.
    pub step_s: f64,
    /// Of the network's line rate.
    pub network: f64,
    /// What is left to see of split tensor exchange beside products in 8 bits and in 16, and of
    /// split data exchange (`Overlap::Split`).
    pub tensor_exposed: f64,
    pub tensor_exposed_half: f64,
    pub data_exposed: f64,
    /// Slowdown of pipelines over several nodes for each further tensor group in a node. Empirical:
    /// of vTrain's 20 such runs of 39.1B, 13 took 15 to 61 % longer than the sum of their parts and
    /// the rest no longer; nothing in their configuration tells which.
    pub crowding: f64,
    /// Calibration's factor on all exchange; 1 before.
    pub communication_scale: f64,
    /// Mean relative error to expect of a step time; of 16-bit steps with tensor or pipeline
    /// parallel at least the second.
    pub error: f64,
    pub error_cut: f64,
}

impl Efficiency {
    /// Error over the A100 rows, four-fold cross-validated. `Flash2` and `Flash3` stand at what was
    /// measured for `Flash1`; splits as on the H100.
    pub const A100: Self = Self {
        matrix: 0.769,
        matrix_fp8: 0.579,
        stream: 0.893,
        flash: [0.607, 0.607, 0.607],
        launch_forward_s: 0.749e-3,
        launch_backward_s: 1.444e-3,
        launch_tensor_s: 87.9e-6,
        step_s: 0.80e-3,
        network: 0.9,
        tensor_exposed: 0.282,
        tensor_exposed_half: 1.0,
        data_exposed: 0.358,
        crowding: 0.05,
        communication_scale: 1.0,
        error: 0.07,
        error_cut: 0.07,
    };

    /// Error over the H100 rows, four-fold cross-validated. No 16-bit row among them is cut by
    /// tensor or pipeline. That no tensor exchange is hidden there is read off every other of 11
    /// runs of Megatron-Core r0.8, whose microbatch is not published; of the rest and of Meta's
    /// Llama 3 405B (Dubey et al. 2024, arXiv 2407.21783, table 4) the mean error is below
    /// `error_cut`.
    pub const H100: Self = Self {
        matrix: 0.695,
        matrix_fp8: 0.579,
        stream: 0.459,
        flash: [0.361, 0.631, 1.277],
        crowding: 0.0,
        error: 0.04,
        error_cut: 0.1,
        ..Self::A100
    };

    /// What is expected of a class of the catalogue, by its id. Classes without measurements take
    /// the H100's shares, and an error that says so: on B200 and GB200 in FP8 it is 10 %.
    pub fn of_class(id: &str) -> Self {
        let measured = |names: [&str; 2]| names.iter().any(|name| id.starts_with(name));
        match id {
            _ if measured(["a100", "a800"]) => Self::A100,
            _ if measured(["h100", "h800"]) => Self::H100,
            _ => Self { error: ERROR_UNMEASURED, error_cut: ERROR_UNMEASURED, ..Self::H100 },
        }
    }
    /// Mean relative error to expect of a step, by what the constants were never held against.
    pub fn error_of(&self, model: &Transformer, config: &ParallelConfig) -> f64 {
        let half = matches!(config.precision, Precision::Fp16 | Precision::Bf16);
        let cut = config.tensor > 1 || config.pipeline > 1;
        let of_cut = if half && cut { self.error_cut } else { 0.0 };
        let of_experts = model.feed_forward.experts.map_or(0.0, |_| ERROR_EXPERTS);
        self.error.max(of_cut).max(of_experts)
    }
}

/// Error said of mixtures of experts at least: their products are priced as dense ones of as many
/// active weights, small groups of tokens, uneven routing and what is seen of all-to-all beyond
/// bandwidth are not. DeepSeek-V3's 54 days on 2,048 H800 in FP8 (arXiv 2412.19437, table 1:
/// 2.664 million hours) are predicted as 53 on H100 in bf16, which should have taken longer.
const ERROR_EXPERTS: f64 = 0.3;

/// Error said of a class that nothing was measured on: an estimate.
const ERROR_UNMEASURED: f64 = 0.3;

/// Start-up time of an all-reduce and how it grows with ranks in a node; ranks at which a ring is
/// warm. Reproduce vTrain's all-reduces (see `collective`).
pub(super) const LINK_START_S: f64 = 30e-6;
pub(super) const LINK_START_PER_RANK_S: f64 = 6.25e-6;
pub(super) const LINK_WARM_UP_RANKS: f64 = 0.65;

/// More start-up time for each doubling of nodes: from MosaicML's rows of 16 to 512 H100.
pub(super) const NETWORK_START_S: f64 = 140e-6;

/// Start-up time of sending a microbatch's activations on, the share of the sending that is seen,
/// and the share of an island's all-reduce bandwidth that one pair of devices has. The first two
/// are set, fits leave them free within a factor of four.
pub(super) const SEND_START_S: f64 = 100e-6;
pub(super) const SEND_EXPOSED: f64 = 0.3;
pub(super) const SEND_LINK_SHARE: f64 = 0.41;

/// Bytes that element-wise kernels move for each token and unit of hidden width, forward: two norms
/// (read and write 2 bytes each) and two dropouts added to the residual (read 2 + 2, write 2 and a
/// mask of 1), then queries, keys and values where they are laid out; for each unit of inner width
/// an activation read and written. Counted from Megatron-LM's kernels.
pub(super) const STREAM_WHOLE_BYTES: f64 = 22.0;
pub(super) const STREAM_HEADS_BYTES: f64 = 12.0;
pub(super) const STREAM_INNER_BYTES: f64 = 4.0;
/// The backward pass moves half as much again.
pub(super) const STREAM_BACKWARD: f64 = 1.5;

/// Bytes for each score of plain attention: written by one product, read by the next, softmax and
/// dropout between them with a mask.
pub(super) const SCORE_BYTES: f64 = 13.0;

/// Work of flash attention's backward pass over its forward (Dao et al. 2022: it computes the
/// scores again, five products for two).
pub(super) const FLASH_BACKWARD: f64 = 2.5;

/// Bytes for each logit, forward and backward: turned to fp32, softmax and loss in steps (60), or
/// fused (12). NVIDIA's recipes in 8 bits fuse; runs in 16 bits are said not to.
pub(super) const LOGIT_BYTES: f64 = 60.0;
pub(super) const LOGIT_FUSED_BYTES: f64 = 12.0;

/// Bytes of a weight of 4 bits with its scales (Dettmers et al. 2023: 4.127 bits), and bytes moved
/// to turn it back to 16 bits.
pub(super) const NF4_BYTES: f64 = 4.127 / 8.0;
pub(super) const NF4_DECODE_BYTES: f64 = 2.5;

#[cfg(test)]
mod tests {
    use super::super::Experts;
    use super::*;

    #[test]
    fn what_was_never_measured_is_said_to_be_known_less() {
        let dense = Transformer::gpt(32, 4_096, 32, 4_096, 32_000);
        let whole = ParallelConfig::single(1, 8);
        let cut = ParallelConfig { tensor: 8, ..whole };
        let eight = ParallelConfig { precision: Precision::Fp8, ..cut };
        assert_eq!(Efficiency::H100.error_of(&dense, &whole), Efficiency::H100.error);
        assert_eq!(Efficiency::H100.error_of(&dense, &eight), Efficiency::H100.error);
        assert!(Efficiency::H100.error_of(&dense, &cut) >= 0.1);
        assert!(Efficiency::of_class("b200").error_of(&dense, &cut) >= 0.3);
        let mut mixture = dense;
        mixture.feed_forward.experts = Some(Experts { count: 8, active: 2 });
        assert!(Efficiency::A100.error_of(&mixture, &whole) >= 0.3);
    }
}
