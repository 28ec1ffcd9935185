//! Metrics for Prometheus, under vLLM's names and llama.cpp's.

mod llama;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use polydraft_engine::{Finish, Statistics};

use llama::Counts;

const METADATA: Metadata<'static> = Metadata::new("polydraft", Level::INFO, None);
/// Upper ends of the histograms' buckets, in seconds.
const BUCKETS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 300.0,
];

/// Counters and timers of all models of a server.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// Of each model, by its label.
    llama: Mutex<Vec<(Option<String>, Arc<Counts>)>>,
    /// When they began, in seconds since 1970.
    started: u64,
}

impl Metrics {
    /// Of a server that has done nothing yet.
    pub fn new() -> Arc<Self> {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS);
        // Only a list without buckets is refused.
        let recorder = builder.unwrap_or_default().build_recorder();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Arc::new(Self {
            handle: recorder.handle(),
            recorder,
            llama: Mutex::default(),
            started: since.map_or(0, |time| time.as_secs()),
        })
    }

    /// When the server started, in seconds since 1970.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// As Prometheus reads it.
    pub fn render(&self) -> String {
        let models = self.llama.lock().unwrap_or_else(PoisonError::into_inner);
        let llama = models.iter().map(|(label, counts)| (label.as_deref(), &**counts));
        self.handle.render() + &llama::render(llama)
    }

    /// The counts of the model of this label: a model that was unloaded goes on with its own.
    fn counts(&self, label: Option<&str>) -> Arc<Counts> {
        let mut models = self.llama.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counts)) = models.iter().find(|(known, _)| known.as_deref() == label) {
            return counts.clone();
        }
        let counts = Arc::<Counts>::default();
        models.push((label.map(str::to_owned), counts.clone()));
        counts
    }

    /// Counts the times measured since the last call into their buckets. Until then each is stored
    /// by itself: to be called now and then, whether or not the metrics are read.
    pub fn sum_up(&self) {
        self.handle.run_upkeep();
    }
}

/// Counters and timers of one model.
pub struct Telemetry {
    metrics: Arc<Metrics>,
    labels: Vec<Label>,
    drafts: Counter,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    accepted_by_position: Mutex<Vec<Counter>>,
    target_calls: Counter,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    running: Gauge,
    waiting: Gauge,
    cache: Gauge,
    first: Histogram,
    between: Histogram,
    whole: Histogram,
    llama: Arc<Counts>,
}

impl Telemetry {
    /// Of a model that has done nothing yet; its name, where there are several.
    pub fn new(metrics: &Arc<Metrics>, model: Option<String>) -> Arc<Self> {
        let recorder = &metrics.recorder;
        let llama = metrics.counts(model.as_deref());
        let labels: Vec<Label> =
            model.into_iter().map(|name| Label::new("model_name", name)).collect();
        let key = |name: &'static str| Key::from_parts(name, labels.clone());
        let counter = |name: &'static str, what: &'static str| {
            recorder.describe_counter(KeyName::from_const_str(name), None, what.into());
            recorder.register_counter(&key(name), &METADATA)
        };
        let gauge = |name: &'static str, what: &'static str| {
            recorder.describe_gauge(KeyName::from_const_str(name), None, what.into());
            recorder.register_gauge(&key(name), &METADATA)
        };
        let histogram = |name: &'static str, what: &'static str| {
            recorder.describe_histogram(KeyName::from_const_str(name), None, what.into());
            recorder.register_histogram(&key(name), &METADATA)
        };
        let position = "Accepted tokens by position on the drafted path";
        recorder.describe_counter(KeyName::from_const_str(BY_POSITION), None, position.into());
        let finished = "Finished sequences, by finish reason";
        recorder.describe_counter(KeyName::from_const_str(FINISHED), None, finished.into());
        Arc::new(Self {
            drafts: counter(
                "polydraft:spec_decode_num_drafts_total",
                "Passes of the target that had drafts",
            ),
            draft_tokens: counter(
                "polydraft:spec_decode_num_draft_tokens_total",
                "Distinct drafted tokens",
            ),
            accepted_tokens: counter(
                "polydraft:spec_decode_num_accepted_tokens_total",
                "Accepted drafted tokens",
            ),
            accepted_by_position: Mutex::default(),
            target_calls: counter(
                "polydraft:target_calls_total",
                "Passes of the target, counted for each sequence in them",
            ),
            prompt_tokens: counter("polydraft:prompt_tokens_total", "Tokens of prompts"),
            generated_tokens: counter("polydraft:generation_tokens_total", "Generated tokens"),
            running: gauge("polydraft:num_requests_running", "Running requests, counted by prompt"),
            waiting: gauge("polydraft:num_requests_waiting", "Waiting requests, counted by prompt"),
            cache: gauge(
                "polydraft:kv_cache_usage_perc",
                "Reserved part of the KV cache, from 0 to 1",
            ),
            first: histogram(
                "polydraft:time_to_first_token_seconds",
                "From a request's arrival to its first token",
            ),
            between: histogram(
                "polydraft:inter_token_latency_seconds",
                "Between two steps' tokens of one sequence",
            ),
            whole: histogram(
                "polydraft:e2e_request_latency_seconds",
                "From a request's arrival to a sequence's end",
            ),
            metrics: metrics.clone(),
            labels: labels.clone(),
            llama,
        })
    }

