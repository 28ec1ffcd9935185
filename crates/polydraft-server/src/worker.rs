//! Engine thread: owns the models; sequences join and leave between steps (continuous batching).
//!
//! Between two steps it receives new requests, ends those whose clients are gone, admits those that
//! fit, and prefills a chunk of one prompt (chunked prefill), so that no sequence waits for
//! another's prompt. A step is one pass of the target for all sequences whose prefill is done. A
//! sequence does not depend on its neighbours, bit for bit: each has its own random decisions, and
//! a model's logits for one token do not depend on the other tokens in the batch.
//!
//! Of a request's five forms (listed in [`crate::api`]) the last three are here: the [`Job`] in the
//! queue, with the parameters of one prompt and its verifiers and trees already built; the engine's
//! `Request` of each sequence; and the running [`Session`].
//!
//! An error or panic in one sequence ends only its request: if a pass for all sequences fails, each
//! is stepped alone, with the same random decisions again.

mod costs;
mod drafting;
mod job;
mod pace;
mod random;
mod running;
mod speculation;
mod thinking;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polydraft_engine::{Engine, Session};
use polydraft_runtime::costs::StepCosts;
use polydraft_runtime::{TableSaver, release_freed_memory};
use polydraft_text::Language;

use crate::telemetry::Telemetry;

use costs::SharedCosts;
use drafting::Drafting;
use job::{Command, Job};
pub use job::{
    EngineHandle, Event, Events, Failure, MAX_ALTERNATIVES, MAX_TOTAL_ALTERNATIVES, Refusal,
    RequestParams,
};
use pace::PrefillPace;
use running::{PromptScorer, RunningRequest, Sequence};
pub use speculation::BuiltSpeculation;
pub use thinking::ThinkingBudget;

/// Idle time after which memory is returned to the system.
const IDLE_BEFORE_RELEASE: Duration = Duration::from_secs(1);

/// Limits on running sequences and waiting requests.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Maximum sequences in a batch.
    pub sequences: usize,
    /// Maximum tokens of all sequences in the KV cache.
    pub tokens: usize,
    /// Maximum requests that wait.
    pub queue: usize,
}

/// Starts the engine thread. It ends once it is stopped, or its handle is dropped, and all work is
/// done.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    engine: Engine,
    language: Language,
    table_saver: Option<TableSaver>,
    capacity: Capacity,
    costs: StepCosts,
    telemetry: Arc<Telemetry>,
) -> std::io::Result<(EngineHandle, JoinHandle<()>)> {
    let (sender, inbox) = channel();
    let costs = SharedCosts::new(costs);
    let handle = EngineHandle::new(sender, capacity.sequences.saturating_add(capacity.queue));
    let handle = handle.with_costs(costs.clone());
    let worker = Worker {
        engine,
        language,
        table_saver,
        costs,
        capacity,
        inbox,
        waiting: VecDeque::new(),
        running: Vec::new(),
        drafting: Vec::new(),
        pace: PrefillPace::new(),
        prefill_round: 0,
        deadline: None,
        closing: false,
        telemetry,
    };
    let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(|| worker.run())?;
    Ok((handle, thread))
}

struct Worker {
    engine: Engine,
    language: Language,
    table_saver: Option<TableSaver>,
    costs: SharedCosts,
    capacity: Capacity,
    inbox: Receiver<Command>,
    /// Waiting requests in order of arrival.
    waiting: VecDeque<Job>,
    running: Vec<RunningRequest>,
    /// Drafts for other servers.
    drafting: Vec<Drafting>,
    pace: PrefillPace,
    prefill_round: usize,
    /// Time at which unfinished requests are ended.
    deadline: Option<Instant>,
    /// Whether the inbox is closed: no more requests will come.
    closing: bool,
    telemetry: Arc<Telemetry>,
}

/// Runs work that may panic, and returns a panic as the request's failure.
fn catch_panic<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // The work shares only the engine, which `restore` resets.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::Panic))
}

impl Worker {
    fn run(mut self) {
        while self.receive() {
            self.end_abandoned();
            self.admit();
            self.score_prompts();
            self.prefill();
            self.open_remaining();
            self.draft();
            self.step();
            if let Some(warning) = self.engine.take_warning() {
                log::warn!("{warning}");
            }
            self.send_events();
            let cache = self.reserved().1 as f64 / self.capacity.tokens as f64;
            self.telemetry.set_load(self.running.len(), self.waiting.len(), cache);
        }
        self.costs.store();
        if let Some(Err(error)) = self.table_saver.take().map(TableSaver::close) {
            log::error!("{error:#}");
        }
    }

