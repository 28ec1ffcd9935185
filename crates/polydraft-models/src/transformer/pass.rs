//! Tokens of one forward pass and their attention masks.

use polydraft_kernels::{Mask, Rows};

use crate::cache::Cache;
use crate::error::Result;

/// Tokens of one sequence in a forward pass.
#[derive(Debug)]
pub(crate) struct SequenceTokens<'a> {
    pub cache: &'a mut Cache,
    /// Slot of the first token; the others follow it.
    pub start: usize,
    pub tokens: Vec<u32>,
    /// Attention mask of each token.
    pub masks: Vec<Mask>,
    /// Number of tokens, counted from the last, whose logits are wanted.
    pub wanted: usize,
    /// Number of the sequence's tokens that are committed and need no logits.
    pub committed: usize,
}

impl SequenceTokens<'_> {
    /// End of the range of slots.
    pub fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

/// Prepares the caches of all sequences for their tokens.
pub(crate) fn begin(batch: &mut [SequenceTokens]) -> Result<()> {
    for sequence in batch {
        sequence.cache.begin_pass(sequence.start, &sequence.masks, sequence.committed)?;
    }
    Ok(())
}

/// Advances the recurrent states of all sequences over their committed tokens.
pub(crate) fn end(batch: &mut [SequenceTokens]) {
    for sequence in batch {
        sequence.cache.end_pass(sequence.wanted == 0);
    }
}

/// Tokens of all sequences.
pub(crate) fn tokens(batch: &[SequenceTokens]) -> Vec<u32> {
    batch.iter().flat_map(|sequence| &sequence.tokens).copied().collect()
}

/// Positions of the tokens of all sequences.
pub(crate) fn positions(batch: &[SequenceTokens]) -> Vec<usize> {
    batch.iter().flat_map(|sequence| sequence.masks.iter().map(Mask::position)).collect()
}

/// Selects the rows whose logits are wanted; `None` if there are none.
pub(crate) fn wanted(x: Rows, batch: &[SequenceTokens]) -> Option<Rows> {
    let wanted = wanted_rows(batch);
    match wanted.len() {
        0 => None,
        all if all == x.count() => Some(x),
        _ => Some(x.select(&wanted)),
    }
}

/// Indices of the tokens whose logits are wanted.
fn wanted_rows(batch: &[SequenceTokens]) -> Vec<usize> {
    let (mut wanted, mut end) = (Vec::new(), 0);
    for sequence in batch {
        end += sequence.tokens.len();
        wanted.extend(end - sequence.wanted..end);
    }
    wanted
}

/// Drops the tokens whose logits are not wanted; returns the indices of the others, or `None` if
/// nothing was dropped.
pub(crate) fn drop_unwanted(batch: &mut [SequenceTokens]) -> Option<Vec<usize>> {
    let rows = wanted_rows(batch);
    let all: usize = batch.iter().map(|sequence| sequence.tokens.len()).sum();
    for sequence in batch {
        let others = sequence.tokens.len() - sequence.wanted;
        sequence.tokens.drain(..others);
        sequence.masks.drain(..others);
        sequence.start += others;
    }
    (rows.len() < all).then_some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheLayout;

    #[test]
    fn drop_unwanted_leaves_tokens_whose_logits_are_wanted() {
        let form = || CacheLayout { layouts: Vec::new(), captured_width: 0, recurrent: None };
        let mut caches = [Cache::new(form()), Cache::new(form()), Cache::new(form())];
        let mut batch: Vec<SequenceTokens> = caches
            .iter_mut()
            .zip([(3, 4, 1), (0, 2, 0), (9, 2, 2)])
            .map(|(cache, (start, count, wanted))| SequenceTokens {
                cache,
                start,
                tokens: (start as u32..).take(count).collect(),
                masks: (start..start + count)
                    .map(|at| Mask { context: at, path: vec![at] })
                    .collect(),
                wanted,
                committed: start,
            })
            .collect();
        assert_eq!(drop_unwanted(&mut batch), Some(vec![3, 6, 7]));
        assert_eq!(tokens(&batch), [6, 9, 10]);
        assert_eq!(positions(&batch), [6, 9, 10]);
        assert_eq!(batch.iter().map(|sequence| sequence.start).collect::<Vec<_>>(), [6, 2, 9]);
        assert_eq!(batch.iter().map(SequenceTokens::end).collect::<Vec<_>>(), [7, 2, 11]);
        // A second call drops nothing.
        assert_eq!(drop_unwanted(&mut batch), None);
    }
}
