//! Measures the CPU time and the wall-clock time of an input. CPU time is the main limit, so that
//! an input on a busy machine is not reported as slow.

use std::time::{Duration, Instant};

/// Time limits of an input.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct Longest {
    /// Maximum CPU time in seconds.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub cpu: f64,
    /// Maximum wall-clock time in seconds, for inputs that wait and so use no CPU time.
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    pub wall: f64,
}

/// Measures the time that a process takes, by polling.
#[derive(Debug)]
pub struct Watch {
    process: u32,
    longest: Longest,
    looked: Instant,
    /// Seconds since the input began, without the time for which the process was stopped.
    passed: f64,
    /// CPU seconds of the process at the first poll of this input.
    before: Option<f64>,
}

impl Watch {
    /// Interval between polls.
    pub const PAUSE: Duration = Duration::from_millis(100);

    pub fn new(process: u32, longest: Longest) -> Self {
        Self { process, longest, looked: Instant::now(), passed: 0.0, before: None }
    }

    /// Restarts the measurement for the next input. Cheap, because most inputs end before the first
    /// poll.
    pub fn again(&mut self) {
        self.looked = Instant::now();
        self.passed = 0.0;
        self.before = None;
    }

    /// Returns the limit that was exceeded, if any.
    pub fn exceeded(&mut self) -> Option<String> {
        let Longest { cpu, wall } = self.longest;
        let (is_stopped, now) = state(self.process).unwrap_or_default();
        // Each poll counts at most ten intervals, in case this process was stopped as well.
        let since = self.looked.elapsed().min(10 * Self::PAUSE);
        self.looked = Instant::now();
        if !is_stopped {
            self.passed += since.as_secs_f64();
        }
        let before = *self.before.get_or_insert(now);
        if now - before > cpu {
            return Some(format!("more than {cpu} CPU seconds"));
        }
        (self.passed > wall).then(|| format!("more than {wall} s, waiting"))
    }
}

/// Returns the CPU seconds of this process.
pub fn own_cpu_seconds() -> f64 {
    state(std::process::id()).unwrap_or_default().1
}

/// Returns whether a process is stopped, and the CPU seconds of all its threads; `None` if the
/// system does not report them.
fn state(process: u32) -> Option<(bool, f64)> {
    /// Clock ticks per second; 100 on all Linux machines.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The process name is in parentheses and may contain spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let is_stopped = fields.next()?.eq_ignore_ascii_case("t");
    let mut ticks = fields.skip(10).map(|field| field.parse::<f64>().unwrap_or(0.0));
    Some((is_stopped, (ticks.next()? + ticks.next()?) / TICKS_PER_SECOND))
}
