//! Metrics for Prometheus, under vLLM's names and llama.cpp's.

mod families;
mod llama;

use std::iter::repeat;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use polydraft_engine::{Finish, Statistics};

use families::{Counts, Family, Kind, Times};

/// Counters and timers of all models of a server.
pub struct Metrics {
    /// Of each model, by its label: one that is loaded again goes on with its own.
    models: Mutex<Vec<(Option<String>, Arc<Telemetry>)>>,
    /// When they began, in seconds since 1970.
    started: u64,
}

impl Metrics {
    /// Of a server that has done nothing yet.
    pub fn new() -> Arc<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Arc::new(Self { models: Mutex::default(), started: since.map_or(0, |time| time.as_secs()) })
    }

    /// When the server started, in seconds since 1970.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Those of a model; its name, where there are several.
    pub fn of_model(&self, label: Option<String>) -> Arc<Telemetry> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = models.iter().find(|(known, _)| *known == label) {
            return known.clone();
        }
        let telemetry = Arc::<Telemetry>::default();
        models.push((label, telemetry.clone()));
        telemetry
    }

    /// As Prometheus reads it.
    pub fn render(&self) -> String {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let families = models.iter().map(|(label, telemetry)| {
            let own = telemetry.families();
            (label.as_deref(), own.into_iter().chain(llama::families(telemetry)).collect())
        });
        families::render(&families.collect::<Vec<_>>())
    }
}

/// Counters and timers of one model.
#[derive(Debug, Default)]
pub struct Telemetry {
    prompt_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    target_calls: AtomicU64,
    drafts: AtomicU64,
    draft_tokens: AtomicU64,
    accepted_by_position: Counts,
    finished: Counts,
    running: AtomicU64,
    waiting: AtomicU64,
    /// The bits of a number.
    cache: AtomicU64,
    first: Times,
    between: Times,
    whole: Times,
    steps: Steps,
}

/// What only llama.cpp's names need.
#[derive(Debug, Default)]
struct Steps {
    prefilled: AtomicU64,
    cached: AtomicU64,
    /// Nanoseconds.
    prefill: AtomicU64,
    decoding: AtomicU64,
    passes: AtomicU64,
    /// Sequences, summed over passes.
    sequences: AtomicU64,
    longest: AtomicU64,
}

impl Telemetry {
    /// Sets the number of running and of waiting prompts, and the reserved part of the memory.
    pub fn load(&self, running: usize, waiting: usize, cache: f64) {
        self.running.store(running as u64, Relaxed);
        self.waiting.store(waiting as u64, Relaxed);
        self.cache.store(cache.to_bits(), Relaxed);
    }

    /// A prompt of so many tokens was admitted.
    pub fn began(&self, tokens: usize) {
        self.prompt_tokens.fetch_add(tokens as u64, Relaxed);
    }

    /// A prompt was prefilled, of whose tokens so many were cached.
    pub fn prefilled(&self, tokens: usize, cached: usize) {
        self.steps.prefilled.fetch_add(tokens.saturating_sub(cached) as u64, Relaxed);
        self.steps.cached.fetch_add(cached as u64, Relaxed);
    }

    /// A pass for a part of a prompt.
    pub fn read(&self, took: Duration) {
        self.steps.prefill.fetch_add(took.as_nanos() as u64, Relaxed);
        self.passed(1);
    }

    /// A step for so many sequences.
    pub fn stepped(&self, sequences: usize, took: Duration) {
        self.steps.decoding.fetch_add(took.as_nanos() as u64, Relaxed);
        self.passed(sequences);
    }

    fn passed(&self, sequences: usize) {
        self.steps.passes.fetch_add(1, Relaxed);
        self.steps.sequences.fetch_add(sequences as u64, Relaxed);
    }

    /// A sequence got tokens for the first time, or so long after the last ones.
    pub fn told(&self, tokens: usize, arrived: Instant, last: Option<Instant>) {
        self.generated_tokens.fetch_add(tokens as u64, Relaxed);
        match last {
            None => self.first.add(arrived.elapsed()),
            Some(last) => self.between.add(last.elapsed()),
        }
    }

