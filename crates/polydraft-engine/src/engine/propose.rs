//! Drafts every session's tree, level by level, with one drafter pass per level.

use polydraft::{Distribution, DraftTree, NodeId, Sampling, StepContext};

use super::clock::Clock;
use super::models::{Models, PROMPT_CHUNK};
use crate::distributions::Pool;
use crate::session::with_shared_randomness;
use crate::{Drafter, DrafterInput, Model, Result, Session};

/// Draws the trees of a batch. A session whose draft fails is done and leaves the batch.
pub(super) fn propose(
    models: &mut Models,
    pool: &Pool,
    batch: &mut Vec<&mut Session>,
    clock: &mut Clock,
) -> Result<()> {
    let levels = models.drafter.as_ref().map(|drafter| drafter.levels());
    let levels = levels.filter(|levels| *levels < usize::MAX);
    for session in batch.iter_mut() {
        session.draft.clear(&mut pool.spare());
        if let Some(speculation) = &mut session.speculation {
            let context_length = models.target.len(session.target);
            let context = StepContext { batch_size: session.batch_size, context_length, levels };
            speculation.policy.begin_step(&context);
        }
    }
    if let Some(drafter) = &models.drafter {
        let max_depth = |session: &&mut Session| depth(session, &*models.target, drafter.as_ref());
        let depths: Vec<usize> = batch.iter().map(max_depth).collect();
        sync_kv_cache(models, batch, &depths)?;
        if let Some(drafter) = &mut models.drafter {
            draw(drafter.as_mut(), pool, batch, &depths)?;
        }
    }
    clock.drafted();
    batch.retain(|session| !session.is_done());
    Ok(())
}

/// Synchronizes a drafter that reads the target's hidden states or KV cache with all decided tokens
/// before it drafts.
fn sync_kv_cache(models: &mut Models, batch: &[&mut Session], depths: &[usize]) -> Result<()> {
    if models.input() == DrafterInput::Tokens {
        return Ok(());
    }
    for (session, _) in batch.iter().zip(depths).filter(|(_, depth)| **depth > 0) {
        while models.target.prepare(session.target, PROMPT_CHUNK)? > 0 {}
        models.sync_drafter(session, 0)?;
    }
    Ok(())
}

/// Draws trees of at most these depths, by session.
fn draw(
    drafter: &mut dyn Drafter,
    pool: &Pool,
    batch: &mut [&mut Session],
    depths: &[usize],
) -> Result<()> {
    // Scored nodes by session.
    let mut scored = vec![0; batch.len()];
    loop {
        let frontiers: Vec<Vec<NodeId>> = batch
            .iter()
            .zip(depths)
            .zip(&mut scored)
            .map(|((session, &depth), scored)| frontier(session, scored, depth))
            .collect();
        let level: Vec<_> = batch
            .iter()
            .zip(&frontiers)
            .filter(|(_, nodes)| !nodes.is_empty())
            .filter_map(|(session, _)| Some((session.drafter?, session.draft.tree())))
            .collect();
        if level.is_empty() {
            return Ok(());
        }
        drafter.score(&level)?;
        for (session, nodes) in batch.iter_mut().zip(&frontiers) {
            if let Err(error) = grow(session, nodes, drafter, pool) {
                session.fail(error);
            }
        }
    }
}

/// Returns the maximum depth of a session's draft. It depends on lengths, and on whether the
/// drafter is ready, never on tokens, so it does not change the output's distribution.
fn depth(session: &Session, target: &dyn Model, drafter: &dyn Drafter) -> usize {
    let (Some(speculation), Some(sequence)) = (&session.speculation, session.drafter) else {
        return 0;
    };
    if !drafter.is_ready(sequence) {
        return 0;
    }
    let remaining_context = target.info().context.saturating_sub(target.len(session.target));
    // The drafter scores all but the last of the drafted tokens.
    let drafter_remaining =
        drafter.context().saturating_add(1).saturating_sub(drafter.len(sequence));
    let limit = if session.is_independent { usize::MAX } else { session.remaining_tokens() };
    let most = limit.min(remaining_context).saturating_sub(1);
    speculation.policy.depth().min(most).min(drafter_remaining).min(drafter.levels())
}

