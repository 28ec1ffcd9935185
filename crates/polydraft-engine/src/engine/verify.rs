//! Verification: scores a batch's trees with the target, and decides what each session emits.
//!
//! Sessions are independent: what one emits depends only on its own logits and random decisions.
//! They may therefore be verified on several threads, with the same result.

use std::sync::{Mutex, PoisonError};

use polydraft::{NodeId, Outcome, RandomSource, gumbel};

use super::clock::Clock;
use super::models::Models;
use crate::distributions::{LogitsChange, Pool, StepDistributions};
use crate::observer::{StepObserver, VerifiedStep};
use crate::session::with_shared_randomness;
use crate::{Error, Result, Session, Speculation};

/// Decision for one session.
pub(super) struct Decided {
    pub outcome: Outcome,
    /// Nodes at which the verifier fell back to another algorithm.
    pub fallbacks: u64,
}

/// Scores all trees in one target pass.
pub(super) fn score(models: &mut Models, batch: &[&mut Session], clock: &mut Clock) -> Result<()> {
    let trees: Vec<_> =
        batch.iter().map(|session| (session.target, session.draft.tree())).collect();
    if !trees.is_empty() {
        models.target.score(&trees)?;
    }
    clock.scored();
    Ok(())
}

/// Decides what each session emits; `None` where it failed.
pub(super) fn verify(
    models: &Models,
    pool: &Pool,
    batch: &mut [&mut Session],
    clock: &mut Clock,
) -> Vec<Option<Decided>> {
    let target = models.target.as_ref();
    let name = &*target.info().name;
    let mut nodes = 0;
    let mut slots = Vec::with_capacity(batch.len());
    for session in batch {
        let logits = |node: NodeId| target.logits(session.target, node);
        let logits: Vec<&[f32]> = (0..session.draft.tree().len()).map(logits).collect();
        nodes += logits.len();
        slots.push(Mutex::new(Slot { session, logits, decided: None }));
    }
    // The locks are uncontended: each slot is taken once.
    let work = |number: usize| {
        let mut slot = slots[number].lock().unwrap_or_else(PoisonError::into_inner);
        let Slot { session, logits, decided } = &mut *slot;
        *decided = decide(name, std::mem::take(logits), pool, session)
            .map_err(|error| session.fail(error))
            .ok();
    };
    let is_parallel = nodes.saturating_mul(target.info().vocabulary.size()) > MIN_PARALLEL_LOGITS;
    match target.thread_pool().filter(|_| is_parallel) {
        Some(threads) => threads.run(slots.len(), &work),
        None => (0..slots.len()).for_each(work),
    }
    clock.verified();
    let slots = slots.into_iter().map(Mutex::into_inner);
    slots.map(|slot| slot.unwrap_or_else(PoisonError::into_inner).decided).collect()
}

/// A session, its target logits by node, and its decision.
struct Slot<'a, 'c> {
    session: &'a mut Session<'c>,
    logits: Vec<&'a [f32]>,
    decided: Option<Decided>,
}

/// Number of logits of all sessions above which verification runs on several threads.
const MIN_PARALLEL_LOGITS: usize = 1 << 15;

/// Decides what a session emits, from the logits at the nodes of its tree; `name` is the target's
/// name, for errors.
fn decide(name: &str, logits: Vec<&[f32]>, pool: &Pool, session: &mut Session) -> Result<Decided> {
    let Session {
        speculation, rng, shared_randomness, draft, processor, observers, tokens, ..
    } = session;
    let tree = draft.tree();
    let change = processor.as_deref().map(|processor| LogitsChange {
        processor,
        decided: tokens,
        tree,
        limits: &session.limits,
    });
    let distributions = StepDistributions::new(logits, change, &session.sampling, pool);
    let before = fallbacks(speculation.as_ref());
    let decide_outcome = |rng: &mut dyn RandomSource| match speculation {
        Some(Speculation { verifier, .. }) => verifier.verify(draft, &distributions, rng),
        // Plain decoding has nothing to verify.
        None => distributions
            .root()
            .map(|probs| Outcome { accepted: Vec::new(), token: gumbel::sample(probs, 0, rng) }),
    };
    let outcome =
        with_shared_randomness(rng.as_mut(), shared_randomness, tokens.len(), decide_outcome);
    let fallbacks = fallbacks(speculation.as_ref()) - before;
    let observed = outcome.as_ref().map_or(Ok(()), |outcome| {
        let verifier = speculation.as_ref().map(|speculation| speculation.verifier.as_ref());
        observers.verified(&VerifiedStep { draft, outcome, verifier, target: &distributions })
    });
    match (outcome, distributions.recycle()) {
        (Ok(outcome), _) => observed.map(|()| Decided { outcome, fallbacks }),
        // The model's error precedes the verifier's.
        (Err(_), Some(source)) => {
            let model = name.to_owned();
            Err(Error::Logits { role: "target", model, source })
        }
        (Err(error), None) => Err(error.into()),
    }
}

fn fallbacks(speculation: Option<&Speculation>) -> u64 {
    speculation.map_or(0, |speculation| speculation.verifier.fallbacks())
}
