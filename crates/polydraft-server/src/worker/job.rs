//! Requests from the web side to the engine thread, and their events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use polydraft::{Sampling, Token};
use polydraft_engine::drafter::remote::{DraftQuery, DraftedTree};
use polydraft_engine::{
    AllowedTokens, Alternatives, Finish, Limits, Penalties, Scored, Statistics, Trace, TracedNode,
};
use polydraft_runtime::Speculation;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::costs::SharedCosts;
use super::speculation::BuiltSpeculation;
use super::thinking::ThinkingBudget;
use crate::grammar::Grammar;
use crate::request_log::RequestLog;

/// Parameters of one prompt and the sequences that continue it.
pub struct RequestParams {
    /// Tokens of the prompt.
    pub prompt: Vec<Token>,
    /// Sampling settings of the target.
    pub sampling: Sampling,
    /// Biases and penalties.
    pub penalties: Penalties,
    /// The only tokens to sample, if limited.
    pub allowed: Option<AllowedTokens>,
    /// Minimum number of tokens of an output; before, no end token is possible.
    pub min_tokens: usize,
    /// Grammar of the outputs, if any.
    pub grammar: Option<Grammar>,
    /// Budget of the reasoning, if limited.
    pub thinking: Option<ThinkingBudget>,
    /// Verifiers and trees of the sequences; `None` is plain decoding.
    pub speculation: Option<BuiltSpeculation>,
    /// Limits that end a sequence.
    pub limits: Limits,
    /// Seed of all random decisions. Each sequence draws from its own random stream of this seed,
    /// independent of other requests.
    pub seed: u64,
    /// Whether the client gave the seed: then the output must not depend on other requests in the
    /// batch, bit for bit.
    pub seeded: bool,
    /// Special tokens that are part of the output, as strings.
    pub visible_special_tokens: Vec<String>,
    /// Number of sequences.
    pub count: usize,
    /// Alternatives to send with every output token; `None` sends no scores.
    pub scores: Option<Alternatives>,
    /// Number of likeliest alternatives to send with the prompt's tokens after the first.
    pub prompt_scores: Option<usize>,
    /// Whether to report the progress of the prefill.
    pub progress: bool,
    /// Tokens of each distribution to send with every step; `None` sends no traces.
    pub traces: Option<usize>,
}

impl RequestParams {
    /// Returns the same parameters for each of several prompts. The first uses the verifiers and
    /// trees that exist already; the same number is built for each of the others.
    ///
    /// # Errors
    /// Verifiers and trees that cannot be built.
    pub fn for_prompts(mut self, mut prompts: Vec<Vec<Token>>) -> anyhow::Result<Vec<Self>> {
        let others = prompts.split_off(prompts.len().min(1));
        let others = others.into_iter().map(|prompt| self.for_prompt(prompt));
        let others = others.collect::<anyhow::Result<Vec<_>>>()?;
        self.prompt = prompts.pop().unwrap_or_default();
        Ok([self].into_iter().chain(others).collect())
    }

    fn for_prompt(&self, prompt: Vec<Token>) -> anyhow::Result<Self> {
        let speculation = self.speculation.as_ref();
        Ok(Self {
            prompt,
            sampling: self.sampling,
            penalties: self.penalties.clone(),
            allowed: self.allowed.clone(),
            min_tokens: self.min_tokens,
            grammar: self.grammar.clone(),
            thinking: self.thinking.clone(),
            speculation: speculation.map(BuiltSpeculation::for_another_prompt).transpose()?,
            limits: self.limits.clone(),
            seed: self.seed,
            seeded: self.seeded,
            visible_special_tokens: self.visible_special_tokens.clone(),
            count: self.count,
            scores: self.scores.clone(),
            prompt_scores: self.prompt_scores,
            progress: self.progress,
            traces: self.traces,
        })
    }

    /// Maximum tokens of all sequences in the KV cache, for this context length.
    pub fn tokens(&self, context: usize) -> usize {
        let most = self.limits.max_tokens.unwrap_or(usize::MAX);
        self.prompt.len().saturating_add(most).min(context).saturating_mul(self.count)
    }

