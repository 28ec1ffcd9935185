//! Sequences that are being decoded, and finished ones.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use polydraft::Token;
use polydraft::policy::Choices;
use polydraft_engine::{Engine, Generation, Origin, Session, Statistics};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{Failure, Result, lock};
use crate::threads::work;

/// A sequence that is being decoded. Iterating gives its tokens as they are decided; `close()`, or
/// the end of a `with` block, gives it back to the engine and says what it cost.
///
/// >>> engine = Engine(TableModel({(): [0.5, 0.5]}))
/// >>> with engine.session([0], max_tokens=5, seed=1) as session:
/// ...     len(list(session)), session.finish
/// (5, 'max-tokens')
#[pyclass(name = "Session", module = "polydraft", frozen)]
pub struct PySession {
    /// The engine that it was begun with, as Python has it.
    #[pyo3(get, name = "engine")]
    owner: Py<PyAny>,
    pub engine: Arc<Mutex<Engine>>,
    /// Until it is closed. Locked for as long as a step takes.
    session: Mutex<Option<Session<'static>>>,
    /// Lesson from the sequence, if any.
    lesson: Option<Learn>,
    /// Never locked for long: who asks need not wait for a step, and may keep the interpreter.
    snapshot: Mutex<Snapshot>,
}

/// State of a sequence between steps.
#[derive(Default)]
struct Snapshot {
    /// Decided and not yet handed out.
    next: VecDeque<Token>,
    tokens: Vec<Token>,
    origins: Vec<&'static str>,
    text: String,
    finish: Option<&'static str>,
    is_done: bool,
    generation: Option<Generation>,
}

impl Snapshot {
    /// Takes what a session has decided.
    fn pull(&mut self, session: &mut Session<'static>) -> Result<()> {
        for emitted in session.take_tokens() {
            self.next.push_back(emitted.token);
            self.tokens.push(emitted.token);
            self.origins.push(match emitted.origin {
                Origin::Accepted => "accepted",
                Origin::Correction => "correction",
                Origin::Bonus => "bonus",
            });
        }
        self.text.extend(session.take_chunks().into_iter().map(|piece| piece.text));
        self.finish = session.finish().map(name_of_finish);
        self.is_done = session.is_done();
        match session.failure() {
            None => Ok(()),
            Some(error) => Err(Failure::Library("ModelError", error.to_string())),
        }
    }
}

fn name_of_finish(finish: polydraft_engine::Finish) -> &'static str {
    use polydraft_engine::Finish;
    match finish {
        Finish::End => "end-token",
        Finish::Stop => "stop-string",
        Finish::MaxTokens => "max-tokens",
        Finish::Context => "context",
        Finish::Stopped => "stopped",
    }
}

/// One step of several sessions, none of which is there twice. Locks are taken in this order
/// everywhere: engine, sessions, what is told of them.
pub fn step(engine: &mut Engine, sessions: &[&PySession]) -> Result<()> {
    let mut locked: Vec<MutexGuard<'_, Option<Session<'static>>>> =
        sessions.iter().map(|session| lock(&session.session)).collect();
    let mut open: Vec<&mut Session<'static>> =
        locked.iter_mut().filter_map(|session| session.as_mut()).collect();
    let mut stepped = engine.step(&mut open).map_err(Failure::from);
    // All are told what they got, whichever failed; the first failure is raised.
    for (session, open) in sessions.iter().zip(&mut locked) {
        if let Some(open) = open.as_mut() {
            stepped = stepped.and(lock(&session.snapshot).pull(open));
        }
    }
    stepped
}

/// Learns the costs of steps from a finished sequence.
pub type Learn = Box<dyn Fn(&Choices) + Send + Sync>;

impl PySession {
    pub fn new(
        owner: Py<PyAny>,
        engine: Arc<Mutex<Engine>>,
        session: Session<'static>,
        lesson: Option<Learn>,
    ) -> Self {
        let finish = session.finish().map(name_of_finish);
        let snapshot = Snapshot { finish, is_done: session.is_done(), ..Snapshot::default() };
        let (session, snapshot) = (Mutex::new(Some(session)), Mutex::new(snapshot));
        Self { owner, engine, session, lesson, snapshot }
    }

    /// One step.
    pub fn advance(&self, py: Python<'_>) -> Result<()> {
        work(py, || step(&mut lock(&self.engine), &[self]))
    }
}

impl Drop for PySession {
    fn drop(&mut self) {
        // Its sequences would stay open. Who has the engine may need the interpreter, and runs
        // nothing that could drop this.
        if let Some(session) = lock(&self.session).take() {
            let engine = &self.engine;
            let _ = Python::attach(|py| work(py, || Ok(lock(engine).close(session)?)));
        }
    }
}

