//! `--precision` and `--instructions`, as what they ask for.

use super::arguments::{InstructionSet, Number, Precision};
use super::warn;
use crate::architecture::Architecture;
use crate::error::{Error, Result};
use crate::precision;
use crate::weights::Weights;
use het_blocks::linear::Numbers;
use het_blocks::quantized::{Format, INPUTS_MAX, Instructions};

/// Rounds the weights as the arguments say, and says what computes then.
pub fn apply(arguments: &Precision, weights: &mut Weights) -> Result<()> {
    let format = arguments.precision.format();
    if format.is_none() && arguments.instructions != InstructionSet::Auto {
        let own = if arguments.precision == Number::Bf16 { "bf16" } else { "f32" };
        return Err(Error::Usage {
            what: format!("`--instructions` is of integer products, and the precision is {own}"),
            hint: "add `--precision int8` or `int4`, or leave `--instructions` out",
        });
    }
    let Weights { parameters, architecture, .. } = weights;
    match (format, arguments.precision) {
        (Some(format), _) => {
            let instructions = instructions(arguments.instructions)?;
            check_width(architecture)?;
            precision::quantize(parameters, architecture, format, instructions);
        }
        (None, Number::Bf16) => precision::store_in_bf16(parameters, architecture),
        (None, _) => return Ok(()),
    }
    warn(&precision::arithmetic(parameters.layers.first(), Numbers::F32));
    Ok(())
}

impl Number {
    /// The integers that matrices are rounded to; none for others.
    fn format(self) -> Option<Format> {
        match self {
            Self::F32 | Self::Bf16 => None,
            Self::Int8 => Some(Format::Int8),
            Self::Int4 => Some(Format::Int4),
        }
    }
}

/// Refuses matrices whose sums may not fit an i32.
fn check_width(architecture: &Architecture) -> Result<()> {
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

/// What a training's products compute in; refuses what they cannot.
pub fn of_training(wanted: &str) -> Result<Numbers> {
    match wanted {
        "f32" | "fp32" => Ok(Numbers::F32),
        "bf16" => Ok(Numbers::Bf16),
        _ => Err(Error::Usage {
            what: format!("training computes in f32 or bf16, and `{wanted}` is asked for"),
            hint: "leave out `--precision` and the stage's `precision:`, or say `fp32` or `bf16`",
        }),
    }
}

/// What a validation's matrices are rounded to; none where they are those of the training.
pub fn of_validation(wanted: Number, architecture: &Architecture) -> Result<Option<Format>> {
    if wanted == Number::Bf16 {
        return Err(Error::Usage {
            what: "a validation computes as the training does, or in int8 or int4".into(),
            hint: "leave out `--validate-precision`; `--precision bf16` is of both",
        });
    }
    let format = wanted.format();
    format.map_or(Ok(()), |_| check_width(architecture))?;
    Ok(format)
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
