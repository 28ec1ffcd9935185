//! Logits processors: biases and penalties of a request, node by node along the path.
//!
//! Problem: the distribution of the next token depends on the tokens decided so far in more ways
//! than a model's: tokens that were generated already may be made less likely. Along a draft's path
//! the drafted tokens count as generated.
//! Source: OpenAI's interface (`logit_bias`, `frequency_penalty`, `presence_penalty`), as its
//! documentation defines them: a logit is changed by its token's bias, less the frequency penalty
//! times the token's count in the output so far, less the presence penalty if that is not 0; before
//! the temperature. The prompt's tokens are not counted.
//! Complexity: a copy of the logits, and the tokens of the output and the path, for each node that
//! a verifier looks at.
//! Deviations: none. Exactness: the changed distribution is a function of the tokens before the
//! node alone, so it is a target like any other, and verifiers are exact for it. The draft's
//! distribution is changed alike: impossible drafts are not drawn.

use polydraft::Token;

/// Changes the target's logits at a node, before temperature and filters.
///
/// It must be a function of its arguments alone: the tokens `decided` so far, without the prompt's,
/// and those drafted on the `path` to the node. Logits have the shape `[vocabulary]`; −∞ forbids a
/// token. On every path that it allows one token must stay possible; it is not called for paths
/// after an end token.
pub trait LogitsProcessor: Send + Sync {
    /// Changes the logits.
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]);

    /// Tokens after the decided ones that are certain: each is the only one that
    /// [`process`](Self::process) leaves after those before it, whatever the logits are. They are
    /// taken without a pass of the target.
    fn forced(&self, _decided: &[Token]) -> Vec<Token> {
        Vec::new()
    }
}

/// OpenAI's biases and penalties.
///
/// ```
/// use polydraft_engine::{Penalties, LogitsProcessor};
///
/// let penalties = Penalties { bias: vec![(2, 1.0)], frequency: 0.5, presence: 0.25 };
/// let mut logits = [0.0; 3];
/// penalties.process(&[0, 1], &[1], &mut logits);
/// assert_eq!(logits, [-0.75, -1.25, 1.0]);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Penalties {
    /// Added to the logits of tokens, each named once.
    pub bias: Vec<(Token, f32)>,
    /// Subtracted from a token's logit for every time that it was generated. Below 0 repetition is
    /// made likelier.
    pub frequency: f32,
    /// Subtracted from a token's logit once if it was generated.
    pub presence: f32,
}

impl Penalties {
    /// Whether they change nothing.
    pub fn is_neutral(&self) -> bool {
        self.bias.is_empty() && self.frequency == 0.0 && self.presence == 0.0
    }
}

impl LogitsProcessor for Penalties {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        for &(token, bias) in &self.bias {
            logits[token as usize] += bias;
        }
        if self.frequency == 0.0 && self.presence == 0.0 {
            return;
        }
        let mut written: Vec<Token> = decided.iter().chain(path).copied().collect();
        written.sort_unstable();
        for same in written.chunk_by(|a, b| a == b) {
            logits[same[0] as usize] -= self.frequency * same.len() as f32 + self.presence;
        }
    }
}
