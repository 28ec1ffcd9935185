//! Scoring of given tokens: the log-probability of each.
//!
//! Method: chunks of the tokens are scored as chains after the committed ones, one pass per chunk.
//! A sequence longer than the context is scored in windows: the first is as long as the context,
//! each later one begins half a context further on, so that every token is scored after at least
//! half a context.

use std::sync::Arc;

use polydraft::{Distribution, DraftTree, NodeId, Token};

use crate::observer::{CommittedStep, StepObserver, VerifiedStep};
use crate::{Error, Model, Result, Sequence};

/// Tokens per pass.
const CHUNK: usize = 64;

/// A token and its score.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Token id.
    pub token: Token,
    /// Natural logarithm of the token's probability under the model's own distribution at
    /// temperature 1, unless [`Alternatives::Sampled`] was requested.
    pub logprob: f64,
    /// The likeliest alternatives with their log-probabilities, the likeliest first.
    pub top: Vec<(Token, f64)>,
}

/// Scores all tokens from index `from` on, with the `top` likeliest alternatives of each.
/// `progress` gets the number of scored tokens and returns whether to continue; if not, the scores
/// so far are returned.
///
/// The first token can only be scored if the model returns logits for an empty context; otherwise
/// `from` must be at least 1.
///
/// ```
/// use polydraft_engine::{TableModel, score};
///
/// let json = r#"{"vocabulary": 2, "next": {"": [0.5, 0.5], "1": [0.25, 0.75]}}"#;
/// let mut model = TableModel::from_json("example", json)?;
/// let scored = score(&mut model, &[1, 0], 0, 1, &mut |_| true)?;
/// assert!((scored[1].logprob.exp() - 0.25).abs() < 1e-6);
/// assert_eq!(scored[1].top[0].0, 1);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
///
/// # Errors
/// Failures of the model; tokens outside its vocabulary; `from` is 0 and the model needs a token
/// before.
pub fn score(
    model: &mut dyn Model,
    tokens: &[Token],
    from: usize,
    top: usize,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Vec<Scored>> {
    let mut scorer = Scorer::new(tokens, from, top);
    let mut scored = Vec::new();
    let done = loop {
        match scorer.advance(model) {
            Ok(more) if more.is_empty() => break Ok(()),
            Ok(more) => scored.extend(more),
            Err(error) => break Err(error),
        }
        if !progress(scored.len()) {
            break Ok(());
        }
    };
    scorer.close(model);
    done.map(|()| scored)
}

/// Scores one sequence, a pass at a time.
///
/// ```
/// use polydraft_engine::{Scorer, TableModel};
///
/// let json = r#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#;
/// let mut model = TableModel::from_json("coin", json)?;
/// let mut scorer = Scorer::new(&[1, 0], 1, 0);
/// assert_eq!(scorer.advance(&mut model)?.len(), 1);
/// assert!(scorer.advance(&mut model)?.is_empty());
/// scorer.close(&mut model);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
#[derive(Debug)]
pub struct Scorer {
    tokens: Vec<Token>,
    /// Index of the next token to score.
    next: usize,
    top: usize,
    window: Option<Window>,
}

/// A part of the tokens that fits the context.
#[derive(Debug, Clone, Copy)]
struct Window {
    sequence: Sequence,
    end: usize,
}

impl Scorer {
    /// Scores all tokens from index `from` on, with the `top` likeliest alternatives of each.
    pub fn new(tokens: &[Token], from: usize, top: usize) -> Self {
        Self { tokens: tokens.to_vec(), next: from, top, window: None }
    }

    /// Returns the scores of the next tokens, at most one pass of them; empty if all are scored.
    ///
    /// # Errors
    /// As for [`score`]; nothing more can be scored after an error.
    pub fn advance(&mut self, model: &mut dyn Model) -> Result<Vec<Scored>> {
        if self.next >= self.tokens.len() {
            return Ok(Vec::new());
        }
        if self.next == 0 && !model.info().accepts_empty_context {
            return Err(Error::EmptyPrompt);
        }
        let Window { sequence, end } = self.window(model)?;
        let chunk = &self.tokens[self.next..end.min(self.next + CHUNK)];
        let scored = score_chunk(model, sequence, chunk, self.top)?;
        self.next += scored.len();
        if self.next == end {
            self.close(model);
        }
        Ok(scored)
    }

    /// Returns the window that contains the next token. It spans at most one context, the tokens to
    /// be scored included.
    fn window(&mut self, model: &mut dyn Model) -> Result<Window> {
        if let Some(window) = self.window {
            return Ok(window);
        }
        let context = model.info().context.max(2);
        let begin = if self.next < context { 0 } else { self.next - context / 2 };
        let end = self.tokens.len().min(begin + context);
        let window = Window { sequence: model.open()?, end };
        self.window = Some(window);
        model.extend(window.sequence, &self.tokens[begin..self.next])?;
        Ok(window)
    }

    /// Closes the open window, if any.
    pub fn close(&mut self, model: &mut dyn Model) {
        if let Some(window) = self.window.take() {
            model.close(window.sequence);
        }
    }
}

/// Scores tokens after a sequence and appends them to it.
fn score_chunk(
    model: &mut dyn Model,
    sequence: Sequence,
    chunk: &[Token],
    top: usize,
) -> Result<Vec<Scored>> {
    let Some((&last, others)) = chunk.split_last() else { return Ok(Vec::new()) };
    let mut tree = DraftTree::new();
    let mut path = Vec::with_capacity(chunk.len());
    // The logits after the last token are not needed.
    for &token in others {
        path.push(tree.add(path.last().copied().unwrap_or(DraftTree::ROOT), token));
    }
    model.score(&[(sequence, &tree)])?;
    let nodes = [DraftTree::ROOT].into_iter().chain(path.iter().copied());
    let scored = chunk
        .iter()
        .zip(nodes)
        .map(|(&token, node)| score_token(model.logits(sequence, node), token, top));
    let scored = scored.collect::<Result<_>>()?;
    model.commit(sequence, &tree, &path)?;
    model.extend(sequence, &[last])?;
    Ok(scored)
}

/// Returns a function from tokens to log-probabilities, for logits of shape `[vocabulary]`; checks
/// `token`.
fn log_probability(logits: &[f32], token: Token) -> Result<impl Fn(Token) -> f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    if token as usize >= logits.len() || !sum.is_finite() {
        let (operation, expected) = ("score", "finite logits for every token".to_owned());
        let got = format!("{largest} as the largest, for token {token} of {}", logits.len());
        return Err(polydraft::Error::Unsupported { operation, expected, got }.into());
    }
    Ok(move |token: Token| f64::from(logits[token as usize] - largest) - sum.ln())
}

