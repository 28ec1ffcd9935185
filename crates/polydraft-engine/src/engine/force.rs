//! Tokens that are certain: taken as they are, without a pass of the target.
//!
//! Where a logits processor leaves one token, plain decoding emits it with probability 1. Its KV
//! cache in target and draft is computed with the next pass, in which it is a token like others.

use super::models::Models;
use crate::observer::StepObserver;
use crate::{Emitted, Origin, Session};

/// Takes the certain tokens of each session; one that cannot be taken ends its session. Those that
/// are done leave the batch.
pub(super) fn force(models: &mut Models, batch: &mut Vec<&mut Session>) {
    for session in batch.iter_mut() {
        let Some(processor) = &session.processor else { continue };
        if session.observers.needs_every_step() {
            continue;
        }
        let mut forced = processor.forced(&session.tokens);
        let remaining_context = models.remaining_context(session);
        forced.truncate(session.remaining_tokens().min(remaining_context));
        forced.truncate(session.up_to_end(&forced));
        if forced.is_empty() {
            continue;
        }
        match models.extend(session, &forced) {
            Ok(()) => {
                let emitted = forced.iter().map(|&token| Emitted { token, origin: Origin::Bonus });
                apply(session, &emitted.collect::<Vec<_>>(), remaining_context - forced.len());
            }
            Err(error) => session.fail(error),
        }
    }
    batch.retain(|session| !session.is_done());
}

/// `room` is what the context holds after them.
fn apply(session: &mut Session, forced: &[Emitted], remaining_context: usize) {
    session.is_committing = true;
    let emitted_count = session.emit(forced, remaining_context);
    session.observers.forced(&forced[..emitted_count]);
    session.is_committing = false;
}
