//! Decodes two sequences in one batch, with models that are tables of probabilities.
//!
//! `cargo run -p polydraft-engine --example decode`
//!
//! For real models, only the tables are replaced: `polydraft_models::load` returns a `Model` too.

use polydraft::{PolicyKind, Sampling, VerifierKind};
use polydraft_engine::{
    Engine, Limits, Model, ModelDrafter, Origin, Request, Result, Session, Speculation, TableModel,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The next token depends on the last one: usually it is the next of the cycle 0, 1, 2.
const TARGET: &str = r#"{"vocabulary": 3, "next": {
    "": [0.4, 0.3, 0.3], "0": [0.1, 0.8, 0.1], "1": [0.1, 0.1, 0.8], "2": [0.8, 0.1, 0.1]}}"#;
/// A cheaper, less confident model.
const DRAFT: &str = r#"{"vocabulary": 3, "next": {
    "": [0.4, 0.3, 0.3], "0": [0.2, 0.6, 0.2], "1": [0.2, 0.2, 0.6], "2": [0.6, 0.2, 0.2]}}"#;

fn request(prompt: u32, seed: u64) -> Result<Request<'static>> {
    let verifier: VerifierKind = "nested-priority".parse()?;
    // Any sampling of the draft is allowed: it changes the speed only.
    let speculation = Speculation::new(verifier.build()?, PolicyKind::paths(2, 3).build()?)?;
    Ok(Request::new([prompt])
        // Sampling of the target: it defines the distribution of the output.
        .sampling(Sampling::default())
        // Speculation: it changes the speed only.
        .speculation(speculation)
        .limits(Limits::tokens(24))
        // Tokens suffice here; a tokenizer's stream, given to `detokenizer`, would decode them.
        .rng(ChaCha8Rng::seed_from_u64(seed)))
}

/// Prints the tokens decided since the last call; `+` marks accepted drafts.
fn show(name: &str, session: &mut Session) {
    let tokens: Vec<String> = session
        .take_tokens()
        .iter()
        .map(|emitted| match emitted.origin {
            Origin::Accepted => format!("+{}", emitted.token),
            Origin::Correction | Origin::Bonus => emitted.token.to_string(),
        })
        .collect();
    if !tokens.is_empty() {
        println!("{name}: {}", tokens.join(" "));
    }
}

fn main() -> Result<()> {
    let target = TableModel::from_json("target", TARGET)?;
    let draft = TableModel::from_json("draft", DRAFT)?;
    // This checks that both have the same vocabulary.
    let drafter = ModelDrafter::new(Box::new(draft), &target.info().vocabulary)?;
    let mut engine = Engine::new(Box::new(target), Some(Box::new(drafter)));

    let mut first = engine.open(request(0, 1)?)?;
    let mut second = engine.open(request(1, 2)?)?;
    while !(first.is_done() && second.is_done()) {
        // One target pass for both; a session that is done is skipped.
        engine.step(&mut [&mut first, &mut second])?;
        show("first ", &mut first);
        show("second", &mut second);
    }
    for session in [first, second] {
        let generation = engine.close(session)?;
        let statistics = &generation.statistics;
        println!(
            "{} tokens in {} calls of the target: {:.2} tokens per call",
            generation.tokens.len(),
            statistics.target_calls,
            statistics.block_efficiency()
        );
    }
    Ok(())
}
