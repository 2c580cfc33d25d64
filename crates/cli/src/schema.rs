//! `het schema`.

use anstream::println;
use het_wire::{declared, job, quotas, topology};

use crate::args::{SchemaArgs, SchemaFile};
use crate::fail::{Fail, code};

pub fn schema(args: &SchemaArgs) -> Result<u8, Fail> {
    match args.file {
        SchemaFile::Job => println!("{:#}", job::json_schema()),
        SchemaFile::Cluster => println!("{:#}", topology::json_schema()),
        SchemaFile::Devices => println!("{:#}", declared::json_schema()),
        SchemaFile::Quotas => println!("{:#}", quotas::json_schema()),
    }
    Ok(code::OK)
}
