//! Forced tokens: emitted without a target pass.
//!
//! Where a logits processor allows only one token, plain decoding emits it with probability 1.
//! Target and drafter compute the KV cache of these tokens in the next pass, as of any other token.

use super::models::Models;
use crate::observer::StepObserver;
use crate::{Emitted, Origin, Session};

/// Emits the forced tokens of each session. A session whose tokens cannot be added ends; sessions
/// that are done leave the batch.
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

/// Applies forced tokens to their session; `remaining_context` is the number of tokens that the
/// context can still hold after these.
fn apply(session: &mut Session, forced: &[Emitted], remaining_context: usize) {
    session.is_committing = true;
    let emitted_count = session.emit(forced, remaining_context);
    session.observers.forced(&forced[..emitted_count]);
    session.is_committing = false;
}
