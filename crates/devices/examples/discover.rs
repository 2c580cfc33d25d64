//! Prints what this machine has, as `het devices` will: `cargo run -p het-devices --example
//! discover`. Given a directory, prints the machine recorded there.

use std::io::{self, Write};
use std::process::ExitCode;

use het_devices::{LoadSource, System, VULKAN_PROBE_COMMAND, discover, vulkan_probe_main};

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    // First of all, before anything is printed: this process may be the probe.
    if argument.as_deref() == Some(VULKAN_PROBE_COMMAND) {
        return vulkan_probe_main();
    }
    let system = argument.map_or_else(System::this_machine, System::recorded);
    match print(&system, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn print(system: &System, out: &mut dyn Write) -> io::Result<()> {
    let discovery = discover(system);
    writeln!(out, "{:#?}", discovery.topology)?;
    writeln!(out, "cores: {:?}\nnuma: {:?}", discovery.cores, discovery.numa)?;
    writeln!(out, "places: {:?}", discovery.places)?;
    writeln!(out, "load: {:?}", LoadSource::open(system, &discovery).read())?;
    for diagnostic in &discovery.diagnostics {
        writeln!(out, "finding: {diagnostic}")?;
        if let Some(hint) = diagnostic.hint() {
            writeln!(out, "  hint: {hint}")?;
        }
    }
    Ok(())
}
