//! Observes verification at positions of the target's own output.
//!
//! The engine runs with a verifier that rejects all drafts and samples one token from the target,
//! so that the output is the target's own. At observed positions the observer receives the
//! verifier's input: the draft and the target's distributions. At other positions the policy drafts
//! nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use polydraft::VerifierKind;
use polydraft::{
    Distribution, Draft, DraftTree, Form, Growth, Outcome, Path, Policy, PolicyKind, RandomSource,
    Sampling, TargetDistributions, Token, Verifier,
};
use polydraft_engine::{Engine, Limits, Request, Speculation};
use polydraft_reference::comparison::{Comparison, decide};
use polydraft_reference::trace::Recording;
use polydraft_runtime::{SeededRng, seeded};

/// Observer of drafts and of the target's distributions at their nodes.
pub trait Look: Send + 'static {
    /// Receives the input of verification after `at` tokens of the sequence.
    fn look(
        &mut self,
        at: usize,
        draft: &Draft,
        target: &dyn TargetDistributions,
    ) -> polydraft::Result<()>;
}

impl Look for Comparison {
    fn look(
        &mut self,
        _: usize,
        draft: &Draft,
        target: &dyn TargetDistributions,
    ) -> polydraft::Result<()> {
        Self::look(self, draft, target)
    }
}

impl Look for Recording {
    fn look(
        &mut self,
        at: usize,
        draft: &Draft,
        target: &dyn TargetDistributions,
    ) -> polydraft::Result<()> {
        self.position(at, draft, target)
    }
}

/// Choice of observed positions, and settings of the drafts.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    pub sampling: Sampling,
    pub draft_sampling: Sampling,
    /// Sampling settings of each draft, for trees with paths of several drafts.
    pub each: &'a [Sampling],
    /// The drafted tree.
    pub tree: &'a PolicyKind,
    /// Maximum number of tokens of the sequence.
    pub max_tokens: usize,
    /// Number of tokens between observed positions, at least 1.
    pub every: usize,
    /// Verifier that continues the sequence; then every step is observed. `None` samples from the
    /// target.
    pub steps_of: Option<&'a VerifierKind>,
    /// Number of paths that this verifier gets, if the observed tree has a multiple of it to
    /// subsample from.
    pub paths: Option<usize>,
}

/// Returns the seed of the sequence of a prompt in a round of a run with seed `seed`.
pub fn text_seed(seed: u64, round: u64, prompt: usize) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (round << 32 | prompt as u64)
}

/// Decodes a sequence and passes the draft at each observed position to `look`. Tokens of `follow`,
/// if any, are emitted first, instead of sampled ones. `rng` is the seed of the sequence and of the
/// drafts, `seed` determines the first position. Stops early when `goes_on`, called after every
/// token, returns false.
pub fn text<L: Look>(
    engine: &mut Engine,
    prompt: &[Token],
    plan: &Plan,
    (seed, rng): (u64, u64),
    follow: Vec<Token>,
    look: L,
    goes_on: &dyn Fn() -> bool,
) -> Result<(L, Vec<Token>)> {
    let policy = plan.tree.build()?;
    // Leave space for a tree of full depth at every position.
    let context = engine.info().context.min(engine.draft_context().unwrap_or(usize::MAX));
    let capacity = context.saturating_sub(prompt.len() + policy.depth() + 1);
    let length = capacity.min(plan.max_tokens);
    let every = if plan.steps_of.is_some() { 1 } else { plan.every.min(plan.max_tokens) };
    let first = (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % every;
    let spots = Spots { first, every };
    let limits = Limits::tokens(length + policy.depth() + 1);
    let shared = Arc::new(Mutex::new(Some(look)));
    let decides = match plan.steps_of {
        Some(kind) => Some((kind.build()?, plan.paths, seeded(seed))),
        None => None,
    };
    let observer = Observer { follow, emitted: 0, spots, look: shared.clone(), decides };
    let policy = Sometimes { policy, spots, emitted: 0 };
    let speculation = Speculation::new(Box::new(observer), Box::new(policy))?;
    let speculation = speculation.with_sampling(plan.draft_sampling);
    let request = Request::new(prompt)
        .sampling(plan.sampling)
        .speculation(speculation.with_draft_samplings(plan.each.to_vec())?)
        .limits(limits)
        .rng(seeded(rng));
    let mut session = engine.open(request)?;
    let mut failed = Ok(());
    while failed.is_ok() && !session.is_done() && session.tokens().len() < length && goes_on() {
        failed = engine.step(&mut [&mut session]);
    }
    let generation = engine.close(session);
    failed?;
    let look = lock(&shared).take();
    Ok((look.expect("it is taken only here"), generation?.tokens))
}

/// Locks a mutex. If it is poisoned, the thread that panicked has already ended the run.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Observed positions of a sequence: those where the number of emitted tokens is `first` modulo
/// `every`.
#[derive(Clone, Copy)]
struct Spots {
    first: usize,
    every: usize,
}

impl Spots {
    fn has(self, emitted: usize) -> bool {
        emitted % self.every == self.first
    }
}

/// Verifier that passes its input to the observer.
struct Observer<L> {
    /// Tokens to emit, for a sequence that was decoded before.
    follow: Vec<Token>,
    /// Number of tokens emitted so far.
    emitted: usize,
    spots: Spots,
    look: Arc<Mutex<Option<L>>>,
    /// Verifier that decides, if the output is not sampled from the target, with the number of
    /// paths of its draft and the random generator that subsamples them.
    decides: Option<(Box<dyn Verifier>, Option<usize>, SeededRng)>,
}

impl<L: Look> Verifier for Observer<L> {
    /// The observer's verifiers were checked before.
    fn supports(&self, _: &Form) -> polydraft::Result<()> {
        Ok(())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> polydraft::Result<Outcome> {
        // Also where nothing was drafted: then the draft is empty.
        if let Some(look) = lock(&self.look).as_mut().filter(|_| self.spots.has(self.emitted)) {
            look.look(self.emitted, draft, target)?;
        }
        if let Some((verifier, paths, random)) = &mut self.decides {
            let outcome = decide(verifier.as_mut(), draft, *paths, random, target, rng)?;
            self.emitted += outcome.accepted.len() + 1;
            return Ok(outcome);
        }
        let token = match self.follow.get(self.emitted) {
            Some(&token) => token,
            None => target.target(DraftTree::ROOT)?.sample(rng),
        };
        self.emitted += 1;
        Ok(Outcome { accepted: Vec::new(), token })
    }
}

/// Policy that drafts only at observed positions.
struct Sometimes {
    policy: Box<dyn Policy>,
    spots: Spots,
    /// Number of tokens emitted so far.
    emitted: usize,
}

impl Sometimes {
    fn here(&self) -> bool {
        self.spots.has(self.emitted)
    }
}

impl Policy for Sometimes {
    fn may_grow(&self, path: &Path) -> bool {
        self.here() && self.policy.may_grow(path)
    }

    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
        self.policy.draws(path, probs).filter(|_| self.here())
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
