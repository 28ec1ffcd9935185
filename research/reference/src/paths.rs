//! The most tokens per call that any verifier can emit: linear programs over paths.
//!
//! Problem: K paths of length L are drawn independently from the draft. A valid verifier emits a
//! prefix of one of them and one more token, such that the output has the target's distribution.
//! How many tokens can it emit on average?
//! Source: Thomas and Pal 2025 (greedy multi-path block verification), theorems 3.3 and 4.3:
//! "information-agnostic" bounds, for verifiers that may use all distributions, also those off the
//! drafted paths. The decomposition into selection and one path: lemma 4.4 and theorem 4.6 there.
//! Complexity: variables Σ_j j·C(N, j), j ≤ K, N = V^L at most; exponential in all three.
//! Deviations: (1) not one variable for each pair (tuple of paths, emitted sequence): tuples are
//! merged by the set of their paths, and a set shares its probability out among its *paths*, giving
//! a selection distribution m. The accepted mass R(x) of a prefix x (the probability that at least
//! x is accepted) then has R(∅) = 1, R(x) ≤ m(x) and R(xt) ≤ R(x)·p(t|x), and Σ R is the expected
//! number of tokens. The optimum is the same: accepted prefixes are nested sets of paths, so mass
//! can be moved between paths and prefixes exactly when R ≤ m; (2) paths that leave the target's
//! support (or have the same end inside of it) are one path.

use crate::program::{Deadline, Program, Solver};
use crate::sets::{MOST_DRAFTS, for_each_iid_set, how_many, pairs};
use polydraft::{Distribution, Error, Result, Token};

/// A target and a draft, both as next-token distributions given a context, and the form of the
/// draft.
#[derive(Clone, Copy)]
pub struct PathProblem<'a> {
    /// Number of tokens V.
    pub vocabulary: usize,
    /// Tokens drafted on each path, L ≥ 1.
    pub depth: usize,
    /// Number of independent paths, K ≥ 1.
    pub paths: usize,
    /// The target's next-token distribution after these tokens; requested for contexts of up to
    /// `depth` − 1 tokens.
    pub target: &'a dyn Fn(&[Token]) -> Result<Distribution>,
    /// The draft's, for contexts of up to `depth` − 1 tokens.
    pub draft: &'a dyn Fn(&[Token]) -> Result<Distribution>,
}

/// Limits of the size of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Largest number of variables; also the largest number of paths V^L that are looked at.
    /// Default 20,000.
    pub variables: usize,
    /// Longest time, in seconds. Default 60.
    pub seconds: f64,
    /// Who solves it. Default: microlp.
    pub solver: Solver,
}

impl Default for Limits {
    fn default() -> Self {
        Self { variables: 20_000, seconds: 60.0, solver: Solver::Microlp }
    }
}

/// The largest expected number of tokens per call, the last one included, of any valid verifier of
/// a single path (`problem.paths` is taken as 1). Block verification reaches it.
///
/// # Errors
/// More variables than the limit, no answer in time, a depth of 0, or an error of the
/// distributions.
pub fn single_path_optimum(problem: &PathProblem, limits: &Limits) -> Result<f64> {
    multi_path_optimum(&PathProblem { paths: 1, ..*problem }, limits)
}

/// The largest expected number of tokens per call, the last one included, of any valid verifier of
/// `problem.paths` independent paths.
///
/// # Errors
/// More variables than the limit, no answer in time, a depth or number of paths of 0 or more than
/// 64 paths, or an error of the distributions.
pub fn multi_path_optimum(problem: &PathProblem, limits: &Limits) -> Result<f64> {
    multi_path_optimum_given(problem, First::Free, limits)
}

/// A constraint on the first token; the number of tokens is maximised under it.
#[derive(Debug, Clone, Copy)]
pub enum First<'a> {
    /// Nothing.
    Free,
    /// Accepted as often as any rule can; tokens after it count for the rest.
    Accepted,
    /// Selected with these probabilities, shape `[vocabulary]`, the distribution of a selection.
    Selected(&'a [f64]),
}

