//! What was measured of a device class, kept in a file: factors on estimated times and the error
//! that is left.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::API_VERSION;

/// The file of a class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CalibrationFile {
    pub api_version: String,
    pub kind: String,
    /// Of the catalogue or of a cluster file.
    pub class: String,
    pub factors: CalibrationFactors,
    /// Mean relative error of each step as the others predict it; of one step what is said without
    /// any.
    pub error: f64,
    pub steps: usize,
    /// The files that it was measured in.
    pub from: Vec<String>,
}

/// Factors on estimated times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CalibrationFactors {
    pub matrix: f64,
    pub elementwise: f64,
    pub exchange: f64,
}

impl CalibrationFactors {
    /// Matrix products, element-wise kernels, exchange.
    pub fn to_array(self) -> [f64; 3] {
        [self.matrix, self.elementwise, self.exchange]
    }
}

/// Why a file is none.
#[derive(Debug, Error)]
pub enum CalibrationError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("`kind: {kind}` of `{version}` is no calibration of `{}`", API_VERSION)]
    Kind { kind: String, version: String },
    #[error("factors and error are to be positive numbers")]
    Range,
}

/// What [`CalibrationFile::kind`] says.
const KIND: &str = "Calibration";

impl CalibrationFile {
    pub fn new(
        class: &str,
        factors: CalibrationFactors,
        error: f64,
        steps: usize,
        from: Vec<String>,
    ) -> Self {
        let (api_version, kind) = (API_VERSION.to_owned(), KIND.to_owned());
        Self { api_version, kind, class: class.to_owned(), factors, error, steps, from }
    }

    /// # Errors
    /// When the text is no calibration, or says what cannot be.
    pub fn read(text: &str) -> Result<Self, CalibrationError> {
        let file: Self = serde_json::from_str(text)?;
        if file.kind != KIND || file.api_version != API_VERSION {
            return Err(CalibrationError::Kind { kind: file.kind, version: file.api_version });
        }
        let positive = |value: &f64| *value > 0.0 && value.is_finite();
        let sound = file.factors.to_array().iter().all(positive);
        match sound && file.error >= 0.0 && file.error.is_finite() {
            true => Ok(file),
            false => Err(CalibrationError::Range),
        }
    }

    pub fn text(&self) -> String {
        let value = serde_json::to_value(self).expect("plain data");
        format!("{value:#}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let factors = CalibrationFactors { matrix: 1.2, elementwise: 0.9, exchange: 1.5 };
        let file = CalibrationFile::new("rtx-4090", factors, 0.02, 3, vec!["a.json".to_owned()]);
        assert_eq!(CalibrationFile::read(&file.text()).expect("reads"), file);
        let wrong = file.text().replace("1.2", "-1.2");
        assert!(matches!(CalibrationFile::read(&wrong), Err(CalibrationError::Range)));
        let other = file.text().replace("Calibration", "Job");
        assert!(matches!(CalibrationFile::read(&other), Err(CalibrationError::Kind { .. })));
    }
}
