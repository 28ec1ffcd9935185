//! Sessions: requests in progress.

mod observers;

use polydraft::gumbel::{self, SharedRandomness, WithSharedRandomness};
use polydraft::{Draft, RandomSource, Sampling, Token};

use crate::observer::StepObserver;
use crate::score::{Alternatives, ScoreRecorder};
use crate::stop::StopScanner;
use crate::trace::TraceRecorder;
use crate::{
    Detokenizer, Emitted, Error, Finish, Generation, Limits, LogitsProcessor, Origin, OutputChunk,
    Request, Result, Scored, Sequence, Speculation, Statistics, Trace,
};
use observers::Observers;

/// Calls `decide` with a session's rng, combined with its shared randomness if there is one.
/// `position` is the number of decided tokens.
pub(crate) fn with_shared_randomness<T>(
    rng: &mut dyn RandomSource,
    shared_randomness: &mut Option<Box<dyn SharedRandomness>>,
    position: usize,
    decide: impl FnOnce(&mut dyn RandomSource) -> T,
) -> T {
    match shared_randomness {
        Some(shared_randomness) => {
            decide(&mut WithSharedRandomness::new(rng, shared_randomness.as_mut(), position))
        }
        None => decide(rng),
    }
}

/// A request in progress. [`Engine::step`](crate::Engine::step) advances it; its output is polled
/// in between. It occupies a sequence of each model until [`Engine::close`](crate::Engine::close);
/// dropping it without closing it leaks them.
///
/// ```
/// use polydraft_engine::{Engine, Finish, Limits, Request, TableModel};
///
/// let target = TableModel::from_json("coin", r#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#)?;
/// let mut engine = Engine::new(Box::new(target), None);
/// let mut session = engine.open(Request::new([0]).limits(Limits::tokens(3)))?;
/// let mut taken = 0;
/// while !session.is_done() {
///     engine.step(&mut [&mut session])?;
///     taken += session.take_tokens().len();
/// }
/// assert_eq!((taken, session.finish()), (3, Some(Finish::MaxTokens)));
/// engine.close(session)?;
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
#[must_use = "close a session with its engine, otherwise its sequences stay open"]
pub struct Session<'c> {
    pub(crate) target: Sequence,
    pub(crate) drafter: Option<Sequence>,
    pub(crate) sampling: Sampling,
    pub(crate) speculation: Option<Speculation>,
    pub(crate) rng: Box<dyn RandomSource + Send + 'c>,
    /// Shared randomness of target and draft, with Gumbel coupling.
    pub(crate) shared_randomness: Option<Box<dyn SharedRandomness>>,
    pub(crate) draft: Draft,
    pub(crate) processor: Option<Box<dyn LogitsProcessor>>,
    /// Whether trees depend neither on the batch nor on the output's limit.
    pub(crate) is_independent: bool,
    /// Whether drafts must not depend on measured times.
    pub(crate) is_reproducible: bool,
    /// Batch size that the policy got in the last step.
    pub(crate) batch_size: usize,
    /// Batch size for the next step, if it repeats the last one.
    pub(crate) repeated_batch_size: Option<usize>,
    /// Whether a step's decision is being applied: a panic leaves the session inconsistent.
    pub(crate) is_committing: bool,
    pub(crate) observers: Observers<'c>,
    pub(crate) limits: Limits,
    detokenizer: Box<dyn Detokenizer + 'c>,
    stops: StopScanner<Origin>,
    pub(crate) tokens: Vec<Token>,
    text: String,
    /// Decided tokens that were not taken yet.
    emitted: Vec<Emitted>,
    chunks: Vec<OutputChunk>,
    last_origin: Origin,
    finish: Option<Finish>,
    failure: Option<Error>,
}

