//! The target and its drafter, and a session's sequences in both.

use polydraft::Token;

use crate::{Drafter, DrafterInput, Error, Model, Result, Sequence, Sequences, Session};

/// Tokens of a prompt that are prefilled at once.
pub(super) const PROMPT_CHUNK: usize = 4096;

/// A target and an optional drafter.
pub(super) struct Models {
    pub target: Box<dyn Model>,
    pub drafter: Option<Box<dyn Drafter>>,
}

/// Error of speculation without a drafter.
pub(super) fn no_drafter<T>() -> Result<T> {
    Err(Error::Setting {
        setting: "drafter",
        expected: "a drafter, which speculation needs",
        got: "none".to_owned(),
    })
}

/// Opens a sequence with this prompt.
fn open_with_prompt(sequences: &mut dyn Sequences, prompt: &[Token]) -> Result<Sequence> {
    let sequence = sequences.open()?;
    match sequences.extend(sequence, prompt) {
        Ok(()) => Ok(sequence),
        Err(error) => {
            sequences.close(sequence);
            Err(error)
        }
    }
}

impl Models {
    /// Returns the drafter's input; tokens if there is no drafter.
    pub fn input(&self) -> DrafterInput {
        self.drafter.as_ref().map_or(DrafterInput::Tokens, |drafter| drafter.input())
    }

    /// Opens sequences with this prompt in the target and, if `drafts`, in the drafter.
    pub fn open(&mut self, prompt: &[Token], drafts: bool) -> Result<(Sequence, Option<Sequence>)> {
        let target = open_with_prompt(self.target.as_mut(), prompt)?;
        let drafter = self.drafter.as_mut().filter(|_| drafts);
        match drafter.map(|drafter| open_with_prompt(drafter.as_mut(), prompt)).transpose() {
            Ok(drafter) => Ok((target, drafter)),
            Err(error) => {
                self.target.close(target);
                Err(error)
            }
        }
    }

    /// Closes a session's sequences.
    pub fn close(&mut self, session: &Session) {
        self.target.close(session.target);
        if let (Some(drafter), Some(sequence)) = (&mut self.drafter, session.drafter) {
            drafter.close(sequence);
        }
    }

    /// Appends decided tokens and drops the trees.
    pub fn extend(&mut self, session: &Session, tokens: &[Token]) -> Result<()> {
        self.target.extend(session.target, tokens)?;
        match (&mut self.drafter, session.drafter) {
            (Some(drafter), Some(sequence)) => drafter.extend(sequence, tokens),
            _ => Ok(()),
        }
    }

    /// Returns how many more tokens the target's context holds.
    pub fn remaining_context(&self, session: &Session) -> usize {
        self.target.info().context.saturating_sub(self.target.len(session.target))
    }

    /// Prefills at most `max_tokens` tokens of a prompt and returns how many remain.
    pub fn prepare(&mut self, session: &Session, max_tokens: usize) -> Result<usize> {
        let remaining = self.target.prepare(session.target, max_tokens)?;
        // A drafter that reads the target's KV cache has nothing to prepare; synchronizing it would
        // only make the target copy the common part.
        if self.input() != DrafterInput::KvCache {
            self.sync_drafter(session, remaining)?;
        }
        match (&mut self.drafter, session.drafter) {
            (Some(drafter), Some(sequence)) => {
                Ok(remaining.max(drafter.prepare(sequence, max_tokens)?))
            }
            _ => Ok(remaining),
        }
    }

    /// Synchronizes a drafter that reads the target's hidden states or KV cache with the decided
    /// tokens; `remaining` tokens before the last are not computed yet.
    pub fn sync_drafter(&mut self, session: &Session, remaining: usize) -> Result<()> {
        let (Some(drafter), Some(sequence)) = (&mut self.drafter, session.drafter) else {
            return Ok(());
        };
        if drafter.input() == DrafterInput::Tokens {
            return Ok(());
        }
        let known = self.target.len(session.target).saturating_sub(1 + remaining);
        drafter.sync_target(sequence, self.target.as_ref(), session.target, known)
    }

    /// Resets both models to exactly what a session has decided after its `prompt`.
    pub fn restore(&mut self, session: &mut Session, prompt: &[Token]) -> Result<()> {
        let length = prompt.len() + session.tokens.len();
        self.target.truncate(session.target, length);
        self.target.extend(session.target, &[])?;
        let (Some(drafter), Some(sequence)) = (&mut self.drafter, session.drafter) else {
            return Ok(());
        };
        if drafter.len(sequence) == length {
            return drafter.extend(sequence, &[]);
        }
        let tokens = [prompt, session.tokens()].concat();
        // Closed first, because there may be no capacity for both; if the new one cannot be opened,
        // the session has none.
        session.drafter = None;
        drafter.close(sequence);
        session.drafter = Some(open_with_prompt(drafter.as_mut(), &tokens)?);
        self.make_reproducible(session);
        Ok(())
    }

    /// Passes on to the drafter that a seed decides a session's output.
    pub fn make_reproducible(&mut self, session: &Session) {
        if let (true, Some(drafter), Some(sequence)) =
            (session.is_reproducible, &mut self.drafter, session.drafter)
        {
            drafter.make_reproducible(sequence);
        }
    }
}
