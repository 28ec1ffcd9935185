//! Drafts of a model on another machine, with one round trip per step.
//!
//! Problem: a draft model on a machine of its own costs the target's machine nothing but the time
//! of asking. A round trip for every drafted token would take longer than it saves, and a server
//! that draws a path itself must be trusted to have drawn it from the distributions that it
//! reports.
//! Source: ours.
//! Method: before anything is drawn in a step, the server returns the distributions along a tree of
//! probable continuations: the most probable tokens of each node with their probabilities. **The
//! client draws**, from the reported tokens alone, rescaled to the sum 1 at its own temperature. So
//! q, the distribution that a verifier reads, is by construction the one that was drawn from,
//! whatever the server returns, and a wrong or hostile answer costs acceptance only. Where the
//! draws leave the tree of the answer the draft ends: the distribution there proposes nothing
//! (confidence 0), as it does for a sequence without an answer.
//! Number of levels: as many as the last steps drew from, and twice as many once all were used.
//! Complexity: a round trip and a pass of the server's model per level, per step.
//! Deviations: none.
//!
//! **Time.** The wait counts as time of the draft, by which `auto` chooses its length. An answer
//! that is late ([`Patience::answer`]), missing or invalid costs one plain step. After that the
//! server is left alone for ten times as long as was lost, and for longer each time, and
//! [`Drafter::take_warning`] reports the first of such failures in a row. While a server still
//! reads a prompt nobody waits for it: it gets the prompt when the target's prefill begins.
//!
//! **Seeds.** A reproducible sequence ([`Drafter::make_reproducible`]) must not depend on these
//! times: it waits for every answer, up to [`Patience::reproducible`], and after that the sequence
//! fails. Its output is then decided by its seed and by what the server's model computes.

mod expand;
mod wire;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};

use super::Drafter;
use crate::{Error, ModelInfo, Result, Sequence, Sequences, Slots};

pub use expand::expand;
pub use wire::{
    DraftAnswer, DraftInfo, DraftQuery, DraftRequest, DraftedNode, DraftedTree, MAX_LEVELS,
    MAX_QUERIES, MAX_TOP, MAX_WIDTH,
};

/// Connection to a drafting server.
pub trait DraftSource: Send {
    /// Name for messages.
    fn name(&self) -> &str;

    /// Context length of the server's model, in tokens.
    fn context(&self) -> usize;

    /// Maximum number of queries at once.
    fn max_queries(&self) -> usize {
        MAX_QUERIES
    }

    /// Returns an answer to each query, unchecked.
    ///
    /// # Errors
    /// A description of what failed, also if there is no answer within this time.
    fn draft(
        &mut self,
        queries: &[DraftQuery],
        within: Duration,
    ) -> std::result::Result<Vec<DraftedTree>, String>;

    /// Starts to prefill the tokens of a query at the server without waiting for it. Returns a flag
    /// that is set once the prefill has ended; `None` if it has ended already.
    fn prefill(&mut self, _query: DraftQuery) -> Option<Arc<AtomicBool>> {
        None
    }
}

/// Times that a [`RemoteDrafter`] waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Maximum wait for an answer. Default: one second.
    pub answer: Duration,
    /// Maximum wait for an answer to a reproducible sequence. Default: one minute.
    pub reproducible: Duration,
    /// First pause after a failure, at least. Default: one second.
    pub first_pause: Duration,
    /// Longest pause after a failure. Default: one minute.
    pub longest_pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        Self { answer: second, reproducible: minute, first_pause: second, longest_pause: minute }
    }
}

/// Pause after a failure, in times of what was lost by it.
const PAUSE_FACTOR: u32 = 10;
/// Pause between two attempts for a reproducible sequence.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Levels of a sequence's first query, and of any later one at least.
const FIRST_LEVELS: usize = 4;
const MIN_LEVELS: usize = 2;
/// Nodes per level, and tokens per node, that are asked for.
const WIDTH: usize = 4;
const TOP: usize = 40;

