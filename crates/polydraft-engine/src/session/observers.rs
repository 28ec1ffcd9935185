//! The observers of a session.

use crate::observer::{CommittedStep, StepObserver, VerifiedStep};
use crate::score::ScoreRecorder;
use crate::trace::TraceRecorder;
use crate::{Emitted, Result, Statistics};

/// The built-in observers, and those that the caller added.
#[derive(Default)]
pub(crate) struct Observers<'c> {
    pub statistics: Statistics,
    pub scores: Option<ScoreRecorder>,
    pub traces: Option<TraceRecorder>,
    pub others: Vec<Box<dyn StepObserver + 'c>>,
}

impl<'c> Observers<'c> {
    fn all(&self) -> impl Iterator<Item = &(dyn StepObserver + 'c)> {
        let scores = self.scores.iter().map(|scores| scores as &(dyn StepObserver + 'c));
        let traces = self.traces.iter().map(|traces| traces as &(dyn StepObserver + 'c));
        scores.chain(traces).chain(self.others.iter().map(|other| &**other))
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut (dyn StepObserver + 'c)> {
        let Self { statistics, scores, traces, others } = self;
        let scores = scores.iter_mut().map(|scores| scores as &mut (dyn StepObserver + 'c));
        let traces = traces.iter_mut().map(|traces| traces as &mut (dyn StepObserver + 'c));
        let others = others.iter_mut().map(|other| &mut **other);
        std::iter::once(statistics as &mut (dyn StepObserver + 'c))
            .chain(scores)
            .chain(traces)
            .chain(others)
    }
}

impl StepObserver for Observers<'_> {
    fn verified(&mut self, step: &VerifiedStep) -> Result<()> {
        self.all_mut().try_for_each(|observer| observer.verified(step))
    }

    fn committed(&mut self, step: &CommittedStep) {
        self.all_mut().for_each(|observer| observer.committed(step));
    }

    fn forced(&mut self, tokens: &[Emitted]) {
        self.all_mut().for_each(|observer| observer.forced(tokens));
    }

    fn needs_every_step(&self) -> bool {
        self.all().any(StepObserver::needs_every_step)
    }
}
