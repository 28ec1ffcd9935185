//! A custom verifier, and the proof that it is lossless: every possible draft and every decision of
//! the verifier is enumerated, and the output must have the target's distribution.
//!
//! `cargo run -p polydraft --example own_verifier`
//!
//! Exits with 1 if it is not.

mod random_draft;
mod registry;

use std::process::ExitCode;

use polydraft::conformance::tree::{exact, random_pair};
use polydraft::{Drafting, PolicyKind, Result, VerifierKind};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use registry::OwnVerifier;

/// Allowed rounding error of sums over some ten thousand drafts.
const TOLERANCE: f64 = 1e-10;

fn main() -> Result<ExitCode> {
    let mut lossless = true;
    let reference = "walk:priority".parse::<VerifierKind>()?;
    for kind in OwnVerifier::all() {
        let mut verifier = kind.build()?;
        for tree in
            ["paths:1,3", "paths:2,2", "3,1", "delayed:1,2,1", "stop-below:0.7,paths:2,2", "binary"]
        {
            let policy = match tree {
                "binary" => PolicyKind::levels(&[2, 2], Drafting::WithoutReplacement),
                _ => tree.parse()?,
            };
            let grown = policy.build()?;
            // A verifier reports what it supports; an unsupported tree is not an error.
            if let Err(error) = verifier.supports(&grown.form()) {
                println!("{policy:26} {error}");
                continue;
            }
            let (mut worst, mut efficiency, mut best) = (0.0_f64, 0.0, 0.0);
            const PAIRS: u64 = 8;
            for seed in 0..PAIRS {
                // Half of the pairs are adversarial: zeros, ties, one-hot distributions, disjoint
                // supports.
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                let pair = random_pair(3, grown.depth(), 0.5, seed % 2 == 1, &mut rng)?;
                let (target, draft) = (&pair.target, &pair.draft);
                let result = exact(verifier.as_mut(), grown.as_ref(), target, draft, &mut |_| ())?;
                let optimal =
                    exact(reference.build()?.as_mut(), grown.as_ref(), target, draft, &mut |_| ())?;
                // Compares each deviation, not the maximum, so that NaN fails.
                lossless &= result.deviation <= TOLERANCE;
                worst = worst.max(result.deviation);
                efficiency += result.block_efficiency / PAIRS as f64;
                best += optimal.block_efficiency / PAIRS as f64;
            }
            println!(
                "{policy:26} off the target's distribution by {worst:.0e}, \
                 {efficiency:.3} tokens per call (walk:priority {best:.3})"
            );
        }
        println!(
            "{} {} the target's distribution",
            kind.name(),
            if lossless { "has" } else { "does NOT have" }
        );
    }
    Ok(if lossless { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
