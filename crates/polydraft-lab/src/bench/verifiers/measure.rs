//! Measures verifiers at positions of the target's own text, by standing where the verifier stands in the decode loop.
//!
//! The engine is given a verifier that accepts nothing and emits one token of the target's law, so that the text is the
//! target's own, token by token. What it is given to verify is what every verifier would be given there; for each of
//! them it notes how many tokens it would emit on average. Where nothing is measured the policy says that nothing is
//! drafted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polydraft::{
    Chance, Distribution, Draft, DraftTree, Form, Growth, Outcome, Path, Policy, Result, TargetLaws, Token,
    Verifier,
};
use rayon::prelude::*;

use super::expected::Subject;
use super::hands::{Hands, deal};
use crate::texts::Random;

/// What one text gave.
#[derive(Debug, Default)]
pub struct Notes {
    /// The tokens to emit, where the text is one that was decoded before.
    pub follow: Vec<Token>,
    /// Tokens emitted so far.
    pub emitted: usize,
    /// Positions measured.
    pub positions: usize,
    /// Sum over them of the expected tokens of each subject.
    pub tokens: Vec<f64>,
    /// Drafts at all of them, and their nodes together.
    pub drafts: usize,
    pub nodes: usize,
}

/// Notes that the program and what it gave the engine both hold.
#[derive(Debug, Clone, Default)]
pub struct Shared(Arc<Mutex<Notes>>);

impl Shared {
    /// For a text that is to be the same as one decoded before, as far as that goes.
    pub fn following(tokens: Vec<Token>) -> Self {
        Self(Arc::new(Mutex::new(Notes { follow: tokens, ..Notes::default() })))
    }

    pub fn notes(&self) -> MutexGuard<'_, Notes> {
        // A thread that panicked has ended the program's work anyhow.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The verifier that only looks.
pub struct Measure {
    pub subjects: Vec<Subject>,
    /// The paths of a hand, where the draft has those of several.
    pub paths: Option<usize>,
    /// Who deals them.
    pub random: Random,
    pub shared: Shared,
}

impl Verifier for Measure {
    /// The subjects were asked when they were made.
    fn supports(&self, _: &Form) -> Result<()> {
        Ok(())
    }

    fn verify(&mut self, draft: &Draft, target: &dyn TargetLaws, chance: &mut dyn Chance) -> Result<Outcome> {
        let mut notes = self.shared.notes();
        if draft.draws(DraftTree::ROOT).is_some() {
            let mut hands = Hands::default();
            if let Some(paths) = self.paths {
                hands.several = deal(draft, paths, Some(&mut self.random))?;
            }
            if self.subjects.iter().any(Subject::is_alone) {
                hands.single = deal(draft, 1, None)?;
            }
            let subjects = self.subjects.par_iter_mut();
            let tokens = subjects.map(|subject| subject.tokens(draft, &hands, target));
            let tokens = tokens.collect::<Result<Vec<_>>>()?;
            notes.tokens.resize(tokens.len(), 0.0);
            notes.tokens.iter_mut().zip(tokens).for_each(|(sum, tokens)| *sum += tokens);
            let several = &hands.several;
            let nodes: usize = several.iter().map(|hand| hand.draft.tree().len() - 1).sum();
            notes.nodes += if several.is_empty() { draft.tree().len() - 1 } else { nodes };
            notes.drafts += several.len().max(1);
            notes.positions += 1;
        }
        let token = match notes.follow.get(notes.emitted) {
            Some(&token) => token,
            None => target.target(DraftTree::ROOT)?.sample(chance),
        };
        notes.emitted += 1;
        Ok(Outcome { accepted: Vec::new(), token })
    }
}

/// A policy that drafts at every so many positions only.
pub struct Sometimes {
    pub policy: Box<dyn Policy>,
    /// Drafts where the number of tokens emitted is this, modulo `every`.
    pub first: usize,
    pub every: usize,
    /// Tokens emitted so far.
    pub emitted: usize,
}

impl Sometimes {
    fn here(&self) -> bool {
        self.emitted % self.every == self.first
    }
}

impl Policy for Sometimes {
    fn goes_on(&self, path: &Path) -> bool {
        self.here() && self.policy.goes_on(path)
    }

    fn draws(&self, path: &Path, law: &Distribution) -> Option<Growth> {
        self.policy.draws(path, law).filter(|_| self.here())
    }

    fn depth(&self) -> usize {
        if self.here() { self.policy.depth() } else { 0 }
    }

    fn form(&self) -> Form {
        self.policy.form()
    }

    fn observe(&mut self, _: &Draft, outcome: &Outcome) {
        self.emitted += outcome.accepted.len() + 1;
    }
}
