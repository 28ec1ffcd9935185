//! The `polydraft` program.

fn main() {
    polydraft_cli::cli::main(std::env::args_os().collect())
}
