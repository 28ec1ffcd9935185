//! Progress and timings of an answer, in the form of llama.cpp's server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Times of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    /// Start of the prefill, if it was reported.
    prefill_start: Duration,
    /// Time of the first token: the approximate end of the prefill.
    first_token: Option<Duration>,
}

/// Counts of tokens.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// Tokens of the prompt that were in the prefix cache.
    pub cached: usize,
    /// Prefilled tokens of the prompt, including cached ones.
    pub processed: usize,
    /// Generated tokens of the sequence.
    pub generated: usize,
    /// Drafted tokens, and accepted ones among them.
    pub drafts: (usize, usize),
}

impl Clock {
    /// Starts the clock.
    pub fn new() -> Self {
        Self { start: Instant::now(), prefill_start: Duration::ZERO, first_token: None }
    }

    /// Sets the start of the prefill.
    pub fn start_prefill(&mut self, now: Duration) {
        self.prefill_start = now;
    }

    /// Sets the end of the prefill, at the first call.
    pub fn end_prefill(&mut self) {
        self.first_token.get_or_insert_with(|| self.start.elapsed());
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Timings at a time.
    pub fn timings_at(&self, now: Duration, counts: Counts) -> Value {
        let first_token = self.first_token.unwrap_or(now);
        let seconds = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
        let (prefill, decoding) =
            (seconds(self.prefill_start, first_token), seconds(first_token, now));
        let rate = |count: usize, seconds: f64| {
            if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
        };
        let per_token = |count: usize, seconds: f64| {
            if count > 0 { 1e3 * seconds / count as f64 } else { 0.0 }
        };
        let Counts { cached, processed, generated, drafts: (drafted, accepted) } = counts;
        let computed = processed.saturating_sub(cached);
        // The first token comes with the prompt's last pass.
        let further = generated.saturating_sub(1);
        json!({ "cache_n": cached, "prompt_n": computed, "prompt_ms": 1e3 * prefill,
            "prompt_per_token_ms": per_token(computed, prefill),
            "prompt_per_second": rate(computed, prefill),
            "predicted_n": generated, "predicted_ms": 1e3 * decoding,
            "predicted_per_token_ms": per_token(further, decoding),
            "predicted_per_second": rate(further, decoding),
            "draft_n": drafted, "draft_n_accepted": accepted })
    }
}

/// Progress of the prefill at a time.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Tokens of the prompt.
    pub total: usize,
    /// Tokens that were in the prefix cache.
    pub cached: usize,
    /// Prefilled tokens, including cached ones.
    pub processed: usize,
    /// Time of the report.
    pub at: Duration,
    /// Start of the prefill.
    pub since: Duration,
}

impl Progress {
    /// Object `prompt_progress`.
    pub fn to_json(self) -> Value {
        let Self { total, cached, processed, at, since } = self;
        let time = at.saturating_sub(since).as_millis() as u64;
        json!({ "total": total, "cache": cached, "processed": processed, "time_ms": time })
    }
}

/// Reports of progress and timings in an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimingOptions {
    /// Whether a stream reports the progress of the prefill.
    pub progress: bool,
    /// Whether answers and chunks have timings.
    pub timings: bool,
}

impl TimingOptions {
    /// Whether the engine must report the progress of the prefill.
    pub fn needs_progress(self) -> bool {
        self.progress || self.timings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_rate_leaves_out_the_first_token() {
        let second = Duration::from_secs(1);
        let clock = Clock { prefill_start: second, first_token: Some(3 * second), ..Clock::new() };
        let counts = Counts { cached: 2, processed: 8, generated: 11, drafts: (4, 3) };
        let timings = clock.timings_at(8 * second, counts);
        assert_eq!((&timings["prompt_n"], &timings["prompt_per_second"]), (&json!(6), &json!(3.0)));
        assert_eq!((&timings["prompt_ms"], &timings["predicted_ms"]), (&json!(2e3), &json!(5e3)));
        assert_eq!(timings["predicted_per_second"], 2.0);
        assert_eq!((&timings["draft_n"], &timings["draft_n_accepted"]), (&json!(4), &json!(3)));
        // Nothing has been computed yet.
        let clock = Clock { prefill_start: second, ..Clock::new() };
        let timings = clock
            .timings_at(second, Counts { cached: 2, processed: 2, generated: 0, drafts: (0, 0) });
        for name in ["prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "prompt_per_second"] {
            assert_eq!(timings[name].as_f64(), Some(0.0), "{name}");
        }
    }
}
