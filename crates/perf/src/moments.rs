//! Running mean and variance.

/// Mean and variance of a stream of numbers, in one pass and without cancellation
/// (Welford 1962, "Note on a method for calculating corrected sums of squares and products").
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moments {
    count: u64,
    mean: f64,
    sum_of_squares: f64,
}

impl Moments {
    /// Those whose [`Moments::parts`] these are.
    pub fn from_parts((count, mean, sum_of_squares): (u64, f64, f64)) -> Self {
        Self { count, mean, sum_of_squares }
    }

    /// How many values, their mean, and the sum of the squares of their differences from it.
    pub fn parts(&self) -> (u64, f64, f64) {
        (self.count, self.mean, self.sum_of_squares)
    }

    pub fn add(&mut self, value: f64) {
        self.count += 1;
        let delta = value - self.mean;
        self.mean += delta / self.count as f64;
        self.sum_of_squares += delta * (value - self.mean);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// `None` before the first value.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// Sample variance; `None` before the second value.
    pub fn variance(&self) -> Option<f64> {
        (self.count > 1).then(|| self.sum_of_squares / (self.count - 1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_variance_match_the_two_pass_formula() {
        let mut moments = Moments::default();
        for value in [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0] {
            moments.add(value);
        }
        assert_eq!(moments.mean(), Some(5.0));
        assert!((moments.variance().expect("eight values") - 32.0 / 7.0).abs() < 1e-12);
    }
}
