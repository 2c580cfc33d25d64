//! Fits the constants to steps measured on a user's machine.
//!
//! Four factors, on everything, on matrix products, on element-wise kernels and host's launches,
//! and on exchange, by least squares on the logarithm of the time, held near 1 by a prior: with
//! three measurements the data move what they can tell, and no more. How far they are trusted is
//! chosen by how well each is predicted from the others.

use super::{Efficiency, Machine, ParallelConfig, StepError, Transformer, step_time};

/// One step that was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredStep {
    pub model: Transformer,
    pub config: ParallelConfig,
    pub seconds: f64,
}

/// Constants fitted to measurements, and how far to trust them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// The constants to go on with; their `error` is this one's.
    pub efficiency: Efficiency,
    /// Factors on the time of matrix products, of element-wise kernels and launches, of exchange.
    pub factors: [f64; 3],
    /// Mean relative error over the measurements, each predicted from the others.
    pub error: f64,
    pub steps: usize,
}

/// Everything, products, kernels and launches, exchange.
const FACTORS: usize = 4;

/// Spread (of the logarithm) that a factor is expected to have, and those that a measurement may
/// have.
const PRIOR: f64 = 0.2;
const NOISES: [f64; 4] = [0.01, 0.02, 0.05, 0.1];

/// Taken where a single step cannot tell.
const NOISE_OF_ONE: f64 = 0.02;

/// A residual beyond this is an outlier's.
const OUTLIER: f64 = 0.03;

/// Rounds of Gauss-Newton; the problem is nearly linear and needs three or four.
const ROUNDS: usize = 8;

/// A step in a factor's logarithm to take a slope from.
const SLOPE: f64 = 1e-4;

impl Calibration {
    /// Fits `machine`'s constants to steps on it.
    ///
    /// # Errors
    /// When a step cannot be predicted.
    pub fn fit(machine: &Machine, steps: &[MeasuredStep]) -> Result<Self, StepError> {
        let (noise, error) = match steps.len() {
            0 | 1 => (NOISE_OF_ONE, machine.efficiency.error),
            _ => trust(machine, steps)?,
        };
        let logs = solve(machine, steps, noise)?;
        let [all, matrix, stream, exchange] = logs;
        let factors = [matrix, stream, exchange].map(|own| (all + own).exp());
        let efficiency = machine.efficiency.slowed(factors, error);
        Ok(Self { efficiency, factors, error, steps: steps.len() })
    }
}

/// The noise at which the steps predict each other best, and the mean error of that over all
/// noises: the least of them would be too good to be true of other steps.
fn trust(machine: &Machine, steps: &[MeasuredStep]) -> Result<(f64, f64), StepError> {
    let mut best = (NOISE_OF_ONE, f64::INFINITY);
    let mut sum = 0.0;
    for noise in NOISES {
        let error = error_left_out(machine, steps, noise)?;
        sum += error;
        if error < best.1 {
            best = (noise, error);
        }
    }
    Ok((best.0, sum / NOISES.len() as f64))
}

/// Mean relative error of each step as the others predict it.
fn error_left_out(machine: &Machine, steps: &[MeasuredStep], noise: f64) -> Result<f64, StepError> {
    let mut sum = 0.0;
    for (index, left_out) in steps.iter().enumerate() {
        let others: Vec<MeasuredStep> = steps
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != index)
            .map(|(_, step)| *step)
            .collect();
        let logs = solve(machine, &others, noise)?;
        sum += residual(machine, left_out, logs)?.exp_m1().abs();
    }
    Ok(sum / steps.len() as f64)
}

/// Logarithms of the factors.
fn solve(
    machine: &Machine,
    steps: &[MeasuredStep],
    noise: f64,
) -> Result<[f64; FACTORS], StepError> {
    let mut logs = [0.0; FACTORS];
    for _ in 0..ROUNDS {
        let mut normal = [[0.0; FACTORS]; FACTORS];
        let mut right = [0.0; FACTORS];
        for row in 0..FACTORS {
            normal[row][row] = 1.0 / (PRIOR * PRIOR);
            right[row] = -logs[row] / (PRIOR * PRIOR);
        }
        for step in steps {
            let now = residual(machine, step, logs)?;
            let mut slopes = [0.0; FACTORS];
            for (at, slope) in slopes.iter_mut().enumerate() {
                let mut moved = logs;
                moved[at] += SLOPE;
                *slope = (residual(machine, step, moved)? - now) / SLOPE;
            }
            // One that does not agree with the others counts less.
            let trust = 1.0 / (noise * noise * (1.0 + (now / OUTLIER).powi(2)).sqrt());
            for row in 0..FACTORS {
                right[row] -= slopes[row] * now * trust;
                for column in 0..FACTORS {
                    normal[row][column] += slopes[row] * slopes[column] * trust;
                }
            }
        }
        let moves = eliminate(normal, right);
        for (log, step) in logs.iter_mut().zip(moves) {
            *log += step;
        }
    }
    Ok(logs)
}

/// Logarithm of predicted over measured.
fn residual(
    machine: &Machine,
    step: &MeasuredStep,
    logs: [f64; FACTORS],
) -> Result<f64, StepError> {
    let machine = Machine { efficiency: scaled(&machine.efficiency, logs), ..*machine };
    let predicted = step_time(&step.model, &step.config, &machine)?.total_s;
    Ok((predicted / step.seconds).ln())
}

