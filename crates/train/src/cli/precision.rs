//! `--precision` and `--instructions`, as what they ask for.

use super::arguments::{InstructionSet, Number, Precision};
use super::warn;
use crate::blocks::quantized::{Format, Instructions};
use crate::error::{Error, Result};
use crate::precision;
use crate::weights::Weights;

/// Rounds the weights as the arguments say, and says what computes then.
pub fn apply(arguments: &Precision, weights: &mut Weights) -> Result<()> {
    let format = match arguments.precision {
        Number::F32 => return Ok(()),
        Number::Int8 => Format::Int8,
        Number::Int4 => Format::Int4,
    };
    let instructions = instructions(arguments.instructions)?;
    precision::quantize(&mut weights.parameters, &weights.architecture, format, instructions);
    warn(&precision::arithmetic(&weights.parameters));
    Ok(())
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
