//! Commits decided tokens, first in the models, then in the sessions.

use polydraft::{DraftTree, Outcome};

use super::clock::Clock;
use super::models::Models;
use super::verify::Decided;
use crate::observer::{CommittedStep, StepObserver, StepTime};
use crate::{Emitted, Origin, Sequence, Sequences, Session};

/// Commits the accepted paths and the tokens after them in target and drafter. A session whose
/// commit fails ends.
pub(super) fn commit(
    models: &mut Models,
    batch: &mut [&mut Session],
    decided: &mut [Option<Decided>],
    clock: &mut Clock,
) {
    let target_sequence = |session: &Session| Some(session.target);
    commit_to(models.target.as_mut(), target_sequence, batch, decided);
    clock.scored();
    if let Some(drafter) = &mut models.drafter {
        commit_to(drafter.as_mut(), |session| session.drafter, batch, decided);
    }
    clock.drafted();
}

fn commit_to(
    model: &mut dyn Sequences,
    sequence: impl Fn(&Session) -> Option<Sequence>,
    batch: &mut [&mut Session],
    decided: &mut [Option<Decided>],
) {
    for (session, decided) in batch.iter_mut().zip(decided) {
        let (Some(sequence), Some(Decided { outcome, .. })) = (sequence(session), &decided) else {
            continue;
        };
        let committed = model.commit(sequence, session.draft.tree(), &outcome.accepted);
        if let Err(error) = committed.and_then(|()| model.extend(sequence, &[outcome.token])) {
            session.fail(error);
            *decided = None;
        }
    }
}

/// Adds the decided tokens to every session, and calls its observers.
pub(super) fn emit(
    models: &Models,
    batch: &mut [&mut Session],
    decided: &[Option<Decided>],
    clock: Clock,
) {
    // Sequences of one pass share its time equally.
    let share = 1.0 / batch.len().max(1) as f64;
    let (time, seconds) = (clock.time().scaled(share), clock.elapsed().as_secs_f64());
    let draft_seconds = clock.time().draft.as_secs_f64();
    for (session, decided) in batch.iter_mut().zip(decided) {
        if let Some(decided) = decided {
            let remaining_context = models.remaining_context(session);
            apply(session, decided, time, remaining_context);
            let speculation = session.speculation.as_mut();
            if let Some(policy) = speculation.and_then(|s| s.policy.timed_mut()) {
                policy.record_time(seconds, draft_seconds);
            }
        }
    }
    let total = clock.elapsed().mul_f64(share);
    batch.iter_mut().for_each(|session| session.observers.statistics.total_time += total);
}

/// Applies a committed step to its session; `remaining_context` is the number of tokens that the
/// context can still hold after the step.
fn apply(session: &mut Session, decided: &Decided, time: StepTime, remaining_context: usize) {
    let Decided { outcome, fallbacks } = decided;
    let emitted = emitted(session.draft.tree(), outcome);
    session.is_committing = true;
    if let Some(speculation) = &mut session.speculation {
        // Only after all models have committed: an undone step must not change the next tree.
        speculation.policy.observe(&session.draft, outcome);
    }
    let emitted_count = session.emit(&emitted, remaining_context);
    let (draft, fallbacks, emitted) = (&session.draft, *fallbacks, &emitted[..emitted_count]);
    session.observers.committed(&CommittedStep { draft, outcome, emitted, fallbacks, time });
    session.is_committing = false;
}

/// Returns the tokens of a step with their origins.
fn emitted(tree: &DraftTree, outcome: &Outcome) -> Vec<Emitted> {
    let end = outcome.accepted.last().copied().unwrap_or(DraftTree::ROOT);
    let is_rejected = tree.children(end).next().is_some();
    let last = if is_rejected { Origin::Correction } else { Origin::Bonus };
    let accepted = outcome
        .accepted
        .iter()
        .map(|&node| Emitted { token: tree.token(node), origin: Origin::Accepted });
    accepted.chain([Emitted { token: outcome.token, origin: last }]).collect()
}
