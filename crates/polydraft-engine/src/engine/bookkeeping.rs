//! Clocks and counts of a step, beside the loop.

use std::time::{Duration, Instant};

use polydraft::{DraftTree, NodeId, Outcome};

use crate::session::{Emitted, Origin};
use crate::statistics::{Step, StepTime};
use crate::{Sequence, Session};

/// Where the time of a step goes.
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

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn lap(&mut self) -> Duration {
        let before = std::mem::replace(&mut self.last, Instant::now());
        self.last - before
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
}

/// Gives every session what was decided, and writes down what it cost. `room` says how many more
/// tokens the context of a sequence holds.
pub(super) fn record(
    sessions: &mut [&mut Session],
    outcomes: &[Option<Outcome>],
    mut clock: Clock,
    room: impl Fn(Sequence) -> usize,
) {
    clock.drafted();
    // Sessions in one pass share its time alike.
    let share = 1.0 / sessions.len().max(1) as f64;
    let seconds = clock.elapsed().as_secs_f64();
    for (session, outcome) in sessions.iter_mut().zip(outcomes) {
        let Some(outcome) = outcome else { continue };
        let (step, emitted) = taken(session.draft.tree(), outcome, clock.time.scaled(share));
        session.is_taking = true;
        session.statistics.record(&step);
        if let Some(speculation) = &mut session.speculation {
            // Not before all models have it: a step that is undone must not change the next tree.
            speculation.policy.observe(&session.draft, outcome);
            speculation.policy.clock(seconds);
            session.statistics.fallbacks += session.asides.fallbacks_of_step;
        }
        session.asides.traces.extend(session.asides.trace_of_step.take());
        let room = room(session.target);
        session.emit(emitted, room);
        session.statistics.tokens = session.tokens().len();
        session.is_taking = false;
    }
    let total = clock.elapsed().mul_f64(share);
    sessions.iter_mut().for_each(|session| session.worked(total));
}

/// What a step did to one session.
fn taken(tree: &DraftTree, outcome: &Outcome, time: StepTime) -> (Step, Vec<Emitted>) {
    let end = outcome.accepted.last().copied().unwrap_or(DraftTree::ROOT);
    let rejected = tree.children(end).next().is_some();
    let emit = |token, origin| Emitted { token, origin };
    let mut emitted: Vec<Emitted> =
        outcome.accepted.iter().map(|&node| emit(tree.token(node), Origin::Accepted)).collect();
    emitted.push(emit(outcome.token, if rejected { Origin::Correction } else { Origin::Bonus }));
    let drafted = (1..tree.len()).map(|node| tree.depth(node)).max().unwrap_or(0);
    let rank = |&node: &NodeId| {
        tree.children(tree.parent(node)).take_while(|sibling| *sibling != node).count()
    };
    let ranks = outcome.accepted.iter().map(rank).collect();
    let accepted = outcome.accepted.len();
    (Step { accepted, complete: !rejected, drafted, nodes: tree.len() - 1, ranks, time }, emitted)
}
