//! Trees that are part of a recorded tree, and extraction of their drafts.
//!
//! Problem: extract the draft of another tree from a recorded draft.
//! Source: ours. Independent draws are exchangeable: a subset of the draws at a node, chosen
//! without regard to their tokens, consists of independent draws again. So a tree with at most as
//! many draws at each node as the recorded one is obtained by subsampling. Draws without
//! replacement, and the likeliest tokens, are ordered: the first of them are a smaller draw. A
//! stricter threshold on distributions gives a subset of the nodes. No other tree is part of a
//! recorded one.
//! Complexity: one pass over the extracted nodes. Deviations: none.

use polydraft::{
    Draft, DraftTree, Drafting, Draws, Error as DistributionError, Growth, NodeId, Policy,
    PolicyKind, Token,
};
use rand::seq::SliceRandom;
use rand_chacha::ChaCha12Rng;

use crate::trace::{Error, Result};

/// Checks that the tree `requested` is part of the recorded tree `recorded`.
///
/// # Errors
/// It is not; the error lists the trees that are.
pub(crate) fn check(recorded: &PolicyKind, requested: &PolicyKind) -> Result<()> {
    match holds(recorded, requested) {
        true => Ok(()),
        false => Err(Error::Tree {
            requested: requested.to_string(),
            recorded: recorded.to_string(),
            fits: fits(recorded),
        }),
    }
}

fn holds(recorded: &PolicyKind, requested: &PolicyKind) -> bool {
    match (recorded, requested) {
        (PolicyKind::Auto(_), _) | (_, PolicyKind::Auto(_)) => false,
        // Less is reached where more of the disagreement counts, and less is kept where more must
        // be reached.
        (PolicyKind::StopBelow(recorded), PolicyKind::StopBelow(requested)) => {
            requested.below >= recorded.below
                && requested.factor >= recorded.factor
                && holds(&recorded.policy, &requested.policy)
        }
        (PolicyKind::StopBelow(_), _) => false,
        (_, PolicyKind::StopBelow(requested)) => holds(recorded, &requested.policy),
        (PolicyKind::Budget(recorded), PolicyKind::Budget(requested)) => {
            let mut levels = recorded.distinct.iter().zip(&requested.distinct);
            requested.distinct.len() <= recorded.distinct.len()
                && levels.all(|(recorded, requested)| requested <= recorded)
        }
        _ if recorded == requested => true,
        _ => match (levels(recorded), levels(requested)) {
            (Some(recorded), Some(requested)) => level_by_level(&recorded, &requested),
            _ => false,
        },
    }
}

/// Returns the draws of a tree at each depth, if they do not depend on anything else.
fn levels(tree: &PolicyKind) -> Option<Vec<Growth>> {
    let paths = |count: usize, depth: usize| {
        std::iter::once(Growth::Fresh(Draws::iid(count)))
            .chain(std::iter::repeat_n(Growth::Continue, depth.saturating_sub(1)))
    };
    match tree {
        PolicyKind::Paths(tree) => Some(paths(tree.paths, tree.depth).collect()),
        PolicyKind::Delayed(tree) => {
            Some(paths(1, tree.first).chain(paths(tree.paths, tree.then)).collect())
        }
        PolicyKind::Levels(tree) => {
            let draws =
                |count: &usize| Growth::Fresh(Draws { scheme: tree.drafting, count: *count });
            Some(tree.counts.iter().map(draws).collect())
        }
        _ => None,
    }
}

fn level_by_level(recorded: &[Growth], requested: &[Growth]) -> bool {
    // Maximum number of draws that reach one node of the requested tree.
    let mut come = 1;
    let fits = |(recorded, requested): (&Growth, &Growth)| match (*recorded, *requested) {
        (Growth::Fresh(recorded), Growth::Fresh(requested)) => {
            come = requested.count;
            let fewer = match recorded.scheme {
                Drafting::Iid | Drafting::WithoutReplacement | Drafting::TopK => {
                    requested.count <= recorded.count
                }
                Drafting::Greedy | Drafting::Hub | Drafting::Distinct => {
                    requested.count == recorded.count
                }
            };
            recorded.scheme == requested.scheme && fewer
        }
        (Growth::Continue, Growth::Continue) => true,
        (Growth::Continue, Growth::Fresh(requested)) => {
            come = 1;
            requested == Draws::iid(1)
        }
        (Growth::Fresh(recorded), Growth::Continue) => {
            recorded.scheme == Drafting::Iid && come <= recorded.count
        }
    };
    requested.len() <= recorded.len() && recorded.iter().zip(requested).all(fits)
}

/// Describes the trees that are part of the recorded one.
fn fits(recorded: &PolicyKind) -> String {
    let own = match recorded {
        PolicyKind::StopBelow(cut) => {
            return format!(
                "stop-below:θ,TREE with θ of at least {}, TREE one of: {}",
                cut.below,
                fits(&cut.policy)
            );
        }
        PolicyKind::Paths(tree) => {
            format!("paths:K,L with K up to {} and L up to {}", tree.paths, tree.depth)
        }
        PolicyKind::Delayed(tree) => format!(
            "delayed:{0},K,L with K up to {1} and L up to {2}, and paths:1,L with L up to {3}",
            tree.first,
            tree.paths,
            tree.then,
            tree.first + tree.then
        ),
        PolicyKind::Levels(tree) => match tree.drafting {
            Drafting::Greedy | Drafting::Hub => "its first levels".to_owned(),
            _ => "the same or fewer draws at its first levels".to_owned(),
        },
        PolicyKind::Budget(_) => "the same or smaller budgets at its first levels".to_owned(),
        _ => "itself".to_owned(),
    };
    format!("{own}, and stop-below:θ,TREE of such trees")
}

