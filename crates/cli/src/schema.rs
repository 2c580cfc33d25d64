//! `het schema`.

use anstream::println;
use het_wire::job::json_schema;

use crate::args::{SchemaArgs, SchemaFile};
use crate::fail::{Fail, code};

pub fn schema(args: &SchemaArgs) -> Result<u8, Fail> {
    match args.file {
        SchemaFile::Job => println!("{:#}", json_schema()),
    }
    Ok(code::OK)
}
