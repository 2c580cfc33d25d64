//! `het schema`.

use anstream::println;
use clap::{Args, ValueEnum};
use het_wire::{declared, device_table, job, quotas, topology};

use crate::fail::{Fail, code};

#[derive(Debug, Args)]
pub struct SchemaArgs {
    #[arg(value_enum)]
    pub file: SchemaFile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemaFile {
    Job,
    /// Nodes, fabric and device classes of a cluster.
    Cluster,
    /// Devices that a server has beside those that it finds.
    Devices,
    /// What extended resources of a cluster's nodes are.
    DeviceTable,
    /// What tenants are entitled to and limited to.
    Quotas,
}

pub fn schema(args: &SchemaArgs) -> Result<u8, Fail> {
    match args.file {
        SchemaFile::Job => println!("{:#}", job::json_schema()),
        SchemaFile::Cluster => println!("{:#}", topology::json_schema()),
        SchemaFile::Devices => println!("{:#}", declared::json_schema()),
        SchemaFile::DeviceTable => println!("{:#}", device_table::json_schema()),
        SchemaFile::Quotas => println!("{:#}", quotas::json_schema()),
    }
    Ok(code::OK)
}