/// Returns the nodes of the next level at which something may be drawn.
fn frontier(session: &Session, scored: &mut usize, depth: usize) -> Vec<NodeId> {
    let (Some(speculation), tree) = (&session.speculation, session.draft.tree()) else {
        return Vec::new();
    };
    let level = *scored..if session.is_done() { *scored } else { tree.len() };
    *scored = tree.len();
    level
        // Nothing follows an end token.
        .filter(|&node| tree.depth(node) < depth && !session.limits.ends_at(tree, node))
        .filter(|&node| speculation.policy.may_grow(&session.draft.path(node)))
        .collect()
}

/// Draws below the nodes of one level. A node at which the draft's logits define no distribution
/// remains a leaf, so a draft that fails costs speed only.
fn grow(session: &mut Session, nodes: &[NodeId], drafter: &dyn Drafter, pool: &Pool) -> Result<()> {
    let (Some(speculation), Some(sequence)) = (&session.speculation, session.drafter) else {
        return Ok(());
    };
    for &node in nodes {
        let distribution = |number, sampling: &Sampling| match session.processor.as_deref() {
            None => drafter.distribution_from(number, sequence, node, sampling, pool.take()),
            Some(processor) => {
                let neutral = Sampling::default();
                let probs =
                    drafter.distribution_from(number, sequence, node, &neutral, pool.take())?;
                let path = session.draft.path(node).tokens();
                apply_processor(probs, sampling, |logits| {
                    processor.process(&session.tokens, &path, logits)
                })
            }
        };
        let policy = speculation.policy.as_ref();
        // One distribution, or one for each draft whose path reached the node.
        if speculation.draft_samplings.is_empty() {
            let probs = match distribution(0, &speculation.sampling) {
                Ok(probs) => probs,
                Err(problem) => {
                    session.observers.statistics.note_invalid_draft(problem)?;
                    continue;
                }
            };
            let Session { draft, rng, shared_randomness, tokens, .. } = session;
            let grown =
                with_shared_randomness(rng.as_mut(), shared_randomness, tokens.len(), |rng| {
                    draft.grow(node, probs, policy, rng)
                })?;
            pool.recycle(grown);
            continue;
        }
        let drafts = match node {
            DraftTree::ROOT => (0..speculation.draft_samplings.len()).collect(),
            _ => session.draft.drafts(node),
        };
        let settings = &speculation.draft_samplings;
        let each = drafts
            .into_iter()
            .map(|number| Ok((number, distribution(number, &settings[number])?)))
            .collect::<Result<Vec<_>>>();
        let each = match each {
            Ok(each) => each,
            Err(problem) => {
                session.observers.statistics.note_invalid_draft(problem)?;
                continue;
            }
        };
        let Session { draft, rng, shared_randomness, tokens, .. } = session;
        let grown = with_shared_randomness(rng.as_mut(), shared_randomness, tokens.len(), |rng| {
            draft.grow_distinct(node, each, policy, rng)
        })?;
        pool.recycle(grown);
    }
    Ok(())
}

/// Lower bound of probabilities, to avoid logits of −∞.
const MIN_PROBABILITY: f64 = 1e-30;

/// Applies a logits processor to the draft's distribution: impossible tokens are not drafted, a
/// forced one always is.
fn apply_processor(
    probs: Distribution,
    sampling: &Sampling,
    change: impl FnOnce(&mut [f32]),
) -> Result<Distribution> {
    // Nothing is drawn from it.
    if probs.confidence() == 0.0 {
        return Ok(probs);
    }
    let mut logits: Vec<f32> =
        probs.to_vec().into_iter().map(|p| p.max(MIN_PROBABILITY).ln() as f32).collect();
    change(&mut logits);
    Ok(Distribution::for_draft(Some(probs), logits.len(), None, &logits, sampling)?)
}
