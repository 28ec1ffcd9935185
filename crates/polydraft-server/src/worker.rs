//! The engine's thread: it owns the models, and sequences join and leave between steps (continuous
//! batching).
//!
//! Between two steps it takes new requests, ends those whose clients are gone, admits those that
//! fit, and prefills a part of one prompt (chunked prefill), so that no sequence waits for a
//! neighbour's prompt. A step is one pass of the target for all sequences whose prefill is done. A
//! sequence does not depend on its neighbours, to the last bit: each has its own random decisions,
//! and a model's logits for one token do not depend on the other tokens in the batch.
//!
//! Of a request's five forms ([`crate::api`] names them) the last three are here: the [`Job`] in
//! the queue has the parameters of one prompt, and verifiers and trees that are already built; of
//! it come the engine's `Request` of each sequence, which opens the [`Session`] that runs.
//!
//! What breaks one sequence, an error or a panic, ends its request only: if a pass for all fails,
//! each goes on alone, with the same random decisions again.

mod costs;
mod job;
mod pace;
mod random;
mod running;
mod speculation;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polydraft_engine::{Engine, Session};
use polydraft_runtime::{TableKeeper, give_back_memory};
use polydraft_text::Language;

use crate::telemetry::Telemetry;

pub use costs::CostsToUse;
use costs::StepCosts;
use job::{Command, Job};
pub use job::{
    EngineHandle, Event, Events, Failure, MOST_OF_ALL, MOST_TOP, Refusal, RequestParams,
};
use pace::Pace;
use running::{PromptScorer, Running, Text};
pub use speculation::BuiltSpeculation;

/// Idle time before memory is given back.
const IDLE: Duration = Duration::from_secs(1);

/// How much may run at once.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Sequences in a batch.
    pub texts: usize,
    /// Tokens that all of them may have in the KV cache.
    pub tokens: usize,
    /// Requests that may wait besides.
    pub queue: usize,
}

/// Starts the thread. It ends when it is stopped, or when its handle is dropped, and everything is
/// done.
///
/// # Errors
/// The system has no thread left.
pub fn start(
    engine: Engine,
    language: Language,
    learned: Option<TableKeeper>,
    capacity: Capacity,
    costs: CostsToUse,
    telemetry: Arc<Telemetry>,
) -> std::io::Result<(EngineHandle, JoinHandle<()>)> {
    let (sender, inbox) = channel();
    let costs = StepCosts::new(costs);
    let desk = EngineHandle::new(sender, capacity.texts.saturating_add(capacity.queue));
    let desk = desk.with_costs(costs.known());
    let worker = Worker {
        engine,
        language,
        learned,
        costs,
        capacity,
        inbox,
        waiting: VecDeque::new(),
        running: Vec::new(),
        pace: Pace::new(),
        round: 0,
        deadline: None,
        closing: false,
        telemetry,
    };
    let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(|| worker.run())?;
    Ok((desk, thread))
}

struct Worker {
    engine: Engine,
    language: Language,
    learned: Option<TableKeeper>,
    costs: StepCosts,
    capacity: Capacity,
    inbox: Receiver<Command>,
    /// In the order in which they came.
    waiting: VecDeque<Job>,
    running: Vec<Running>,
    pace: Pace,
    round: usize,
    /// When what is not done by then is ended.
    deadline: Option<Instant>,
    /// No more will come.
    closing: bool,
    telemetry: Arc<Telemetry>,
}

/// Runs what may panic: a fault there is that request's, not the server's.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // What is shared with the work is the engine, which `restore` puts right.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::Panic))
}

impl Worker {
    fn run(mut self) {
        while self.take() {
            self.leave();
            self.admit();
            self.score();
            self.read();
            self.branch();
            self.step();
            self.measure();
            self.deliver();
            let cache = self.used().1 as f64 / self.capacity.tokens as f64;
            self.telemetry.load(self.running.len(), self.waiting.len(), cache);
        }
        if let Some(Err(error)) = self.learned.take().map(TableKeeper::close) {
            log::error!("{error:#}");
        }
    }

    /// Sequences and tokens that are reserved for running requests.
    fn used(&self) -> (usize, usize) {
        let needs = self.running.iter().map(|running| self.need(&running.job));
        needs.fold((0, 0), |(a, b), (c, d)| (a + c, b.saturating_add(d)))
    }

    fn need(&self, job: &Job) -> (usize, usize) {
        (job.params.count, job.params.tokens(self.engine.info().context))
    }

