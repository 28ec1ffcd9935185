//! A running request: its sequences, and their events.

use std::time::Instant;

use polydraft::Token;
use polydraft_engine::{
    AllowedTokens, Engine, LogitsProcessor, MinTokens, Penalties, Request, Scored, Scorer, Session,
    Statistics,
};
use polydraft_runtime::seeded;
use polydraft_text::Language;

use super::catch_panic;
use super::costs::SharedCosts;
use super::job::{Event, Failure, Job, RequestParams};
use super::random::ReversibleRng;
use super::thinking::ThinkingBudget;
use crate::grammar::Mask;
use crate::telemetry::Telemetry;

/// Changes of the target's logits, applied in this order: a token that the grammar forbids stays
/// forbidden.
struct LogitChanges {
    penalties: Penalties,
    mask: Option<Mask>,
    allowed: Option<AllowedTokens>,
    min_tokens: MinTokens,
    thinking: Option<ThinkingBudget>,
}

impl LogitChanges {
    fn new(params: &RequestParams, mask: Option<Mask>) -> Option<Self> {
        let mut penalties = params.penalties.clone();
        if let Some(repetition) = &mut penalties.repetition {
            repetition.prompt = params.prompt[..].into();
        }
        let (tokens, end_tokens) = (params.min_tokens, params.limits.end_tokens.clone());
        let min_tokens = MinTokens { tokens, end_tokens };
        let allowed = params.allowed.clone();
        let thinking = params.thinking.clone();
        let changes = !penalties.is_neutral()
            || mask.is_some()
            || allowed.is_some()
            || tokens > 0
            || thinking.is_some();
        changes.then_some(Self { penalties, mask, allowed, min_tokens, thinking })
    }
}

impl LogitsProcessor for LogitChanges {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        self.penalties.process(decided, path, logits);
        if let Some(mask) = &self.mask {
            mask.process(decided, path, logits);
        }
        if let Some(allowed) = &self.allowed {
            allowed.process(decided, path, logits);
        }
        self.min_tokens.process(decided, path, logits);
        if let Some(thinking) = &self.thinking {
            thinking.process(decided, path, logits);
        }
    }

    fn forced(&self, decided: &[Token]) -> Vec<Token> {
        // A forced token stays forced, whatever is subtracted from its logit.
        let thinking = self.thinking.as_ref().map_or_else(Vec::new, |t| t.forced(decided));
        if !thinking.is_empty() {
            return thinking;
        }
        self.mask.as_ref().map_or_else(Vec::new, |mask| mask.forced(decided))
    }
}

/// A running sequence.
pub(super) struct Sequence {
    /// Index among the sequences of its prompt.
    number: usize,
    pub session: Session<'static>,
    /// State of the grammar.
    mask: Option<Mask>,
    /// Random generator of the session.
    pub random: ReversibleRng,
    /// Tokens of the prompt left to prefill.
    pub unprefilled: usize,
    /// Tokens of the prompt that were in the prefix cache; 0 for all but the first sequence.
    cached: usize,
    /// Prefilled tokens of the prompt, as last reported to the client.
    reported_prefilled: usize,
    /// Failure outside the session.
    pub failure: Option<Failure>,
    /// Time of the last new tokens.
    last_tokens_at: Option<Instant>,
}

impl Sequence {
    /// Opens the sequence of this index, without computing anything yet.
    pub fn open(
        engine: &mut Engine,
        language: &Language,
        params: &mut RequestParams,
        number: usize,
    ) -> Result<Self, Failure> {
        catch_panic(|| {
            let speculation = params.speculation.as_mut().and_then(|built| built.take(number));
            // A seed decides the output, so it would have to wait for every draft of another
            // machine, and all other requests with it.
            let is_plain = params.seeded && engine.drafts_may_be_late();
            let speculation = speculation.filter(|_| !is_plain);
            let mut random = seeded(params.seed);
            // Stream 0 is the default, so the first of several sequences equals a single one with
            // this seed.
            random.set_stream(number as u64);
            let random = ReversibleRng::new(random);
            let detokenizer = language.tokenizer.stream(&params.prompt);
            let detokenizer =
                detokenizer.with_marks(params.visible_special_tokens.iter().map(String::as_str));
            let request = Request::new(&params.prompt[..])
                .sampling(params.sampling)
                .speculation(speculation)
                .limits(params.limits.clone())
                .detokenizer(detokenizer)
                .rng(random.clone());
            let mut session = engine.open(request)?;
            if params.seeded {
                session.make_independent();
            }
            let mask = params.grammar.as_ref().map(Mask::new);
            if let Some(changes) = LogitChanges::new(params, mask.clone()) {
                session.set_processor(Box::new(changes));
            }
            if let Some(alternatives) = params.scores.clone() {
                session.record_scores(alternatives);
            }
            if let Some(top) = params.traces {
                session.record_traces(top);
            }
            let (unprefilled, failure) = match engine.prepare(&mut session, 0) {
                Ok(unprefilled) => (unprefilled, None),
                Err(error) => (0, Some(error.into())),
            };
            // Counts the target's cache: a draft model without a prefix cache prefills every prompt
            // again.
            let cached = if number == 0 { engine.cached_tokens(&session).unwrap_or(0) } else { 0 };
            Ok(Self {
                number,
                session,
                mask,
                random,
                unprefilled,
                cached,
                reported_prefilled: cached,
                failure,
                last_tokens_at: None,
            })
        })
    }

