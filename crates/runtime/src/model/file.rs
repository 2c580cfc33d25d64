//! The model in a file: a line that names the format, then one line an entry, fields by tabs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use het_perf::Moments;
use thiserror::Error;

use crate::{ClassId, KernelId};

use super::{Model, SIZE_CLASS_MAX, SizeClass, least_bytes, size_class};

/// First line of the only version there is.
const HEADER: &str = "heterosis performance model 1";

/// Largest file that is read: a hundred thousand entries.
const BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Error)]
pub enum ModelError {
    #[error("`{}` can't be read or written", .0.display())]
    File(PathBuf, #[source] io::Error),
    #[error("`{}` has {bytes} bytes: {BYTES_MAX} at most are read", path.display())]
    TooLarge { path: PathBuf, bytes: u64 },
    #[error(
        "the first line is `{0}` and not `{HEADER}`\nhint: the file is of another version or no \
         performance model; remove it to learn anew"
    )]
    Header(String),
    #[error("line {line}: {what}\nhint: remove the file to learn anew")]
    Line { line: usize, what: String },
}

impl Model {
    /// One line an entry that has samples, in the order of rows.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for (kernel, rows) in self.kernels.iter().zip(&self.rows) {
            for (size, row) in rows {
                for (class, name) in self.classes.iter().enumerate() {
                    let entry = &self.entries[self.index(*row, ClassId(class as u16))];
                    let (count, mean, squares) = entry.seen.parts();
                    if count > 0 {
                        // Writing to a string does not fail.
                        let _ = writeln!(
                            text,
                            "{}\t{}\t{size}\t{count}\t{mean}\t{squares}",
                            escaped(kernel),
                            escaped(name)
                        );
                    }
                }
            }
        }
        text
    }

    /// Takes in what [`Model::to_text`] wrote, also of another set of kernels and classes: of those
    /// that are not here nothing is taken.
    ///
    /// # Errors
    /// The first line that is not as it should be; nothing is taken then.
    pub fn read_text(&mut self, text: &str) -> Result<(), ModelError> {
        let mut lines = text.lines();
        let header = lines.next().unwrap_or_default();
        if header != HEADER {
            return Err(ModelError::Header(header.chars().take(HEADER.len()).collect()));
        }
        let mut read = Vec::new();
        for (row, line) in lines.enumerate() {
            let fields = fields(line);
            read.push(fields.map_err(|what| ModelError::Line { line: row + 2, what })?);
        }
        for Line { kernel, class, size, moments } in read {
            let kernel = self.kernels.iter().position(|name| escaped(name) == kernel);
            let class = self.classes.iter().position(|name| escaped(name) == class);
            if let (Some(kernel), Some(class)) = (kernel, class) {
                let kernel = KernelId(kernel as u16);
                let row = self.row_of(kernel, size);
                let index = self.index(row, ClassId(class as u16));
                self.entries[index].seen = moments;
            }
        }
        Ok(())
    }

    fn row_of(&mut self, kernel: KernelId, size: SizeClass) -> u32 {
        let known = self.rows[kernel.row()].iter().find(|(other, _)| *other == size);
        let known = known.map(|(_, row)| *row);
        known.unwrap_or_else(|| self.add_row(kernel, size, least_bytes(size)))
    }

    /// # Errors
    /// A file that can't be read or is not as it should be.
    pub fn read(&mut self, path: &Path) -> Result<(), ModelError> {
        let failed = |error| ModelError::File(path.to_owned(), error);
        let bytes = fs::metadata(path).map_err(failed)?.len();
        if bytes > BYTES_MAX {
            return Err(ModelError::TooLarge { path: path.to_owned(), bytes });
        }
        self.read_text(&fs::read_to_string(path).map_err(failed)?)
    }

    /// Replaces the file at once or not at all.
    ///
    /// # Errors
    /// A file that can't be written.
    pub fn write(&self, path: &Path) -> Result<(), ModelError> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.part", std::process::id()));
        let beside = PathBuf::from(beside);
        let written = fs::write(&beside, self.to_text()).and_then(|()| fs::rename(&beside, path));
        written.map_err(|error| {
            // Whether or not there is one: the first trouble is the one to tell.
            let _ = fs::remove_file(&beside);
            ModelError::File(path.to_owned(), error)
        })
    }
}

