//! Compares linear programs over paths with closed forms.

use polydraft::{Distribution, Error, Problem, Proposal, Result, Token, acceptance};
use polydraft_reference::paths::{Limits, PathProblem, multi_path_optimum, single_path_optimum};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Random next-token distributions by context; the draft's are mixed with the target's.
struct Toy {
    vocabulary: usize,
    depth: usize,
    target: Vec<Distribution>,
    draft: Vec<Distribution>,
}

impl Toy {
    fn new(vocabulary: usize, depth: usize, agreement: f64, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut uniform = || f64::from(rng.next_u32()) / f64::from(u32::MAX);
        let contexts = (0..depth).map(|d| vocabulary.pow(d as u32)).sum();
        let (mut target, mut draft) = (Vec::new(), Vec::new());
        for context in 0..contexts {
            let mut probs = |near: Option<&Distribution>| {
                let mut values: Vec<f64> = (0..vocabulary).map(|_| uniform().powi(2)).collect();
                if context % 5 == 4 {
                    values[context % vocabulary] = 0.0;
                }
                let sum: f64 = values.iter().sum();
                let mixed = values.iter().zip(0..).map(|(value, token)| match near {
                    None => value / sum,
                    Some(near) => {
                        (1.0 - agreement) * value / sum + agreement * near.probability(token)
                    }
                });
                Distribution::new(mixed.collect()).unwrap()
            };
            target.push(probs(None));
            draft.push(probs(target.last()));
        }
        Self { vocabulary, depth, target, draft }
    }

    fn index(&self, context: &[Token]) -> usize {
        let shorter: usize = (0..context.len()).map(|d| self.vocabulary.pow(d as u32)).sum();
        shorter + context.iter().fold(0, |index, &token| index * self.vocabulary + token as usize)
    }

    fn optimum(&self, paths: usize) -> f64 {
        let target = |context: &[Token]| Ok(self.target[self.index(context)].clone());
        let draft = |context: &[Token]| Ok(self.draft[self.index(context)].clone());
        let problem = PathProblem {
            vocabulary: self.vocabulary,
            depth: self.depth,
            paths,
            target: &target,
            draft: &draft,
        };
        let limits = Limits::default();
        if paths == 1 {
            single_path_optimum(&problem, &limits)
        } else {
            multi_path_optimum(&problem, &limits)
        }
        .unwrap()
    }

    /// Returns Σ b over all prefixes, the expected number of tokens of block verification.
    fn block(&self, context: &mut Vec<Token>, budget: f64, drafted: f64) -> f64 {
        if context.len() == self.depth {
            return budget;
        }
        let index = self.index(context);
        let mut sum = budget;
        for (token, q) in self.draft[index].support().collect::<Vec<_>>() {
            context.push(token);
            let drafted = drafted * q;
            sum += self.block(
                context,
                drafted.min(budget * self.target[index].probability(token)),
                drafted,
            );
            context.pop();
        }
        sum
    }
}

#[test]
fn one_path_is_block_verification() {
    for (vocabulary, depth) in [(1, 3), (2, 1), (2, 4), (3, 3), (5, 2), (9, 1)] {
        for seed in 0..20 {
            let toy = Toy::new(vocabulary, depth, (seed % 4) as f64 * 0.3, seed);
            let (got, expected) = (toy.optimum(1), toy.block(&mut Vec::new(), 1.0, 1.0));
            assert!((got - expected).abs() < 1e-9, "{vocabulary} {depth} {seed}: {got} {expected}");
        }
    }
}

/// At depth 1 paths are drafts: the optimum is one token plus the optimal acceptance.
#[test]
fn paths_of_one_token_are_drafts() {
    for (vocabulary, paths) in [(2, 2), (2, 4), (3, 3), (4, 2), (5, 3)] {
        for seed in 0..20 {
            let toy = Toy::new(vocabulary, 1, (seed % 3) as f64 * 0.4, 100 + seed);
            let proposal = Proposal::iid(&toy.draft[0], paths).unwrap();
            let expected = 1.0
                + acceptance::optimal(&Problem::new(&toy.target[0], proposal).unwrap()).unwrap();
            let got = toy.optimum(paths);
            assert!((got - expected).abs() < 1e-9, "{vocabulary} {paths} {seed}: {got} {expected}");
        }
    }
}

/// More paths never reduce the optimum, L + 1 is its maximum, and a draft equal to the target
/// reaches it.
#[test]
fn order_and_ends() {
    for (vocabulary, depth, most) in [(3, 2, 3), (2, 3, 3), (4, 2, 2), (2, 4, 2)] {
        for (seed, agreement) in [(1, 0.0), (2, 0.4), (3, 0.8)] {
            let toy = Toy::new(vocabulary, depth, agreement, seed);
            let mut last = 1.0;
            for paths in 1..=most {
                let next = toy.optimum(paths);
                assert!(
                    next >= last - 1e-9 && next <= depth as f64 + 1.0 + 1e-9,
                    "{next} after {last}"
                );
                last = next;
            }
            assert!(last > toy.optimum(1) + 1e-3);
            let same = Toy { draft: toy.target.clone(), ..toy };
            assert!((same.optimum(most) - depth as f64 - 1.0).abs() < 1e-9);
        }
    }
}

