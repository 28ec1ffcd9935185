//! Messages while models are loaded and measured.

use std::time::Duration;

use crate::message::Message;

/// Interval of progress messages where there is no terminal.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

/// Receives messages, in sentences for people. The library itself prints nothing.
pub trait Listener {
    /// Takes a message for most users: a default that was chosen, an option that is not used.
    fn note(&self, message: &Message);

    /// Takes a detail, for verbose output.
    fn detail(&self, message: &Message);

    /// Takes the progress of long work, `done` of `total`; the work has ended where both are equal.
    fn progress(&self, _what: &str, _done: usize, _total: usize) {}

    /// Takes the progress of a download, several times a second on the thread that began it;
    /// returns whether to continue.
    fn download_progress(&self, what: &str, done: usize, total: usize) -> bool {
        self.progress(what, done, total);
        true
    }
}

/// Drops all messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Listener for Silent {
    fn note(&self, _: &Message) {}

    fn detail(&self, _: &Message) {}
}
