//! Fits a device class's constants to published runs: robust least squares on the logarithm of the
//! step time, by Gauss and Newton with Levenberg's damping.

use het_perf::training::{DeviceFigures, Efficiency, Machine, step_time};

use super::Setup;

/// One constant of `Efficiency`; all of them are positive and fitted as logarithms.
#[derive(Debug, Clone, Copy)]
pub struct Constant {
    pub name: &'static str,
    pub of: fn(&mut Efficiency) -> &mut f64,
}

/// A run and how much it counts.
#[derive(Debug, Clone, Copy)]
pub struct Weighted<'a> {
    pub setup: &'a Setup,
    pub weight: f64,
}

/// Beyond this weighted error a run counts less and less: measurements have outliers, and they are
/// all slow ones.
const ROBUST: f64 = 0.05;

/// Rounds; thirty change the last by less than 1e-6.
const ROUNDS: usize = 40;

/// A step in a constant's logarithm to take a slope from.
const SLOPE: f64 = 1e-4;

/// The constants from `start` that explain the runs best; runs that cannot be predicted are left
/// out.
pub fn fit(
    start: &Efficiency,
    constants: &[Constant],
    runs: &[Weighted<'_>],
    figures: impl Fn(&str) -> Option<DeviceFigures>,
) -> Efficiency {
    let residuals = |efficiency: &Efficiency| -> Vec<f64> {
        runs.iter().map(|run| residual(run, efficiency, &figures).unwrap_or(0.0)).collect()
    };
    let mut best = *start;
    let mut loss = total(&residuals(&best));
    let mut damping = 1e-3;
    for _ in 0..ROUNDS {
        let moves = newton(&best, constants, &residuals, damping);
        let mut next = best;
        for (constant, step) in constants.iter().zip(&moves) {
            *(constant.of)(&mut next) *= step.clamp(-0.5, 0.5).exp();
        }
        let reached = total(&residuals(&next));
        if reached < loss {
            (best, loss) = (next, reached);
            damping = f64::max(damping / 3.0, 1e-9);
        } else {
            damping *= 10.0;
        }
    }
    best
}

fn residual(
    run: &Weighted<'_>,
    efficiency: &Efficiency,
    figures: &impl Fn(&str) -> Option<DeviceFigures>,
) -> Option<f64> {
    let Setup { model, config, class, island, seconds } = run.setup;
    let machine = Machine { device: figures(class)?, island: *island, efficiency: *efficiency };
    let time = step_time(model, config, &machine).ok()?;
    Some(run.weight * (time.total_s / seconds).ln())
}

/// Pseudo-Huber loss.
fn total(residuals: &[f64]) -> f64 {
    residuals.iter().map(|residual| (1.0 + (residual / ROBUST).powi(2)).sqrt() - 1.0).sum()
}

/// One damped step for every constant.
fn newton(
    at: &Efficiency,
    constants: &[Constant],
    residuals: &impl Fn(&Efficiency) -> Vec<f64>,
    damping: f64,
) -> Vec<f64> {
    let now = residuals(at);
    let slopes: Vec<Vec<f64>> = constants
        .iter()
        .map(|constant| {
            let mut moved = *at;
            *(constant.of)(&mut moved) *= SLOPE.exp();
            residuals(&moved).iter().zip(&now).map(|(moved, now)| (moved - now) / SLOPE).collect()
        })
        .collect();
    let counts: Vec<f64> =
        now.iter().map(|residual| 1.0 / (1.0 + (residual / ROBUST).powi(2)).sqrt()).collect();
    let product = |a: &[f64], b: &[f64]| -> f64 {
        counts.iter().zip(a).zip(b).map(|((count, a), b)| count * a * b).sum()
    };
    let mut rows: Vec<Vec<f64>> = slopes
        .iter()
        .map(|own| {
            let products = slopes.iter().map(|other| product(own, other));
            products.chain([-product(own, &now)]).collect()
        })
        .collect();
    for (at, row) in rows.iter_mut().enumerate() {
        row[at] += damping * row[at] + 1e-12;
    }
    eliminate(rows)
}

/// Solves rows of a positive system with its right side behind them.
fn eliminate(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let count = rows.len();
    for pivot in 0..count {
        let above = rows[pivot].clone();
        for row in rows.iter_mut().skip(pivot + 1) {
            let ratio = row[pivot] / above[pivot];
            for (own, above) in row.iter_mut().zip(&above) {
                *own -= ratio * above;
            }
        }
    }
    let mut solved = vec![0.0; count];
    for (at, row) in rows.iter().enumerate().rev() {
        let known: f64 = (at + 1..count).map(|column| row[column] * solved[column]).sum();
        solved[at] = (row[count] - known) / row[at];
    }
    solved
}

#[cfg(test)]
mod tests {
    use het_perf::training::{Island, ParallelConfig, Transformer};

    use super::super::figures;
    use super::*;

    /// Steps made with known constants give them back, one of five being a third too slow.
    #[test]
    fn constants_come_back() {
        let model = Transformer::gpt(24, 2_048, 16, 1_024, 51_200);
        let real = Efficiency { matrix: 0.6, stream: 0.5, ..Efficiency::A100 };
        let class = "a100-sxm4-80";
        let island = Island::hgx_a100(25.0);
        let setups: Vec<Setup> = [1, 2, 4, 8, 16]
            .into_iter()
            .map(|microbatch| {
                let config = ParallelConfig::single(microbatch, 64);
                let device = figures(class).expect("in the catalogue");
                let machine = Machine { device, island, efficiency: real };
                let time = step_time(&model, &config, &machine).expect("predicted").total_s;
                let slow = if microbatch == 4 { 1.33 } else { 1.0 };
                Setup { model, config, class, island, seconds: time * slow }
            })
            .collect();
        let runs: Vec<_> = setups.iter().map(|setup| Weighted { setup, weight: 1.0 }).collect();
        let matrix = Constant { name: "matrix", of: |efficiency| &mut efficiency.matrix };
        let fitted = fit(&Efficiency::A100, &[matrix], &runs, figures);
        let stream = Efficiency { stream: 0.5, ..Efficiency::A100 };
        let both = fit(&stream, &[matrix], &runs, figures);
        assert!((both.matrix / 0.6 - 1.0).abs() < 0.03, "{}", both.matrix);
        assert!(fitted.matrix < Efficiency::A100.matrix);
    }
}
