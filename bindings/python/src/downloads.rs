//! Downloads of models, as Python sees them.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use polydraft_runtime::message::Message;
use polydraft_runtime::{Listener, PROGRESS_INTERVAL};
use pyo3::prelude::*;

use crate::errors::{Failure, Result};

/// Says on Python's standard error how far downloads are; ends them where Python is interrupted.
#[derive(Default)]
pub struct Downloads {
    spoke: Cell<Option<Instant>>,
    interrupted: RefCell<Option<PyErr>>,
}

impl Downloads {
    /// Waits for what loads, and raises what interrupted it.
    pub fn watch<T>(load: impl FnOnce(&Self) -> anyhow::Result<T>) -> Result<T> {
        let watch = Self::default();
        let loaded = load(&watch);
        match watch.interrupted.into_inner() {
            Some(error) => Err(Failure::Python(error)),
            None => Ok(loaded?),
        }
    }

    fn say(&self, py: Python<'_>, what: &str, ended: bool) -> PyResult<()> {
        let stderr = py.import("sys")?.getattr("stderr")?;
        let quiet =
            ended || self.spoke.get().is_some_and(|spoke| spoke.elapsed() < PROGRESS_INTERVAL);
        let line = match stderr.call_method0("isatty")?.extract()? {
            true if ended => "\r\x1b[2K".to_owned(),
            true => format!("\r\x1b[2K{what}"),
            false if quiet => return Ok(()),
            false => format!("{what}\n"),
        };
        self.spoke.set(Some(Instant::now()));
        stderr.call_method1("write", (line,))?;
        stderr.call_method0("flush").map(drop)
    }
}

impl Listener for Downloads {
    fn note(&self, _: &Message) {}

    fn detail(&self, _: &Message) {}

    fn download_progress(&self, what: &str, done: usize, total: usize) -> bool {
        Python::attach(|py| {
            // Where there is no standard error, nothing is said.
            let _ = self.say(py, what, done >= total);
            let signals = py.check_signals();
            let goes_on = signals.is_ok();
            if let Err(error) = signals {
                self.interrupted.replace(Some(error));
            }
            goes_on
        })
    }
}
