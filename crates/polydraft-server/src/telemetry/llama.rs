//! The same counts once more, under the names that llama.cpp's server has for them.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use polydraft_engine::Statistics;

/// Counts of one model.
#[derive(Debug, Default)]
pub(super) struct Counts {
    read: AtomicU64,
    cached: AtomicU64,
    written: AtomicU64,
    /// Nanoseconds.
    reading: AtomicU64,
    writing: AtomicU64,
    passes: AtomicU64,
    /// Sequences, summed over passes.
    sequences: AtomicU64,
    longest: AtomicU64,
    drafts: AtomicU64,
    draft_tokens: AtomicU64,
    accepted: AtomicU64,
    running: AtomicU64,
    waiting: AtomicU64,
}

impl Counts {
    /// A prompt was prefilled, of whose tokens so many were cached.
    pub fn prefilled(&self, tokens: usize, cached: usize) {
        self.read.fetch_add(tokens.saturating_sub(cached) as u64, Relaxed);
        self.cached.fetch_add(cached as u64, Relaxed);
    }

    /// A pass of the target for a part of a prompt.
    pub fn read(&self, took: Duration) {
        self.reading.fetch_add(took.as_nanos() as u64, Relaxed);
        self.passed(1);
    }

    /// A step for so many sequences.
    pub fn stepped(&self, sequences: usize, took: Duration) {
        self.writing.fetch_add(took.as_nanos() as u64, Relaxed);
        self.passed(sequences);
    }

    fn passed(&self, sequences: usize) {
        self.passes.fetch_add(1, Relaxed);
        self.sequences.fetch_add(sequences as u64, Relaxed);
    }

    /// A sequence got so many tokens.
    pub fn told(&self, tokens: usize) {
        self.written.fetch_add(tokens as u64, Relaxed);
    }

    /// A sequence ended with so many tokens, its prompt's among them.
    pub fn ended(&self, tokens: usize) {
        self.longest.fetch_max(tokens as u64, Relaxed);
    }

    pub fn speculated(&self, statistics: &Statistics) {
        self.drafts.fetch_add(statistics.drafted.first().map_or(0, |n| *n as u64), Relaxed);
        self.draft_tokens.fetch_add(statistics.nodes as u64, Relaxed);
        self.accepted.fetch_add(statistics.accepted.iter().sum::<usize>() as u64, Relaxed);
    }

    pub fn load(&self, running: usize, waiting: usize) {
        self.running.store(running as u64, Relaxed);
        self.waiting.store(waiting as u64, Relaxed);
    }

    fn values(&self) -> [f64; NAMES.len()] {
        let of = |count: &AtomicU64| count.load(Relaxed) as f64;
        let seconds = |count: &AtomicU64| of(count) / 1e9;
        let rate = |count: f64, per: f64| if per > 0.0 { count / per } else { 0.0 };
        let (reading, writing) = (seconds(&self.reading), seconds(&self.writing));
        [
            of(&self.read),
            of(&self.cached),
            reading,
            of(&self.written),
            writing,
            of(&self.passes),
            of(&self.longest),
            of(&self.drafts),
            of(&self.draft_tokens),
            of(&self.accepted),
            rate(of(&self.read), reading),
            rate(of(&self.written), writing),
            of(&self.running),
            of(&self.waiting),
            rate(of(&self.sequences), of(&self.passes)),
        ]
    }
}

/// Their names, kinds and meanings.
const NAMES: [(&str, &str, &str); 15] = [
    ("prompt_tokens_total", "counter", "Tokens of prompts that were prefilled"),
    ("prompt_tokens_cached_total", "counter", "Tokens of prompts that were in the prefix cache"),
    ("prompt_seconds_total", "counter", "Time in prefill, but for each prompt's last token"),
    ("tokens_predicted_total", "counter", "Generated tokens"),
    ("tokens_predicted_seconds_total", "counter", "Time in steps"),
    ("n_decode_total", "counter", "Passes of the target, each for the whole batch"),
    ("n_tokens_max", "counter", "Tokens of the longest sequence, its prompt's among them"),
    ("spec_decode_num_drafts_total", "counter", "Passes of the target that had drafts"),
    ("spec_decode_num_draft_tokens_total", "counter", "Distinct drafted tokens"),
    ("spec_decode_num_accepted_tokens_total", "counter", "Accepted drafted tokens"),
    ("prompt_tokens_seconds", "gauge", "Prefilled tokens per second of prefill"),
    ("predicted_tokens_seconds", "gauge", "Generated tokens per second of steps"),
    ("requests_processing", "gauge", "Running requests, counted by prompt"),
    ("requests_deferred", "gauge", "Waiting requests, counted by prompt"),
    ("n_busy_slots_per_decode", "gauge", "Sequences in a pass, on average"),
];

/// As Prometheus reads them; each model has its name where there are several.
pub(super) fn render<'a>(models: impl Iterator<Item = (Option<&'a str>, &'a Counts)>) -> String {
    let models: Vec<_> = models.map(|(label, counts)| (label, counts.values())).collect();
    let mut text = String::new();
    for (number, (name, kind, what)) in NAMES.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP llamacpp:{name} {what}\n# TYPE llamacpp:{name} {kind}");
        for (label, values) in &models {
            let label = label.map_or_else(String::new, |name| format!("{{model_name={name:?}}}"));
            let _ = writeln!(text, "llamacpp:{name}{label} {}", values[number]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_count() {
        let (counts, other) = (Counts::default(), Counts::default());
        counts.prefilled(10, 4);
        counts.read(Duration::from_secs(2));
        counts.stepped(3, Duration::from_secs(4));
        counts.told(8);
        counts.ended(18);
        let text = render([(Some("a"), &counts), (Some("b"), &other)].into_iter());
        for line in [
            "# TYPE llamacpp:prompt_tokens_total counter",
            "llamacpp:prompt_tokens_total{model_name=\"a\"} 6",
            "llamacpp:prompt_tokens_total{model_name=\"b\"} 0",
            "llamacpp:prompt_tokens_cached_total{model_name=\"a\"} 4",
            "llamacpp:prompt_seconds_total{model_name=\"a\"} 2",
            "llamacpp:prompt_tokens_seconds{model_name=\"a\"} 3",
            "llamacpp:predicted_tokens_seconds{model_name=\"a\"} 2",
            "llamacpp:n_decode_total{model_name=\"a\"} 2",
            "llamacpp:n_busy_slots_per_decode{model_name=\"a\"} 2",
            "llamacpp:n_tokens_max{model_name=\"a\"} 18",
            "llamacpp:predicted_tokens_seconds{model_name=\"b\"} 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("# TYPE")).count(), NAMES.len());
    }
}
