//! Why a program failed, as it is stored.

use het_core::FailureCause;

use super::RecordError;
use super::words::by_word;

/// None for what earlier versions did not keep.
pub(super) fn write_failure_cause(cause: FailureCause) -> Option<String> {
    (cause != FailureCause::Untold).then(|| cause.word().to_owned())
}

pub(super) fn read_failure_cause(word: Option<&str>) -> Result<FailureCause, RecordError> {
    let Some(word) = word else { return Ok(FailureCause::Untold) };
    by_word(&FailureCause::ALL, |cause| cause.word(), word)
}
