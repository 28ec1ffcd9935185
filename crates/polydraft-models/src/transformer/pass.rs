//! The tokens of one pass, and what each of them sees.

use polydraft_kernels::{Mask, Rows};

use crate::cache::Cache;
use crate::error::Result;

/// One sequence's tokens in a pass.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub cache: &'a mut Cache,
    /// The slot of the first token; the others follow it.
    pub start: usize,
    pub tokens: Vec<u32>,
    /// Of each token.
    pub masks: Vec<Mask>,
    /// So many of the last tokens want logits.
    pub wanted: usize,
    /// So many tokens of the sequence are decided and have no logits to give.
    pub settled: usize,
}

impl Part<'_> {
    /// The slots up to the last token's.
    pub fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

/// Makes all parts' caches ready for their tokens.
pub(crate) fn begin(parts: &mut [Part]) -> Result<()> {
    for part in parts {
        part.cache.begin(part.start, &part.masks, part.settled)?;
    }
    Ok(())
}

/// Makes decided tokens part of the states that recurrent layers keep.
pub(crate) fn end(parts: &mut [Part]) {
    for part in parts {
        part.cache.end(part.wanted == 0);
    }
}

/// The tokens of all parts.
pub(crate) fn tokens(parts: &[Part]) -> Vec<u32> {
    parts.iter().flat_map(|part| &part.tokens).copied().collect()
}

/// The positions of the tokens of all parts.
pub(crate) fn positions(parts: &[Part]) -> Vec<usize> {
    parts.iter().flat_map(|part| part.masks.iter().map(Mask::position)).collect()
}

/// Of rows of all tokens those whose logits are wanted; `None` if none are.
pub(crate) fn wanted(x: Rows, parts: &[Part]) -> Option<Rows> {
    let wanted = wanted_rows(parts);
    match wanted.len() {
        0 => None,
        all if all == x.count() => Some(x),
        _ => Some(x.select(&wanted)),
    }
}

/// Which of all parts' tokens those are whose logits are wanted.
fn wanted_rows(parts: &[Part]) -> Vec<usize> {
    let (mut wanted, mut end) = (Vec::new(), 0);
    for part in parts {
        end += part.tokens.len();
        wanted.extend(end - part.wanted..end);
    }
    wanted
}

/// Leaves of all parts the tokens whose logits are wanted; which of them they were, if there were
/// others.
pub(crate) fn narrow(parts: &mut [Part]) -> Option<Vec<usize>> {
    let rows = wanted_rows(parts);
    let all: usize = parts.iter().map(|part| part.tokens.len()).sum();
    for part in parts {
        let others = part.tokens.len() - part.wanted;
        part.tokens.drain(..others);
        part.masks.drain(..others);
        part.start += others;
    }
    (rows.len() < all).then_some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Form;

    #[test]
    fn what_is_left_are_the_tokens_whose_logits_are_wanted() {
        let form = || Form { layouts: Vec::new(), watched: 0, recurrent: None };
        let mut caches = [Cache::new(form()), Cache::new(form()), Cache::new(form())];
        let mut parts: Vec<Part> = caches
            .iter_mut()
            .zip([(3, 4, 1), (0, 2, 0), (9, 2, 2)])
            .map(|(cache, (start, count, wanted))| Part {
                cache,
                start,
                tokens: (start as u32..).take(count).collect(),
                masks: (start..start + count)
                    .map(|at| Mask { context: at, path: vec![at] })
                    .collect(),
                wanted,
                settled: start,
            })
            .collect();
        assert_eq!(narrow(&mut parts), Some(vec![3, 6, 7]));
        assert_eq!(tokens(&parts), [6, 9, 10]);
        assert_eq!(positions(&parts), [6, 9, 10]);
        assert_eq!(parts.iter().map(|part| part.start).collect::<Vec<_>>(), [6, 2, 9]);
        assert_eq!(parts.iter().map(Part::end).collect::<Vec<_>>(), [7, 2, 11]);
        // Once more there is nothing to leave away.
        assert_eq!(narrow(&mut parts), None);
    }
}
