//! Metrics for Prometheus, under the names of vLLM and llama.cpp.

mod families;
mod llama;

use std::iter::repeat;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use polydraft_engine::{Finish, Statistics};

use families::{CounterVec, DurationHistogram, Family, Kind};

/// Counters and timers of all models of a server.
pub struct Metrics {
    /// Entries by label. A model that is loaded again continues with its entry.
    models: Mutex<Vec<(Option<String>, Arc<Telemetry>)>>,
    /// Start time in seconds since 1970.
    started: u64,
}

impl Metrics {
    /// Creates metrics without models.
    pub fn new() -> Arc<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Arc::new(Self { models: Mutex::default(), started: since.map_or(0, |time| time.as_secs()) })
    }

    /// Time at which the server started, in seconds since 1970.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Returns the entry of a model, created if missing. `label` is its name if there are several
    /// models.
    pub fn for_model(&self, label: Option<String>) -> Arc<Telemetry> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = models.iter().find(|(known, _)| *known == label) {
            return known.clone();
        }
        let telemetry = Arc::<Telemetry>::default();
        models.push((label, telemetry.clone()));
        telemetry
    }

    /// Renders all metrics in Prometheus's text format.
    pub fn render(&self) -> String {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let families = models.iter().map(|(label, telemetry)| {
            let vllm_families = telemetry.families();
            (
                label.as_deref(),
                vllm_families.into_iter().chain(llama::families(telemetry)).collect(),
            )
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
    accepted_by_position: CounterVec,
    finished: CounterVec,
    running: AtomicU64,
    waiting: AtomicU64,
    /// Reserved fraction of the KV cache, as the bits of an `f64`.
    cache_usage: AtomicU64,
    first_token: DurationHistogram,
    inter_token: DurationHistogram,
    end_to_end: DurationHistogram,
    steps: Steps,
}

/// Counters needed only for llama.cpp's names.
#[derive(Debug, Default)]
struct Steps {
    prefilled: AtomicU64,
    cached: AtomicU64,
    /// Time of prefill and of decoding, in nanoseconds.
    prefill: AtomicU64,
    decoding: AtomicU64,
    passes: AtomicU64,
    /// Number of sequences, summed over passes.
    sequences: AtomicU64,
    max_length: AtomicU64,
}

impl Telemetry {
    /// Sets the number of running and waiting prompts, and the reserved fraction of the KV cache.
    pub fn set_load(&self, running: usize, waiting: usize, cache_usage: f64) {
        self.running.store(running as u64, Relaxed);
        self.waiting.store(waiting as u64, Relaxed);
        self.cache_usage.store(cache_usage.to_bits(), Relaxed);
    }

    /// Records that a prompt of this length was admitted.
    pub fn admit_prompt(&self, tokens: usize) {
        self.prompt_tokens.fetch_add(tokens as u64, Relaxed);
    }

    /// Records that a prompt was prefilled, of which `cached` tokens were in the prefix cache.
    pub fn add_prefilled_prompt(&self, tokens: usize, cached: usize) {
        self.steps.prefilled.fetch_add(tokens.saturating_sub(cached) as u64, Relaxed);
        self.steps.cached.fetch_add(cached as u64, Relaxed);
    }

    /// Records a prefill pass.
    pub fn add_prefill_pass(&self, took: Duration) {
        self.steps.prefill.fetch_add(took.as_nanos() as u64, Relaxed);
        self.add_pass(1);
    }

    /// Records a decoding pass for this many sequences.
    pub fn add_decode_pass(&self, sequences: usize, took: Duration) {
        self.steps.decoding.fetch_add(took.as_nanos() as u64, Relaxed);
        self.add_pass(sequences);
    }

    fn add_pass(&self, sequences: usize) {
        self.steps.passes.fetch_add(1, Relaxed);
        self.steps.sequences.fetch_add(sequences as u64, Relaxed);
    }

    /// Records new tokens of a sequence: its first ones, or those since `last`.
    pub fn add_emitted_tokens(&self, tokens: usize, arrived: Instant, last: Option<Instant>) {
        self.generated_tokens.fetch_add(tokens as u64, Relaxed);
        match last {
            None => self.first_token.add(arrived.elapsed()),
            Some(last) => self.inter_token.add(last.elapsed()),
        }
    }

    /// Adds the speculation counts of a sequence that ended or was aborted.
    pub fn add_speculation(&self, statistics: &Statistics) {
        self.target_calls.fetch_add(statistics.target_calls as u64, Relaxed);
        // Every draft has a token at the first position.
        let drafts = statistics.drafted.first().copied().unwrap_or(0);
        self.drafts.fetch_add(drafts as u64, Relaxed);
        self.draft_tokens.fetch_add(statistics.nodes as u64, Relaxed);
        for (position, &accepted) in statistics.accepted.iter().enumerate() {
            self.accepted_by_position.add(position, accepted as u64);
        }
    }

    /// Records the end of a sequence: its tokens including the prompt's, and the time since its
    /// request arrived.
    pub fn finish_sequence(&self, finish: Finish, tokens: usize, after: Duration) {
        self.end_to_end.add(after);
        self.steps.max_length.fetch_max(tokens as u64, Relaxed);
        let reason = match finish {
            Finish::End | Finish::Stop => 0,
            Finish::MaxTokens | Finish::Context => 1,
            Finish::Stopped => 2,
        };
        self.finished.add(reason, 1);
    }

    /// Records sequences that ended before their end: their client left, or the server stopped.
    pub fn abort_sequences(&self, count: usize) {
        self.finished.add(2, count as u64);
    }

    /// Records a sequence that failed.
    pub fn fail_sequence(&self) {
        self.finished.add(3, 1);
    }

    /// Families under vLLM's names.
    fn families(&self) -> Vec<Family> {
        let family = |name, kind, help| Family::new(("polydraft:", name), kind, help);
        let counter = |name, count: &AtomicU64, help| {
            family(name, Kind::Counter, help).value(count.load(Relaxed) as f64)
        };
        let gauge = |name, value: f64, help| family(name, Kind::Gauge, help).value(value);
        let histogram = |name, times: &DurationHistogram, help| {
            family(name, Kind::Histogram, help).histogram(times)
        };
        let accepted = self.accepted_by_position.all();
        let positions = accepted.iter().enumerate().map(|(k, count)| (k.to_string(), *count));
        let finished = self.finished.all().into_iter();
        let reasons = ["stop", "length", "abort", "error"].map(str::to_owned);
        vec![
            counter(
                "spec_decode_num_drafts_total",
                &self.drafts,
                "Passes of the target with drafts",
            ),
            counter(
                "spec_decode_num_draft_tokens_total",
                &self.draft_tokens,
                "Distinct drafted tokens",
            ),
            family(
                "spec_decode_num_accepted_tokens_total",
                Kind::Counter,
                "Accepted drafted tokens",
            )
            .value(self.accepted_by_position.sum() as f64),
            family(
                "spec_decode_num_accepted_tokens_per_pos_total",
                Kind::Counter,
                "Accepted tokens by position on the drafted path",
            )
            .labelled("position", positions),
            counter(
                "target_calls_total",
                &self.target_calls,
                "Passes of the target, counted once per sequence",
            ),
            counter("prompt_tokens_total", &self.prompt_tokens, "Tokens of prompts"),
            counter("generation_tokens_total", &self.generated_tokens, "Generated tokens"),
            family("request_success_total", Kind::Counter, "Ended sequences, by reason")
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
                f64::from_bits(self.cache_usage.load(Relaxed)),
                "Reserved fraction of the KV cache, from 0 to 1",
            ),
            histogram(
                "time_to_first_token_seconds",
                &self.first_token,
                "Seconds from a request's arrival to its first token",
            ),
            histogram(
                "inter_token_latency_seconds",
                &self.inter_token,
                "Seconds between two steps' tokens of one sequence",
            ),
            histogram(
                "e2e_request_latency_seconds",
                &self.end_to_end,
                "Seconds from a request's arrival to a sequence's end",
            ),
        ]
    }
}
