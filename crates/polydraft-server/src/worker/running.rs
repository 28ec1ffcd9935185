//! A running request: its sequences, and their events.

use std::time::Instant;

use polydraft::Token;
use polydraft_engine::{
    AllowedTokens, Engine, LeastTokens, LogitsProcessor, Penalties, Request, Scored, Scorer,
    Session,
};
use polydraft_runtime::seeded;
use polydraft_text::Language;

use super::costs::StepCosts;
use super::guarded;
use super::job::{Event, Failure, Job, RequestParams};
use super::random::Reversible;
use crate::grammar::Mask;
use crate::telemetry::Telemetry;

/// Changes of a request to the target's distribution, in this order: what a grammar forbids stays
/// forbidden.
struct Changes {
    penalties: Penalties,
    mask: Option<Mask>,
    allowed: Option<AllowedTokens>,
    least: LeastTokens,
}

impl Changes {
    fn new(params: &RequestParams, mask: Option<Mask>) -> Option<Self> {
        let mut penalties = params.penalties.clone();
        if let Some(repetition) = &mut penalties.repetition {
            repetition.prompt = params.prompt[..].into();
        }
        let (tokens, end_tokens) = (params.least_tokens, params.limits.end_tokens.clone());
        let least = LeastTokens { tokens, end_tokens };
        let allowed = params.allowed.clone();
        let changes = !penalties.is_neutral() || mask.is_some() || allowed.is_some() || tokens > 0;
        changes.then_some(Self { penalties, mask, allowed, least })
    }
}

impl LogitsProcessor for Changes {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        self.penalties.process(decided, path, logits);
        if let Some(mask) = &self.mask {
            mask.process(decided, path, logits);
        }
        if let Some(allowed) = &self.allowed {
            allowed.process(decided, path, logits);
        }
        self.least.process(decided, path, logits);
    }

    fn forced(&self, decided: &[Token]) -> Vec<Token> {
        // A token that is the only one stays so, whatever is subtracted from its logit.
        self.mask.as_ref().map_or_else(Vec::new, |mask| mask.forced(decided))
    }
}

/// One sequence.
pub(super) struct Text {
    /// Its number in its prompt.
    number: usize,
    pub session: Session<'static>,
    /// Its grammar.
    mask: Option<Mask>,
    /// Its session's rng.
    pub random: Reversible,
    /// Tokens of the prompt that are not prefilled yet.
    pub unread: usize,
    /// Tokens of the prompt that were in the prefix cache; for a first sequence only.
    cached: usize,
    /// Tokens of the prompt that its client knows to be prefilled.
    processed: usize,
    /// Whether its adaptive tree, if it has one, has its final costs.
    is_final: bool,
    /// What broke it outside its session.
    pub failure: Option<Failure>,
    /// When it last got tokens.
    last: Option<Instant>,
}

impl Text {
    /// Opens the sequence of this number. Nothing is computed yet.
    pub fn open(
        engine: &mut Engine,
        language: &Language,
        costs: &mut StepCosts,
        params: &mut RequestParams,
        number: usize,
    ) -> Result<Self, Failure> {
        guarded(|| {
            let (speculation, is_final) = costs.take_speculation(params, number, engine);
            let mut random = seeded(params.seed);
            // The first is what the seed gives one sequence alone.
            random.set_stream(number as u64);
            let random = Reversible::new(random);
            let text = language.tokenizer.stream(&params.prompt);
            let text = text.with_marks(params.marks.iter().copied());
            let request = Request::new(&params.prompt[..])
                .sampling(params.sampling)
                .speculation(speculation)
                .limits(params.limits.clone())
                .detokenizer(text)
                .rng(random.clone());
            let mut session = engine.open(request)?;
            if params.seeded {
                session.as_if_alone();
            }
            let mask = params.grammar.as_ref().map(Mask::new);
            if let Some(changes) = Changes::new(params, mask.clone()) {
                session.process(Box::new(changes));
            }
            if let Some(alternatives) = params.scores.clone() {
                session.record_scores(alternatives);
            }
            if let Some(top) = params.traces {
                session.trace(top);
            }
            let (unread, failure) = match engine.prepare(&mut session, 0) {
                Ok(unread) => (unread, None),
                Err(error) => (0, Some(error.into())),
            };
            // Of the target: a draft without a cache of its own reads every prompt anew.
            let cached = if number == 0 { engine.computed(&session).unwrap_or(0) } else { 0 };
            Ok(Self {
                number,
                session,
                mask,
                random,
                unread,
                cached,
                processed: cached,
                is_final,
                failure,
                last: None,
            })
        })
    }

    /// Gives its adaptive tree the costs that have become known.
    pub fn speculate(&mut self, params: &RequestParams, costs: &StepCosts) {
        if std::mem::replace(&mut self.is_final, true) {
            return;
        }
        if let Some(speculation) = costs.final_speculation(params) {
            self.session.speculate(speculation);
        }
    }

    /// Tokens of the prompt that are prefilled, if its client wants to know and does not yet.
    fn progress(&mut self, params: &RequestParams) -> Option<usize> {
        let length = params.prompt.len();
        let processed = match self.last {
            Some(_) => length,
            // The last token is computed with the first step.
            None => length.saturating_sub(1 + self.unread),
        };
        let news = params.progress && self.number == 0 && processed > self.processed;
        news.then(|| {
            self.processed = processed;
            processed
        })
    }

    fn goes_on(&self) -> bool {
        self.failure.is_none() && !self.session.is_done()
    }

    /// Whether its prefill is not done yet.
    pub fn is_unread(&self) -> bool {
        self.goes_on() && self.unread > 0
    }

    /// Whether it takes part in the next step.
    pub fn is_ready(&self) -> bool {
        self.goes_on() && self.unread == 0
    }
}