    /// Prefilled tokens of the prompt, if the client wants reports and this number is new.
    fn progress(&mut self, params: &RequestParams) -> Option<usize> {
        let length = params.prompt.len();
        let reported_prefilled = match self.last_tokens_at {
            Some(_) => length,
            // The last token is computed with the first step.
            None => length.saturating_sub(1 + self.unprefilled),
        };
        let changed =
            params.progress && self.number == 0 && reported_prefilled > self.reported_prefilled;
        changed.then(|| {
            self.reported_prefilled = reported_prefilled;
            reported_prefilled
        })
    }

    fn is_active(&self) -> bool {
        self.failure.is_none() && !self.session.is_done()
    }

    /// Whether the prefill is incomplete.
    pub fn needs_prefill(&self) -> bool {
        self.is_active() && self.unprefilled > 0
    }

    /// Whether the sequence takes part in the next step.
    pub fn is_ready(&self) -> bool {
        self.is_active() && self.unprefilled == 0
    }
}

/// One prompt and its unfinished sequences.
pub(super) struct RunningRequest {
    pub job: Job,
    /// Scores the prompt before its sequences are opened, if requested.
    pub scorer: Option<PromptScorer>,
    pub sequences: Vec<Sequence>,
    /// Number of sequences opened so far.
    pub opened: usize,
}

/// Scores a prompt over several passes.
pub(super) struct PromptScorer {
    scorer: Scorer,
    scores: Vec<Scored>,
}

impl PromptScorer {
    /// Creates a scorer of all tokens but the first, if the request wants scores.
    pub fn new(params: &RequestParams) -> Option<Self> {
        let top = params.prompt_scores?;
        Some(Self { scorer: Scorer::new(&params.prompt, 1, top), scores: Vec::new() })
    }

    /// Runs one pass. Returns the scores once they are complete.
    fn advance(&mut self, engine: &mut Engine) -> Result<Option<Vec<Scored>>, Failure> {
        let more = catch_panic(|| Ok(self.scorer.advance(engine.target())?))?;
        if !more.is_empty() {
            self.scores.extend(more);
            return Ok(None);
        }
        Ok(Some(std::mem::take(&mut self.scores)))
    }
}

impl RunningRequest {
    /// Scores a part of the prompt, if requested and incomplete. Then opens the first sequence.
    pub fn score(&mut self, engine: &mut Engine, language: &Language, telemetry: &Telemetry) {
        let Some(scorer) = &mut self.scorer else { return };
        match scorer.advance(engine) {
            Ok(None) => {}
            Ok(Some(scores)) => {
                self.scorer = None;
                self.job.send(Event::PromptScores { sequence: self.job.first, scores });
                self.open_first(engine, language, telemetry);
            }
            Err(failure) => {
                if let Some(mut scorer) = self.scorer.take() {
                    scorer.scorer.close(engine.target());
                }
                self.fail(failure, telemetry);
            }
        }
    }

    /// Opens the first sequence.
    pub fn open_first(&mut self, engine: &mut Engine, language: &Language, telemetry: &Telemetry) {
        match Sequence::open(engine, language, &mut self.job.params, 0) {
            Ok(sequence) => {
                if self.job.params.progress {
                    self.job.send_progress(sequence.cached, sequence.cached);
                }
                self.sequences.push(sequence);
                self.opened = 1;
            }
            Err(failure) => self.fail(failure, telemetry),
        }
    }

