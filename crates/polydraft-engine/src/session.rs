//! Sessions: a request with its sequence so far, its parameters, and its end.

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

/// A session's source of random decisions, with its shared randomness if it has it. `position` is
/// the number of tokens decided.
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

/// One request at work. It is advanced by [`Engine::step`](crate::Engine::step) and pulled from in
/// between. It holds a sequence of each model until [`Engine::close`](crate::Engine::close): one
/// that is dropped instead keeps them.
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
#[must_use = "a session is to be closed by its engine, or its sequences stay open"]
pub struct Session<'c> {
    pub(crate) target: Sequence,
    pub(crate) drafter: Option<Sequence>,
    pub(crate) sampling: Sampling,
    pub(crate) speculation: Option<Speculation>,
    pub(crate) rng: Box<dyn RandomSource + Send + 'c>,
    /// The shared randomness of target and draft, with Gumbel coupling.
    pub(crate) shared_randomness: Option<Box<dyn SharedRandomness>>,
    pub(crate) draft: Draft,
    pub(crate) processor: Option<Box<dyn LogitsProcessor>>,
    pub(crate) ignores_batch_size: bool,
    /// The batch size of the last step, as its policy got it.
    pub(crate) batch_size: usize,
    /// The same for the next step, if it is the last one once more.
    pub(crate) repeated_batch_size: Option<usize>,
    /// Whether what a step decided is being taken: a panic then leaves half of it.
    pub(crate) is_committing: bool,
    pub(crate) observers: Observers<'c>,
    pub(crate) limits: Limits,
    detokenizer: Box<dyn Detokenizer + 'c>,
    stops: StopScanner<Origin>,
    pub(crate) tokens: Vec<Token>,
    text: String,
    /// Decided and not taken yet.
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
        let Request { sampling, speculation, limits, detokenizer, .. } = request;
        let stops = StopScanner::new(&limits.stop);
        let mut session = Self {
            target,
            drafter,
            sampling,
            speculation,
            rng,
            shared_randomness: None,
            draft: Draft::new(),
            processor: None,
            ignores_batch_size: false,
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

    /// Why it ended; `None` while it goes on.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Its failure, if there was one: it ends there, and other sessions go on.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Whether nothing more will come.
    pub fn is_done(&self) -> bool {
        self.finish.is_some() || self.failure.is_some()
    }

    /// The tokens decided so far.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// What it cost so far.
    pub fn statistics(&self) -> &Statistics {
        &self.observers.statistics
    }

    /// The tokens decided since the last time, and where each came from.
    pub fn take_tokens(&mut self) -> Vec<Emitted> {
        std::mem::take(&mut self.emitted)
    }

    /// Changes the target's logits from now on; the output then has the distribution of plain
    /// decoding with the same changes.
    pub fn set_processor(&mut self, processor: Box<dyn LogitsProcessor>) {
        self.processor = Some(processor);
    }

    /// From now on its trees are the same as without other sequences in the batch. Adaptive trees
    /// otherwise depend on the batch size, which keeps the distribution of the output, but not the
    /// same output for the same random decisions.
    pub fn ignore_batch_size(&mut self) {
        self.ignores_batch_size = true;
    }

    /// From the next step on drafts are made and verified so. Of a session that was opened without
    /// speculation nothing is drafted.
    pub fn set_speculation(&mut self, speculation: Speculation) {
        self.speculation = Some(speculation);
    }

    /// To be called before the first step: draws by Gumbel coupling ([`polydraft::gumbel`]), with
    /// shared randomness that follows from the rng. A session whose verifier uses shared randomness
    /// has it anyway; plain decoding with it has the same output as such a session, if the rng is
    /// the same.
    pub fn share_randomness(&mut self) {
        if self.shared_randomness.is_none() {
            self.shared_randomness = Some(gumbel::shared_randomness(&mut *self.rng));
        }
    }

    /// From now on every step is recorded for [`take_traces`](Self::take_traces), with the `top`
    /// likeliest tokens of each distribution. It costs a distribution for every node.
    pub fn record_traces(&mut self, top: usize) {
        self.observers.traces = Some(TraceRecorder::new(top));
    }

    /// The steps since the last time.
    pub fn take_traces(&mut self) -> Vec<Trace> {
        self.observers.traces.as_mut().map_or_else(Vec::new, TraceRecorder::take)
    }

    /// From now on every token's log-probability is recorded for
    /// [`take_scores`](Self::take_scores), with some alternatives, such as the `2` likeliest: of
    /// the target's own distribution at temperature 1, as [`score`](crate::score()) would give them
    /// afterwards, without a further pass, or of the sampled one
    /// ([`Sampled`](Alternatives::Sampled)).
    pub fn record_scores(&mut self, alternatives: impl Into<Alternatives>) {
        self.observers.scores = Some(ScoreRecorder::new(alternatives.into()));
    }

    /// The scores of the tokens decided since the last time.
    pub fn take_scores(&mut self) -> Vec<Scored> {
        self.observers.scores.as_mut().map_or_else(Vec::new, ScoreRecorder::take)
    }

    /// From now on `observer` is called at its steps.
    pub fn add_observer(&mut self, observer: impl StepObserver + 'c) {
        self.observers.others.push(Box::new(observer));
    }

    /// The text that has become certain since the last time.
    pub fn take_chunks(&mut self) -> Vec<OutputChunk> {
        std::mem::take(&mut self.chunks)
    }

    /// Ends it here: the caller wants no more.
    pub fn stop(&mut self) {
        if !self.is_done() {
            self.end(Finish::Stopped);
        }
    }

    /// How many more tokens the limit allows.
    pub(crate) fn remaining_tokens(&self) -> usize {
        self.limits.max_tokens.map_or(usize::MAX, |most| most.saturating_sub(self.tokens.len()))
    }

    /// How many of these tokens there are up to an end token, that one included.
    pub(crate) fn up_to_end(&self, tokens: &[Token]) -> usize {
        let end = tokens.iter().position(|token| self.limits.end_tokens.contains(token));
        end.map_or(tokens.len(), |end| end + 1)
    }

    pub(crate) fn fail(&mut self, error: impl Into<Error>) {
        self.failure = Some(error.into());
    }

    /// Takes tokens that are decided, and returns how many are emitted: up to the one that ends the
    /// sequence. `room` is what the context holds after them.
    pub(crate) fn emit(&mut self, decided: &[Emitted], remaining_context: usize) -> usize {
        let before = self.tokens.len();
        for emitted in decided {
            if self.is_done() {
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

    /// Lets text through as far as no stop string can begin there; whether one was completed.
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

    /// Ends the sequence, and emits the withheld text.
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

    /// The whole of it.
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
