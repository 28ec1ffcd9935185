//! Compares verifiers on recorded drafts.

use crate::comparison::{Comparison, Dealt, Sample, exact_for};
use polydraft::VerifierKind;
use polydraft::{Draft, Form, Policy, PolicyKind};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use rayon::prelude::*;

use crate::trace::{Error, Position, Result, Shard, parts};

/// Verifiers to compare on a tree that is part of the recorded one.
#[derive(Debug, Clone)]
pub struct Replay {
    tree: PolicyKind,
    form: Form,
    verifiers: Vec<VerifierKind>,
    /// Tree to extract from each draft; `None` for the full draft.
    part: Option<PolicyKind>,
    /// Whether the recorded tree is truncated by a threshold on distributions.
    cut: bool,
    /// Depth of the recorded tree, and its maximum number of draws at a node.
    depth: usize,
    draws: usize,
    /// Number of paths per subsample; `None` for the extracted draft itself.
    paths: Option<usize>,
}

impl Replay {
    /// Creates a comparison of verifiers that are exact for `tree`, on drafts of the tree
    /// `recorded`. From path trees, several drafts with fewer paths are subsampled.
    ///
    /// # Errors
    /// A tree that is not part of the recorded one; no verifier that is exact for it;
    /// settings out of range.
    pub fn new(
        recorded: &PolicyKind,
        tree: &PolicyKind,
        verifiers: &[VerifierKind],
    ) -> Result<Self> {
        let form = tree.build()?.form();
        parts::check(recorded, tree)?;
        let complete = recorded.build()?;
        let (depth, draws) = (complete.depth(), complete.form().max_draws());
        let exact = exact_for(verifiers, &form)?;
        if exact.is_empty() {
            let got: Vec<String> = verifiers.iter().map(VerifierKind::to_string).collect();
            let expected = format!("a verifier that is exact for {tree}");
            let operation = "replay";
            return Err(
                polydraft::Error::Unsupported { operation, expected, got: got.join(", ") }.into()
            );
        }
        // All recorded paths are extracted, up to the requested depth, and then split into
        // subsamples.
        let (mut part, mut paths) = (tree.clone(), None);
        if let (Some(there), Some(requested)) =
            (paths_of(&mut recorded.clone()), paths_of(&mut part))
        {
            paths = Some(*requested).filter(|requested| *requested < *there);
            *requested = *there;
        }
        let part = Some(part).filter(|part| part != recorded);
        let cut = matches!(recorded, PolicyKind::StopBelow(_));
        Ok(Self { tree: tree.clone(), form, verifiers: exact, part, cut, depth, draws, paths })
    }

    /// Returns the tree.
    pub fn tree(&self) -> &PolicyKind {
        &self.tree
    }

    /// Returns the verifiers.
    pub fn verifiers(&self) -> &[VerifierKind] {
        &self.verifiers
    }
}

/// Returns the number of paths of a path tree, with or without a threshold.
fn paths_of(tree: &mut PolicyKind) -> Option<&mut usize> {
    match tree {
        PolicyKind::Paths(tree) => Some(&mut tree.paths),
        PolicyKind::StopBelow(cut) => paths_of(&mut cut.policy),
        _ => None,
    }
}

/// State of the comparison for one sequence.
struct Work {
    part: Option<Box<dyn Policy>>,
    /// Random generator that subsamples.
    random: ChaCha12Rng,
    comparison: Comparison,
}

impl Replay {
    fn begin(&self, seed: u64) -> polydraft::Result<Work> {
        Ok(Work {
            part: self.part.as_ref().map(PolicyKind::build).transpose()?,
            random: ChaCha12Rng::seed_from_u64(!seed),
            comparison: Comparison::new(&self.verifiers, &self.form, self.paths, seed)?,
        })
    }

    /// Checks that a draft is no larger than the recorded tree allows, because evaluation of a
    /// larger one could take arbitrarily long.
    fn check(&self, draft: &Draft) -> polydraft::Result<()> {
        let tree = draft.tree();
        let depth = (0..tree.len()).map(|node| tree.depth(node)).max().unwrap_or(0);
        let draws = draft.form().max_draws();
        if depth <= self.depth && draws <= self.draws {
            return Ok(());
        }
        Err(polydraft::Error::TooLarge {
            operation: "draft",
            expected: format!(
                "at most {} draws at a node and depth {}, as in the header",
                self.draws, self.depth
            ),
            got: format!("{draws} and {depth}"),
        })
    }

    fn look(&self, work: &mut Work, position: &Position) -> polydraft::Result<()> {
        let Position { draft, target, .. } = position;
        self.check(draft)?;
        let Some(policy) = &work.part else { return work.comparison.look(draft, target) };
        let (part, nodes) = parts::take(draft, policy.as_ref(), self.cut, &mut work.random)?;
        work.comparison.look(&part, &Dealt { nodes: &nodes, target })
    }
}

/// Returns the results of each of `replays` on a shard, by sequence; `None` for a sequence without
/// positions. `prompt` is the prompt's number in the results.
///
/// # Errors
/// Invalid numbers in the shard; a verifier that fails. The position is named.
pub fn replay(
    shard: &Shard,
    replays: &[Replay],
    prompt: usize,
) -> Result<Vec<Vec<Option<Sample>>>> {
    let mut samples = vec![Vec::new(); replays.len()];
    for text in shard.sequences() {
        if text.positions.is_empty() {
            samples.iter_mut().for_each(|samples| samples.push(None));
            continue;
        }
        let works = replays.iter().map(|replay| replay.begin(text.seed));
        let mut works = works.collect::<polydraft::Result<Vec<_>>>()?;
        for index in text.positions.clone() {
            let position = shard.position(index)?;
            let looked = replays
                .par_iter()
                .zip(&mut works)
                .map(|(replay, work)| replay.look(work, &position));
            looked.collect::<polydraft::Result<()>>().map_err(|error| {
                Error::EmittedDistribution {
                    location: format!("{}: position {index}", shard.location()),
                    error,
                }
            })?;
        }
        for (samples, work) in samples.iter_mut().zip(&works) {
            samples.push(work.comparison.sample(prompt));
        }
    }
    Ok(samples)
}

/// Concatenates the results of prompts: the first sequence of every prompt, then the second, and so
/// on. Live measurements use this order too, so sums are bitwise the same.
pub fn in_rounds(prompts: &[Vec<Option<Sample>>]) -> Vec<Sample> {
    let rounds = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let round =
        |round: usize| prompts.iter().filter_map(move |sequences| sequences.get(round)?.clone());
    (0..rounds).flat_map(round).collect()
}