/// A drafter that asks a server for distributions.
///
/// ```
/// use polydraft::{DraftTree, Sampling};
/// use polydraft_engine::drafter::remote::{
///     DraftQuery, DraftSource, DraftedTree, RemoteDrafter, expand,
/// };
/// use polydraft_engine::{Drafter, Model, Sequences, TableModel};
///
/// /// A "server" in this process.
/// struct Here(TableModel);
///
/// impl DraftSource for Here {
///     fn name(&self) -> &str {
///         "here"
///     }
///     fn context(&self) -> usize {
///         self.0.info().context
///     }
///     fn draft(
///         &mut self,
///         queries: &[DraftQuery],
///         _: std::time::Duration,
///     ) -> Result<Vec<DraftedTree>, String> {
///         let mut answer = |query: &DraftQuery| {
///             let sequence = self.0.open()?;
///             self.0.extend(sequence, &query.tokens)?;
///             let mut trees = expand(&mut self.0, &[(sequence, query)])?;
///             self.0.close(sequence);
///             Ok(trees.remove(0))
///         };
///         queries.iter().map(&mut answer).collect::<polydraft_engine::Result<_>>()
///             .map_err(|error| error.to_string())
///     }
/// }
///
/// let model = TableModel::from_json("draft", r#"{"vocabulary": 2, "next": {"": [0.9, 0.1]}}"#)?;
/// let target = model.info().clone();
/// let mut drafter = RemoteDrafter::new(Box::new(Here(model)), &target);
/// let sequence = drafter.open()?;
/// drafter.extend(sequence, &[1, 0])?;
/// drafter.score(&[(sequence, &DraftTree::new())])?;
/// let probs = drafter.distribution(sequence, DraftTree::ROOT, &Sampling::default(), None)?;
/// assert!((probs.probability(0) - 0.9).abs() < 1e-6);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
pub struct RemoteDrafter {
    source: Box<dyn DraftSource>,
    vocabulary: usize,
    patience: Patience,
    sequences: Slots<State>,
    outage: Option<Outage>,
    warning: Option<String>,
}

/// Failures in a row.
struct Outage {
    /// Time at which the server is asked again.
    until: Instant,
    pause: Duration,
}

/// State of a sequence.
struct State {
    tokens: Vec<Token>,
    is_reproducible: bool,
    /// Whether the server was given the tokens to prefill, and the flag of a prefill that may still
    /// run.
    is_known: bool,
    prefilling: Option<Arc<AtomicBool>>,
    /// Levels of the next query.
    levels: usize,
    /// Temperature at which was drawn last.
    temperature: Cell<f64>,
    /// This step's answer; an empty one if there is none.
    answer: Option<DraftedTree>,
    /// Levels that were asked for in this step.
    queried_levels: usize,
    /// Node of the answer by node of the tree.
    nodes: Vec<Option<usize>>,
    /// Levels of the answer that were drawn from.
    used_levels: usize,
    /// Reason why a reproducible sequence has no answer.
    failure: Option<String>,
}

impl State {
    fn query(&self, levels: usize, vocabulary: usize) -> DraftQuery {
        let (temperature, top) = (self.temperature.get(), TOP.min(vocabulary));
        let width = if temperature == 0.0 { 1 } else { WIDTH };
        DraftQuery { tokens: self.tokens.clone(), levels, width, top, temperature }
    }

    fn end_step(&mut self) {
        if self.answer.take().is_some_and(|answer| !answer.nodes.is_empty()) {
            self.levels = match self.used_levels {
                all if all >= self.queried_levels => 2 * all,
                some => some + 1,
            };
            self.levels = self.levels.clamp(MIN_LEVELS, MAX_LEVELS);
        }
        self.nodes.clear();
        self.used_levels = 0;
    }

    /// Returns whether the server is still reading the prompt.
    fn is_prefilling(&self) -> bool {
        self.prefilling.as_ref().is_some_and(|ended| !ended.load(Ordering::Acquire))
    }
}

impl RemoteDrafter {
    /// Creates a drafter. The caller has checked that the server's model has the target's tokens.
    pub fn new(source: Box<dyn DraftSource>, target: &ModelInfo) -> Self {
        Self {
            source,
            vocabulary: target.vocabulary.size(),
            patience: Patience::default(),
            sequences: Slots::default(),
            outage: None,
            warning: None,
        }
    }

