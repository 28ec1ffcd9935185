//! Verifiers compared on recorded drafts.

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
    /// The part of each draft to extract; none for all of it.
    part: Option<PolicyKind>,
    /// Whether a threshold on distributions ends the recorded tree.
    cut: bool,
    /// The depth of the recorded tree, and the most draws at a node of it.
    depth: usize,
    draws: usize,
    /// The number of paths of each subsample; none for the extracted draft itself.
    paths: Option<usize>,
}

impl Replay {
    /// The verifiers that are exact for `tree`, on drafts of the tree `recorded`. From a number of
    /// paths, several drafts of fewer paths are subsampled.
    ///
    /// # Errors
    /// A tree that is no part of the recorded one; verifiers none of which is exact for it;
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
        // All recorded paths are extracted, to the requested depth; then they are split into
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

    /// The tree.
    pub fn tree(&self) -> &PolicyKind {
        &self.tree
    }

    /// The verifiers that are compared.
    pub fn verifiers(&self) -> &[VerifierKind] {
        &self.verifiers
    }
}

/// The number of paths of a tree that is a number of paths, cut or not.
fn paths_of(tree: &mut PolicyKind) -> Option<&mut usize> {
    match tree {
        PolicyKind::Paths(tree) => Some(&mut tree.paths),
        PolicyKind::StopBelow(cut) => paths_of(&mut cut.policy),
        _ => None,
    }
}

/// A sequence that is being evaluated.
struct Work {
    part: Option<Box<dyn Policy>>,
    /// The rng that chooses the part.
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

    /// Checks that a draft is no larger than the recorded tree: a larger draft than its header
    /// declares may take any time.
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

/// The results of each of `replays` for a shard, sequence by sequence of the prompt of this number;
/// none for a sequence without positions.
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

/// Samples of prompts, each with those of its sequences: the first sequence of every prompt, then
/// the second, and so on. That is the order in which sequences are decoded and measured, so that
/// sums are the same to the last bit.
pub fn in_rounds(prompts: &[Vec<Option<Sample>>]) -> Vec<Sample> {
    let rounds = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let round =
        |round: usize| prompts.iter().filter_map(move |sequences| sequences.get(round)?.clone());
    (0..rounds).flat_map(round).collect()
}