    /// Number of alternatives to send with each token of the output and of the prompt. Tokens
    /// listed by id count as 0: there are at most a few.
    fn alternatives(&self) -> [usize; 2] {
        let of_output = match &self.scores {
            Some(Alternatives::Likeliest(count) | Alternatives::Sampled(count)) => *count,
            Some(Alternatives::Tokens(_)) | None => 0,
        };
        [of_output, self.prompt_scores.unwrap_or(0)]
    }

    /// Maximum number of alternatives of a token.
    pub fn max_alternatives(&self) -> usize {
        self.alternatives().into_iter().max().unwrap_or(0)
    }

    /// Maximum number of alternatives of all tokens, for this context length.
    pub fn total_alternatives(&self, context: usize) -> usize {
        let [of_output, of_prompt] = self.alternatives();
        let prompt = self.prompt.len();
        let most = self.limits.max_tokens.unwrap_or(usize::MAX);
        let output = most.min(context.saturating_sub(prompt)).saturating_mul(self.count);
        let of_prompt = prompt.saturating_mul(of_prompt);
        output.saturating_mul(of_output).saturating_add(of_prompt)
    }
}

/// Events of a sequence, in order. Sequences are numbered through all prompts of a request.
#[derive(Debug)]
pub enum Event {
    /// Scores of the prompt's tokens after the first, for all sequences of the prompt.
    PromptScores { sequence: usize, scores: Vec<Scored> },
    /// Prefilled tokens of the prompt (`processed`), of which `cached` were in the prefix cache.
    Progress { sequence: usize, processed: usize, cached: usize, total: usize },
    /// New output of a sequence: decided tokens and their text.
    Output {
        sequence: usize,
        tokens: usize,
        output: String,
        scores: Vec<Scored>,
        traces: Vec<Trace>,
    },
    /// End of a sequence. `cached` counts tokens of its prompt that were in the prefix cache.
    End {
        sequence: usize,
        finish: Finish,
        tokens: usize,
        cached: usize,
        statistics: Box<Statistics>,
    },
    /// Failure, which ends all sequences of the request.
    Failed(Failure),
}

impl Event {
    /// Approximate size in bytes.
    pub fn size(&self) -> usize {
        let tokens = size_of::<(Token, f64)>();
        let of_scores = |scores: &[Scored]| -> usize {
            scores.iter().map(|scored| size_of::<Scored>() + tokens * scored.top.len()).sum()
        };
        let (output, scores, traces) = match self {
            Self::Output { output, scores, traces, .. } => (output, scores, traces),
            Self::PromptScores { scores, .. } => return of_scores(scores),
            Self::Progress { .. } | Self::End { .. } | Self::Failed(_) => return 0,
        };
        let nodes = traces.iter().flat_map(|trace| &trace.nodes).map(|node| {
            let intervals: usize = node.shares.iter().map(|(_, parts)| 1 + parts.len()).sum();
            let distributions = node.draft.len() + node.target.len();
            size_of::<TracedNode>() + tokens * distributions + size_of::<[f64; 3]>() * intervals
        });
        output.len() + of_scores(scores) + nodes.sum::<usize>()
    }
}

/// Events of a request's sequences, received by the web side. Dropping it ends the request.
#[derive(Debug)]
pub struct Events {
    receiver: UnboundedReceiver<Event>,
    /// Bytes of events not received yet.
    buffered: Arc<AtomicUsize>,
}

impl Events {
    /// Returns the next event; `None` if the engine thread is gone.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.receiver.recv().await?;
        self.buffered.fetch_sub(event.size(), Ordering::SeqCst);
        Some(event)
    }

    /// Stops receiving, which ends the request.
    pub fn close(&mut self) {
        self.receiver.close();
    }
}

/// Reason why a request broke off.
#[derive(Debug)]
pub enum Failure {
    /// Error of the engine.
    Engine(polydraft_engine::Error),
    /// Output form that is not supported, and the parameter that requests it.
    Form { param: &'static str, problem: String },
    /// Panic in this program.
    Panic,
    /// The server is stopping.
    Stopping,
    /// The client reads more slowly than the request decodes.
    TooSlow,
}

impl From<polydraft_engine::Error> for Failure {
    fn from(error: polydraft_engine::Error) -> Self {
        Self::Engine(error)
    }
}

/// Reason why a request was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Full,
    /// The server is stopping.
    Stopping,
}

