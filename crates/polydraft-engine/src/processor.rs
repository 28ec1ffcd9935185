//! Logits processors: biases and penalties of a request, applied at every node along the path.
//!
//! Problem: the distribution of the next token may depend on the tokens decided so far in other
//! ways than through the model: a penalty makes repeated tokens less likely. Along a draft's path,
//! drafted tokens count as generated.
//! Source: OpenAI's API (`logit_bias`, `frequency_penalty`, `presence_penalty`), as documented: a
//! logit is increased by its token's bias, and reduced by the frequency penalty times the token's
//! count in the output so far, and by the presence penalty if that count is not 0; before the
//! temperature. The prompt's tokens are not counted. The repetition penalty was introduced by
//! Keskar et al., CTRL (arXiv 1909.05858), section 4.1, as in transformers and vLLM; the minimum
//! length is vLLM's `min_tokens`, allowed tokens are its `allowed_token_ids`.
//! Complexity: a copy of the logits, and the tokens of the output and the path, for each node that
//! a verifier reads.
//! Deviations: 1. CTRL divides a logit by the penalty; as in transformers, a negative logit is
//! multiplied, because dividing would increase it. 2. If only end tokens are possible before the
//! minimum length, as with a grammar, they stay possible.
//! Exactness: the processed distribution is a function of the tokens before the node only, so it is
//! a target like any other, and verifiers are exact for it. The draft's distribution is processed
//! too: impossible drafts are not drawn.

use std::sync::Arc;

use polydraft::Token;

/// Changes the target's logits at a node, before temperature and filters.
///
/// Must be a function of its arguments only: the tokens `decided` so far, without the prompt's,
/// and the tokens drafted on the `path` to the node. Logits have the shape `[vocabulary]`; −∞
/// forbids a token. At least one token must stay possible on every path that it allows; it is not
/// called for paths after an end token.
pub trait LogitsProcessor: Send + Sync {
    /// Changes the logits.
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]);

    /// Returns the forced tokens after the decided ones: each is the only one that
    /// [`process`](Self::process) allows after those before it, whatever the logits are. They are
    /// emitted without a target pass.
    fn forced(&self, _decided: &[Token]) -> Vec<Token> {
        Vec::new()
    }
}

/// OpenAI's biases and penalties, and the repetition penalty.
///
/// ```
/// use polydraft_engine::{Penalties, LogitsProcessor};
///
/// let penalties = Penalties {
///     bias: vec![(2, 1.0)],
///     frequency: 0.5,
///     presence: 0.25,
///     ..Penalties::default()
/// };
/// let mut logits = [0.0; 3];
/// penalties.process(&[0, 1], &[1], &mut logits);
/// assert_eq!(logits, [-0.75, -1.25, 1.0]);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Penalties {
    /// Biases that are added to the logits, at most one per token.
    pub bias: Vec<(Token, f32)>,
    /// Repetition penalty, applied after the bias.
    pub repetition: Option<RepetitionPenalty>,
    /// Subtracted from a token's logit once per occurrence in the output. Negative values make
    /// repetition likelier.
    pub frequency: f32,
    /// Subtracted from a token's logit once if the token occurs in the output.
    pub presence: f32,
}

/// A penalty for tokens that occur in the prompt or in the output: a positive logit is divided by
/// it, a negative one multiplied.
///
/// ```
/// use polydraft_engine::{LogitsProcessor, Penalties, RepetitionPenalty};
///
/// let penalties = |last| Penalties {
///     repetition: Some(RepetitionPenalty { penalty: 2.0, prompt: [0].into(), last }),
///     ..Penalties::default()
/// };
/// let changed = |last| {
///     let mut logits = [1.0, -1.0, 1.0];
///     penalties(last).process(&[1], &[], &mut logits);
///     logits
/// };
/// assert_eq!(changed(None), [0.5, -2.0, 1.0]);
/// assert_eq!(changed(Some(1)), [1.0, -2.0, 1.0]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RepetitionPenalty {
    /// Above 0; 1 has no effect, and values below 1 make repetition likelier.
    pub penalty: f32,
    /// Tokens of the prompt.
    pub prompt: Arc<[Token]>,
    /// Number of last tokens that are penalised; `None` is all.
    pub last: Option<usize>,
}

