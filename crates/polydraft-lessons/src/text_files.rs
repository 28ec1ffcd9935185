//! Samples from text files: the model computes its distribution at every token.

use anyhow::Result;
use polydraft::{Distribution, DraftTree, Sampling, Token};
use polydraft_engine::{HiddenStates, Model, Sequences};
use polydraft_models::TransformerModel;

use crate::kinds::Kind;
use crate::shard::{Sample, SampleData};
use crate::writer::MIN_SAMPLE_TOKENS;

/// Tokens per pass.
const CHUNK: usize = 128;

/// Splits tokens into samples of at most `max_sample_tokens`, and computes the data of each.
pub(crate) fn read(
    model: &mut TransformerModel,
    tokens: &[Token],
    max_sample_tokens: usize,
    data: SampleData,
) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for tokens in
        tokens.chunks(max_sample_tokens).filter(|tokens| tokens.len() >= MIN_SAMPLE_TOKENS)
    {
        let sequence = model.open()?;
        model.extend(sequence, &tokens[..1])?;
        let (mut log_sums, mut likeliest_tokens) = (vec![0.0], vec![Vec::new()]);
        for chunk in tokens[1..].chunks(CHUNK) {
            let (mut tree, mut path) = (DraftTree::new(), vec![DraftTree::ROOT]);
            for token in chunk {
                path.push(tree.add(path[path.len() - 1], *token));
            }
            model.score(&[(sequence, &tree)])?;
            for node in &path[..chunk.len()] {
                let logits = model.logits(sequence, *node);
                let distribution = Distribution::from_logits(logits, &Sampling::default())?;
                let argmax = distribution.argmax();
                log_sums
                    .push(logits[argmax as usize] - distribution.probability(argmax).ln() as f32);
                likeliest_tokens.push(data.likeliest(&distribution));
            }
            model.commit(sequence, &tree, &path[1..])?;
        }
        let states = match data {
            SampleData::HiddenStates => model.hidden_states(sequence, 0..tokens.len() - 1)?,
            SampleData::Likeliest(_) => Vec::new(),
        };
        model.close(sequence);
        let taught = (0..tokens.len()).map(|i| i > 0).collect();
        let kind = Kind::Given.number();
        let (tokens, likeliest) = (tokens.to_vec(), likeliest_tokens);
        samples.push(Sample { kind, tokens, taught, log_sums, states, likeliest });
    }
    Ok(samples)
}