/// The weight of a first token relative to others where it has priority. Where some of it is given
/// up, the gain after it is no more than a few times as much; a larger weight hides the gain from
/// the solver.
const FIRST: f64 = 20.0;

/// The tolerance of a distribution of the first token.
const ROUNDING: f64 = 1e-12;

/// [`multi_path_optimum`] over verifiers that meet the constraint `first` on the first token.
///
/// # Errors
/// As for [`multi_path_optimum`].
pub fn multi_path_optimum_given(
    problem: &PathProblem,
    first: First,
    limits: &Limits,
) -> Result<f64> {
    problem.check(limits)?;
    let tree = Tree::new(problem)?;
    let variables = pairs(tree.ends.len(), problem.paths) + tree.nodes.len() as f64;
    if variables > limits.variables as f64 {
        return Err(problem.too_large(limits, format!("{} variables", how_many(variables))));
    }
    let mut program = Program::default();
    // R of every node but the root, which has 1.
    let worth = |parent| if parent == 0 && matches!(first, First::Accepted) { FIRST } else { 1.0 };
    let most = |node: &Node| match (first, node.parent) {
        (First::Selected(probs), Some(0)) => probs[node.token as usize],
        _ if problem.paths == 1 => node.drafted,
        _ => 1.0,
    };
    let budgets: Vec<Option<usize>> = tree
        .nodes
        .iter()
        .map(|node| node.parent.map(|parent| program.variable(worth(parent), most(node))))
        .collect();
    for (node, budget) in tree.nodes.iter().zip(&budgets) {
        if let (Some(parent), Some(budget)) = (node.parent, *budget) {
            match budgets[parent] {
                Some(parent) => {
                    program.at_most(vec![(budget, 1.0), (parent, -node.conditional)], 0.0)
                }
                None => program.at_most(vec![(budget, 1.0)], node.conditional),
            }
        }
    }
    if problem.paths > 1 {
        // What is selected below each node: a constant from sets of one path, variables from the
        // others.
        let mut selected = vec![(Vec::new(), 0.0); tree.nodes.len()];
        let masses: Vec<f64> = tree.ends.iter().map(|(_, mass)| *mass).collect();
        for_each_iid_set(&masses, 0.0, problem.paths, |members, probability| {
            if let [only] = members {
                tree.upwards(tree.ends[*only].0).for_each(|node| selected[node].1 += probability);
                return;
            }
            let shares: Vec<usize> =
                members.iter().map(|_| program.variable(0.0, probability)).collect();
            for (&share, &member) in shares.iter().zip(members) {
                tree.upwards(tree.ends[member].0)
                    .for_each(|node| selected[node].0.push((share, -1.0)));
            }
            program.at_most(shares.iter().map(|&share| (share, 1.0)).collect(), probability);
        });
        for ((node, budget), (mut entries, constant)) in
            tree.nodes.iter().zip(&budgets).zip(selected)
        {
            if let (First::Selected(probs), Some(0)) = (first, node.parent) {
                // At least so much of each: together they are all that there is.
                program.at_most(entries.clone(), constant - probs[node.token as usize] + ROUNDING);
            }
            if let Some(budget) = *budget {
                entries.push((budget, 1.0));
                program.at_most(entries, constant);
            }
        }
    }
    let values =
        program.solve("linear program of paths", limits.solver, Deadline::after(limits.seconds))?;
    Ok(1.0 + budgets.iter().flatten().map(|&budget| values[budget]).sum::<f64>())
}