impl Penalties {
    /// Returns whether the penalties have no effect.
    pub fn is_neutral(&self) -> bool {
        let Self { bias, repetition, frequency, presence } = self;
        let repetition = repetition.as_ref().is_some_and(|repetition| repetition.penalty != 1.0);
        bias.is_empty() && !repetition && *frequency == 0.0 && *presence == 0.0
    }
}

impl LogitsProcessor for Penalties {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        for &(token, bias) in &self.bias {
            logits[token as usize] += bias;
        }
        if let Some(repetition) = &self.repetition {
            repetition.process(decided, path, logits);
        }
        if self.frequency == 0.0 && self.presence == 0.0 {
            return;
        }
        let mut generated: Vec<Token> = decided.iter().chain(path).copied().collect();
        generated.sort_unstable();
        for repeated in generated.chunk_by(|a, b| a == b) {
            logits[repeated[0] as usize] -= self.frequency * repeated.len() as f32 + self.presence;
        }
    }
}

impl LogitsProcessor for RepetitionPenalty {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        let all = self.prompt.iter().chain(decided).chain(path).rev();
        let mut seen: Vec<Token> = all.take(self.last.unwrap_or(usize::MAX)).copied().collect();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            // A prompt may contain tokens without a logit; they are rejected elsewhere.
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / self.penalty } else { *logit * self.penalty };
        }
    }
}

/// Forbids all tokens but these, of which at least one must be given.
///
/// ```
/// use polydraft_engine::{AllowedTokens, LogitsProcessor};
///
/// let mut logits = [0.0; 3];
/// AllowedTokens::new(&[2, 0]).process(&[], &[], &mut logits);
/// assert_eq!(logits, [0.0, f32::NEG_INFINITY, 0.0]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedTokens {
    /// Allowed tokens, sorted.
    tokens: Vec<Token>,
}

impl AllowedTokens {
    /// Allows these tokens.
    pub fn new(tokens: &[Token]) -> Self {
        let mut tokens = tokens.to_vec();
        tokens.sort_unstable();
        Self { tokens }
    }
}

impl LogitsProcessor for AllowedTokens {
    fn process(&self, _decided: &[Token], _path: &[Token], logits: &mut [f32]) {
        let mut begin = 0;
        for &token in &self.tokens {
            let end = (token as usize).max(begin).min(logits.len());
            logits[begin..end].fill(f32::NEG_INFINITY);
            begin = (token as usize).saturating_add(1).min(logits.len());
        }
        logits[begin..].fill(f32::NEG_INFINITY);
    }
}

/// Forbids the end of an output that has fewer tokens. Must be applied last: if only an end token
/// is possible, it stays possible.
///
/// ```
/// use polydraft_engine::{MinTokens, LogitsProcessor};
///
/// let min_tokens = MinTokens { tokens: 2, end_tokens: vec![1] };
/// let mut logits = [0.0; 2];
/// min_tokens.process(&[0], &[], &mut logits);
/// assert_eq!(logits, [0.0, f32::NEG_INFINITY]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MinTokens {
    /// Minimum number of tokens in the output, the end token not counted.
    pub tokens: usize,
    /// Tokens that would end the output.
    pub end_tokens: Vec<Token>,
}

impl LogitsProcessor for MinTokens {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        if decided.len() + path.len() >= self.tokens {
            return;
        }
        let goes_on = |(token, logit): (usize, &f32)| {
            *logit > f32::NEG_INFINITY && !self.end_tokens.contains(&(token as Token))
        };
        if logits.iter().enumerate().any(goes_on) {
            for &token in &self.end_tokens {
                logits[token as usize] = f32::NEG_INFINITY;
            }
        }
    }
}
