//! The README's example; a test checks that both are identical.
//!
//! `cargo run -p polydraft-runtime --example readme`, in a folder that contains a `model.gguf`

use polydraft_engine::Limits;
use polydraft_runtime::{Description, Run, Silent};

fn main() -> anyhow::Result<()> {
    let mut run = Run::open(Description::new("model.gguf"), &Silent)?;
    let output = run.generate("Once upon a time", Limits::tokens(100), Some(1), &mut |chunk| {
        print!("{}", chunk.text);
        true
    })?;
    println!("\n{} tokens", output.tokens.len());
    Ok(())
}
