//! Tokens that are certain: taken as they are, without a pass of the target.
//!
//! Where a processor leaves one token, the law of plain decoding has it with probability 1. What
//! target and draft keep of it is computed with the next pass, in which it is a row like others.

use polydraft::Token;

use super::Engine;
use crate::{Emitted, Origin, Result, Session};

impl Engine {
    /// Takes what is certain for each session; what cannot be taken ends its session.
    pub(super) fn force(&mut self, sessions: &mut [&mut Session]) {
        for session in sessions {
            // Who wants a token's score or trace needs the pass.
            if session.asides.watched.is_some() || session.asides.traced.is_some() {
                continue;
            }
            let Some(processor) = &session.processor else { continue };
            let mut forced = processor.forced(&session.tokens);
            let room = self.target.facts().context.saturating_sub(self.target.len(session.target));
            forced.truncate(session.left().min(room));
            forced.truncate(session.up_to_end(&forced));
            if forced.is_empty() {
                continue;
            }
            match self.append(session, &forced) {
                Ok(()) => session.take_forced(&forced, room - forced.len()),
                Err(error) => session.fail(error),
            }
        }
    }

    fn append(&mut self, session: &Session, tokens: &[Token]) -> Result<()> {
        self.target.extend(session.target, tokens)?;
        match (&mut self.drafter, session.drafter) {
            (Some(drafter), Some(sequence)) => drafter.extend(sequence, tokens),
            _ => Ok(()),
        }
    }
}

impl Session<'_> {
    /// Takes tokens that were certain; `room` is what the context holds after them.
    fn take_forced(&mut self, forced: &[Token], room: usize) {
        self.is_taking = true;
        self.statistics.forced += forced.len();
        self.emit(forced.iter().map(|&token| Emitted { token, origin: Origin::Bonus }), room);
        self.statistics.tokens = self.tokens.len();
        self.is_taking = false;
    }
}