    /// Sets the times that it waits.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// Asks for the answers of these sequences, none of which is reproducible.
    fn ask(&mut self, sequences: &[Sequence]) {
        let started = Instant::now();
        let is_paused = self.is_paused();
        let mut ready = Vec::new();
        for &sequence in sequences {
            let state = &mut self.sequences[sequence];
            state.answer = Some(DraftedTree::default());
            if !is_paused && !state.is_prefilling() {
                ready.push(sequence);
            }
        }
        for sequences in ready.chunks(self.max_queries()) {
            match self.answers(sequences, self.patience.answer) {
                Ok(()) => self.outage = None,
                Err(problem) => return self.record_failure(&problem, started.elapsed()),
            }
        }
    }

    fn record_failure(&mut self, problem: &str, lost: Duration) {
        let Patience { first_pause, longest_pause, .. } = self.patience;
        let pause = match &self.outage {
            Some(outage) => 2 * outage.pause,
            None => {
                let name = self.source.name();
                self.warning = Some(format!(
                    "{name} does not draft: {problem}; decoding without it until it answers again"
                ));
                first_pause
            }
        };
        let pause = pause.max(PAUSE_FACTOR * lost).min(longest_pause);
        self.outage = Some(Outage { until: Instant::now() + pause, pause });
    }

    /// Asks for the answers of reproducible sequences, again and again.
    fn insist(&mut self, sequences: &[Sequence]) {
        let deadline = Instant::now() + self.patience.reproducible;
        loop {
            let is_prefilling = |sequence: &Sequence| self.sequences[*sequence].is_prefilling();
            let asked = match sequences.iter().any(is_prefilling) {
                true => Err("it still reads the prompt".to_owned()),
                false => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.answers(sequences, left)
                }
            };
            let Err(problem) = asked else { return };
            if Instant::now() + RETRY_PAUSE >= deadline {
                let seconds = self.patience.reproducible.as_secs_f64();
                let problem = format!(
                    "no draft within {seconds} seconds: {problem}; an output with a seed waits for \
                     each, because plain decoding would change it: give no seed, or decode without \
                     this draft"
                );
                for sequence in sequences {
                    let state = &mut self.sequences[*sequence];
                    state.answer = Some(DraftedTree::default());
                    state.failure = Some(problem.clone());
                }
                return;
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// Returns whether the server is left alone after a failure.
    fn is_paused(&self) -> bool {
        self.outage.as_ref().is_some_and(|outage| Instant::now() < outage.until)
    }

    fn max_queries(&self) -> usize {
        self.source.max_queries().clamp(1, MAX_QUERIES)
    }

    /// Gets and checks the answers of sequences.
    fn answers(
        &mut self,
        sequences: &[Sequence],
        within: Duration,
    ) -> std::result::Result<(), String> {
        let context = self.source.context();
        let query = |sequence: &Sequence| {
            let state = &self.sequences[*sequence];
            // Tokens beyond the server's context have no draft.
            (state.tokens.len() <= context && !state.tokens.is_empty())
                .then(|| (*sequence, state.query(state.levels, self.vocabulary)))
        };
        let (sequences, queries): (Vec<_>, Vec<_>) = sequences.iter().filter_map(query).unzip();
        if queries.is_empty() {
            return Ok(());
        }
        let answers = self.source.draft(&queries, within)?;
        if answers.len() != queries.len() {
            let expected = queries.len();
            return Err(format!("expected {expected} drafts, got {}", answers.len()));
        }
        let answers = answers.into_iter().zip(&queries);
        let answers = answers.map(|(answer, query)| answer.validate(query, self.vocabulary));
        let answers = answers.collect::<std::result::Result<Vec<_>, _>>();
        let answers = answers.map_err(|problem| format!("an invalid draft: {problem}"))?;
        for ((sequence, answer), query) in sequences.into_iter().zip(answers).zip(queries) {
            let state = &mut self.sequences[sequence];
            state.queried_levels = query.levels;
            state.answer = Some(answer);
        }
        Ok(())
    }
}

impl Sequences for RemoteDrafter {
    fn open(&mut self) -> Result<Sequence> {
        Ok(self.sequences.open(State {
            tokens: Vec::new(),
            is_reproducible: false,
            is_known: false,
            prefilling: None,
            levels: FIRST_LEVELS,
            temperature: Cell::new(1.0),
            answer: None,
            queried_levels: 0,
            nodes: Vec::new(),
            used_levels: 0,
            failure: None,
        }))
    }

    fn close(&mut self, sequence: Sequence) {
        self.sequences.close(sequence);
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.sequences[sequence].tokens.len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.vocabulary;
        if let Some(&got) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            let operation = "remote draft";
            return Err(polydraft::Error::Token { operation, vocabulary, got }.into());
        }
        let state = &mut self.sequences[sequence];
        match tokens {
            // A step that is repeated draws from the same distributions.
            [] => state.nodes.clear(),
            tokens => {
                state.tokens.extend_from_slice(tokens);
                state.end_step();
            }
        }
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let state = &mut self.sequences[sequence];
        if length < state.tokens.len() {
            state.tokens.truncate(length);
            state.end_step();
        }
    }

    /// Starts the prefill at the server. Nothing remains to be computed here.
    fn prepare(&mut self, sequence: Sequence, _: usize) -> Result<usize> {
        let is_paused = self.outage.is_some();
        let (state, context) = (&mut self.sequences[sequence], self.source.context());
        if !state.is_known && !is_paused && (2..=context).contains(&state.tokens.len()) {
            state.is_known = true;
            state.prefilling = self.source.prefill(state.query(0, self.vocabulary));
        }
        Ok(0)
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        let new = batch.iter().map(|(sequence, _)| *sequence);
        let new = new.filter(|sequence| self.sequences[*sequence].answer.is_none());
        let (reproducible, others): (Vec<_>, Vec<_>) =
            new.partition(|sequence| self.sequences[*sequence].is_reproducible);
        if !others.is_empty() {
            self.ask(&others);
        }
        for sequences in reproducible.chunks(self.max_queries()) {
            self.insist(sequences);
        }
        for (sequence, tree) in batch {
            let state = &mut self.sequences[*sequence];
            let Some(answer) = &state.answer else { continue };
            answer.follow(tree, &mut state.nodes);
            let found = (0..tree.len()).filter(|node| state.nodes[*node].is_some());
            state.used_levels = found.map(|node| tree.depth(node) + 1).max().unwrap_or(0);
        }
        Ok(())
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        let state = &mut self.sequences[sequence];
        state.tokens.extend(path.iter().map(|node| tree.token(*node)));
        state.end_step();
        Ok(())
    }
}

impl Drafter for RemoteDrafter {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn context(&self) -> usize {
        // What is beyond the server's context is not drafted.
        usize::MAX
    }

