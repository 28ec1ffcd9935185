//! Requests of the web side to the engine's thread, and their events.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use polydraft::policy::Costs;
use polydraft::{Sampling, Token};
use polydraft_engine::{
    AllowedTokens, Alternatives, Finish, Limits, Penalties, Scored, Statistics, Trace, TracedNode,
};
use polydraft_runtime::Speculation;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::speculation::BuiltSpeculation;
use crate::grammar::Grammar;

/// One prompt, and the sequences that continue it.
pub struct RequestParams {
    /// The prompt's tokens.
    pub prompt: Vec<Token>,
    /// How the target's logits become the sampled distribution.
    pub sampling: Sampling,
    /// Biases and penalties.
    pub penalties: Penalties,
    /// The only tokens that are possible; none is no limit.
    pub allowed: Option<AllowedTokens>,
    /// Tokens of an output at least: before, nothing ends it.
    pub least_tokens: usize,
    /// The form that the outputs must have, if there is one.
    pub grammar: Option<Grammar>,
    /// Verifiers and trees of the sequences; none is plain decoding.
    pub speculation: Option<BuiltSpeculation>,
    /// Where they end.
    pub limits: Limits,
    /// Seed of all random decisions: each sequence has a stream of its own from it, whatever else
    /// runs.
    pub seed: u64,
    /// Whether the client gave the seed: then neighbours change no bit of the output.
    pub seeded: bool,
    /// Strings that are part of the output though they are special tokens.
    pub marks: Vec<&'static str>,
    /// How many sequences.
    pub count: usize,
    /// Which alternatives are sent with every token; none where they were not asked for.
    pub scores: Option<Alternatives>,
    /// How many of the likeliest are sent with the prompt's tokens, but for the first.
    pub prompt_scores: Option<usize>,
    /// Whether it is told how much of the prompt is prefilled.
    pub progress: bool,
    /// How many tokens of each distribution are sent with every step; none where they were not
    /// asked for.
    pub traces: Option<usize>,
}

impl RequestParams {
    /// The same for each of several prompts. The first has the verifiers and trees that are built;
    /// the others get as many of their own.
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
            least_tokens: self.least_tokens,
            grammar: self.grammar.clone(),
            speculation: speculation.map(BuiltSpeculation::for_another_prompt).transpose()?,
            limits: self.limits.clone(),
            seed: self.seed,
            seeded: self.seeded,
            marks: self.marks.clone(),
            count: self.count,
            scores: self.scores.clone(),
            prompt_scores: self.prompt_scores,
            progress: self.progress,
            traces: self.traces,
        })
    }

    /// Tokens that its sequences may have in the KV cache, in a context of so many.
    pub fn tokens(&self, context: usize) -> usize {
        let most = self.limits.max_tokens.unwrap_or(usize::MAX);
        self.prompt.len().saturating_add(most).min(context).saturating_mul(self.count)
    }

    /// How many of the likeliest alternatives are sent with each token, and how many with each of
    /// the prompt's; those that are named are few.
    fn alternatives(&self) -> [usize; 2] {
        let of_output = match &self.scores {
            Some(Alternatives::Likeliest(count) | Alternatives::Sampled(count)) => *count,
            Some(Alternatives::These(_)) | None => 0,
        };
        [of_output, self.prompt_scores.unwrap_or(0)]
    }

    /// The larger one of both.
    pub fn most_alternatives(&self) -> usize {
        self.alternatives().into_iter().max().unwrap_or(0)
    }

    /// How many are sent with all tokens together, at most, in a context of so many.
    pub fn all_alternatives(&self, context: usize) -> usize {
        let [of_output, of_prompt] = self.alternatives();
        let prompt = self.prompt.len();
        let most = self.limits.max_tokens.unwrap_or(usize::MAX);
        let output = most.min(context.saturating_sub(prompt)).saturating_mul(self.count);
        let of_prompt = prompt.saturating_mul(of_prompt);
        output.saturating_mul(of_output).saturating_add(of_prompt)
    }
}

/// Events of a sequence, in order. Sequences of a request are numbered through, prompt by prompt.
#[derive(Debug)]
pub enum Event {
    /// The scores of its prompt's tokens, but for the first; for all sequences of the prompt.
    Prompt { text: usize, scores: Vec<Scored> },
    /// So many of its prompt's tokens are prefilled, of which so many were cached, and so many are
    /// to be.
    Progress { text: usize, processed: usize, cached: usize, total: usize },
    /// More of it is certain: so many tokens.
    More { text: usize, tokens: usize, piece: String, scores: Vec<Scored>, traces: Vec<Trace> },
    /// It is complete, having taken so many tokens; so many of its prompt's were cached.
    End { text: usize, finish: Finish, tokens: usize, cached: usize, statistics: Box<Statistics> },
    /// It cannot be, and neither can the others of the request.
    Failed(Failure),
}

