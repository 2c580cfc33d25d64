//! `het fabric`: flows through a network, paths for them, thresholds for its switches, and what
//! ranks are to know of it.

mod ecn;
mod paths;
mod ranks;
mod simulate;

use std::fs;
use std::path::Path;

use clap::Subcommand;

use self::ecn::EcnArgs;
use self::paths::PathsArgs;
use self::ranks::RanksArgs;
use self::simulate::SimulateArgs;
use crate::fail::Fail;

#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// Play published flows, and say how far our completion times are from theirs.
    Simulate(SimulateArgs),
    /// Plan paths that no two flows collide on, beside what hashing would choose.
    Paths(PathsArgs),
    /// Propose thresholds of marking and pausing for a mix of traffic.
    Ecn(EcnArgs),
    /// Tell collective libraries which card each rank sends through.
    Ranks(RanksArgs),
}

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
