//! The program `polydraft`, for the command of that name that the wheel installs.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the program with this command line, its own name first, and ends the process with its exit
/// code.
#[pyfunction]
pub fn _run_program(py: Python<'_>, line: Vec<OsString>) {
    // The program ends the process itself. Python's lock is not needed meanwhile.
    py.detach(|| polydraft_cli::cli::main(line))
}