/// A case solved by hand: the target always generates a, and the draft generates a with probability
/// 1/2. K paths reach depth d with probability 1 − (1 − 2^−d)^K.
#[test]
fn one_hot_target() {
    let target = |_: &[Token]| Distribution::one_hot(2, 0);
    let draft = |_: &[Token]| Distribution::new(vec![0.5, 0.5]);
    for paths in 1..=5 {
        let problem =
            PathProblem { vocabulary: 2, depth: 3, paths, target: &target, draft: &draft };
        let hit = |d: i32| 1.0 - (1.0 - 0.5_f64.powi(d)).powi(paths as i32);
        let expected = 1.0 + hit(1) + hit(2) + hit(3);
        let got = multi_path_optimum(&problem, &Limits::default()).unwrap();
        assert!((got - expected).abs() < 1e-9, "{paths}: {got} {expected}");
    }
    let never = |_: &[Token]| Distribution::one_hot(2, 1);
    let problem = PathProblem { vocabulary: 2, depth: 3, paths: 2, target: &target, draft: &never };
    assert_eq!(multi_path_optimum(&problem, &Limits::default()).unwrap(), 1.0);
}

#[test]
fn refusals() {
    let probs = |_: &[Token]| Distribution::new(vec![0.25; 4]);
    let problem = PathProblem { vocabulary: 4, depth: 3, paths: 3, target: &probs, draft: &probs };
    let message = |problem: PathProblem, limits: Limits| {
        multi_path_optimum(&problem, &limits).unwrap_err().to_string()
    };
    let large = message(problem, Limits::default());
    assert!(large.contains("129173 variables") && large.contains("depth 2, or 2 paths"), "{large}");
    let paths = message(PathProblem { depth: 40, ..problem }, Limits::default());
    assert!(paths.contains("paths of 40 tokens") && paths.contains("depth 2"), "{paths}");
    assert!(message(PathProblem { depth: 0, ..problem }, Limits::default()).contains("depth"));
    assert!(message(PathProblem { paths: 0, ..problem }, Limits::default()).contains("paths"));
    let slow =
        message(PathProblem { depth: 2, ..problem }, Limits { seconds: 1e-6, ..Limits::default() });
    assert!(slow.contains("1e-6 s") || slow.contains("0.000001 s"), "{slow}");
    let wrong = |_: &[Token]| -> Result<Distribution> { Distribution::one_hot(3, 0) };
    let error = multi_path_optimum(&PathProblem { draft: &wrong, ..problem }, &Limits::default());
    assert!(matches!(error, Err(Error::Length { got: 3, .. })));
}

/// The program in its original form: a variable per tuple of paths and emitted sequence, with
/// equalities for tuples and for full sequences.
fn stated(toy: &Toy, paths: usize) -> f64 {
    use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem};
    let (v, l) = (toy.vocabulary, toy.depth);
    let sequences = |length: usize| -> Vec<Vec<Token>> {
        (0..v.pow(length as u32))
            .map(|code| (0..length).map(|i| (code / v.pow(i as u32) % v) as Token).collect())
            .collect()
    };
    // The distribution of a full sequence's last token does not matter.
    let p = |from: usize, to: &[Token]| -> f64 {
        (from..to.len())
            .map(|i| {
                if i < l {
                    toy.target[toy.index(&to[..i])].probability(to[i])
                } else {
                    1.0 / v as f64
                }
            })
            .product()
    };
    let leaves = sequences(l);
    let drafted = |leaf: &[Token]| -> f64 {
        (0..l).map(|i| toy.draft[toy.index(&leaf[..i])].probability(leaf[i])).product()
    };
    let full = sequences(l + 1);
    let mut program = Problem::new(OptimizationDirection::Maximize);
    let mut balances: Vec<LinearExpr> = full.iter().map(|_| LinearExpr::empty()).collect();
    for code in 0..leaves.len().pow(paths as u32) {
        let tuple: Vec<&[Token]> = (0..paths)
            .map(|k| &leaves[code / leaves.len().pow(k as u32) % leaves.len()][..])
            .collect();
        let mut emitted: Vec<Vec<Token>> = Vec::new();
        for (leaf, length) in
            tuple.iter().flat_map(|leaf| (0..=l).map(move |length| (leaf, length)))
        {
            emitted.extend((0..v as Token).map(|next| [&leaf[..length], &[next]].concat()));
        }
        emitted.sort();
        emitted.dedup();
        let mut row = LinearExpr::empty();
        for sequence in emitted {
            let variable = program.add_var(sequence.len() as f64, (0.0, f64::INFINITY));
            row.add(variable, 1.0);
            for (balance, full) in balances.iter_mut().zip(&full) {
                if full.starts_with(&sequence) && p(sequence.len(), full) > 0.0 {
                    balance.add(variable, p(sequence.len(), full));
                }
            }
        }
        program.add_constraint(
            row,
            ComparisonOp::Eq,
            tuple.iter().map(|leaf| drafted(leaf)).product(),
        );
    }
    for (balance, full) in balances.into_iter().zip(&full) {
        program.add_constraint(balance, ComparisonOp::Eq, p(0, full));
    }
    program.solve().unwrap().into_solution().unwrap().objective()
}

#[test]
fn the_program_as_stated_has_the_same_optimum() {
    for (vocabulary, depth, paths) in
        [(2, 1, 2), (2, 2, 1), (2, 2, 2), (3, 1, 2), (2, 3, 2), (2, 2, 3)]
    {
        for seed in 0..5 {
            let toy = Toy::new(vocabulary, depth, seed as f64 * 0.2, 200 + seed);
            let (got, expected) = (toy.optimum(paths), stated(&toy, paths));
            // The solver's tolerance is 1e-7 in each of up to 1,024 rows.
            assert!(
                (got - expected).abs() < 1e-6,
                "{vocabulary} {depth} {paths} {seed}: {got} {expected}"
            );
        }
    }
}