    fn levels(&self) -> usize {
        MAX_LEVELS
    }

    fn make_reproducible(&mut self, sequence: Sequence) {
        self.sequences[sequence].is_reproducible = true;
    }

    fn may_be_late(&self) -> bool {
        true
    }

    fn is_ready(&self, sequence: Sequence) -> bool {
        let state = &self.sequences[sequence];
        state.is_reproducible || (!self.is_paused() && !state.is_prefilling())
    }

    fn take_warning(&mut self) -> Option<String> {
        self.warning.take()
    }

    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        let state = &self.sequences[sequence];
        state.temperature.set(sampling.temperature);
        if let Some(problem) = &state.failure {
            let (model, source) = (self.source.name().to_owned(), problem.clone().into());
            return Err(Error::Model { model, source });
        }
        let drafted = state.answer.as_ref().zip(state.nodes.get(node).copied().flatten());
        let Some((answer, drafted)) = drafted else {
            let nothing = Distribution::one_hot(self.vocabulary, 0)?;
            return Ok(nothing.with_confidence(0.0));
        };
        let DraftedNode { tokens, logprobs, .. } = &answer.nodes[drafted];
        let probs =
            Distribution::for_draft(spare, self.vocabulary, Some(tokens), logprobs, sampling);
        let model = || self.source.name().to_owned();
        probs.map_err(|source| Error::Logits { role: "draft", model: model(), source })
    }
}