/// A name without what separates fields and lines.
fn escaped(name: &str) -> String {
    name.escape_default().to_string()
}

struct Line {
    kernel: String,
    class: String,
    size: SizeClass,
    moments: Moments,
}

fn fields(line: &str) -> Result<Line, String> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [kernel, class, told, count, mean, squares] = fields[..] else {
        return Err(format!("{} fields, where an entry has 6", fields.len()));
    };
    let exists =
        |size: &SizeClass| *size <= SIZE_CLASS_MAX && size_class(least_bytes(*size)) == *size;
    let size = told.parse().ok().filter(exists);
    let size = size.ok_or_else(|| format!("`{told}` is no size class"))?;
    let count: u64 = count.parse().map_err(|_| format!("`{count}` is no number of samples"))?;
    let number = |text: &str, what: &str| {
        let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        number.ok_or_else(|| format!("`{text}` is no {what}"))
    };
    let mean = number(mean, "mean in nanoseconds")?;
    let squares = number(squares, "sum of squares")?;
    if count == 0 {
        return Err("an entry without samples".to_owned());
    }
    let moments = Moments::from_parts((count, mean, squares));
    Ok(Line { kernel: kernel.to_owned(), class: class.to_owned(), size, moments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let names = |names: [&str; 2]| names.map(str::to_owned).to_vec();
        Model::new(names(["a\tb", "c"]), names(["cpu", "gpu"]))
    }

    fn learned() -> Model {
        let mut model = model();
        for (kernel, class, took) in [(0, 0, 12.5), (0, 0, 13.5), (1, 1, 1e9)] {
            let row = model.row(KernelId(kernel), 4_096);
            model.observe(row, ClassId(class), took);
        }
        model
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = learned().to_text();
        let mut other = model();
        other.read_text(&text).expect("of the same version");
        assert_eq!(other.to_text(), text);
    }

    #[test]
    fn kernels_that_are_not_there_are_passed_over() {
        let mut other = Model::new(vec!["c".to_owned()], vec!["gpu".to_owned()]);
        other.read_text(&learned().to_text()).expect("of the same version");
        let row = other.row(KernelId(0), 4_096);
        assert_eq!(other.samples(row, ClassId(0)), 1);
    }

    #[test]
    fn rows_of_a_file_have_priors_where_samples_are_few() {
        let text = learned().to_text();
        let mut other = model().with_prior(Box::new(|_, class, _| Some(f64::from(class.0) + 99.0)));
        other.read_text(&text).expect("of the same version");
        let row = other.row(KernelId(0), 4_096);
        let mean = |class| other.estimate(row, ClassId(class)).expect("a prior").mean;
        // Two samples of 13 on the mean, and eight of the prior.
        assert!((mean(0) - (2.0 * 13.0 + 8.0 * 99.0) / 10.0).abs() < 1e-9);
        assert!((mean(1) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_a_model_is_refused_by_its_place() {
        let check = |text: &str, told: &str| {
            let mut model = model();
            let error = model.read_text(text).expect_err("refused").to_string();
            assert!(error.starts_with(told), "{error}");
            assert_eq!(model.to_text(), format!("{HEADER}\n"));
        };
        check("", "the first line is ``");
        check(
            "heterosis performance model 2\n",
            "the first line is `heterosis performance model 2`",
        );
        let line = |line: &str| format!("{HEADER}\nc\tcpu\t40\t3\t1.5\t0\n{line}\n");
        check(&line("c\tcpu\t1"), "line 3: 3 fields, where an entry has 6");
        check(&line("c\tcpu\tx\t3\t1\t0"), "line 3: `x` is no size class");
        check(&line("c\tcpu\t257\t3\t1\t0"), "line 3: `257` is no size class");
        check(&line("c\tcpu\t3\t3\t1\t0"), "line 3: `3` is no size class");
        check(&line("c\tcpu\t40\t3\tNaN\t0"), "line 3: `NaN` is no mean in nanoseconds");
        check(&line("c\tcpu\t40\t3\t1\t-1"), "line 3: `-1` is no sum of squares");
        check(&line("c\tcpu\t40\t0\t1\t0"), "line 3: an entry without samples");
    }
}
