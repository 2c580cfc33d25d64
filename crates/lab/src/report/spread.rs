//! A mean over seeds and how sure it is.

use std::fmt;

/// Mean and half of its 95 % confidence interval; zero for a single value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub mean: f64,
    pub half: f64,
}

/// Quantile 0.975 of Student's t by degrees of freedom, from 1; beyond, the normal's.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count.max(1.0);
        if values.len() < 2 {
            return Self { mean, half: 0.0 };
        }
        let variance =
            values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let t = T.get(values.len() - 2).copied().unwrap_or(1.960);
        Self { mean, half: t * (variance / count).sqrt() }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_count = self.half == 0.0 && self.mean.fract() == 0.0;
        let digits = if self.mean.abs() >= 100.0 || is_count { 0 } else { 3 };
        write!(f, "{:.digits$}", self.mean)?;
        if self.half > 0.0 {
            write!(f, " ± {:.digits$}", self.half)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        let spread = Spread::of([1.0, 2.0, 3.0]);
        assert!((spread.mean - 2.0).abs() < 1e-12);
        assert!((spread.half - 4.303 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(Spread::of([7.0]), Spread { mean: 7.0, half: 0.0 });
    }
}