    /// Takes new requests; waits where there is nothing else to do. Whether there is anything left
    /// to do.
    fn take(&mut self) -> bool {
        loop {
            let idle = self.running.is_empty() && self.waiting.is_empty();
            let command = match (idle, self.closing) {
                (true, true) => return false,
                (true, false) if self.costs.is_measuring() => self.inbox.try_recv(),
                (true, false) => self.next().map_err(|_| TryRecvError::Disconnected),
                (false, _) => self.inbox.try_recv(),
            };
            match command {
                Ok(Command::Work(jobs)) => self.waiting.extend(jobs),
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

    /// Waits for new requests. Where that takes a while, memory is given back meanwhile.
    fn next(&self) -> Result<Command, RecvError> {
        match self.inbox.recv_timeout(IDLE) {
            Err(RecvTimeoutError::Timeout) => {
                give_back_memory();
                self.inbox.recv()
            }
            Err(RecvTimeoutError::Disconnected) => Err(RecvError),
            Ok(command) => Ok(command),
        }
    }

    /// Ends requests whose clients are gone or too slow, and all of them when the grace period is
    /// over.
    fn leave(&mut self) {
        let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        self.waiting.retain(|job| {
            let leaves = late || job.is_gone();
            if leaves {
                job.tell(Event::Failed(Failure::Stopping));
            }
            !leaves
        });
        for running in self.running.extract_if(.., |running| late || running.job.is_gone()) {
            running.close(&mut self.engine, &self.telemetry, Some(Failure::Stopping));
        }
        for running in self.running.extract_if(.., |running| running.job.is_behind()) {
            running.close(&mut self.engine, &self.telemetry, Some(Failure::Behind));
        }
    }

    /// Admits in the order of arrival as long as sequences and tokens fit: the first is never
    /// overtaken.
    fn admit(&mut self) {
        while let Some((texts, tokens)) = self.waiting.front().map(|job| self.need(job)) {
            let used = self.used();
            let most = self.capacity.texts.min(self.engine.sequences());
            let fits =
                used.0 + texts <= most && used.1.saturating_add(tokens) <= self.capacity.tokens;
            if !fits && !self.running.is_empty() {
                return;
            }
            let Some(job) = self.waiting.pop_front() else { return };
            self.telemetry.began(job.params.prompt.len());
            let scorer = PromptScorer::new(&job.params);
            let mut running = Running { job, scorer, texts: Vec::new(), opened: 0 };
            if running.scorer.is_none() {
                running.open_first(&mut self.engine, &self.language, &mut self.costs);
            }
            self.running.push(running);
        }
    }

    /// Scores a part of each prompt whose scores were asked for.
    fn score(&mut self) {
        for running in &mut self.running {
            running.score(&mut self.engine, &self.language, &mut self.costs);
        }
    }

    /// Prefills a part of one prompt: in turn of the sequence that came first, and of the one with
    /// the least left.
    fn read(&mut self) {
        let unread = self.running.iter_mut().flat_map(|running| &mut running.texts);
        let unread = unread.filter(|text| text.is_unread());
        self.round = self.round.wrapping_add(1);
        let text = match self.round % 2 {
            0 => { unread }.next(),
            _ => unread.min_by_key(|text| text.unread),
        };
        let Some(text) = text else { return };
        let (before, clock) = (text.unread, Instant::now());
        match guarded(|| Ok(self.engine.prepare(&mut text.session, self.pace.chunk())?)) {
            Ok(left) => {
                self.pace.observe(before.saturating_sub(left), clock.elapsed());
                self.telemetry.read(clock.elapsed());
                text.unread = left;
            }
            Err(failure) => text.failure = Some(failure),
        }
    }

    /// Opens a request's other sequences once the prefill is done: they share its KV cache.
    fn branch(&mut self) {
        for running in &mut self.running {
            let read = running.texts.first().is_none_or(|text| !text.is_unread());
            let read = read && running.scorer.is_none();
            while read && running.opened < running.job.params.count {
                let params = &mut running.job.params;
                let Self { engine, language, costs, .. } = self;
                match Text::open(engine, language, costs, params, running.opened) {
                    Ok(text) => running.texts.push(text),
                    Err(failure) => {
                        running.failure_of_first(failure);
                        break;
                    }
                }
                running.opened += 1;
            }
        }
    }

    /// One pass for all sequences whose prefill is done.
    fn step(&mut self) {
        let all = self.running.iter_mut().flat_map(|running| {
            let prompt = &running.job.params.prompt;
            running.texts.iter_mut().filter(|text| text.is_ready()).map(move |text| (prompt, text))
        });
        let mut ready: Vec<_> = all.collect();
        if ready.is_empty() {
            return;
        }
        ready.iter().for_each(|(_, text)| text.random.mark());
        let steps = |text: &Text| text.session.statistics().target_calls;
        let before: Vec<usize> = ready.iter().map(|(_, text)| steps(text)).collect();
        let mut sessions: Vec<&mut Session<'static>> =
            ready.iter_mut().map(|(_, text)| &mut text.session).collect();
        let (count, clock) = (sessions.len(), Instant::now());
        if guarded(|| Ok(self.engine.step(&mut sessions)?)).is_ok() {
            self.telemetry.stepped(count, clock.elapsed());
            return;
        }
        for ((prompt, text), before) in ready.into_iter().zip(before) {
            // A sequence keeps what it has taken of the step, and the decisions of that are made.
            if steps(text) == before {
                text.random.go_back();
            }
            let clock = Instant::now();
            let alone = || {
                self.engine.restore(&mut text.session, prompt)?;
                Ok(self.engine.step(&mut [&mut text.session])?)
            };
            match guarded(alone) {
                Ok(_) => self.telemetry.stepped(1, clock.elapsed()),
                Err(failure) => text.failure = Some(failure),
            }
        }
    }

    /// Measures a part of what steps cost, if that is not known yet and one is due.
    fn measure(&mut self) {
        let idle = self.running.is_empty();
        let Self { engine, costs, .. } = self;
        // What breaks there is no request's fault.
        let known = catch_unwind(AssertUnwindSafe(|| costs.advance(engine, idle)));
        if known.is_ok_and(|known| known) {
            let texts = self.running.iter_mut().flat_map(|running| {
                let params = &running.job.params;
                running.texts.iter_mut().map(move |text| (params, text))
            });
            texts.for_each(|(params, text)| text.speculate(params, costs));
        }
    }

    /// Sends all new events, and closes what is done.
    fn deliver(&mut self) {
        for running in &mut self.running {
            running.deliver(&mut self.engine, &self.telemetry);
        }
        for running in self.running.extract_if(.., |running| running.is_done()) {
            running.close(&mut self.engine, &self.telemetry, None);
        }
    }
}
