//! The maximum number of tokens per call that any verifier can emit: linear programs over paths.
//!
//! Problem: K paths of length L are drawn independently from the draft. A lossless verifier emits a
//! prefix of one of them and one further token, such that the output has the target's distribution.
//! Sought: the maximum of its expected number of tokens.
//! Source: Thomas and Pal 2025 (greedy multi-path block verification), theorems 3.3 and 4.3:
//! "information-agnostic" bounds for verifiers that may use all distributions, also at contexts
//! outside of the drafted paths. Decomposition into selection and a single path: lemma 4.4 and
//! theorem 4.6 there.
//! Complexity: at most Σ_j j·C(N, j), j ≤ K, variables, where N = V^L; exponential in K, L and V.
//! Deviations: (1) instead of one variable per tuple of paths and emitted sequence, tuples are
//! merged by their set of paths. A set distributes its probability among its *paths*, giving a
//! selection distribution m. Let R(x) be the probability that at least the prefix x is accepted.
//! Then R(∅) = 1, R(x) ≤ m(x) and R(xt) ≤ R(x)·p(t|x), and Σ R is the expected number of tokens.
//! The optimum is the same: accepted prefixes are nested sets of paths, so mass can be moved
//! between paths and prefixes exactly when R ≤ m; (2) paths that leave the target's support at the
//! same prefix are one path.

use crate::program::{Deadline, Program, Solver};
use crate::sets::{MOST_DRAFTS, for_each_iid_set, how_many, pairs};
use polydraft::{Distribution, Error, Result, Token};

/// Next-token distributions of a target and a draft by context, and the form of the draft.
#[derive(Clone, Copy)]
pub struct PathProblem<'a> {
    /// Number of tokens V.
    pub vocabulary: usize,
    /// Number of tokens per path, L ≥ 1.
    pub depth: usize,
    /// Number of independent paths, K ≥ 1.
    pub paths: usize,
    /// Returns the target's next-token distribution after these tokens; called for contexts of up
    /// to `depth` − 1 tokens.
    pub target: &'a dyn Fn(&[Token]) -> Result<Distribution>,
    /// Returns the draft's next-token distribution; called for contexts of up to `depth` − 1
    /// tokens.
    pub draft: &'a dyn Fn(&[Token]) -> Result<Distribution>,
}

/// Limits of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Maximum number of variables, and of paths V^L. Default 20,000.
    pub variables: usize,
    /// Time limit in seconds. Default 60.
    pub seconds: f64,
    /// Solver. Default: microlp.
    pub solver: Solver,
}

impl Default for Limits {
    fn default() -> Self {
        Self { variables: 20_000, seconds: 60.0, solver: Solver::Microlp }
    }
}

/// Returns the maximum of the expected number of tokens per call, including the last token, over
/// all lossless verifiers of a single path (`problem.paths` is treated as 1). Block verification
/// reaches it.
///
/// # Errors
/// More variables than the limit, no answer in time, a depth of 0, or an error of the
/// distributions.
pub fn single_path_optimum(problem: &PathProblem, limits: &Limits) -> Result<f64> {
    multi_path_optimum(&PathProblem { paths: 1, ..*problem }, limits)
}

/// Returns the maximum of the expected number of tokens per call, including the last token, over
/// all lossless verifiers of `problem.paths` independent paths.
///
/// # Errors
/// More variables than the limit, no answer in time, a depth or number of paths of 0 or more than
/// 64 paths, or an error of the distributions.
pub fn multi_path_optimum(problem: &PathProblem, limits: &Limits) -> Result<f64> {
    multi_path_optimum_given(problem, First::Free, limits)
}

/// Constraint on the first token, under which the number of tokens is maximised.
#[derive(Debug, Clone, Copy)]
pub enum First<'a> {
    /// No constraint.
    Free,
    /// The first token is accepted as often as possible; further tokens have lower priority.
    Accepted,
    /// The first token is selected with these probabilities, shape `[vocabulary]`.
    Selected(&'a [f64]),
}

/// Weight of the first token in the objective if it has priority. Giving up some of its acceptance
/// gains at most a few times as much later. A larger weight would hide those gains from the solver.
const FIRST: f64 = 20.0;

/// Tolerance of the first token's distribution.
const ROUNDING: f64 = 1e-12;

/// Returns [`multi_path_optimum`] over verifiers that satisfy the constraint `first` on the first
/// token.
///
/// # Errors
/// The errors of [`multi_path_optimum`].
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
    // R of every node except the root, where it is 1.
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
        // Mass selected below each node: constant for sets of one path, variable for others.
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
                // Lower bounds suffice, because the masses sum to 1.
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
    /// Rejects invalid settings, and problems with too many paths.
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

    /// Returns an error that reports the size, and which size would fit.
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

/// A prefix that both models can generate.
struct Node {
    parent: Option<usize>,
    /// Last token; unused for the root.
    token: Token,
    /// Target probability given the parent.
    conditional: f64,
    /// Draft probability of the prefix.
    drafted: f64,
}

/// Prefixes that both models can generate, parents first, and the ends of drafted paths in them.
struct Tree {
    nodes: Vec<Node>,
    /// Nodes at which paths end, with their probabilities; each node at most once.
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

    /// Returns a node and its ancestors.
    fn upwards(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(node), |&node| self.nodes[node].parent)
    }
}
