//! Number of prompt tokens to prefill between two steps.

use std::time::Duration;

/// Approximate seconds of prefill between two steps: the time that a sequence may wait for another
/// one's prompt.
const TARGET_SECONDS: f64 = 0.1;
/// Minimum and maximum tokens of a prefill pass. A pass over fewer tokens takes nearly as long;
/// more would only enlarge its buffers.
const MIN_TOKENS: usize = 16;
const MAX_TOKENS: usize = 512;
/// Weight of the last measurement in the exponential moving average.
const SMOOTHING: f64 = 0.3;

/// Measured speed of prefill.
#[derive(Debug)]
pub(super) struct PrefillPace {
    /// Tokens per second; `None` before the first measurement.
    speed: Option<f64>,
}

impl PrefillPace {
    pub fn new() -> Self {
        Self { speed: None }
    }

    /// Number of tokens to prefill next.
    pub fn next_tokens(&self) -> usize {
        self.speed.map_or(MIN_TOKENS, |speed| {
            ((speed * TARGET_SECONDS) as usize).clamp(MIN_TOKENS, MAX_TOKENS)
        })
    }

    /// Records that this many tokens were prefilled in this time.
    pub fn record(&mut self, tokens: usize, time: Duration) {
        if tokens > 0 {
            let speed = tokens as f64 / time.as_secs_f64().max(1e-9);
            self.speed =
                Some(self.speed.map_or(speed, |before| before + SMOOTHING * (speed - before)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_takes_about_the_target_time() {
        let mut prefill_pace = PrefillPace::new();
        assert_eq!(prefill_pace.next_tokens(), MIN_TOKENS);
        (0..50).for_each(|_| prefill_pace.record(100, Duration::from_millis(50)));
        assert_eq!(prefill_pace.next_tokens(), 200);
        (0..50).for_each(|_| prefill_pace.record(16, Duration::from_secs(1)));
        assert_eq!(prefill_pace.next_tokens(), MIN_TOKENS);
        (0..50).for_each(|_| prefill_pace.record(512, Duration::from_nanos(1)));
        assert_eq!(prefill_pace.next_tokens(), MAX_TOKENS);
    }
}
