//! How long something takes: seconds of the processor's, so that a machine which is busy with other things is no finding.

use std::time::{Duration, Instant};

/// Seconds that a process may take.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct Longest {
    /// Seconds of the processor's that an input may take.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub cpu: f64,
    /// Seconds that may pass meanwhile: what waits for something takes none of the processor's.
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    pub wall: f64,
}

/// What is left of the seconds, from when a piece of work began.
#[derive(Debug)]
pub struct Watch {
    process: u32,
    longest: Longest,
    began: Instant,
    /// Seconds of the processor's that the process had taken when this first looked.
    before: Option<f64>,
}

impl Watch {
    /// How often to look.
    pub const PAUSE: Duration = Duration::from_millis(100);

    pub fn new(process: u32, longest: Longest) -> Self {
        Self { process, longest, began: Instant::now(), before: None }
    }

    /// The next piece of work begins. Costs next to nothing: most are done before anybody looks.
    pub fn again(&mut self) {
        self.began = Instant::now();
        self.before = None;
    }

    /// What was exceeded, if something was.
    pub fn exceeded(&mut self) -> Option<String> {
        let Longest { cpu, wall } = self.longest;
        if self.began.elapsed().as_secs_f64() > wall {
            return Some(format!("more than {wall} s, waiting"));
        }
        let now = processor_seconds(self.process)?;
        let before = *self.before.get_or_insert(now);
        (now - before > cpu).then(|| format!("more than {cpu} s of the processor"))
    }
}

/// Seconds that the processor worked for a process, all its threads together; `None` where the system does not say.
fn processor_seconds(process: u32) -> Option<f64> {
    /// What Linux counts in, on every machine.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in brackets, may have spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_SECOND)
}
