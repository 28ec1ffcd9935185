//! Messages while models are loaded and measured.

use std::time::Duration;

/// Without a terminal it is said so often how far long work is.
pub const SPEAKS: Duration = Duration::from_secs(60);

/// Receives messages, in sentences for people. The library itself prints nothing.
pub trait Listener {
    /// A message for most users: what was chosen for them, which option is not used.
    fn note(&self, text: &str);

    /// Details, for verbose output.
    fn detail(&self, text: &str);

    /// Work that takes its time has come so far, `done` of `total`; that it has ended where both
    /// are the same.
    fn progress(&self, _what: &str, _done: usize, _total: usize) {}

    /// As [`progress`](Self::progress), of a download, several times a second on the thread that
    /// began it; answers whether it is to go on.
    fn downloads(&self, what: &str, done: usize, total: usize) -> bool {
        self.progress(what, done, total);
        true
    }
}

/// Drops all messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Listener for Silent {
    fn note(&self, _: &str) {}

    fn detail(&self, _: &str) {}
}
