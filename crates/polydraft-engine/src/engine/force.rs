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
        let mut certain = processor.forced(&session.tokens);
        let room = models.room(session);
        certain.truncate(session.left().min(room));
        certain.truncate(session.up_to_end(&certain));
        if certain.is_empty() {
            continue;
        }
        match models.extend(session, &certain) {
            Ok(()) => {
                let emitted = certain.iter().map(|&token| Emitted { token, origin: Origin::Bonus });
                take(session, &emitted.collect::<Vec<_>>(), room - certain.len());
            }
            Err(error) => session.fail(error),
        }
    }
    batch.retain(|session| !session.is_done());
}

/// `room` is what the context holds after them.
fn take(session: &mut Session, certain: &[Emitted], room: usize) {
    session.is_taking = true;
    let kept = session.emit(certain, room);
    session.observers.forced(&certain[..kept]);
    session.is_taking = false;
}
