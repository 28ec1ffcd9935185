//! A grammar at work: which tokens may come next, at every node of a draft.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use polydraft::Token;
use polydraft_engine::LogitsProcessor;

use super::digits::Digits;

/// A grammar at the beginning of the output.
#[derive(Clone)]
pub struct Grammar {
    pub(super) matcher: Matcher,
    /// The parameter that asks for it.
    pub param: &'static str,
    /// Where numbers are to end.
    pub(super) digits: Option<Arc<Digits>>,
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Grammar")
    }
}

/// A grammar's state in one sequence. A clone is a second handle of the same.
#[derive(Clone)]
pub struct Mask(Arc<Mutex<Place>>);

/// After so many tokens of the sequence.
struct Place {
    known: usize,
    matcher: Matcher,
    digits: Option<Arc<Digits>>,
    /// Digits in a row at their end.
    row: usize,
    /// By the drafted tokens after them: draft and target need the same masks.
    masks: HashMap<Vec<Token>, Masked>,
    /// Why the parser gave up, once it has.
    failure: Option<String>,
}

/// What is forbidden at a node.
#[derive(Clone)]
pub(super) enum Masked {
    /// All but these.
    But(Arc<SimpleVob>),
    /// Nothing: after a token that was forbidden itself.
    Nothing,
    /// Everything: the parser failed.
    Everything,
}

/// Forced tokens in a row at most: other sequences wait meanwhile.
pub(super) const FORCED: usize = 32;

impl Mask {
    /// At the beginning of the output.
    pub fn new(grammar: &Grammar) -> Self {
        let Grammar { matcher, digits, .. } = grammar.clone();
        let masks = HashMap::new();
        let place = Place { known: 0, matcher, digits, row: 0, masks, failure: None };
        Self(Arc::new(Mutex::new(place)))
    }

    /// Why there is no distribution after some token, where the parser gave up there: a form may
    /// need more than its limits.
    pub fn failure(&self) -> Option<String> {
        self.place().failure.clone()
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After the decided tokens.
    fn behind(&self, decided: &[Token]) -> MutexGuard<'_, Place> {
        let mut place = self.place();
        if decided.len() > place.known {
            // What was decided had a mask: it is taken, or the parser has failed and says so below.
            let new = &decided[place.known..];
            let _ = place.matcher.consume_tokens(new);
            if let Some(digits) = &place.digits {
                place.row = digits.after(place.row, new);
            }
            place.known = decided.len();
            place.masks.clear();
        }
        place
    }

    pub(super) fn at(&self, decided: &[Token], path: &[Token]) -> Masked {
        let place = self.behind(decided);
        if let Some(masked) = place.masks.get(path) {
            return masked.clone();
        }
        let mut here = place.matcher.clone();
        let (digits, row) = (place.digits.clone(), place.row);
        drop(place);
        let before = here.is_error();
        let mut failure = None;
        let masked = if !path.is_empty() && here.consume_tokens(path).is_err() && !before {
            Masked::Nothing
        } else {
            // No distribution at all: the request fails with an error, rather than to be sampled
            // from another one.
            here.compute_mask_or_eos().map_or_else(
                |error| {
                    failure = Some(error.to_string());
                    Masked::Everything
                },
                |mask| {
                    Masked::But(Arc::new(match digits {
                        Some(digits) => digits.bound(mask, digits.after(row, path)),
                        None => mask,
                    }))
                },
            )
        };
        let mut place = self.place();
        place.failure = place.failure.take().or(failure);
        place.masks.insert(path.to_vec(), masked.clone());
        masked
    }
}

/// The token that a mask leaves, if it is one.
pub(super) fn only(mask: &SimpleVob) -> Option<Token> {
    (mask.num_set() == 1).then(|| mask.first_bit_set()).flatten().map(|token| token as Token)
}

impl LogitsProcessor for Mask {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        match self.at(decided, path) {
            Masked::Nothing => {}
            Masked::Everything => logits.fill(f32::NEG_INFINITY),
            Masked::But(mask) => {
                let forbidden = |&(token, _): &(usize, &mut f32)| !mask.is_allowed(token as Token);
                for (_, logit) in logits.iter_mut().enumerate().filter(forbidden) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Token by token, each by its own mask: they are what decoding would come to, by definition.
    /// One copy of the parser follows them.
    fn forced(&self, decided: &[Token]) -> Vec<Token> {
        let Masked::But(mask) = self.at(decided, &[]) else { return Vec::new() };
        let (mut next, mut forced) = (only(&mask), Vec::new());
        if next.is_none() {
            return forced;
        }
        let mut here = self.behind(decided).matcher.clone();
        let ends = here.tok_env().ok().map(|tokens| tokens.tok_trie().eos_token_set());
        while let Some(token) = next {
            forced.push(token);
            let ended = ends.as_ref().is_some_and(|ends| ends.is_allowed(token));
            if ended || forced.len() == FORCED || here.consume_token(token).is_err() {
                break;
            }
            next = here.compute_mask_or_eos().ok().and_then(|mask| only(&mask));
        }
        forced
    }
}