impl Event {
    /// Its size, about, in bytes.
    pub fn size(&self) -> usize {
        let tokens = size_of::<(Token, f64)>();
        let of_scores = |scores: &[Scored]| -> usize {
            scores.iter().map(|scored| size_of::<Scored>() + tokens * scored.top.len()).sum()
        };
        let (piece, scores, traces) = match self {
            Self::More { piece, scores, traces, .. } => (piece, scores, traces),
            Self::Prompt { scores, .. } => return of_scores(scores),
            Self::Progress { .. } | Self::End { .. } | Self::Failed(_) => return 0,
        };
        let nodes = traces.iter().flat_map(|trace| &trace.nodes).map(|node| {
            let intervals: usize = node.shares.iter().map(|(_, parts)| 1 + parts.len()).sum();
            let distributions = node.draft.len() + node.target.len();
            size_of::<TracedNode>() + tokens * distributions + size_of::<[f64; 3]>() * intervals
        });
        piece.len() + of_scores(scores) + nodes.sum::<usize>()
    }
}

/// The events of a request's sequences, as the web side takes them. Dropping it ends the request.
#[derive(Debug)]
pub struct Events {
    receiver: UnboundedReceiver<Event>,
    /// Bytes of what waits to be taken.
    waiting: Arc<AtomicUsize>,
}

impl Events {
    /// The next one; none if the engine's thread is gone.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.receiver.recv().await?;
        self.waiting.fetch_sub(event.size(), Ordering::SeqCst);
        Some(event)
    }

    /// Takes no more: the request ends.
    pub fn close(&mut self) {
        self.receiver.close();
    }
}

/// Why a request broke off.
#[derive(Debug)]
pub enum Failure {
    /// What the engine objects to.
    Engine(polydraft_engine::Error),
    /// A form that this parameter asks for, and that is not supported.
    Form { param: &'static str, problem: String },
    /// A fault in this program.
    Panic,
    /// The server is being stopped.
    Stopping,
    /// The client takes less than it asks for.
    Behind,
}

impl From<polydraft_engine::Error> for Failure {
    fn from(error: polydraft_engine::Error) -> Self {
        Self::Engine(error)
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Full,
    /// The server is being stopped.
    Stopping,
}

/// The number of requests, and its limit.
#[derive(Debug)]
pub struct Load {
    present: AtomicUsize,
    most: usize,
    stopping: AtomicBool,
}

/// A request's place among those that may be there at once; free again when it is dropped.
#[derive(Debug)]
pub struct Place(Arc<Load>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.present.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Alternatives of each token at most, where the server was not started with another number.
pub const MOST_TOP: usize = 20;
/// Alternatives of all tokens of an answer together, where one of them has more than [`MOST_TOP`]:
/// each takes 16 bytes while the answer grows, and about 80 in it.
pub const MOST_OF_ALL: usize = 1 << 21;

/// Bytes of a request's answer that may wait for its client: no output has megabytes of text, but
/// log-probabilities and steps take many bytes for each token.
const BEHIND: usize = 8 << 20;

/// A request on the engine's thread.
pub(super) struct Job {
    pub params: RequestParams,
    /// The number of its first sequence in the request.
    pub first: usize,
    pub events: UnboundedSender<Event>,
    /// Bytes of events that the client has not taken yet.
    waiting: Arc<AtomicUsize>,
    /// How many may be.
    most_waiting: usize,
    pub arrived: Instant,
    _place: Arc<Place>,
}

impl Job {
    /// Whether its client is gone.
    pub fn is_gone(&self) -> bool {
        self.events.is_closed()
    }

    /// Whether more waits for its client than is buffered for one.
    pub fn is_behind(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > self.most_waiting
    }

    /// Tells how much of the prompt is prefilled.
    pub fn progress(&self, cached: usize, processed: usize) {
        let (text, total) = (self.first, self.params.prompt.len());
        self.tell(Event::Progress { text, processed, cached, total });
    }

    /// A client that went away gets nothing.
    pub fn tell(&self, event: Event) {
        self.waiting.fetch_add(event.size(), Ordering::SeqCst);
        let _ = self.events.send(event);
    }
}

pub(super) enum Command {
    Work(Vec<Job>),
    /// Finish what there is within this time.
    Stop(Duration),
}

/// A handle of the engine's thread. It never waits.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
    load: Arc<Load>,
    /// The costs of steps, once they are known.
    costs: Arc<OnceLock<Costs>>,
}

impl EngineHandle {
    /// For at most so many requests at once, waiting ones among them.
    pub(super) fn new(commands: Sender<Command>, most: usize) -> Self {
        let load = Load { present: AtomicUsize::new(0), most, stopping: AtomicBool::new(false) };
        Self { commands, load: Arc::new(load), costs: Arc::default() }
    }

