//! Distributions on which solvers are timed.

use anyhow::{Result, ensure};
use polydraft::{Distribution, Draft, DraftTree, PolicyKind, Sampling, TargetDistributions, Token};
use polydraft_engine::Engine;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::observe::{self, Look, Plan};

/// Logits of target and draft, shape `[vocabulary]` each, at a position of a sequence.
#[derive(Clone)]
pub struct Pair {
    pub target: Vec<f32>,
    draft: Vec<f32>,
    /// Index of the sequence.
    pub text: usize,
    pub prompt: usize,
}

impl Pair {
    pub fn target(&self, sampling: &Sampling) -> Result<Distribution> {
        Ok(Distribution::from_logits(&self.target, sampling)?)
    }

    pub fn draft(&self, sampling: &Sampling) -> Result<Distribution> {
        Ok(Distribution::from_logits(&self.draft, sampling)?)
    }
}

/// Maximum number of tokens after the prompt from which positions are taken.
pub const TEXT: usize = 64;

/// Returns positions of the target's own output with this sampling, for each prompt in turn. The
/// first position in a sequence is random, the others follow at a fixed distance.
///
/// # Errors
/// Errors of the models; a prompt that leaves no space for output.
pub fn of_models(
    engine: &mut Engine,
    prompts: &[Vec<Token>],
    positions: usize,
    every: usize,
    (sampling, seed): (Sampling, u64),
) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    show_of_models(engine, prompts, positions, every, (sampling, seed), &mut |pair| {
        pairs.push(pair);
        Ok(true)
    })?;
    Ok(pairs)
}

/// Calls a function with each pair of distributions, as long as `goes_on` returns true.
///
/// # Errors
/// Errors of the models and of `goes_on`.
pub fn show_of_models(
    engine: &mut Engine,
    prompts: &[Vec<Token>],
    positions: usize,
    every: usize,
    (sampling, seed): (Sampling, u64),
    goes_on: &mut dyn FnMut(Pair) -> Result<bool>,
) -> Result<()> {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let (mut left, mut empty, tree) = (positions, 0, PolicyKind::chain(1));
    let plan = |sampling, every| Plan {
        sampling,
        draft_sampling: sampling,
        each: &[],
        tree: &tree,
        max_tokens: TEXT,
        every,
        steps_of: None,
        paths: None,
    };
    let neutral = Sampling::default();
    for (text, (prompt, tokens)) in prompts.iter().enumerate().cycle().enumerate() {
        let seeds = (rng.next_u64(), rng.next_u64());
        // Full distributions are recorded, whatever the sampling of the sequence.
        let follow = match sampling == neutral {
            true => Vec::new(),
            false => {
                let nothing = Distributions { pairs: Vec::new(), most: 0, text, prompt };
                let plan = plan(sampling, TEXT);
                observe::text(engine, tokens, &plan, seeds, Vec::new(), nothing, &|| true)?.1
            }
        };
        let look = Distributions { pairs: Vec::new(), most: left, text, prompt };
        let (Distributions { pairs, .. }, _) =
            observe::text(engine, tokens, &plan(neutral, every), seeds, follow, look, &|| true)?;
        // A sequence may end before its first position, if the context is almost full.
        empty = if pairs.is_empty() { empty + 1 } else { 0 };
        ensure!(
            empty < 64 * prompts.len(),
            "the prompts leave no room for output in the models' context"
        );
        left -= pairs.len();
        for pair in pairs {
            if !goes_on(pair)? {
                return Ok(());
            }
        }
        if left == 0 {
            break;
        }
    }
    Ok(())
}

/// Records both distributions, for a limited number of pairs.
struct Distributions {
    pairs: Vec<Pair>,
    most: usize,
    text: usize,
    prompt: usize,
}

impl Look for Distributions {
    fn look(
        &mut self,
        _: usize,
        draft: &Draft,
        target: &dyn TargetDistributions,
    ) -> polydraft::Result<()> {
        if let Some(probs) =
            draft.distribution(DraftTree::ROOT).filter(|_| self.pairs.len() < self.most)
        {
            let target = logits(target.target(DraftTree::ROOT)?);
            let (draft, &Self { text, prompt, .. }) = (logits(probs), &*self);
            self.pairs.push(Pair { target, draft, text, prompt });
        }
        Ok(())
    }
}

/// Returns logits that give this distribution at temperature 1.
fn logits(probs: &Distribution) -> Vec<f32> {
    let mut logits = vec![f32::NEG_INFINITY; probs.vocabulary()];
    probs.support().for_each(|(token, p)| logits[token as usize] = p.ln() as f32);
    logits
}

/// Size of the synthetic vocabulary: that of Llama 3.
const VOCABULARY: usize = 128_256;

/// Returns synthetic pairs that resemble those of language models. The target is a Zipf
/// distribution with an exponent from 1.1 to 2.3, drawn for each position (the likeliest token has
/// a probability from 10 to 70 per cent). The draft's logits have normal errors of standard
/// deviation 1.
pub fn synthetic(count: usize, seed: u64) -> Vec<Pair> {
    let mut rng = ChaCha12Rng::seed_from_u64(seed ^ 0x5eed);
    let mut uniform = || f64::from(rng.next_u32()) / f64::from(u32::MAX);
    (0..count)
        .map(|text| {
            let exponent = 1.1 + 1.2 * uniform();
            // The sum of twelve uniform numbers is almost normal, and the same on every machine.
            let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
            let level = |rank: usize| -exponent * (rank as f64).ln();
            let target: Vec<f32> = (1..=VOCABULARY).map(|rank| level(rank) as f32).collect();
            let draft = (1..=VOCABULARY).map(|rank| (level(rank) + normal()) as f32).collect();
            Pair { target, draft, text, prompt: text }
        })
        .collect()
}
