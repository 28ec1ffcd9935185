//! The README's example, letter for letter: a test compares the two.
//!
//! `cargo run -p polydraft-runtime --example readme`, in a folder that has a `model.gguf`

use polydraft_engine::Limits;
use polydraft_runtime::{Description, Run, Silent};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn main() -> anyhow::Result<()> {
    let mut description: Description = Description::default();
    description.models.target = Some("model.gguf".to_owned());
    let mut run = Run::open(description, &Silent)?;
    let prompt = run.models.language.tokenizer.encode("Once upon a time")?;
    let rng = ChaCha8Rng::seed_from_u64(1);
    let request = run.request(&prompt, &Limits::tokens(100), rng)?;
    let generation = run.models.engine.generate(request, &mut |piece| {
        print!("{}", piece.text);
        true
    })?;
    println!("\n{} tokens", generation.tokens.len());
    Ok(())
}