    /// Adds the counts of speculation of a sequence that has ended, or was ended.
    pub fn speculated(&self, statistics: &Statistics) {
        self.target_calls.fetch_add(statistics.target_calls as u64, Relaxed);
        // At the first position there is a draft wherever there is one at all.
        let drafts = statistics.drafted.first().copied().unwrap_or(0);
        self.drafts.fetch_add(drafts as u64, Relaxed);
        self.draft_tokens.fetch_add(statistics.nodes as u64, Relaxed);
        for (position, &accepted) in statistics.accepted.iter().enumerate() {
            self.accepted_by_position.add(position, accepted as u64);
        }
    }

    /// A sequence of so many tokens, its prompt's among them, ended so long after its request
    /// arrived.
    pub fn finished(&self, finish: Finish, tokens: usize, after: Duration) {
        self.whole.add(after);
        self.steps.longest.fetch_max(tokens as u64, Relaxed);
        let reason = match finish {
            Finish::End | Finish::Stop => 0,
            Finish::MaxTokens | Finish::Context => 1,
            Finish::Stopped => 2,
        };
        self.finished.add(reason, 1);
    }

    /// Under vLLM's names.
    fn families(&self) -> Vec<Family> {
        let of = |name, kind, what| Family::new(("polydraft:", name), kind, what);
        let counter = |name, count: &AtomicU64, what| {
            of(name, Kind::Counter, what).value(count.load(Relaxed) as f64)
        };
        let gauge = |name, value: f64, what| of(name, Kind::Gauge, what).value(value);
        let histogram = |name, times: &Times, what| of(name, Kind::Histogram, what).times(times);
        let accepted = self.accepted_by_position.all();
        let positions = accepted.iter().enumerate().map(|(k, count)| (k.to_string(), *count));
        let finished = self.finished.all().into_iter();
        let reasons = ["stop", "length", "abort"].map(str::to_owned);
        vec![
            counter(
                "spec_decode_num_drafts_total",
                &self.drafts,
                "Passes of the target that had drafts",
            ),
            counter(
                "spec_decode_num_draft_tokens_total",
                &self.draft_tokens,
                "Distinct drafted tokens",
            ),
            of("spec_decode_num_accepted_tokens_total", Kind::Counter, "Accepted drafted tokens")
                .value(self.accepted_by_position.sum() as f64),
            of(
                "spec_decode_num_accepted_tokens_per_pos_total",
                Kind::Counter,
                "Accepted tokens by position on the drafted path",
            )
            .labelled("position", positions),
            counter(
                "target_calls_total",
                &self.target_calls,
                "Passes of the target, counted for each sequence in them",
            ),
            counter("prompt_tokens_total", &self.prompt_tokens, "Tokens of prompts"),
            counter("generation_tokens_total", &self.generated_tokens, "Generated tokens"),
            of("request_success_total", Kind::Counter, "Finished sequences, by finish reason")
                .labelled("finished_reason", reasons.into_iter().zip(finished.chain(repeat(0)))),
            gauge(
                "num_requests_running",
                self.running.load(Relaxed) as f64,
                "Running requests, counted by prompt",
            ),
            gauge(
                "num_requests_waiting",
                self.waiting.load(Relaxed) as f64,
                "Waiting requests, counted by prompt",
            ),
            gauge(
                "kv_cache_usage_perc",
                f64::from_bits(self.cache.load(Relaxed)),
                "Reserved part of the KV cache, from 0 to 1",
            ),
            histogram(
                "time_to_first_token_seconds",
                &self.first,
                "From a request's arrival to its first token",
            ),
            histogram(
                "inter_token_latency_seconds",
                &self.between,
                "Between two steps' tokens of one sequence",
            ),
            histogram(
                "e2e_request_latency_seconds",
                &self.whole,
                "From a request's arrival to a sequence's end",
            ),
        ]
    }
}