impl PathProblem<'_> {
    /// Refuses a wrong setting, and more paths than can be enumerated.
    fn check(&self, limits: &Limits) -> Result<()> {
        crate::program::check_seconds(limits.seconds)?;
        if self.depth == 0 {
            return Err(Error::Setting {
                setting: "depth",
                expected: "at least 1",
                got: "0".to_owned(),
            });
        }
        if !(1..=MOST_DRAFTS).contains(&self.paths) {
            return Err(Error::Setting {
                setting: "paths",
                expected: "from 1 to 64",
                got: self.paths.to_string(),
            });
        }
        let paths = (self.vocabulary as f64).powi(self.depth.min(1 << 20) as i32);
        if paths > limits.variables as f64 {
            return Err(self.too_large(limits, format!("{paths:.3e} paths")));
        }
        Ok(())
    }

    /// How much there is, and what would fit.
    fn too_large(&self, limits: &Limits, got: String) -> Error {
        let Self { vocabulary, depth, paths, .. } = *self;
        let fits = |depth: usize, paths: usize| {
            let leaves = (vocabulary as f64).powi(depth.min(1 << 20) as i32);
            leaves <= limits.variables as f64
                && pairs(leaves as usize, paths) + 2.0 * leaves <= limits.variables as f64
        };
        let deepest = (1..depth).rev().find(|&depth| fits(depth, paths));
        let most = (1..paths).rev().find(|&paths| fits(depth, paths));
        let what = match (deepest, most) {
            (Some(deepest), Some(most)) => format!("depth {deepest}, or {most} paths, would fit"),
            (Some(deepest), None) => format!("depth {deepest} would fit"),
            (None, Some(most)) => format!("{most} paths would fit"),
            (None, None) => "a smaller vocabulary would fit".to_owned(),
        };
        Error::TooLarge {
            operation: "linear program of paths",
            expected: format!("at most {} variables ({what})", limits.variables),
            got: format!("{got} for {paths} paths of {depth} tokens out of {vocabulary}"),
        }
    }
}

/// A prefix that both models may write.
struct Node {
    parent: Option<usize>,
    /// Its last token; of the root none.
    token: Token,
    /// p of it, given its parent.
    conditional: f64,
    /// q of the whole prefix.
    drafted: f64,
}

/// The prefixes that both models may write, parents first, and where the drafted paths leave them.
struct Tree {
    nodes: Vec<Node>,
    /// Node and probability of every end of a path; each node at most once.
    ends: Vec<(usize, f64)>,
}

impl Tree {
    fn new(problem: &PathProblem) -> Result<Self> {
        let mut tree = Self {
            nodes: vec![Node { parent: None, token: 0, conditional: 1.0, drafted: 1.0 }],
            ends: Vec::new(),
        };
        tree.grow(problem, 0, &mut Vec::new())?;
        Ok(tree)
    }

    fn grow(&mut self, problem: &PathProblem, node: usize, context: &mut Vec<Token>) -> Result<()> {
        let drafted = self.nodes[node].drafted;
        if context.len() == problem.depth {
            self.ends.push((node, drafted));
            return Ok(());
        }
        let (target, draft) = ((problem.target)(context)?, (problem.draft)(context)?);
        for probs in [&target, &draft] {
            if probs.vocabulary() != problem.vocabulary {
                let expected = problem.vocabulary.to_string();
                return Err(Error::Length {
                    operation: "distribution of a path",
                    expected,
                    got: probs.vocabulary(),
                });
            }
        }
        let mut lost = 0.0;
        for (token, q) in draft.support() {
            let conditional = target.probability(token);
            if conditional == 0.0 || drafted * q == 0.0 {
                lost += drafted * q;
                continue;
            }
            let child = self.nodes.len();
            self.nodes.push(Node { parent: Some(node), token, conditional, drafted: drafted * q });
            context.push(token);
            self.grow(problem, child, context)?;
            context.pop();
        }
        if lost > 0.0 {
            self.ends.push((node, lost));
        }
        Ok(())
    }

    /// A node and all above it.
    fn upwards(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(node), |&node| self.nodes[node].parent)
    }
}
