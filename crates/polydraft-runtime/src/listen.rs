//! Messages while models are loaded and measured.

use std::time::Duration;

use crate::message::Message;

/// Interval of progress messages without a terminal.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

/// Receiver of messages for users. The library itself prints nothing.
pub trait Listener {
    /// Receives a message for most users: a chosen default, or an option without effect.
    fn note(&self, message: &Message);

    /// Receives a detail, for verbose output.
    fn detail(&self, message: &Message);

    /// Receives the progress of a long task, `done` of `total`; both are equal at its end.
    fn progress(&self, _what: &str, _done: usize, _total: usize) {}

    /// Receives the progress of a download, several times a second on the thread that started it;
    /// returns whether to continue.
    fn download_progress(&self, what: &str, done: usize, total: usize) -> bool {
        self.progress(what, done, total);
        true
    }
}

/// Discards all messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Listener for Silent {
    fn note(&self, _: &Message) {}

    fn detail(&self, _: &Message) {}
}
