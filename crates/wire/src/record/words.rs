//! Words of records that stand for one of a few values.

use super::error::RecordError;

pub(super) fn by_word<T: Copy>(
    all: &[T],
    word: impl Fn(T) -> &'static str,
    text: &str,
) -> Result<T, RecordError> {
    let found = all.iter().copied().find(|item| word(*item) == text);
    found.ok_or_else(|| RecordError::UnknownWord { word: text.to_owned() })
}
