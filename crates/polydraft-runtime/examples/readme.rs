//! The README's example; a test checks that both are identical.
//!
//! `cargo run -p polydraft-runtime --example readme`, in a folder that contains a `model.gguf`

use polydraft_runtime::{Description, Limits, Run, Silent};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut run = Run::open(Description::new("model.gguf"), &Silent)?;
    run.generate("Once upon a time", Limits::tokens(100), Some(1), &mut |chunk| {
        print!("{}", chunk.text);
        true
    })?;
    Ok(())
}