    /// The same with the costs of steps, which become known here.
    pub(super) fn with_costs(self, costs: Arc<OnceLock<Costs>>) -> Self {
        Self { costs, ..self }
    }

    /// Builds verifiers and trees for so many sequences of a prompt.
    ///
    /// # Errors
    /// Settings out of range; a verifier that is not exact for the tree.
    pub fn build(&self, settings: Speculation, count: usize) -> anyhow::Result<BuiltSpeculation> {
        BuiltSpeculation::new(settings, self.costs.get(), count)
    }

    /// Hands in a request: one prompt or several. Dropping what is returned ends it.
    ///
    /// # Errors
    /// A server that is full or stopping.
    pub fn submit(&self, requests: Vec<RequestParams>) -> Result<Events, Refusal> {
        if self.load.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::Stopping);
        }
        let room = |present| (present < self.load.most).then_some(present + 1);
        if self.load.present.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_err() {
            return Err(Refusal::Full);
        }
        let place = Arc::new(Place(self.load.clone()));
        let ((events, receiver), waiting) = (unbounded_channel(), Arc::new(AtomicUsize::new(0)));
        let (mut first, arrived) = (0, Instant::now());
        // With many alternatives one step may take more than is buffered otherwise: all of them
        // may wait.
        let many = requests.iter().any(|params| params.most_alternatives() > MOST_TOP);
        let many = if many { MOST_OF_ALL * size_of::<(Token, f64)>() } else { 0 };
        let most_waiting = BEHIND + many;
        let jobs = requests.into_iter().map(|params| {
            let count = params.count;
            let (events, waiting, _place) = (events.clone(), waiting.clone(), place.clone());
            let job = Job { params, first, events, waiting, most_waiting, arrived, _place };
            first += count;
            job
        });
        self.commands.send(Command::Work(jobs.collect())).map_err(|_| {
            // The thread is gone: clients need not try again.
            self.load.stopping.store(true, Ordering::SeqCst);
            Refusal::Stopping
        })?;
        Ok(Events { receiver, waiting })
    }

    /// Takes no more requests, and lets those that are there end within this time.
    pub fn stop(&self, within: Duration) {
        self.load.stopping.store(true, Ordering::SeqCst);
        // A thread that has ended by itself has nothing left to stop.
        let _ = self.commands.send(Command::Stop(within));
    }

    /// Whether it is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.load.stopping.load(Ordering::SeqCst)
    }

    /// Requests that are running or waiting.
    pub fn present(&self) -> usize {
        self.load.present.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_client_is_bounded() {
        let (commands, inbox) = std::sync::mpsc::channel();
        let asked = RequestParams {
            prompt: vec![0],
            sampling: Sampling::default(),
            penalties: Penalties::default(),
            least_tokens: 0,
            grammar: None,
            speculation: None,
            limits: Limits::default(),
            seed: 0,
            seeded: false,
            marks: Vec::new(),
            count: 1,
            allowed: None,
            scores: Some(Alternatives::Likeliest(20)),
            prompt_scores: None,
            progress: false,
            traces: None,
        };
        let mut events = EngineHandle::new(commands, 1).submit(vec![asked]).unwrap();
        let Ok(Command::Work(jobs)) = inbox.recv() else { panic!() };
        let tell = || {
            let scores = vec![Scored { token: 0, logprob: 0.0, top: vec![(0, 0.0); 20] }; 1000];
            jobs[0].tell(Event::More {
                text: 0,
                tokens: 1000,
                piece: "a".repeat(1000),
                scores,
                traces: Vec::new(),
            });
        };
        let told = (0..100).take_while(|_| !jobs[0].is_behind()).map(|_| tell()).count();
        assert!((10..50).contains(&told), "{told}");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        (0..told).for_each(|_| assert!(runtime.block_on(events.next()).is_some()));
        assert_eq!(events.waiting.load(Ordering::SeqCst), 0);
    }
}