/// Scores a token by logits of shape `[vocabulary]`, with the `top` likeliest alternatives.
fn score_token(logits: &[f32], token: Token, top: usize) -> Result<Scored> {
    let logprob = log_probability(logits, token)?;
    let mut order: Vec<Token> = (0..logits.len() as Token).collect();
    let count = top.min(order.len());
    let likelier =
        |a: &Token, b: &Token| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count - 1, likelier);
    }
    order.truncate(count);
    order.sort_unstable_by(likelier);
    let top = order.into_iter().map(|token| (token, logprob(token))).collect();
    Ok(Scored { token, logprob: logprob(token), top })
}

/// Alternatives whose log-probabilities are recorded with that of a decided token.
///
/// ```
/// use polydraft_engine::Alternatives;
///
/// assert_eq!(Alternatives::from(3), Alternatives::Likeliest(3));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alternatives {
    /// This many of the likeliest tokens, the likeliest first.
    Likeliest(usize),
    /// These tokens, however likely they are, and the decided token; the likeliest first.
    Tokens(Arc<[Token]>),
    /// This many of the likeliest possible tokens under the distribution from which the token was
    /// sampled: after temperature, filters and the session's logits processor.
    Sampled(usize),
}

impl From<usize> for Alternatives {
    fn from(count: usize) -> Self {
        Self::Likeliest(count)
    }
}

/// Scores a token after a node, with its alternatives.
fn scored(
    step: &VerifiedStep,
    (node, token): (NodeId, Token),
    alternatives: &Alternatives,
) -> Result<Scored> {
    match alternatives {
        Alternatives::Likeliest(count) => score_token(step.logits(node), token, *count),
        Alternatives::Tokens(tokens) => score_with_tokens(step.logits(node), token, tokens),
        Alternatives::Sampled(count) => Ok(score_sampled(step.distribution(node)?, token, *count)),
    }
}