/// Number of requests, and its limit.
#[derive(Debug)]
pub struct Load {
    requests: AtomicUsize,
    max_requests: usize,
    stopping: AtomicBool,
}

/// Slot of a request in the queue, released on drop.
#[derive(Debug)]
pub struct QueueSlot(Arc<Load>);

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Default maximum of alternatives per token.
pub const MAX_ALTERNATIVES: usize = 20;
/// Maximum number of alternatives of all tokens of an answer, if a token has more than
/// [`MAX_ALTERNATIVES`]. Each takes 16 bytes while the answer grows, and about 80 bytes in it.
pub const MAX_TOTAL_ALTERNATIVES: usize = 1 << 21;

/// Maximum bytes of events buffered for a client. No output has megabytes of text, but
/// log-probabilities and traces take many bytes per token.
const MAX_BUFFERED_BYTES: usize = 8 << 20;

/// One prompt of a request, on the engine thread.
pub(super) struct Job {
    pub params: RequestParams,
    /// Number of the first sequence in the request.
    pub first: usize,
    pub events: UnboundedSender<Event>,
    /// Bytes of events that the client has not received yet.
    buffered: Arc<AtomicUsize>,
    /// Maximum of `buffered`.
    max_buffered: usize,
    pub arrived: Instant,
    /// Log entry of the request, if its line is wanted.
    pub log: Option<Arc<RequestLog>>,
    _slot: Arc<QueueSlot>,
}

impl Job {
    /// Whether the client is gone.
    pub fn is_gone(&self) -> bool {
        self.events.is_closed()
    }

    /// Whether more is buffered for the client than allowed.
    pub fn is_backlogged(&self) -> bool {
        self.buffered.load(Ordering::SeqCst) > self.max_buffered
    }

    /// Sends the progress of the prefill.
    pub fn send_progress(&self, cached: usize, processed: usize) {
        let (sequence, total) = (self.first, self.params.prompt.len());
        self.send(Event::Progress { sequence, processed, cached, total });
    }

    /// Sends an event; a client that is gone gets nothing.
    pub fn send(&self, event: Event) {
        self.buffered.fetch_add(event.size(), Ordering::SeqCst);
        let _ = self.events.send(event);
    }
}

/// Queries of a request, on their way to the engine thread.
pub(super) struct DraftJob {
    pub queries: Vec<DraftQuery>,
    pub answer: oneshot::Sender<Result<Vec<DraftedTree>, Failure>>,
    _slot: Arc<QueueSlot>,
}

pub(super) enum Command {
    Submit(Vec<Job>),
    Draft(DraftJob),
    /// Finish the current requests within this time.
    Stop(Duration),
}

/// Receiver of the answer to queries for drafts.
pub type DraftReceiver = oneshot::Receiver<Result<Vec<DraftedTree>, Failure>>;

/// Handle of the engine thread. Its methods never block.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
    load: Arc<Load>,
    /// Costs of steps.
    costs: SharedCosts,
}

impl EngineHandle {
    /// Creates a handle that admits at most `max_requests` requests at once, including waiting
    /// ones.
    pub(super) fn new(commands: Sender<Command>, max_requests: usize) -> Self {
        let load =
            Load { requests: AtomicUsize::new(0), max_requests, stopping: AtomicBool::new(false) };
        Self { commands, load: Arc::new(load), costs: SharedCosts::default() }
    }

    /// Sets the costs of steps.
    pub(super) fn with_costs(self, costs: SharedCosts) -> Self {
        Self { costs, ..self }
    }

    /// Builds verifiers and trees for `count` sequences of a prompt.
    ///
    /// # Errors
    /// Settings out of range; a verifier that is not exact for the tree.
    pub fn build(
        &self,
        settings: Speculation,
        is_seeded: bool,
        count: usize,
    ) -> anyhow::Result<BuiltSpeculation> {
        BuiltSpeculation::new(settings, &self.costs, is_seeded, count)
    }