    fn key(&self, name: &'static str, label: Label) -> Key {
        Key::from_parts(name, self.labels.iter().cloned().chain([label]).collect::<Vec<_>>())
    }

    /// Sets the number of running and of waiting prompts, and the reserved part of the memory.
    pub fn load(&self, running: usize, waiting: usize, cache: f64) {
        self.running.set(running as f64);
        self.waiting.set(waiting as f64);
        self.cache.set(cache);
        self.llama.load(running, waiting);
    }

    /// A prompt of so many tokens was admitted.
    pub fn began(&self, tokens: usize) {
        self.prompt_tokens.increment(tokens as u64);
    }

    /// A prompt was prefilled, of whose tokens so many were cached.
    pub fn prefilled(&self, tokens: usize, cached: usize) {
        self.llama.prefilled(tokens, cached);
    }

    /// A pass for a part of a prompt.
    pub fn read(&self, took: Duration) {
        self.llama.read(took);
    }

    /// A step for so many sequences.
    pub fn stepped(&self, sequences: usize, took: Duration) {
        self.llama.stepped(sequences, took);
    }

    /// A sequence got tokens for the first time, or so long after the last ones.
    pub fn told(&self, tokens: usize, arrived: Instant, last: Option<Instant>) {
        self.generated_tokens.increment(tokens as u64);
        self.llama.told(tokens);
        match last {
            None => self.first.record(arrived.elapsed()),
            Some(last) => self.between.record(last.elapsed()),
        }
    }

    /// Adds the counts of speculation of a sequence that has ended, or was ended.
    pub fn speculated(&self, statistics: &Statistics) {
        self.target_calls.increment(statistics.target_calls as u64);
        self.llama.speculated(statistics);
        // At the first position there is a draft wherever there is one at all.
        self.drafts.increment(statistics.drafted.first().copied().unwrap_or(0) as u64);
        self.draft_tokens.increment(statistics.nodes as u64);
        self.accepted_tokens.increment(statistics.accepted.iter().sum::<usize>() as u64);
        let mut positions =
            self.accepted_by_position.lock().unwrap_or_else(PoisonError::into_inner);
        for (position, &accepted) in statistics.accepted.iter().enumerate() {
            if position == positions.len() {
                let key = self.key(BY_POSITION, Label::new("position", position.to_string()));
                positions.push(self.metrics.recorder.register_counter(&key, &METADATA));
            }
            positions[position].increment(accepted as u64);
        }
    }

    /// A sequence of so many tokens, its prompt's among them, ended so long after its request
    /// arrived.
    pub fn finished(&self, finish: Finish, tokens: usize, after: Duration) {
        self.whole.record(after);
        self.llama.ended(tokens);
        let reason = match finish {
            Finish::End | Finish::Stop => "stop",
            Finish::MaxTokens | Finish::Context => "length",
            Finish::Stopped => "abort",
        };
        let key = self.key(FINISHED, Label::new("finished_reason", reason));
        self.metrics.recorder.register_counter(&key, &METADATA).increment(1);
    }
}

const BY_POSITION: &str = "polydraft:spec_decode_num_accepted_tokens_per_pos_total";
const FINISHED: &str = "polydraft:request_success_total";
