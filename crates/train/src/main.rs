//! The `het-train` program; see the library for what it knows.

fn main() -> std::process::ExitCode {
    het_train::heap::fix_threshold();
    het_train::cli::main()
}