impl<'c> Session<'c> {
    pub(crate) fn new(
        mut request: Request<'c>,
        target: Sequence,
        drafter: Option<Sequence>,
    ) -> Self {
        let rng = request.take_rng();
        let Request { sampling, speculation, limits, detokenizer, is_reproducible, .. } = request;
        let stops = StopScanner::new(&limits.stop).outside(limits.stop_outside.as_ref());
        let mut session = Self {
            target,
            drafter,
            sampling,
            speculation,
            rng,
            shared_randomness: None,
            draft: Draft::new(),
            processor: None,
            is_independent: is_reproducible,
            is_reproducible,
            batch_size: 1,
            repeated_batch_size: None,
            is_committing: false,
            observers: Observers::default(),
            limits,
            detokenizer,
            stops,
            tokens: Vec::new(),
            text: String::new(),
            emitted: Vec::new(),
            chunks: Vec::new(),
            last_origin: Origin::Bonus,
            finish: None,
            failure: None,
        };
        if session
            .speculation
            .as_ref()
            .is_some_and(|speculation| speculation.verifier.uses_shared_randomness())
        {
            session.share_randomness();
        }
        if session.remaining_tokens() == 0 {
            session.end(Finish::MaxTokens);
        }
        session
    }

    /// Returns the finish reason; `None` while the session is active.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Returns the failure that ended the session, if any; other sessions are not affected.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Returns whether the session has ended.
    pub fn is_done(&self) -> bool {
        self.finish.is_some() || self.failure.is_some()
    }

    /// Returns the tokens decided so far.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the counts and times so far.
    pub fn statistics(&self) -> &Statistics {
        &self.observers.statistics
    }

    /// Takes the tokens decided since the last call, with their origins.
    pub fn take_tokens(&mut self) -> Vec<Emitted> {
        std::mem::take(&mut self.emitted)
    }

    /// Sets a processor of the target's logits. The output then has the distribution of plain
    /// decoding with the same processor.
    pub fn set_processor(&mut self, processor: Box<dyn LogitsProcessor>) {
        self.processor = Some(processor);
    }

    /// Makes the session's trees independent of other sequences in the batch and of the output's
    /// limit. Otherwise adaptive trees depend on the batch size, and no tree is deeper than the
    /// output may get: its distribution is the same, but not the output for the same random
    /// decisions. With it, an output begins every one of a higher limit.
    pub fn make_independent(&mut self) {
        self.is_independent = true;
    }

    /// Sets how drafts are made and verified from the next step on. It has no effect on a session
    /// that was opened without speculation.
    pub fn set_speculation(&mut self, speculation: Speculation) {
        self.speculation = Some(speculation);
    }

    /// Draws by Gumbel coupling ([`polydraft::gumbel`]), with shared randomness derived from the
    /// rng. Must be called before the first step. A session whose verifier uses shared randomness
    /// has it anyway; plain decoding with shared randomness has the same output as such a session
    /// with the same rng.
    pub fn share_randomness(&mut self) {
        if self.shared_randomness.is_none() {
            self.shared_randomness = Some(gumbel::shared_randomness(&mut *self.rng));
        }
    }

    /// Records every further step for [`take_traces`](Self::take_traces), with the `top` likeliest
    /// tokens of each distribution. This computes a distribution at every node.
    pub fn record_traces(&mut self, top: usize) {
        self.observers.traces = Some(TraceRecorder::new(top));
    }

    /// Takes the steps recorded since the last call.
    pub fn take_traces(&mut self) -> Vec<Trace> {
        self.observers.traces.as_mut().map_or_else(Vec::new, TraceRecorder::take)
    }

    /// Records the log-probability of every further token for [`take_scores`](Self::take_scores),
    /// with some alternatives, such as the `2` likeliest. They are those of the target's own
    /// distribution at temperature 1, as [`score`](crate::score()) would return them, without a
    /// further pass, or those of the sampled distribution ([`Sampled`](Alternatives::Sampled)).
    pub fn record_scores(&mut self, alternatives: impl Into<Alternatives>) {
        self.observers.scores = Some(ScoreRecorder::new(alternatives.into()));
    }

