//! How long kernels take: by kernel, size of their data and device class, learned from every run.

mod file;

use het_perf::Moments;

use crate::{ClassId, KernelId};

pub use file::ModelError;

/// Samples after which a mean is relied on; StarPU's `STARPU_CALIBRATE_MINIMUM` has the same.
pub const CALIBRATED: u64 = 10;

/// Samples further from the mean than this part of it are outliers (StarPU's
/// `STARPU_HISTORY_MAX_ERROR`), unless the spread of the others explains them.
const OUTLIER_PART: f64 = 0.5;

/// Standard deviations that explain a sample.
const OUTLIER_DEVIATIONS: f64 = 4.0;

/// Sizes of one class differ by at most a quarter of an octave.
pub type SizeClass = u16;

/// A quarter of an octave each: four times the logarithm and the two bits below the first.
pub const fn size_class(bytes: u64) -> SizeClass {
    let Some(log) = bytes.checked_ilog2() else { return 0 };
    let quarter = if log >= 2 { bytes >> (log - 2) & 3 } else { 0 };
    1 + 4 * log as SizeClass + quarter as SizeClass
}

/// The greatest there is.
const SIZE_CLASS_MAX: SizeClass = size_class(u64::MAX);

/// The least bytes of a size class.
fn least_bytes(size: SizeClass) -> u64 {
    let Some(above) = size.checked_sub(1) else { return 0 };
    let (log, quarter) = (u32::from(above / 4), u64::from(above % 4));
    // Below four bytes there are no quarters.
    let octave = 1 << log;
    octave + quarter * (octave / 4)
}

/// Duration of a kernel on a device class, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub mean: f64,
    /// Standard deviation; zero where it is not known.
    pub deviation: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Entry {
    seen: Moments,
    /// The last samples, as far as all were far from the mean on the same side.
    apart: Moments,
    are_above: bool,
    prior: Option<f64>,
}

impl Entry {
    fn observe(&mut self, took: f64) {
        let (Some(mean), CALIBRATED..) = (self.seen.mean(), self.seen.count()) else {
            self.seen.add(took);
            return;
        };
        let far = (took - mean).abs();
        if far <= OUTLIER_PART * mean {
            self.apart = Moments::default();
            self.seen.add(took);
            return;
        }
        if self.are_above != (took > mean) {
            (self.apart, self.are_above) = (Moments::default(), took > mean);
        }
        self.apart.add(took);
        if self.apart.count() >= CALIBRATED {
            // Either the kernel takes another time than it did, or the first samples were none.
            self.seen = std::mem::take(&mut self.apart);
        } else if far <= OUTLIER_DEVIATIONS * self.seen.variance().unwrap_or(0.0).sqrt() {
            self.seen.add(took);
        }
    }

    /// The mean; until there are enough samples the prior stands for those that are missing.
    fn estimate(&self) -> Option<Estimate> {
        let deviation = self.seen.variance().unwrap_or(0.0).sqrt();
        let (count, mean) = (self.seen.count(), self.seen.mean());
        let mean = match (mean, self.prior) {
            (Some(mean), Some(prior)) if count < CALIBRATED => {
                let missing = (CALIBRATED - count) as f64;
                (mean * count as f64 + prior * missing) / CALIBRATED as f64
            }
            (Some(mean), _) => mean,
            (None, prior) => prior?,
        };
        Some(Estimate { mean, deviation })
    }
}

/// What a catalogue says: nanoseconds that a kernel takes on a class for data of so many bytes.
pub type Prior = Box<dyn Fn(KernelId, ClassId, u64) -> Option<f64> + Send>;

/// One row a kernel and size class, one entry a device class.
pub struct Model {
    kernels: Vec<String>,
    classes: Vec<String>,
    /// Rows of each kernel, by size class.
    rows: Vec<Vec<(SizeClass, u32)>>,
    entries: Vec<Entry>,
    prior: Prior,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Model")
            .field("kernels", &self.kernels)
            .field("classes", &self.classes)
            .field("rows", &self.rows)
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Kernels by name, in the order of their ids.
    pub fn new(kernels: Vec<String>, classes: Vec<String>) -> Self {
        let rows = vec![Vec::new(); kernels.len()];
        Self { kernels, classes, rows, entries: Vec::new(), prior: Box::new(|_, _, _| None) }
    }

    /// For kernels that have not run often enough. Rows that exist keep what they have.
    #[must_use]
    pub fn with_prior(self, prior: Prior) -> Self {
        Self { prior, ..self }
    }

