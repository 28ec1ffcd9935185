//! How long something takes: CPU seconds, so that a machine which is busy with other
//! things is no finding.

use std::time::{Duration, Instant};

/// Seconds that a process may take.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct Longest {
    /// CPU seconds that an input may take.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub cpu: f64,
    /// Seconds that may pass meanwhile: what waits for something takes no CPU time.
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    pub wall: f64,
}

/// Looks at a process now and then while it works.
#[derive(Debug)]
pub struct Watch {
    process: u32,
    longest: Longest,
    looked: Instant,
    /// Seconds that passed while it could work.
    passed: f64,
    /// CPU seconds that the process had taken when this first looked.
    before: Option<f64>,
}

impl Watch {
    /// How often to look.
    pub const PAUSE: Duration = Duration::from_millis(100);

    pub fn new(process: u32, longest: Longest) -> Self {
        Self { process, longest, looked: Instant::now(), passed: 0.0, before: None }
    }

    /// The next piece of work begins. Costs next to nothing: most are done before anybody looks.
    pub fn again(&mut self) {
        self.looked = Instant::now();
        self.passed = 0.0;
        self.before = None;
    }

    /// Returns the limit that was exceeded, if any.
    pub fn exceeded(&mut self) -> Option<String> {
        let Longest { cpu, wall } = self.longest;
        let (is_stopped, now) = state(self.process).unwrap_or_default();
        // Somebody who stops all processes for a while stops this one too.
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

/// CPU seconds of this process.
pub fn own_cpu_seconds() -> f64 {
    state(std::process::id()).unwrap_or_default().1
}

/// Whether a process is stopped, and its CPU seconds, all its threads
/// together; `None` where the system does not say.
fn state(process: u32) -> Option<(bool, f64)> {
    /// Unit of CPU time on Linux, on every machine.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in brackets, may have spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let is_stopped = fields.next()?.eq_ignore_ascii_case("t");
    let mut ticks = fields.skip(10).map(|field| field.parse::<f64>().unwrap_or(0.0));
    Some((is_stopped, (ticks.next()? + ticks.next()?) / TICKS_PER_SECOND))
}