/// One prompt and its sequences that are not complete yet.
pub(super) struct Running {
    pub job: Job,
    /// Scores the prompt, where that was asked for: before its sequences are opened.
    pub scorer: Option<PromptScorer>,
    pub texts: Vec<Text>,
    /// How many were opened, of those requested.
    pub opened: usize,
}

/// Scores a prompt.
pub(super) struct PromptScorer {
    scorer: Scorer,
    scores: Vec<Scored>,
}

impl PromptScorer {
    /// All its tokens but the first.
    pub fn new(params: &RequestParams) -> Option<Self> {
        let top = params.prompt_scores?;
        Some(Self { scorer: Scorer::new(&params.prompt, 1, top), scores: Vec::new() })
    }

    /// One pass; the scores, once they are complete.
    fn advance(&mut self, engine: &mut Engine) -> Result<Option<Vec<Scored>>, Failure> {
        let more = guarded(|| Ok(self.scorer.advance(engine.target())?))?;
        if !more.is_empty() {
            self.scores.extend(more);
            return Ok(None);
        }
        Ok(Some(std::mem::take(&mut self.scores)))
    }
}

impl Running {
    /// Scores a part of its prompt, where that was asked for and is not done; then its first
    /// sequence is opened.
    pub fn score(&mut self, engine: &mut Engine, language: &Language, costs: &mut StepCosts) {
        let Some(scorer) = &mut self.scorer else { return };
        match scorer.advance(engine) {
            Ok(None) => {}
            Ok(Some(scores)) => {
                self.scorer = None;
                self.job.tell(Event::Prompt { text: self.job.first, scores });
                self.open_first(engine, language, costs);
            }
            Err(failure) => {
                if let Some(mut scorer) = self.scorer.take() {
                    scorer.scorer.close(engine.target());
                }
                self.failure_of_first(failure);
            }
        }
    }

    /// Opens its first sequence.
    pub fn open_first(&mut self, engine: &mut Engine, language: &Language, costs: &mut StepCosts) {
        match Text::open(engine, language, costs, &mut self.job.params, 0) {
            Ok(text) => {
                if self.job.params.progress {
                    self.job.progress(text.cached, text.cached);
                }
                self.texts.push(text);
                self.opened = 1;
            }
            Err(failure) => self.failure_of_first(failure),
        }
    }

    /// Breaks the request off.
    pub fn failure_of_first(&mut self, failure: Failure) {
        match self.texts.first_mut() {
            Some(text) => text.failure = Some(failure),
            None => {
                self.opened = self.job.params.count;
                self.job.tell(Event::Failed(failure));
            }
        }
    }

    /// Whether all its sequences are complete.
    pub fn is_done(&self) -> bool {
        self.texts.is_empty() && self.opened >= self.job.params.count
    }

    /// Sends new events, and closes sequences that are complete. If one broke, all end.
    pub fn deliver(&mut self, engine: &mut Engine, telemetry: &Telemetry) {
        for mut text in std::mem::take(&mut self.texts) {
            let number = self.job.first + text.number;
            let tokens = text.session.take_tokens().len();
            if tokens > 0 {
                let last = text.last.replace(Instant::now());
                if last.is_none() && text.number == 0 {
                    telemetry.prefilled(self.job.params.prompt.len(), text.cached);
                }
                telemetry.told(tokens, self.job.arrived, last);
            }
            if let Some(processed) = text.progress(&self.job.params) {
                self.job.progress(text.cached, processed);
            }
            let (pieces, scores) = (text.session.take_pieces(), text.session.take_scores());
            let traces = text.session.take_traces();
            let piece: String = pieces.into_iter().map(|piece| piece.text).collect();
            if tokens > 0 || !piece.is_empty() || !scores.is_empty() || !traces.is_empty() {
                self.job.tell(Event::More { text: number, tokens, piece, scores, traces });
            }
            if text.goes_on() {
                self.texts.push(text);
                continue;
            }
            let Text { session, mask, failure, cached, .. } = text;
            telemetry.speculated(session.statistics());
            let closed = guarded(|| Ok(engine.close(session)?));
            match (failure, closed) {
                (None, Ok(made)) => {
                    let (tokens, statistics) = (made.tokens.len(), Box::new(made.statistics));
                    let all = self.job.params.prompt.len() + tokens;
                    telemetry.finished(made.finish, all, self.job.arrived.elapsed());
                    self.job.tell(Event::End {
                        text: number,
                        finish: made.finish,
                        tokens,
                        cached,
                        statistics,
                    });
                }
                (Some(failure), _) | (None, Err(failure)) => {
                    self.opened = self.job.params.count;
                    self.job.tell(Event::Failed(self.of_form(mask).unwrap_or(failure)));
                }
            }
        }
    }

    /// Where a grammar's parser gave up, there is no distribution: this is the cause, whatever
    /// error the engine returns.
    fn of_form(&self, mask: Option<Mask>) -> Option<Failure> {
        let (problem, grammar) = (mask?.failure()?, self.job.params.grammar.as_ref()?);
        Some(Failure::Form { param: grammar.param, problem })
    }

    /// Ends what is not complete, and frees its memory.
    pub fn close(self, engine: &mut Engine, telemetry: &Telemetry, failure: Option<Failure>) {
        if let Some(PromptScorer { mut scorer, .. }) = self.scorer {
            scorer.close(engine.target());
        }
        if let Some(failure) = failure {
            self.job.tell(Event::Failed(failure));
        }
        for text in self.texts {
            telemetry.speculated(text.session.statistics());
            // Its result is not needed.
            let _ = guarded(|| Ok(engine.close(text.session)?));
        }
    }
}