    /// The row of a kernel for data of so many bytes.
    pub fn row(&mut self, kernel: KernelId, bytes: u64) -> u32 {
        let size = size_class(bytes);
        let known = self.rows[kernel.row()].iter().find(|(other, _)| *other == size);
        match known {
            Some((_, row)) => *row,
            None => self.add_row(kernel, size, bytes),
        }
    }

    fn add_row(&mut self, kernel: KernelId, size: SizeClass, bytes: u64) -> u32 {
        let row = (self.entries.len() / self.classes.len().max(1)) as u32;
        for class in 0..self.classes.len() as u16 {
            let prior = sane((self.prior)(kernel, ClassId(class), bytes));
            self.entries.push(Entry { prior, ..Entry::default() });
        }
        self.rows[kernel.row()].push((size, row));
        row
    }

    fn index(&self, row: u32, class: ClassId) -> usize {
        row as usize * self.classes.len() + class.row()
    }

    pub fn observe(&mut self, row: u32, class: ClassId, took: f64) {
        let index = self.index(row, class);
        self.entries[index].observe(took);
    }

    /// `None` before anything is known.
    pub fn estimate(&self, row: u32, class: ClassId) -> Option<Estimate> {
        self.entries[self.index(row, class)].estimate()
    }

    pub fn samples(&self, row: u32, class: ClassId) -> u64 {
        self.entries[self.index(row, class)].seen.count()
    }
}

/// A prior that is no duration is none.
fn sane(prior: Option<f64>) -> Option<f64> {
    prior.filter(|prior| prior.is_finite() && *prior >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: KernelId = KernelId(0);
    const CLASS: ClassId = ClassId(0);

    fn model() -> Model {
        Model::new(vec!["gemm".to_owned()], vec!["cpu".to_owned()])
    }

    fn mean(model: &Model, row: u32) -> f64 {
        model.estimate(row, CLASS).expect("known").mean
    }

    #[test]
    fn sizes_of_a_class_are_within_a_quarter_of_an_octave() {
        assert_eq!(size_class(1_000), size_class(1_020));
        assert_ne!(size_class(1_000), size_class(1_300));
        let mut before = 0;
        for bytes in 0..100_000 {
            let class = size_class(bytes);
            assert!(class >= before, "{bytes}");
            before = class;
        }
    }

    #[test]
    fn the_least_bytes_of_a_class_are_of_it() {
        assert_eq!(SIZE_CLASS_MAX, 256);
        for bytes in (0..100_000).chain([u64::MAX / 3, u64::MAX]) {
            let size = size_class(bytes);
            let least = least_bytes(size);
            assert!(least <= bytes && size_class(least) == size, "{bytes}: {least}");
        }
    }

    #[test]
    fn a_prior_gives_way_to_samples() {
        let mut model = model().with_prior(Box::new(|_, _, _| Some(100.0)));
        let row = model.row(KERNEL, 64);
        assert!((mean(&model, row) - 100.0).abs() < 1e-9);
        for _ in 0..5 {
            model.observe(row, CLASS, 50.0);
        }
        assert!((mean(&model, row) - 75.0).abs() < 1e-9);
        for _ in 0..5 {
            model.observe(row, CLASS, 50.0);
        }
        assert!((mean(&model, row) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn one_outlier_changes_nothing_and_ten_are_the_new_truth() {
        let mut model = model();
        let row = model.row(KERNEL, 64);
        for _ in 0..100 {
            model.observe(row, CLASS, 50.0);
        }
        model.observe(row, CLASS, 5_000.0);
        assert!((mean(&model, row) - 50.0).abs() < 1e-9);
        model.observe(row, CLASS, 50.0);
        for _ in 0..CALIBRATED {
            model.observe(row, CLASS, 100.0);
        }
        assert!((mean(&model, row) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_first_sample_that_is_wrong_is_forgotten() {
        let mut model = model();
        let row = model.row(KERNEL, 64);
        model.observe(row, CLASS, 1e6);
        for _ in 0..2 * CALIBRATED {
            model.observe(row, CLASS, 50.0);
        }
        assert!((mean(&model, row) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn samples_that_spread_are_no_outliers() {
        let mut model = model();
        let row = model.row(KERNEL, 64);
        for round in 0..1_000 {
            model.observe(row, CLASS, if round % 2 == 0 { 40.0 } else { 160.0 });
        }
        assert_eq!(model.samples(row, CLASS), 1_000);
        assert!((mean(&model, row) - 100.0).abs() < 1e-9);
    }
}