/// Scores a token by the distribution from which it was sampled.
fn score_sampled(distribution: &Distribution, token: Token, count: usize) -> Scored {
    let logprob = |token| distribution.probability(token).ln();
    // Impossible tokens are not among them.
    let top = distribution.most_likely(count).into_iter();
    let top = top.map(|token| (token, logprob(token))).collect();
    Scored { token, logprob: logprob(token), top }
}

/// Scores a token by logits of shape `[vocabulary]`, with these tokens as alternatives.
fn score_with_tokens(logits: &[f32], token: Token, tokens: &[Token]) -> Result<Scored> {
    let logprob = log_probability(logits, token)?;
    let valid = tokens.iter().copied().filter(|token| (*token as usize) < logits.len());
    let mut top: Vec<(Token, f64)> =
        valid.chain([token]).map(|token| (token, logprob(token))).collect();
    top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    top.dedup();
    Ok(Scored { token, logprob: logprob(token), top })
}

/// Records the scores of the tokens that a session decides.
pub(crate) struct ScoreRecorder {
    /// Alternatives of each token.
    alternatives: Alternatives,
    /// Scores of the current step, which is not committed yet.
    pending: Vec<Scored>,
    scores: Vec<Scored>,
}

impl ScoreRecorder {
    pub fn new(alternatives: Alternatives) -> Self {
        Self { alternatives, pending: Vec::new(), scores: Vec::new() }
    }

    /// Takes the scores recorded since the last call.
    pub fn take(&mut self) -> Vec<Scored> {
        std::mem::take(&mut self.scores)
    }
}

impl StepObserver for ScoreRecorder {
    fn verified(&mut self, step: &VerifiedStep) -> Result<()> {
        let score = |decided| scored(step, decided, &self.alternatives);
        self.pending = step.decided().map(score).collect::<Result<_>>()?;
        Ok(())
    }

    fn committed(&mut self, step: &CommittedStep) {
        self.scores.extend(self.pending.drain(..).take(step.emitted.len()));
    }

    fn needs_every_step(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableModel;

    /// The table is a Markov chain: a token's probability depends on the one before it, in every
    /// window.
    #[test]
    fn scores_requested_alternatives() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 2.0];
        let all = score_token(&logits, 3, 4).unwrap();
        let named = score_with_tokens(&logits, 3, &[2, 3, 0, 3, 9]).unwrap();
        assert_eq!(named.logprob, all.logprob);
        assert_eq!(named.top, [all.top[1], all.top[2], all.top[3]]);
        assert_eq!(named.top.last(), Some(&(2, f64::NEG_INFINITY)));
        // The decided token is always included.
        let named = score_with_tokens(&logits, 1, &[0]).unwrap();
        assert_eq!(named.top, [all.top[0], all.top[2]]);
    }

    #[test]
    fn impossible_tokens_are_not_alternatives() {
        let distribution = Distribution::new(vec![0.25, 0.0, 0.75, 0.0]).unwrap();
        let scored = score_sampled(&distribution, 0, 3);
        assert_eq!(scored.logprob, 0.25f64.ln());
        assert_eq!(scored.top, [(2, 0.75f64.ln()), (0, 0.25f64.ln())]);
    }

    #[test]
    fn scores_sequences_longer_than_the_context_in_windows() {
        let json =
            r#"{"vocabulary": 2, "next": {"": [0.5, 0.5], "0": [0.9, 0.1], "1": [0.2, 0.8]}}"#;
        let mut model = TableModel::from_json("example", json).unwrap().with_context_length(8);
        let tokens: Vec<Token> = (0..200u32).map(|n| n * n % 7 % 2).collect();
        let scored = score(&mut model, &tokens, 1, 2, &mut |_| true).unwrap();
        assert_eq!(scored.len(), 199);
        for (pair, scored) in tokens.windows(2).zip(&scored) {
            let probs = [[0.9f64, 0.1], [0.2, 0.8]][pair[0] as usize];
            assert!(
                (scored.logprob - probs[pair[1] as usize].ln()).abs() < 1e-5,
                "{pair:?}: {scored:?}"
            );
            assert_eq!(scored.top[0].0, pair[0]);
            assert!(scored.top[0].1 > scored.top[1].1);
        }
        let mut reported = 0;
        let part = score(&mut model, &tokens, 1, 0, &mut |done| {
            reported = done;
            false
        });
        assert_eq!(part.unwrap().len(), reported);
    }
}