    /// Submits a request of one or several prompts. Dropping the returned events ends it.
    ///
    /// # Errors
    /// The queue is full, or the server is stopping.
    pub fn submit(
        &self,
        requests: Vec<RequestParams>,
        log: Option<Arc<RequestLog>>,
    ) -> Result<Events, Refusal> {
        let slot = self.reserve_slot()?;
        let ((events, receiver), buffered) = (unbounded_channel(), Arc::new(AtomicUsize::new(0)));
        let (mut first, arrived) = (0, Instant::now());
        // With large lists of alternatives, one step may exceed the normal limit: buffer all of
        // them.
        let has_large_lists =
            requests.iter().any(|params| params.max_alternatives() > MAX_ALTERNATIVES);
        let extra =
            if has_large_lists { MAX_TOTAL_ALTERNATIVES * size_of::<(Token, f64)>() } else { 0 };
        let max_buffered = MAX_BUFFERED_BYTES + extra;
        let jobs = requests.into_iter().map(|params| {
            let (count, log) = (params.count, log.clone());
            if let Some(log) = &log {
                log.add_prompt(params.prompt.len());
            }
            let (events, buffered, _slot) = (events.clone(), buffered.clone(), slot.clone());
            let job = Job { params, first, events, buffered, max_buffered, arrived, log, _slot };
            first += count;
            job
        });
        self.send(Command::Submit(jobs.collect()))?;
        Ok(Events { receiver, buffered })
    }

    /// Submits queries for drafts. Dropping the receiver of their answer ends them.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    pub fn draft(&self, queries: Vec<DraftQuery>) -> Result<DraftReceiver, Refusal> {
        let slot = self.reserve_slot()?;
        let (answer, receiver) = oneshot::channel();
        self.send(Command::Draft(DraftJob { queries, answer, _slot: slot }))?;
        Ok(receiver)
    }

    fn reserve_slot(&self) -> Result<Arc<QueueSlot>, Refusal> {
        if self.load.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::Stopping);
        }
        let reserve = |present| (present < self.load.max_requests).then_some(present + 1);
        if self.load.requests.fetch_update(Ordering::SeqCst, Ordering::SeqCst, reserve).is_err() {
            return Err(Refusal::Full);
        }
        Ok(Arc::new(QueueSlot(self.load.clone())))
    }

    fn send(&self, command: Command) -> Result<(), Refusal> {
        self.commands.send(command).map_err(|_| {
            // The thread is gone: clients need not try again.
            self.load.stopping.store(true, Ordering::SeqCst);
            Refusal::Stopping
        })
    }

    /// Rejects new requests and lets running ones finish within this time.
    pub fn stop(&self, within: Duration) {
        self.load.stopping.store(true, Ordering::SeqCst);
        // If the thread has already ended, nothing is left to stop.
        let _ = self.commands.send(Command::Stop(within));
    }

    /// Whether the engine is stopping.
    pub fn is_stopping(&self) -> bool {
        self.load.stopping.load(Ordering::SeqCst)
    }

    /// Number of running and waiting requests.
    pub fn request_count(&self) -> usize {
        self.load.requests.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_events_buffered_for_a_client() {
        let (commands, inbox) = std::sync::mpsc::channel();
        let params = RequestParams {
            prompt: vec![0],
            sampling: Sampling::default(),
            penalties: Penalties::default(),
            min_tokens: 0,
            grammar: None,
            thinking: None,
            speculation: None,
            limits: Limits::default(),
            seed: 0,
            seeded: false,
            visible_special_tokens: Vec::new(),
            count: 1,
            allowed: None,
            scores: Some(Alternatives::Likeliest(20)),
            prompt_scores: None,
            progress: false,
            traces: None,
        };
        let mut events = EngineHandle::new(commands, 1).submit(vec![params], None).unwrap();
        let Ok(Command::Submit(jobs)) = inbox.recv() else { panic!() };
        let send = || {
            let scores = vec![Scored { token: 0, logprob: 0.0, top: vec![(0, 0.0); 20] }; 1000];
            jobs[0].send(Event::Output {
                sequence: 0,
                tokens: 1000,
                output: "a".repeat(1000),
                scores,
                traces: Vec::new(),
            });
        };
        let sent = (0..100).take_while(|_| !jobs[0].is_backlogged()).map(|_| send()).count();
        assert!((10..50).contains(&sent), "{sent}");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        (0..sent).for_each(|_| assert!(runtime.block_on(events.next()).is_some()));
        assert_eq!(events.buffered.load(Ordering::SeqCst), 0);
    }
}
