//! Samples that exist already, read by the model; its distributions are of every token of them.

use anyhow::Result;
use polydraft::{Distribution, DraftTree, Sampling, Token};
use polydraft_engine::{HiddenStates, Model, Sequences};
use polydraft_models::TransformerModel;

use crate::kinds::Kind;
use crate::shard::{Sample, SampleData};
use crate::writer::SHORTEST;

/// Tokens of a pass.
const CHUNK: usize = 128;

/// Cuts the tokens into samples of `max_sample_tokens`, and reads each.
pub(crate) fn read(
    model: &mut TransformerModel,
    tokens: &[Token],
    max_sample_tokens: usize,
    kept: SampleData,
) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for tokens in tokens.chunks(max_sample_tokens).filter(|tokens| tokens.len() >= SHORTEST) {
        let sequence = model.open()?;
        model.extend(sequence, &tokens[..1])?;
        let (mut log_sums, mut likely) = (vec![0.0], vec![Vec::new()]);
        for chunk in tokens[1..].chunks(CHUNK) {
            let (mut tree, mut path) = (DraftTree::new(), vec![DraftTree::ROOT]);
            for token in chunk {
                path.push(tree.add(path[path.len() - 1], *token));
            }
            model.score(&[(sequence, &tree)])?;
            for node in &path[..chunk.len()] {
                let logits = model.logits(sequence, *node);
                let own = Distribution::from_logits(logits, &Sampling::default())?;
                let likeliest = own.argmax();
                log_sums.push(logits[likeliest as usize] - own.probability(likeliest).ln() as f32);
                likely.push(kept.likeliest(&own));
            }
            model.commit(sequence, &tree, &path[1..])?;
        }
        let states = match kept {
            SampleData::HiddenStates => model.hidden_states(sequence, 0..tokens.len() - 1)?,
            SampleData::Likeliest(_) => Vec::new(),
        };
        model.close(sequence);
        let taught = (0..tokens.len()).map(|i| i > 0).collect();
        let kind = Kind::Given.number();
        let (tokens, likeliest) = (tokens.to_vec(), likely);
        lessons.push(Sample { kind, tokens, taught, log_sums, states, likeliest });
    }
    Ok(samples)
}