    /// Fails the request.
    pub fn fail(&mut self, failure: Failure, telemetry: &Telemetry) {
        match self.sequences.first_mut() {
            Some(sequence) => sequence.failure = Some(failure),
            None => {
                self.opened = self.job.params.count;
                telemetry.fail_sequence();
                self.job.send(Event::Failed(failure));
            }
        }
    }

    /// Whether all sequences are complete.
    pub fn is_done(&self) -> bool {
        self.sequences.is_empty() && self.opened >= self.job.params.count
    }

    /// Sends new events, and closes complete sequences. A failed sequence ends the request.
    pub fn send_events(&mut self, engine: &mut Engine, telemetry: &Telemetry, costs: &SharedCosts) {
        for mut sequence in std::mem::take(&mut self.sequences) {
            let number = self.job.first + sequence.number;
            let tokens = sequence.session.take_tokens().len();
            if tokens > 0 {
                let last_tokens_at = sequence.last_tokens_at.replace(Instant::now());
                if last_tokens_at.is_none() && sequence.number == 0 {
                    telemetry.add_prefilled_prompt(self.job.params.prompt.len(), sequence.cached);
                }
                telemetry.add_emitted_tokens(tokens, self.job.arrived, last_tokens_at);
                if let Some(log) = &self.job.log {
                    log.add_output(tokens);
                }
            }
            if let Some(reported_prefilled) = sequence.progress(&self.job.params) {
                self.job.send_progress(sequence.cached, reported_prefilled);
            }
            let (chunks, scores) = (sequence.session.take_chunks(), sequence.session.take_scores());
            let traces = sequence.session.take_traces();
            let output: String = chunks.into_iter().map(|chunk| chunk.text).collect();
            if tokens > 0 || !output.is_empty() || !scores.is_empty() || !traces.is_empty() {
                self.job.send(Event::Output { sequence: number, tokens, output, scores, traces });
            }
            if sequence.is_active() {
                self.sequences.push(sequence);
                continue;
            }
            let Sequence { session, mask, failure, cached, .. } = sequence;
            count_speculation(&self.job, session.statistics(), telemetry);
            let closed = catch_panic(|| Ok(engine.close(session)?));
            match (failure, closed) {
                (None, Ok(generation)) => {
                    if let Some(choices) = &generation.statistics.choices
                        && !self.job.params.seeded
                    {
                        costs.learn(choices);
                    }
                    let (tokens, statistics) =
                        (generation.tokens.len(), Box::new(generation.statistics));
                    let total_tokens = self.job.params.prompt.len() + tokens;
                    telemetry.finish_sequence(
                        generation.finish,
                        total_tokens,
                        self.job.arrived.elapsed(),
                    );
                    self.job.send(Event::End {
                        sequence: number,
                        finish: generation.finish,
                        tokens,
                        cached,
                        statistics,
                    });
                }
                (Some(failure), _) | (None, Err(failure)) => {
                    self.opened = self.job.params.count;
                    telemetry.fail_sequence();
                    self.job.send(Event::Failed(self.grammar_failure(mask).unwrap_or(failure)));
                }
            }
        }
    }

    /// Returns the grammar's failure, if its parser gave up: this is the cause, whatever error the
    /// engine returns.
    fn grammar_failure(&self, mask: Option<Mask>) -> Option<Failure> {
        let (problem, grammar) = (mask?.failure()?, self.job.params.grammar.as_ref()?);
        Some(Failure::Form { param: grammar.param, problem })
    }

    /// Ends unfinished sequences and frees their memory.
    pub fn close(self, engine: &mut Engine, telemetry: &Telemetry, failure: Option<Failure>) {
        if let Some(PromptScorer { mut scorer, .. }) = self.scorer {
            scorer.close(engine.target());
        }
        if let Some(failure) = failure {
            let unopened = self.job.params.count.saturating_sub(self.opened);
            telemetry.abort_sequences(self.sequences.len() + unopened);
            self.job.send(Event::Failed(failure));
        }
        for sequence in self.sequences {
            count_speculation(&self.job, sequence.session.statistics(), telemetry);
            // The result is not needed.
            let _ = catch_panic(|| Ok(engine.close(sequence.session)?));
        }
    }
}

/// Adds the speculation of a sequence to the metrics and to the log entry of its request.
fn count_speculation(job: &Job, statistics: &Statistics, telemetry: &Telemetry) {
    telemetry.add_speculation(statistics);
    if let Some(problem) = &statistics.draft_problem {
        log::warn!("nothing was drafted at {} nodes: {problem}", statistics.invalid_drafts);
    }
    if let Some(log) = &job.log {
        log.add_speculation(statistics);
    }
}