/// Extracts the draft of `policy` from a recorded draft. Also returns, for each of its nodes, the
/// node of the recorded draft. If a threshold on distributions has truncated the recorded draft
/// (`cut`), the distributions at its leaves are not recorded, and the extracted draft ends there
/// too.
///
/// # Errors
/// A draft that has less than the policy requires.
pub(crate) fn take(
    draft: &Draft,
    policy: &dyn Policy,
    cut: bool,
    random: &mut ChaCha12Rng,
) -> polydraft::Result<(Draft, Vec<NodeId>)> {
    let (mut own, mut nodes) = (Draft::new(), vec![DraftTree::ROOT]);
    let mut node = DraftTree::ROOT;
    while node < own.tree().len() {
        let here = nodes[node];
        let growth = match draft.distribution(here) {
            _ if !policy.may_grow(&own.path(node)) => None,
            None if cut => None,
            _ => policy.draws(&own.path(node), draft.drawn_from(here)?),
        };
        if let Some(growth) = growth {
            let requested = match growth {
                Growth::Fresh(draws) => draws,
                Growth::Continue => Draws::iid(own.tree().draws(node).max(1)),
            };
            let tokens = some(draft, here, requested, random)?;
            own.record(node, draft.drawn_from(here)?.clone(), growth, &tokens)?;
            for child in own.tree().children(node) {
                nodes.resize(nodes.len().max(child + 1), DraftTree::ROOT);
                let token = own.tree().token(child);
                nodes[child] = draft.tree().child(here, token).unwrap_or(DraftTree::ROOT);
            }
        }
        node += 1;
    }
    Ok((own, nodes))
}

/// Returns a random subsample of the draws at a node.
fn some(
    draft: &Draft,
    node: NodeId,
    requested: Draws,
    random: &mut ChaCha12Rng,
) -> polydraft::Result<Vec<Token>> {
    let tree = draft.tree();
    let drawn = |child| std::iter::repeat_n(tree.token(child), tree.draws(child));
    let mut tokens: Vec<Token> = tree.children(node).flat_map(drawn).collect();
    let there = draft
        .draws(node)
        .filter(|there| there.scheme == requested.scheme && there.count >= requested.count);
    if there.is_none() {
        return Err(DistributionError::Unsupported {
            operation: "part of a draft",
            expected: format!("{} draws {} at node {node}", requested.count, requested.scheme),
            got: draft
                .draws(node)
                .map_or("none".to_owned(), |there| format!("{} {}", there.count, there.scheme)),
        });
    }
    if requested.count < tokens.len() && requested.scheme == Drafting::Iid {
        tokens.shuffle(random);
    }
    tokens.truncate(requested.count);
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_fitting_from_unfitting_trees() {
        let tree = |name: &str| name.parse::<PolicyKind>().unwrap();
        for (recorded, requested, fits) in [
            ("paths:8,4", "paths:8,4", true),
            ("paths:8,4", "paths:3,2", true),
            ("paths:8,4", "paths:9,4", false),
            ("paths:8,4", "paths:8,5", false),
            ("paths:8,4", "4,1,1", true),
            ("paths:8,4", "4,2", false),
            ("paths:8,4", "stop-below:0.3,paths:8,3", true),
            ("paths:8,4", "delayed:1,2,2", false),
            ("paths:8,4", "delayed:2,1,2", true),
            ("paths:8,4", "2,2/without-replacement", false),
            ("paths:8,4", "auto", false),
            ("delayed:2,4,2", "delayed:2,2,1", true),
            ("delayed:2,4,2", "delayed:1,2,1", false),
            ("delayed:2,4,2", "paths:1,4", true),
            ("delayed:2,4,2", "paths:2,3", false),
            ("4,3,2", "4,3", true),
            ("4,3,2", "2,2,2", true),
            ("4,3,2", "paths:2,3", true),
            ("4,3,2", "paths:3,3", false),
            ("4,3,2", "paths:3,2", true),
            ("4,2/without-replacement", "2,2/without-replacement", true),
            ("4,2/hub", "2,2/hub", false),
            ("4,2/hub", "4/hub", true),
            ("budget:3,2", "budget:2", true),
            ("budget:3,2", "budget:2,2.5", false),
            ("fixed:0,0,1", "fixed:0,0,1", true),
            ("fixed:0,0,1", "fixed:0,1", false),
            ("stop-below:0.2,paths:4,4", "stop-below:0.4,paths:2,3", true),
            ("stop-below:0.2,paths:4,4", "stop-below:0.1,paths:2,3", false),
            ("stop-below:0.2,paths:4,4", "paths:2,3", false),
        ] {
            let found = check(&tree(recorded), &tree(requested));
            assert_eq!(found.is_ok(), fits, "{requested} of {recorded}");
            if let Err(error) = found {
                assert!(error.to_string().contains(recorded), "{error}");
            }
        }
    }
}
