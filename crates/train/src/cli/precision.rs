//! `--precision` and `--instructions`, as what they ask for.

use super::arguments::{InstructionSet, Number, Precision};
use super::warn;
use crate::architecture::Architecture;
use crate::blocks::quantized::{Format, INPUTS_MAX, Instructions};
use crate::error::{Error, Result};
use crate::precision;
use crate::weights::Weights;

/// Rounds the weights as the arguments say, and says what computes then.
pub fn apply(arguments: &Precision, weights: &mut Weights) -> Result<()> {
    let Some(format) = arguments.precision.format() else {
        if arguments.instructions == InstructionSet::Auto {
            return Ok(());
        }
        return Err(Error::Usage {
            what: "`--instructions` is of integer products, and the precision is f32".into(),
            hint: "add `--precision int8` or `int4`, or leave `--instructions` out",
        });
    };
    let instructions = instructions(arguments.instructions)?;
    check_width(&weights.architecture)?;
    precision::quantize(&mut weights.parameters, &weights.architecture, format, instructions);
    warn(&precision::arithmetic(weights.parameters.layers.first()));
    Ok(())
}

impl Number {
    /// What matrices are rounded to; none for f32.
    pub(super) fn format(self) -> Option<Format> {
        match self {
            Self::F32 => None,
            Self::Int8 => Some(Format::Int8),
            Self::Int4 => Some(Format::Int4),
        }
    }
}

/// Refuses matrices whose sums may not fit an i32.
pub(super) fn check_width(architecture: &Architecture) -> Result<()> {
    let Architecture { hidden, attention, mlp, .. } = architecture;
    let widest = (*hidden).max(attention.q_width()).max(mlp.feed_forward);
    if widest <= INPUTS_MAX {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!("a matrix has {widest} inputs, more than the {INPUTS_MAX} of integer sums"),
        hint: "compute with `--precision f32`",
    })
}

/// Refuses to train in anything but f32.
pub fn check_training(wanted: &str) -> Result<()> {
    if matches!(wanted, "f32" | "fp32") {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!("training computes in f32, and `{wanted}` is asked for"),
        hint: "leave out `--precision` and the stage's `precision:`, or say `fp32`",
    })
}

fn instructions(wanted: InstructionSet) -> Result<Instructions> {
    let instructions = match wanted {
        InstructionSet::Auto => Instructions::best(),
        InstructionSet::Portable => Instructions::Portable,
        InstructionSet::Avx2 => Instructions::Avx2,
        InstructionSet::Avx512Vnni => Instructions::Avx512Vnni,
    };
    if instructions.is_here() {
        return Ok(instructions);
    }
    Err(Error::Usage {
        what: format!("this processor has no {}", instructions.name()),
        hint: "leave `--instructions` out, which takes the fastest that it has",
    })
}