    /// Sequences and tokens reserved for running requests.
    fn reserved(&self) -> (usize, usize) {
        let needs = self.running.iter().map(|running| self.required(&running.job));
        needs.fold((0, 0), |(a, b), (c, d)| (a + c, b.saturating_add(d)))
    }

    fn required(&self, job: &Job) -> (usize, usize) {
        (job.params.count, job.params.tokens(self.engine.info().context))
    }

    /// Receives new requests, and blocks while there is no other work. Returns whether work is
    /// left.
    fn receive(&mut self) -> bool {
        loop {
            let idle =
                self.running.is_empty() && self.waiting.is_empty() && self.drafting.is_empty();
            let command = match (idle, self.closing) {
                (true, true) => return false,
                (true, false) => self.wait_for_command().map_err(|_| TryRecvError::Disconnected),
                (false, _) => self.inbox.try_recv(),
            };
            match command {
                Ok(Command::Submit(jobs)) => self.waiting.extend(jobs),
                Ok(Command::Draft(job)) => self.drafting.push(Drafting::new(job)),
                Ok(Command::Stop(within)) => {
                    self.closing = true;
                    self.deadline = Instant::now().checked_add(within);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => {
                    self.closing = true;
                    if !idle {
                        return true;
                    }
                }
            }
        }
    }

    /// Waits for a command. Returns memory to the system if that takes a while.
    fn wait_for_command(&self) -> Result<Command, RecvError> {
        match self.inbox.recv_timeout(IDLE_BEFORE_RELEASE) {
            Err(RecvTimeoutError::Timeout) => {
                release_freed_memory();
                self.inbox.recv()
            }
            Err(RecvTimeoutError::Disconnected) => Err(RecvError),
            Ok(command) => Ok(command),
        }
    }

    /// Ends requests whose clients are gone or too slow, and all requests after the grace period.
    fn end_abandoned(&mut self) {
        let is_overdue = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        self.waiting.retain(|job| {
            let ends = is_overdue || job.is_gone();
            if ends {
                self.telemetry.abort_sequences(job.params.count);
                job.send(Event::Failed(Failure::Stopping));
            }
            !ends
        });
        for running in self.running.extract_if(.., |running| is_overdue || running.job.is_gone()) {
            running.close(&mut self.engine, &self.telemetry, Some(Failure::Stopping));
        }
        for running in self.running.extract_if(.., |running| running.job.is_backlogged()) {
            running.close(&mut self.engine, &self.telemetry, Some(Failure::TooSlow));
        }
        for mut drafting in self.drafting.extract_if(.., |job| is_overdue || job.is_gone()) {
            drafting.end(&mut self.engine, Err(Failure::Stopping));
        }
    }

    /// Admits requests in order of arrival while their sequences and tokens fit: the first one is
    /// never overtaken.
    fn admit(&mut self) {
        while let Some((sequences, tokens)) = self.waiting.front().map(|job| self.required(job)) {
            let reserved = self.reserved();
            let max_sequences = self.capacity.sequences.min(self.engine.max_sequences());
            let fits = reserved.0 + sequences <= max_sequences
                && reserved.1.saturating_add(tokens) <= self.capacity.tokens;
            if !fits && !self.running.is_empty() {
                return;
            }
            let Some(job) = self.waiting.pop_front() else { return };
            self.telemetry.admit_prompt(job.params.prompt.len());
            let scorer = PromptScorer::new(&job.params);
            let mut running = RunningRequest { job, scorer, sequences: Vec::new(), opened: 0 };
            if running.scorer.is_none() {
                running.open_first(&mut self.engine, &self.language, &self.telemetry);
            }
            self.running.push(running);
        }
    }

    /// Scores a part of each prompt whose log-probabilities were requested.
    fn score_prompts(&mut self) {
        for running in &mut self.running {
            running.score(&mut self.engine, &self.language, &self.telemetry);
        }
    }

    /// Prefills a chunk of one prompt, alternating between the sequence that came first and the one
    /// with the fewest tokens left.
    fn prefill(&mut self) {
        let unprefilled = self.running.iter_mut().flat_map(|running| &mut running.sequences);
        let unprefilled = unprefilled.filter(|sequence| sequence.needs_prefill());
        self.prefill_round = self.prefill_round.wrapping_add(1);
        let sequence = match self.prefill_round % 2 {
            0 => { unprefilled }.next(),
            _ => unprefilled.min_by_key(|sequence| sequence.unprefilled),
        };
        let Some(sequence) = sequence else { return };
        let (before, started) = (sequence.unprefilled, Instant::now());
        match catch_panic(|| {
            Ok(self.engine.prepare(&mut sequence.session, self.pace.next_tokens())?)
        }) {
            Ok(left) => {
                self.pace.record(before.saturating_sub(left), started.elapsed());
                self.telemetry.add_prefill_pass(started.elapsed());
                sequence.unprefilled = left;
            }
            Err(failure) => sequence.failure = Some(failure),
        }
    }

    /// Opens the other sequences of a request once its prompt is prefilled: they share its KV
    /// cache.
    fn open_remaining(&mut self) {
        for running in &mut self.running {
            let prefilled =
                running.sequences.first().is_none_or(|sequence| !sequence.needs_prefill());
            let prefilled = prefilled && running.scorer.is_none();
            while prefilled && running.opened < running.job.params.count {
                let params = &mut running.job.params;
                match Sequence::open(&mut self.engine, &self.language, params, running.opened) {
                    Ok(sequence) => running.sequences.push(sequence),
                    Err(failure) => {
                        running.fail(failure, &self.telemetry);
                        break;
                    }
                }
                running.opened += 1;
            }
        }
    }

    /// Computes the drafts that fit beside the running requests, in order of arrival.
    fn draft(&mut self) {
        let (mut sequences, mut tokens) = self.reserved();
        let max_sequences = self.capacity.sequences.min(self.engine.max_sequences());
        let mut done = Vec::new();
        for (number, drafting) in self.drafting.iter_mut().enumerate() {
            let (more_sequences, more_tokens) = drafting.required();
            let fits = sequences + more_sequences <= max_sequences
                && tokens.saturating_add(more_tokens) <= self.capacity.tokens;
            // A draft that is alone always runs.
            if drafting.is_open() || fits || sequences == 0 {
                sequences += more_sequences;
                tokens = tokens.saturating_add(more_tokens);
                if drafting.advance(&mut self.engine, &mut self.pace) {
                    done.push(number);
                }
            }
        }
        done.into_iter().rev().for_each(|number| drop(self.drafting.remove(number)));
    }

    /// Runs one pass for all sequences whose prefill is done.
    fn step(&mut self) {
        let all = self.running.iter_mut().flat_map(|running| {
            let prompt = &running.job.params.prompt;
            running
                .sequences
                .iter_mut()
                .filter(|sequence| sequence.is_ready())
                .map(move |sequence| (prompt, sequence))
        });
        let mut ready: Vec<_> = all.collect();
        if ready.is_empty() {
            return;
        }
        ready.iter().for_each(|(_, sequence)| sequence.random.mark());
        let target_calls = |sequence: &Sequence| sequence.session.statistics().target_calls;
        let calls_before: Vec<usize> =
            ready.iter().map(|(_, sequence)| target_calls(sequence)).collect();
        let mut sessions: Vec<&mut Session<'static>> =
            ready.iter_mut().map(|(_, sequence)| &mut sequence.session).collect();
        let (count, started) = (sessions.len(), Instant::now());
        if catch_panic(|| Ok(self.engine.step(&mut sessions)?)).is_ok() {
            self.telemetry.add_decode_pass(count, started.elapsed());
            return;
        }
        for ((prompt, sequence), before) in ready.into_iter().zip(calls_before) {
            // A sequence that has already taken its part of the step keeps its decisions.
            if target_calls(sequence) == before {
                sequence.random.rewind();
            }
            let started = Instant::now();
            let step_alone = || {
                self.engine.restore(&mut sequence.session, prompt)?;
                Ok(self.engine.step(&mut [&mut sequence.session])?)
            };
            match catch_panic(step_alone) {
                Ok(_) => self.telemetry.add_decode_pass(1, started.elapsed()),
                Err(failure) => sequence.failure = Some(failure),
            }
        }
    }

    /// Sends all new events, and closes finished requests.
    fn send_events(&mut self) {
        for running in &mut self.running {
            running.send_events(&mut self.engine, &self.telemetry, &self.costs);
        }
        for running in self.running.extract_if(.., |running| running.is_done()) {
            running.close(&mut self.engine, &self.telemetry, None);
        }
    }
}
