//! Verification: the target's scores of a batch's trees, and what each session emits.

use polydraft::{Outcome, RandomSource, gumbel};

use super::clock::Clock;
use super::models::Models;
use crate::distributions::{Changed, Pool, StepDistributions};
use crate::observer::{StepObserver, VerifiedStep};
use crate::session::with_clocks;
use crate::{Error, Model, Result, Session, Speculation};

/// What was decided for a session.
pub(super) struct Decided {
    pub outcome: Outcome,
    /// Nodes at which another algorithm than the verifier's own decided.
    pub fallbacks: u64,
}

/// Scores all trees, in one pass of the target.
pub(super) fn score(models: &mut Models, batch: &[&mut Session], clock: &mut Clock) -> Result<()> {
    let trees: Vec<_> =
        batch.iter().map(|session| (session.target, session.draft.tree())).collect();
    if !trees.is_empty() {
        models.target.score(&trees)?;
    }
    clock.scored();
    Ok(())
}

/// What each session emits; none where it failed.
pub(super) fn verify(
    models: &Models,
    pool: &Pool,
    batch: &mut [&mut Session],
    clock: &mut Clock,
) -> Vec<Option<Decided>> {
    let target = models.target.as_ref();
    let decided = batch
        .iter_mut()
        .map(|session| decide(target, pool, session).map_err(|error| session.fail(error)).ok());
    let decided = decided.collect();
    clock.verified();
    decided
}

fn decide(target: &dyn Model, pool: &Pool, session: &mut Session) -> Result<Decided> {
    let Session { speculation, rng, clocks, draft, processor, observers, tokens, .. } = session;
    let (tree, sequence) = (draft.tree(), session.target);
    let logits = (0..tree.len()).map(|node| target.logits(sequence, node)).collect();
    let changed = processor.as_deref().map(|processor| Changed {
        processor,
        decided: tokens,
        tree,
        limits: &session.limits,
    });
    let distributions = StepDistributions::new(logits, changed, &session.sampling, pool);
    let before = fallbacks(speculation.as_ref());
    let choose = |rng: &mut dyn RandomSource| match speculation {
        Some(Speculation { verifier, .. }) => verifier.verify(draft, &distributions, rng),
        // Plain decoding: there is nothing to verify.
        None => distributions
            .root()
            .map(|probs| Outcome { accepted: Vec::new(), token: gumbel::sample(probs, 0, rng) }),
    };
    let outcome = with_clocks(rng.as_mut(), clocks, tokens.len(), choose);
    let fallbacks = fallbacks(speculation.as_ref()) - before;
    let observed = outcome.as_ref().map_or(Ok(()), |outcome| {
        let verifier = speculation.as_ref().map(|speculation| speculation.verifier.as_ref());
        observers.verified(&VerifiedStep { draft, outcome, verifier, target: &distributions })
    });
    match (outcome, distributions.give_back()) {
        (Ok(outcome), _) => observed.map(|()| Decided { outcome, fallbacks }),
        // Whatever the verifier returned.
        (Err(_), Some(source)) => {
            let model = target.info().name.clone();
            Err(Error::Logits { role: "target", model, source })
        }
        (Err(error), None) => Err(error.into()),
    }
}

fn fallbacks(speculation: Option<&Speculation>) -> u64 {
    speculation.map_or(0, |speculation| speculation.verifier.fallbacks())
}
