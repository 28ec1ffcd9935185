//! How far an answer is and how long it takes, as llama.cpp's server tells it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// When things happened.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    begun: Instant,
    /// When the prefill began, if that was told.
    started: Duration,
    /// When it had ended, about: at the first token.
    read: Option<Duration>,
}

/// How many tokens.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// Of the prompt that were in the prefix cache.
    pub cached: usize,
    /// Of the prompt that are prefilled, those among them.
    pub processed: usize,
    /// Of the sequence.
    pub written: usize,
    /// Drafted, and accepted of them.
    pub drafts: (usize, usize),
}

impl Clock {
    /// Now.
    pub fn new() -> Self {
        Self { begun: Instant::now(), started: Duration::ZERO, read: None }
    }

    /// The prefill begins, at this moment.
    pub fn starts(&mut self, now: Duration) {
        self.started = now;
    }

    /// The first token is there, or another.
    pub fn reads(&mut self) {
        self.read.get_or_insert_with(|| self.begun.elapsed());
    }

    /// Since the start.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The times at a moment.
    pub fn at(&self, now: Duration, counts: Counts) -> Value {
        let read = self.read.unwrap_or(now);
        let seconds = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
        let (reading, writing) = (seconds(self.started, read), seconds(read, now));
        let rate = |count: usize, seconds: f64| {
            if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
        };
        let per_token = |count: usize, seconds: f64| {
            if count > 0 { 1e3 * seconds / count as f64 } else { 0.0 }
        };
        let Counts { cached, processed, written, drafts: (drafted, accepted) } = counts;
        let computed = processed.saturating_sub(cached);
        // The first token comes with the prompt's last pass.
        let further = written.saturating_sub(1);
        json!({ "cache_n": cached, "prompt_n": computed, "prompt_ms": 1e3 * reading,
            "prompt_per_token_ms": per_token(computed, reading),
            "prompt_per_second": rate(computed, reading),
            "predicted_n": written, "predicted_ms": 1e3 * writing,
            "predicted_per_token_ms": per_token(further, writing),
            "predicted_per_second": rate(further, writing),
            "draft_n": drafted, "draft_n_accepted": accepted })
    }
}

/// How much of a prompt was prefilled at a moment.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Its tokens.
    pub total: usize,
    /// Those that were in the prefix cache.
    pub cached: usize,
    /// Those that are prefilled, with these.
    pub processed: usize,
    /// When.
    pub at: Duration,
    /// When the prefill began.
    pub since: Duration,
}

impl Progress {
    /// As `prompt_progress`.
    pub fn told(&self) -> Value {
        let Self { total, cached, processed, at, since } = *self;
        let time = at.saturating_sub(since).as_millis() as u64;
        json!({ "total": total, "cache": cached, "processed": processed, "time_ms": time })
    }
}

/// What of this an answer tells.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tells {
    /// Its progress through the prompt, in a stream.
    pub progress: bool,
    /// Times, with all that it says.
    pub timings: bool,
}

impl Tells {
    /// Whether the engine has to say how much of the prompt is prefilled.
    pub fn follows(self) -> bool {
        self.progress || self.timings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_leave_out_the_first_token() {
        let second = Duration::from_secs(1);
        let clock = Clock { started: second, read: Some(3 * second), ..Clock::new() };
        let counts = Counts { cached: 2, processed: 8, written: 11, drafts: (4, 3) };
        let told = clock.at(8 * second, counts);
        assert_eq!((&told["prompt_n"], &told["prompt_per_second"]), (&json!(6), &json!(3.0)));
        assert_eq!((&told["prompt_ms"], &told["predicted_ms"]), (&json!(2e3), &json!(5e3)));
        assert_eq!(told["predicted_per_second"], 2.0);
        assert_eq!((&told["draft_n"], &told["draft_n_accepted"]), (&json!(4), &json!(3)));
        // Nothing has been computed yet.
        let clock = Clock { started: second, ..Clock::new() };
        let told = clock.at(second, Counts { cached: 2, processed: 2, written: 0, drafts: (0, 0) });
        for name in ["prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "prompt_per_second"] {
            assert_eq!(told[name].as_f64(), Some(0.0), "{name}");
        }
    }
}
