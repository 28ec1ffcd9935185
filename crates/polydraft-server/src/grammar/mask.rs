//! Masks of a grammar: the tokens allowed at every node of a draft.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use polydraft::Token;
use polydraft_engine::LogitsProcessor;

use super::digits::Digits;

/// A grammar at the start of the output.
#[derive(Clone)]
pub struct Grammar {
    pub(super) matcher: Matcher,
    /// Parameter that requests the grammar.
    pub param: &'static str,
    /// Digits by token, if long numbers are limited.
    pub(super) digits: Option<Arc<Digits>>,
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Grammar")
    }
}

/// State of a grammar in one sequence. Clones share it.
#[derive(Clone)]
pub struct Mask(Arc<Mutex<MaskState>>);

/// State after the first `decided` tokens of the sequence.
struct MaskState {
    decided: usize,
    matcher: Matcher,
    digits: Option<Arc<Digits>>,
    /// Number of digits at the end of the decided tokens.
    digit_run: usize,
    /// Masks by drafted tokens: draft and target need the same ones.
    masks: HashMap<Vec<Token>, NodeMask>,
    /// Reason why the parser gave up, if it has.
    failure: Option<String>,
}

/// Mask of a node.
#[derive(Clone)]
pub(super) enum NodeMask {
    /// Only these tokens are allowed.
    Allowed(Arc<SimpleVob>),
    /// All tokens are allowed: the path contains a forbidden token.
    Unrestricted,
    /// No token is allowed: the parser failed.
    Failed,
}

/// Maximum forced tokens in a row: other sequences wait meanwhile.
pub(super) const MAX_FORCED: usize = 32;

impl Mask {
    /// State at the start of the output.
    pub fn new(grammar: &Grammar) -> Self {
        let Grammar { matcher, digits, .. } = grammar.clone();
        let masks = HashMap::new();
        let state = MaskState { decided: 0, matcher, digits, digit_run: 0, masks, failure: None };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Reason why the parser gave up, if it has: a form may exceed its limits. There is no
    /// distribution then.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    fn lock(&self) -> MutexGuard<'_, MaskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Consumes decided tokens up to these.
    fn advance_to(&self, decided: &[Token]) -> MutexGuard<'_, MaskState> {
        let mut state = self.lock();
        if decided.len() > state.decided {
            // Decided tokens passed a mask, so consuming them succeeds, unless the parser has
            // failed, which is reported below.
            let new = &decided[state.decided..];
            let _ = state.matcher.consume_tokens(new);
            if let Some(digits) = &state.digits {
                state.digit_run = digits.after(state.digit_run, new);
            }
            state.decided = decided.len();
            state.masks.clear();
        }
        state
    }

    pub(super) fn node_mask(&self, decided: &[Token], path: &[Token]) -> NodeMask {
        let state = self.advance_to(decided);
        if let Some(masked) = state.masks.get(path) {
            return masked.clone();
        }
        let mut matcher = state.matcher.clone();
        let (digits, digit_run) = (state.digits.clone(), state.digit_run);
        drop(state);
        let had_failed = matcher.is_error();
        let mut failure = None;
        let masked = if !path.is_empty() && matcher.consume_tokens(path).is_err() && !had_failed {
            NodeMask::Unrestricted
        } else {
            // No distribution: the request fails with an error rather than sampling from another
            // one.
            matcher.compute_mask_or_eos().map_or_else(
                |error| {
                    failure = Some(error.to_string());
                    NodeMask::Failed
                },
                |mask| {
                    NodeMask::Allowed(Arc::new(match digits {
                        Some(digits) => {
                            digits.forbid_long_runs(mask, digits.after(digit_run, path))
                        }
                        None => mask,
                    }))
                },
            )
        };
        let mut state = self.lock();
        state.failure = state.failure.take().or(failure);
        state.masks.insert(path.to_vec(), masked.clone());
        masked
    }
}

/// Returns the only allowed token, if there is exactly one.
pub(super) fn single_token(mask: &SimpleVob) -> Option<Token> {
    (mask.num_set() == 1).then(|| mask.first_bit_set()).flatten().map(|token| token as Token)
}

impl LogitsProcessor for Mask {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        match self.node_mask(decided, path) {
            NodeMask::Unrestricted => {}
            NodeMask::Failed => logits.fill(f32::NEG_INFINITY),
            NodeMask::Allowed(mask) => {
                let forbidden = |&(token, _): &(usize, &mut f32)| !mask.is_allowed(token as Token);
                for (_, logit) in logits.iter_mut().enumerate().filter(forbidden) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Forced tokens, found one by one from their masks: decoding would sample the same tokens. One
    /// copy of the parser follows them.
    fn forced(&self, decided: &[Token]) -> Vec<Token> {
        let NodeMask::Allowed(mask) = self.node_mask(decided, &[]) else { return Vec::new() };
        let (mut next, mut forced) = (single_token(&mask), Vec::new());
        if next.is_none() {
            return forced;
        }
        let mut matcher = self.advance_to(decided).matcher.clone();
        let end_tokens = matcher.tok_env().ok().map(|tokens| tokens.tok_trie().eos_token_set());
        while let Some(token) = next {
            forced.push(token);
            let ended = end_tokens.as_ref().is_some_and(|end_tokens| end_tokens.is_allowed(token));
            if ended || forced.len() == MAX_FORCED || matcher.consume_token(token).is_err() {
                break;
            }
            next = matcher.compute_mask_or_eos().ok().and_then(|mask| single_token(&mask));
        }
        forced
    }
}
