//! `het fabric`: flows through a network, paths for them, thresholds for its switches, and what
//! ranks are to know of it.

mod ecn;
mod paths;
mod ranks;
mod simulate;

use std::fs;
use std::path::Path;

use crate::args::FabricCommand;
use crate::fail::Fail;

pub fn fabric(command: &FabricCommand) -> Result<u8, Fail> {
    match command {
        FabricCommand::Simulate(args) => simulate::simulate(args),
        FabricCommand::Paths(args) => paths::paths(args),
        FabricCommand::Ecn(args) => ecn::ecn(args),
        FabricCommand::Ranks(args) => ranks::ranks(args),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Fail> {
    fs::write(path, text).map_err(|error| Fail::file(path, error))
}
