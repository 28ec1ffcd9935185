//! Time of the parts of a step.

use std::time::{Duration, Instant};

use crate::observer::StepTime;

/// Measures a step: the time since the last lap is added to the part that just ran.
pub(super) struct Clock {
    start: Instant,
    last: Instant,
    time: StepTime,
}

impl Clock {
    pub fn start() -> Self {
        let now = Instant::now();
        Self { start: now, last: now, time: StepTime::default() }
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the times counted so far.
    pub fn time(&self) -> StepTime {
        self.time
    }

    pub fn drafted(&mut self) {
        let lap = self.lap();
        self.time.draft += lap;
    }

    pub fn scored(&mut self) {
        let lap = self.lap();
        self.time.target += lap;
    }

    pub fn verified(&mut self) {
        let lap = self.lap();
        self.time.verify += lap;
    }

    fn lap(&mut self) -> Duration {
        let before = std::mem::replace(&mut self.last, Instant::now());
        self.last - before
    }
}
