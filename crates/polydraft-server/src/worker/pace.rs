//! How much of a prompt is prefilled between two steps.

use std::time::Duration;

/// Seconds of prefill between two steps, about: how long a sequence waits at most for another one's
/// prompt.
const SLICE: f64 = 0.1;
/// Tokens that are prefilled at once, at least and at most: fewer cost a pass nearly as much, more
/// fill its buffers.
const LEAST: usize = 16;
const MOST: usize = 512;
/// The weight of the last measurement.
const NEW: f64 = 0.3;

/// The measured cost of prefill.
#[derive(Debug)]
pub(super) struct Pace {
    /// Tokens a second; none before the first.
    speed: Option<f64>,
}

impl Pace {
    pub fn new() -> Self {
        Self { speed: None }
    }

    /// Tokens to prefill next.
    pub fn chunk(&self) -> usize {
        self.speed.map_or(LEAST, |speed| ((speed * SLICE) as usize).clamp(LEAST, MOST))
    }

    /// Records that so many tokens were prefilled in this time.
    pub fn observe(&mut self, tokens: usize, time: Duration) {
        if tokens > 0 {
            let speed = tokens as f64 / time.as_secs_f64().max(1e-9);
            self.speed = Some(self.speed.map_or(speed, |before| before + NEW * (speed - before)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_takes_about_a_slice() {
        let mut pace = Pace::new();
        assert_eq!(pace.chunk(), LEAST);
        (0..50).for_each(|_| pace.observe(100, Duration::from_millis(50)));
        assert_eq!(pace.chunk(), 200);
        (0..50).for_each(|_| pace.observe(16, Duration::from_secs(1)));
        assert_eq!(pace.chunk(), LEAST);
        (0..50).for_each(|_| pace.observe(512, Duration::from_nanos(1)));
        assert_eq!(pace.chunk(), MOST);
    }
}
