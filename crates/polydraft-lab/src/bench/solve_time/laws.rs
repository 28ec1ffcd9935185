//! The laws that solvers are timed on.

use std::path::Path;

use anyhow::{Result, ensure};
use polydraft::{Distribution, DraftTree, Sampling, Token};
use polydraft_engine::{Model, Sequence};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::models::ModelArgs;
use crate::prompts;

/// Logits of target and draft, shape `[vocabulary]` each.
pub struct Pair {
    pub target: Vec<f32>,
    draft: Vec<f32>,
}

impl Pair {
    pub fn target(&self, sampling: &Sampling) -> Result<Distribution> {
        Ok(Distribution::from_logits(&self.target, sampling)?)
    }

    pub fn draft(&self, sampling: &Sampling) -> Result<Distribution> {
        Ok(Distribution::from_logits(&self.draft, sampling)?)
    }
}

/// Longest text that positions are taken from, in tokens after the prompt.
const TEXT: usize = 64;

/// Positions of texts that the target writes after the prompts, in turn, each at a random place.
pub fn of_models(
    models: &ModelArgs,
    prompts: Option<&Path>,
    positions: usize,
    seed: u64,
) -> Result<Vec<Pair>> {
    let prompts = prompts::read(prompts)?;
    let (mut target, mut draft) = models.load_both()?;
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let mut pairs = Vec::new();
    for position in 0..positions {
        let prompt = &prompts[position % prompts.len()];
        let mut text = target.language.text.encode(prompt)?;
        let room = target.model.facts().context.min(draft.model.facts().context);
        ensure!(
            text.len() < room,
            "a prompt of {} tokens, the models have room for {room}: {prompt:?}",
            text.len()
        );
        let place = (rng.next_u32() as usize % TEXT).min(room - text.len() - 1);
        let sequence = target.model.open()?;
        target.model.extend(sequence, &text)?;
        for _ in 0..place {
            let logits = logits(target.model.as_mut(), sequence)?;
            let token: Token = Distribution::from_logits(logits, &Sampling::default())?.sample(&mut rng);
            target.model.extend(sequence, &[token])?;
            text.push(token);
        }
        let target_logits = logits(target.model.as_mut(), sequence)?.to_vec();
        target.model.close(sequence);
        let sequence = draft.model.open()?;
        draft.model.extend(sequence, &text)?;
        let draft_logits = logits(draft.model.as_mut(), sequence)?.to_vec();
        draft.model.close(sequence);
        pairs.push(Pair { target: target_logits, draft: draft_logits });
    }
    Ok(pairs)
}

fn logits(model: &mut dyn Model, sequence: Sequence) -> Result<&[f32]> {
    model.score(&[(sequence, &DraftTree::new())])?;
    Ok(model.logits(sequence, DraftTree::ROOT))
}

/// Tokens of a synthetic vocabulary: those of Llama 3.
const VOCABULARY: usize = 128_256;

/// Shaped like a language model's: Zipf's law, with an exponent from 1.1 to 2.3 drawn for each position (the likeliest
/// token has from 10 to 70 per cent), and normal errors of standard deviation 1 in the draft's logits.
pub fn synthetic(count: usize, seed: u64) -> Vec<Pair> {
    let mut rng = ChaCha12Rng::seed_from_u64(seed ^ 0x5eed);
    let mut uniform = || f64::from(rng.next_u32()) / f64::from(u32::MAX);
    (0..count)
        .map(|_| {
            let exponent = 1.1 + 1.2 * uniform();
            // Twelve uniform numbers: close enough to normal, and the same on every machine.
            let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
            let level = |rank: usize| -exponent * (rank as f64).ln();
            let target: Vec<f32> = (1..=VOCABULARY).map(|rank| level(rank) as f32).collect();
            let draft = (1..=VOCABULARY).map(|rank| (level(rank) + normal()) as f32).collect();
            Pair { target, draft }
        })
        .collect()
}
