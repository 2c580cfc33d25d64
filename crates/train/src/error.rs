//! Everything that can go wrong here, each with what the user can do about it.
//!
//! The `Display` of an [`Error`] is one sentence; [`Error::hint`] is the next step, printed apart.

use het_core::Bytes;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` is {found} bytes long, expected {expected}", path.display())]
    Truncated { path: PathBuf, expected: u64, found: u64 },
    #[error("`{}` is not usable as weights: {what}", path.display())]
    Weights { path: PathBuf, what: String },
    #[error("`{}` asks for what this trainer does not do: {refusal}", path.display())]
    Configuration {
        path: PathBuf,
        #[source]
        refusal: crate::configuration::keys::Refusal,
    },
    #[error("`{}` is not usable as an adapter: {what}", path.display())]
    Adapter { path: PathBuf, what: String },
    #[error("cannot read the corpus `{}`: {what}", path.display())]
    Corpus { path: PathBuf, what: String },
    #[error("cannot use {place} of `{}`: {what}", path.display())]
    Record { path: PathBuf, place: String, what: String, hint: &'static str },
    #[error("cannot score line {number} of `{}`: {what}", path.display())]
    ScoreLine { path: PathBuf, number: usize, what: String },
    #[error("cannot use the tokens in `{}`: {what}", path.display())]
    Tokens { path: PathBuf, what: String },
    #[error("the tokenizer cannot be used: {0}")]
    Tokenizer(String),
    #[error("cannot fetch `{model}`: {what}")]
    Fetch { model: &'static str, what: String, hint: &'static str },
    #[error("`{}` has SHA-256 {found}, expected {expected}", path.display())]
    Checksum { path: PathBuf, expected: String, found: String },
    #[error("the checkpoint `{}` does not fit this run: {differences}", path.display())]
    Mismatch { path: PathBuf, differences: String },
    #[error("`{}` is not a complete checkpoint: {what}", path.display())]
    Checkpoint { path: PathBuf, what: String },
    #[error("cannot write the checkpoint for step {step}: {source}")]
    CheckpointWrite {
        step: u64,
        #[source]
        source: Box<Error>,
    },
    #[error("the `{driver}` driver does not start here: {what}")]
    DriverFailed { driver: String, what: String },
    #[error("{what}")]
    Usage { what: String, hint: &'static str },
    #[error("this run needs about {}, and {} are there", gibibytes(*needed), gibibytes(*available))]
    Memory {
        needed: Bytes,
        available: Bytes,
        /// Settings that fit, in words
        fits: Option<String>,
    },
    #[error("the loss or the values that learn are no numbers at step {step}")]
    Diverged { step: u64 },
    #[error("{what} is not a finite number")]
    NotFinite { what: String },
    #[error("cannot write to standard output: {source}")]
    Output {
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// The next step for the user, without the word `hint:`.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "check the path, or run the stage that writes it first"
            }
            Error::Io { source, .. } if disk_is_full(source) => {
                "free some space or point the directory at another disk, then run again"
            }
            Error::Io { .. } => "check that the path exists and that you may use it",
            Error::Truncated { .. } => {
                "the file was cut short: delete it and copy or fetch it again"
            }
            Error::Weights { .. } => {
                "repair what is named or fetch it again, or use `--weights smollm2-135m`, a \
                 `.gguf` file, or a Hugging Face directory with config.json, model.safetensors and \
                 tokenizer.json"
            }
            Error::Configuration { .. } => {
                "repair what is named, use another model, or train this one with another program \
                 (`run:` in a job file takes any)"
            }
            Error::Adapter { .. } => {
                "pass the directory that `het-train finetune --output` wrote for these weights"
            }
            Error::Corpus { .. } => {
                "pass UTF-8 text, JSONL or Parquet of two sequences or more, or a directory with \
                 such files called `train*` and `heldout*`"
            }
            Error::ScoreLine { .. } => {
                r#"write each line as {"text": …} or {"tokens": […]}, and split what is too long"#
            }
            Error::Tokens { .. } => "run `het-train tokenize` again with the same `--weights`",
            Error::Tokenizer(_) => {
                "repair what is named, fetch the model again, or pass weights that carry a \
                 BPE tokenizer"
            }
            Error::Fetch { hint, .. } | Error::Usage { hint, .. } | Error::Record { hint, .. } => {
                hint
            }
            Error::Checksum { .. } => "delete the file and run `het-train fetch smollm2-135m`",
            Error::Mismatch { .. } => {
                "repeat the options of the first run, or start again without `--resume`"
            }
            Error::Checkpoint { .. } => "resume from an older checkpoint beside it",
            Error::CheckpointWrite { source, .. } => return source.hint(),
            Error::DriverFailed { .. } => "see `het-train drivers`, or use `--driver cpu`",
            Error::NotFinite { .. } => {
                "the weights or the adapter hold values that are too large or no numbers: fetch or \
                 train them again"
            }
            Error::Output { source } if disk_is_full(source) => {
                "free some space, or send the output to another disk"
            }
            Error::Output { .. } => "run it again with an output that stays open",
            Error::Memory { fits: Some(fits), .. } => return Some(format!("{fits} fits")),
            Error::Memory { .. } => "use a smaller model, a shorter `--seq`, or a larger machine",
            Error::Diverged { .. } => "lower `--lr` and start again from the last checkpoint",
        };
        Some(hint.to_owned())
    }
}

fn disk_is_full(source: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// A size in words, such as `2.31 GiB`.
pub fn gibibytes(bytes: Bytes) -> String {
    format!("{:.2} GiB", bytes.0 as f64 / f64::from(1 << 30))
}

/// Names the action and the path of a failed file operation.
pub trait IoContext<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { action, path: path.to_owned(), source })
    }
}

/// Shorthand for weights that are present but wrong.
pub fn bad_weights(path: &Path, what: impl fmt::Display) -> Error {
    Error::Weights { path: path.to_owned(), what: what.to_string() }
}
