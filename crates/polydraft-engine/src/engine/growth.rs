//! One level of a session's draft: how deep, at which nodes, and the draws.

use polydraft::{Distribution, NodeId, Sampling};

use crate::laws::Pool;
use crate::session::with_clocks;
use crate::{Drafter, Model, Result, Session};

/// How deep to draft. It depends on lengths alone, never on tokens, so the law of the text does not
/// notice.
pub(super) fn depth(session: &Session, target: &dyn Model, drafter: &dyn Drafter) -> usize {
    let (Some(speculation), Some(sequence)) = (&session.speculation, session.drafter) else {
        return 0;
    };
    let room = target.facts().context.saturating_sub(target.len(session.target));
    // The drafter reads all but the last of the tokens it drafts.
    let drafter_room = drafter.context().saturating_add(1).saturating_sub(drafter.len(sequence));
    speculation.policy.depth().min(session.left().min(room).saturating_sub(1)).min(drafter_room)
}

/// The next level's nodes at which something may be drawn.
pub(super) fn frontier(session: &Session, asked: &mut usize, depth: usize) -> Vec<NodeId> {
    let (Some(speculation), tree) = (&session.speculation, session.draft.tree()) else {
        return Vec::new();
    };
    let level = *asked..if session.is_done() { *asked } else { tree.len() };
    *asked = tree.len();
    level
        // No text goes on behind its end.
        .filter(|&node| tree.depth(node) < depth && !session.limits.end_at(tree, node))
        .filter(|&node| speculation.policy.goes_on(&session.draft.path(node)))
        .collect()
}

/// Draws below the nodes of one level.
pub(super) fn grow(
    session: &mut Session,
    nodes: &[NodeId],
    drafter: &dyn Drafter,
    pool: &Pool,
) -> Result<()> {
    let (Some(speculation), Some(sequence)) = (&session.speculation, session.drafter) else {
        return Ok(());
    };
    for &node in nodes {
        let law = match session.processor.as_deref() {
            None => drafter.distribution(sequence, node, &speculation.sampling, pool.take())?,
            Some(processor) => {
                let law =
                    drafter.distribution(sequence, node, &Sampling::default(), pool.take())?;
                let path = session.draft.path(node).tokens();
                changed(law, &speculation.sampling, |logits| {
                    processor.process(&session.tokens, &path, logits)
                })?
            }
        };
        let policy = speculation.policy.as_ref();
        let Session { draft, rng, clocks, tokens, .. } = session;
        let grown = with_clocks(rng.as_mut(), clocks, tokens.len(), |chance| {
            draft.grow(node, law, policy, chance)
        })?;
        pool.give_back(grown);
    }
    Ok(())
}

/// Below this a probability is as good as none.
const LEAST: f64 = 1e-30;

/// The draft's law with the changes that the target's logits get: what cannot be is not drafted,
/// and what is the only possibility is.
fn changed(
    law: Distribution,
    sampling: &Sampling,
    change: impl FnOnce(&mut [f32]),
) -> Result<Distribution> {
    let mut logits: Vec<f32> = law.to_vec().into_iter().map(|p| p.max(LEAST).ln() as f32).collect();
    change(&mut logits);
    Ok(Distribution::drafted(Some(law), logits.len(), None, &logits, sampling)?)
}
