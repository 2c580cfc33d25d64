//! Gradients against central differences.

/// Compares gradients of `Σ result × upstream` with differences of it.
pub struct Check {
    upstream: Vec<f32>,
}

/// Half the distance of two points: the rounding of f32 and the curvature cost about the same.
const STEP: f32 = 1.0 / 256.0;
/// Of the largest entry of a gradient.
const TOLERANCE: f64 = 3e-3;

impl Check {
    /// For results of `length` values.
    pub fn new(length: usize) -> Self {
        Self { upstream: drawn(99, length) }
    }

    /// The gradient of the sum with respect to the result.
    pub fn upstream(&self) -> &[f32] {
        &self.upstream
    }

    /// Checks `gradient`, that of the sum with respect to `values`.
    pub fn gradient(
        &self,
        name: &str,
        values: &[f32],
        gradient: &[f32],
        mut result: impl FnMut(&[f32]) -> Vec<f32>,
    ) {
        let mut sum = |values: &[f32]| -> f64 {
            let result = result(values);
            assert_eq!(result.len(), self.upstream.len());
            result.iter().zip(&self.upstream).map(|(&r, &u)| f64::from(r) * f64::from(u)).sum()
        };
        let largest = gradient.iter().fold(0f32, |m, g| m.max(g.abs()));
        assert!(largest > 1e-3, "{name} has no gradient");
        for index in 0..values.len() {
            let mut moved = values.to_vec();
            moved[index] = values[index] + STEP;
            let above = sum(&moved);
            moved[index] = values[index] - STEP;
            let slope = (above - sum(&moved)) / f64::from(2.0 * STEP);
            let error = (slope - f64::from(gradient[index])).abs() / f64::from(largest);
            assert!(error < TOLERANCE, "{name}[{index}]: {}, not {slope}", gradient[index]);
        }
    }
}

/// Values in ±1 that look random: the fractional parts of multiples of the golden ratio.
pub fn drawn(seed: usize, length: usize) -> Vec<f32> {
    let value = |index: usize| {
        let place = (index * index + 7 * index + 131 * seed + 1) as f64 * 0.618_033_988_749_895;
        (2.0 * place.fract() - 1.0) as f32
    };
    (0..length).map(value).collect()
}