fn scaled(base: &Efficiency, logs: [f64; FACTORS]) -> Efficiency {
    let [all, matrix, stream, exchange] = logs;
    base.slowed([matrix, stream, exchange].map(|own| (all + own).exp()), base.error)
}

impl Efficiency {
    /// With [`Calibration::factors`] on its times, and the error that is left; what is said of cuts
    /// stays, for the measured steps need not have had any.
    pub fn slowed(&self, [matrix, stream, exchange]: [f64; 3], error: f64) -> Self {
        Self {
            matrix: self.matrix / matrix,
            matrix_fp8: self.matrix_fp8 / matrix,
            flash: self.flash.map(|share| share / matrix),
            stream: self.stream / stream,
            launch_forward_s: self.launch_forward_s * stream,
            launch_backward_s: self.launch_backward_s * stream,
            launch_tensor_s: self.launch_tensor_s * stream,
            step_s: self.step_s * stream,
            communication_scale: self.communication_scale * exchange,
            error,
            ..*self
        }
    }
}

/// Solves a symmetric positive system; the prior keeps every pivot away from zero.
fn eliminate(mut matrix: [[f64; FACTORS]; FACTORS], mut right: [f64; FACTORS]) -> [f64; FACTORS] {
    for pivot in 0..FACTORS {
        let above = matrix[pivot];
        for row in pivot + 1..FACTORS {
            let ratio = matrix[row][pivot] / above[pivot];
            for (own, above) in matrix[row].iter_mut().zip(above) {
                *own -= ratio * above;
            }
            right[row] -= ratio * right[pivot];
        }
    }
    let mut solved = [0.0; FACTORS];
    for row in (0..FACTORS).rev() {
        let known: f64 = (row + 1..FACTORS).map(|at| matrix[row][at] * solved[at]).sum();
        solved[row] = (right[row] - known) / matrix[row][row];
    }
    solved
}

#[cfg(test)]
mod tests {
    use het_core::Bytes;

    use super::super::{DeviceFigures, Island};
    use super::*;

    fn machine(efficiency: Efficiency) -> Machine {
        let device = DeviceFigures {
            fp32_tflops: Some(19.5),
            half_tflops: Some(312.0),
            fp8_tflops: None,
            memory: Bytes(80 << 30),
            memory_gbps: 2_039.0,
        };
        Machine { device, island: Island::hgx_a100(25.0), efficiency }
    }

    /// A machine whose products are 20 % slower and whose exchange takes half as long again as
    /// assumed: after three steps its others are known to 3 %.
    #[test]
    fn three_steps_tell_what_is_different() {
        let model = Transformer::gpt(24, 2_048, 16, 1_024, 51_200);
        let real = machine(Efficiency {
            matrix: Efficiency::A100.matrix / 1.2,
            communication_scale: 1.5,
            ..Efficiency::A100
        });
        let cut = |tensor, data, microbatch| ParallelConfig {
            tensor,
            data,
            ..ParallelConfig::single(microbatch, 64)
        };
        let measured = |config| {
            let seconds = step_time(&model, &config, &real).expect("predicted").total_s;
            MeasuredStep { model, config, seconds }
        };
        let steps = [cut(1, 8, 8), cut(4, 2, 8), cut(8, 1, 16)].map(measured);
        let calibrated = Calibration::fit(&machine(Efficiency::A100), &steps).expect("fits");
        let after = machine(calibrated.efficiency);
        for config in [cut(2, 4, 8), cut(4, 2, 16), cut(8, 1, 8), cut(1, 8, 4)] {
            let MeasuredStep { seconds, .. } = measured(config);
            let predicted = step_time(&model, &config, &after).expect("predicted").total_s;
            let error = predicted / seconds - 1.0;
            assert!(error.abs() < 0.03, "{config:?}: {error:+.4}");
        }
    }

    /// Steps that contradict each other move the constants less than steps that agree.
    #[test]
    fn what_does_not_agree_is_trusted_less() {
        let model = Transformer::gpt(24, 2_048, 16, 1_024, 51_200);
        let before = machine(Efficiency::A100);
        let slowed = |slower: [f64; 3]| {
            let steps: Vec<MeasuredStep> = [4, 8, 16]
                .into_iter()
                .zip(slower)
                .map(|(microbatch, slower)| {
                    let config = ParallelConfig::single(microbatch, 64);
                    let time = step_time(&model, &config, &before).expect("predicted");
                    MeasuredStep { model, config, seconds: time.total_s * slower }
                })
                .collect();
            Calibration::fit(&before, &steps).expect("fits")
        };
        let (agreed, torn) = (slowed([1.2, 1.2, 1.2]), slowed([1.2, 0.9, 1.2]));
        assert!(agreed.error < 0.03 && torn.error > 0.1, "{agreed:?} {torn:?}");
        assert!(torn.factors[0] < 1.15 && agreed.factors[0] > 1.15, "{agreed:?} {torn:?}");
    }

    #[test]
    fn without_measurements_nothing_changes() {
        let before = machine(Efficiency::A100);
        let fitted = Calibration::fit(&before, &[]).expect("fits");
        assert_eq!((fitted.factors, fitted.error), ([1.0; 3], Efficiency::A100.error));
    }
}