#[pymethods]
impl PySession {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> Result<Option<Token>> {
        loop {
            {
                let mut snapshot = lock(&self.snapshot);
                if let Some(token) = snapshot.next.pop_front() {
                    return Ok(Some(token));
                }
                if snapshot.is_done {
                    return Ok(None);
                }
            }
            py.check_signals()?;
            self.advance(py)?;
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Py<PyAny>,
        _error: Py<PyAny>,
        _trace: Py<PyAny>,
    ) -> Result<()> {
        self.close(py).map(|_| ())
    }

    /// The tokens decided so far.
    #[getter]
    fn tokens(&self) -> Vec<Token> {
        lock(&self.snapshot).tokens.clone()
    }

    /// Where each token came from: `accepted` (a draft), `correction` (in place of rejected ones)
    /// or `bonus` (after accepted ones, or where nothing was drafted).
    #[getter]
    fn origins(&self) -> Vec<&'static str> {
        lock(&self.snapshot).origins.clone()
    }

    /// The text that is certain by now; empty for a table.
    #[getter]
    fn text(&self) -> String {
        lock(&self.snapshot).text.clone()
    }

    /// Why it ended: `end-token`, `stop-string`, `max-tokens`, `context`, `stopped`; none while it
    /// goes on.
    #[getter]
    fn finish(&self) -> Option<&'static str> {
        lock(&self.snapshot).finish
    }

    /// Whether the sequence is finished.
    #[getter]
    pub fn is_done(&self) -> bool {
        lock(&self.snapshot).is_done
    }

    /// Ends it, if it has not ended, and gives the whole.
    pub fn close(&self, py: Python<'_>) -> Result<PyGeneration> {
        let (generation, origins) = work(py, || {
            let mut engine = lock(&self.engine);
            if let Some(mut session) = lock(&self.session).take() {
                lock(&self.snapshot).is_done = true;
                session.stop();
                let generation = engine.close(session)?;
                let choices = generation.statistics.choices.as_ref();
                if let (Some(learn), Some(choices)) = (&self.lesson, choices) {
                    learn(choices);
                }
                let mut snapshot = lock(&self.snapshot);
                snapshot.finish = Some(name_of_finish(generation.finish));
                snapshot.generation = Some(generation);
            }
            let snapshot = lock(&self.snapshot);
            match &snapshot.generation {
                Some(generation) => Ok((generation.clone(), snapshot.origins.clone())),
                None => Err(Failure::Library("ModelError", "session: it failed before".to_owned())),
            }
        })?;
        PyGeneration::new(py, generation, origins)
    }
}

/// A finished sequence: `tokens`, the `text` of them, why it ended (`finish`), where each token
/// came from (`origins`), and what it cost: `statistics`, a dictionary.
#[pyclass(name = "Generation", module = "polydraft", frozen, get_all)]
pub struct PyGeneration {
    text: String,
    tokens: Vec<Token>,
    finish: &'static str,
    origins: Vec<&'static str>,
    statistics: Py<PyDict>,
}

impl PyGeneration {
    fn new(py: Python<'_>, generation: Generation, origins: Vec<&'static str>) -> Result<Self> {
        let Generation { text, tokens, finish, statistics, .. } = generation;
        let statistics = describe(py, &statistics)?.unbind();
        Ok(Self { text, tokens, finish: name_of_finish(finish), origins, statistics })
    }
}

#[pymethods]
impl PyGeneration {
    fn __repr__(&self) -> String {
        format!(
            "Generation({} tokens, finish='{}', text={:?})",
            self.tokens.len(),
            self.finish,
            self.text
        )
    }
}

fn describe<'py>(py: Python<'py>, statistics: &Statistics) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("tokens", statistics.tokens)?;
    dict.set_item("forced", statistics.forced)?;
    dict.set_item("target_calls", statistics.target_calls)?;
    dict.set_item("block_efficiency", statistics.block_efficiency())?;
    dict.set_item("nodes_per_call", statistics.nodes_per_call())?;
    dict.set_item("accepted_by_position", statistics.accepted_by_position())?;
    dict.set_item("accepted_by_draft", statistics.accepted_by_draft())?;
    dict.set_item("fallbacks", statistics.fallbacks)?;
    dict.set_item("invalid_drafts", statistics.invalid_drafts)?;
    dict.set_item("draft_problem", &statistics.draft_problem)?;
    dict.set_item("tokens_per_second", statistics.tokens_per_second())?;
    let times = [
        ("prompt_seconds", statistics.prompt_time),
        ("draft_seconds", statistics.draft_time),
        ("target_seconds", statistics.target_time),
        ("verify_seconds", statistics.verify_time),
        ("total_seconds", statistics.total_time),
    ];
    for (name, time) in times {
        dict.set_item(name, time.as_secs_f64())?;
    }
    Ok(dict)
}
