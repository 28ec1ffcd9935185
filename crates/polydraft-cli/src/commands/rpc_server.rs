//! `polydraft rpc-server`: computes layers for another machine.

use std::net::Ipv4Addr;

use anyhow::Result;

use polydraft_runtime::{serve_rpc, threads_or_all};

use crate::output::{self, Terminal};

/// Compute layers of a target for another machine, as llama.cpp's RPC server.
///
/// Offers the GPUs of this machine, or its CPU if it has none, to one client at a time, which must
/// run the same version of polydraft. There is no password and no encryption, and llama.cpp does
/// not claim that the server withstands hostile clients: open the port only in a network that only
/// trusted machines reach.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft rpc-server --host 10.0.0.2                                       on the machine that \
  computes
  polydraft generate --target big.gguf --rpc 10.0.0.2:50052 --prompt 'Once'   on the one that \
  decodes")]
pub struct Args {
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: Ipv4Addr,
    /// Port to listen on.
    #[arg(
        long,
        short,
        value_name = "PORT",
        default_value_t = 50052,
        value_parser = clap::value_parser!(u16).range(1..),
    )]
    port: u16,
    /// Number of threads to compute with [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
}

/// Serves until the process is killed.
///
/// # Errors
/// Fails without llama.cpp, or if the address is not available.
pub fn run(args: Args) -> Result<()> {
    if !args.host.is_loopback() {
        output::note(format_args!(
            "note: every client that reaches {}:{} can use this machine",
            args.host, args.port
        ));
    }
    let threads = threads_or_all(args.threads.map(|threads| threads as usize), &Terminal);
    let endpoint = format!("{}:{}", args.host, args.port);
    serve_rpc(&endpoint, threads)
}