    /// Takes the scores of the tokens decided since the last call.
    pub fn take_scores(&mut self) -> Vec<Scored> {
        self.observers.scores.as_mut().map_or_else(Vec::new, ScoreRecorder::take)
    }

    /// Adds an observer of the session's further steps.
    pub fn add_observer(&mut self, observer: impl StepObserver + 'c) {
        self.observers.others.push(Box::new(observer));
    }

    /// Takes the output text that was decided since the last call.
    pub fn take_chunks(&mut self) -> Vec<OutputChunk> {
        std::mem::take(&mut self.chunks)
    }

    /// Ends the session at the caller's request.
    pub fn stop(&mut self) {
        if !self.is_done() {
            self.end(Finish::Stopped);
        }
    }

    /// Returns how many more tokens the limit allows.
    pub(crate) fn remaining_tokens(&self) -> usize {
        self.limits.max_tokens.map_or(usize::MAX, |most| most.saturating_sub(self.tokens.len()))
    }

    /// Returns the number of tokens up to and including the first end token.
    pub(crate) fn up_to_end(&self, tokens: &[Token]) -> usize {
        let end = tokens.iter().position(|token| self.limits.end_tokens.contains(token));
        end.map_or(tokens.len(), |end| end + 1)
    }

    pub(crate) fn fail(&mut self, error: impl Into<Error>) {
        self.failure = Some(error.into());
    }

    /// Appends decided tokens and returns how many are emitted: up to the one that ends the
    /// sequence, and no more than its limit. `remaining_context` is the number of tokens that the
    /// context can still hold after all of them.
    pub(crate) fn emit(&mut self, decided: &[Emitted], remaining_context: usize) -> usize {
        let before = self.tokens.len();
        for emitted in decided {
            if self.is_done() || self.remaining_tokens() == 0 {
                break;
            }
            self.emit_one(*emitted);
        }
        if !self.is_done() && self.remaining_tokens() == 0 {
            self.end(Finish::MaxTokens);
        } else if !self.is_done() && remaining_context == 0 {
            self.end(Finish::Context);
        }
        self.tokens.len() - before
    }

    fn emit_one(&mut self, emitted: Emitted) {
        self.tokens.push(emitted.token);
        self.emitted.push(emitted);
        self.last_origin = emitted.origin;
        if self.limits.end_tokens.contains(&emitted.token) {
            return self.end(Finish::End);
        }
        match self.detokenizer.push(emitted.token) {
            Ok(text) if self.scan_stops(&text) => self.finish = Some(Finish::Stop),
            Ok(_) => {}
            Err(error) => self.fail(error),
        }
    }

    /// Emits text up to where a stop string may begin; returns whether a stop string was completed.
    fn scan_stops(&mut self, text: &str) -> bool {
        let (chunks, stopped) = self.stops.push(text, self.last_origin);
        self.push_chunks(chunks);
        stopped
    }

    fn push_chunks(&mut self, chunks: Vec<(String, Origin)>) {
        for (text, origin) in chunks {
            self.text.push_str(&text);
            self.chunks.push(OutputChunk { text, origin });
        }
    }

    /// Ends the sequence and emits the withheld text.
    fn end(&mut self, finish: Finish) {
        self.finish = Some(finish);
        match self.detokenizer.finish() {
            Ok(text) if self.scan_stops(&text) => self.finish = Some(Finish::Stop),
            Ok(_) => {
                let rest = self.stops.finish();
                self.push_chunks(rest);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Returns the finished output.
    pub(crate) fn into_generation(mut self) -> Result<Generation> {
        let scores = self.take_scores();
        let policy = self.speculation.as_ref().map(|speculation| speculation.policy.as_ref());
        let choices =
            policy.and_then(|policy| policy.timed()).map(|policy| policy.choices().clone());
        match self.failure {
            Some(error) => Err(error),
            None => Ok(Generation {
                text: self.text,
                tokens: self.tokens,
                finish: self.finish.unwrap_or(Finish::Stopped),
                scores,
                statistics: Statistics { choices, ..self.observers.statistics },
            }),
        }
    }
}
