//! Every verifier, on trees of every shape it supports, by exact enumeration.

use std::collections::HashMap;
use std::sync::Arc;

use polydraft::conformance::planted::WrongResidual;
use polydraft::conformance::tree::{Exact, Pair, block_efficiency, exact, random_pair, trees};
use polydraft::coupling::priority::shares::Layout;
use polydraft::coupling::priority::{self, Form};
use polydraft::verify::nested_priority::Settings;
use polydraft::{
    Chance, Distribution, DraftTree, Drafting, Error, Laws, NodeId, Outcome, Problem, Proposal, Result, Rule,
    Shape, Token, Topology, Verifier, VerifierKind, couple, enumerate,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const TOLERANCE: f64 = 1e-10;

fn run(kind: &VerifierKind, shape: &Shape, pair: &Pair) -> Exact {
    let mut verifier = kind.build(shape).unwrap();
    let exact = exact(verifier.as_mut(), shape, &pair.target, &pair.draft, &mut |_| ()).unwrap();
    assert!(exact.law_deviation <= TOLERANCE, "{kind}, {shape}: {exact:?}\n{pair:?}");
    exact
}

fn paths(paths: usize, depth: usize) -> Shape {
    Shape::Paths { paths, depth }
}

fn named(name: &str) -> VerifierKind {
    name.parse().unwrap()
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= TOLERANCE, "{a} {b}");
}

/// (vocabulary, depth, paths, number of random pairs).
type Size = (usize, usize, usize, usize);

const SIZES: [Size; 12] = [
    (2, 1, 1, 40),
    (3, 2, 1, 40),
    (2, 3, 1, 20),
    (2, 1, 3, 40),
    (4, 1, 3, 30),
    (2, 2, 2, 60),
    (3, 2, 2, 30),
    (4, 2, 2, 6),
    (2, 2, 3, 30),
    (2, 3, 2, 20),
    (2, 3, 3, 3),
    (2, 4, 2, 3),
];

/// Half of them adversarial.
fn pairs((vocabulary, depth, _, count): Size, seed: u64) -> impl Iterator<Item = Pair> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(move |i| random_pair(vocabulary, depth, [0.0, 0.4, 0.8][i % 3], i % 2 == 1, &mut rng).unwrap())
}

#[test]
fn every_verifier_emits_the_targets_law_on_paths() {
    for size in SIZES {
        let shape = paths(size.2, size.1);
        for pair in pairs(size, 11) {
            for kind in VerifierKind::all() {
                if kind.build(&shape).is_ok() {
                    run(&kind, &shape, &pair);
                }
            }
        }
    }
}

/// Large vocabularies are pooled; on tiny ones the law must be exact all the same. So must it be with sharing that is
/// proportional from the first or the second token on.
#[test]
fn approximate_sharing_costs_acceptance_only() {
    for size in [(3, 2, 2, 20), (2, 3, 3, 2), (4, 1, 3, 30), (2, 4, 2, 3)] {
        let shape = paths(size.2, size.1);
        for pair in pairs(size, 12) {
            for individual_above in [1e-3, 0.3, 1.0] {
                for proportional_below in [0.0, 0.5, 1.0] {
                    let sharing =
                        priority::Settings { form: Form::Pooled, individual_above, ..Default::default() };
                    let nested = VerifierKind::NestedPriority(Settings {
                        sharing: sharing.clone(),
                        proportional_below,
                    });
                    run(&nested, &shape, &pair);
                    run(&VerifierKind::PriorityBlock(sharing), &shape, &pair);
                }
            }
        }
    }
}

/// Which verifiers support which shapes; each pair that does is enumerated.
#[test]
fn other_trees() {
    let topology = Arc::new(Topology::from_parents(&[0, 0, 1, 1, 2]).unwrap());
    let levels = |counts: &[usize], drafting| Shape::Levels { counts: counts.to_vec(), drafting };
    let fixed = |drafting| Shape::Fixed { topology: topology.clone(), drafting };
    let iid = [
        "specinfer",
        "spectr",
        "walk:priority",
        "walk:naive",
        "walk:importance",
        "traversal",
        "priority-block",
    ];
    let budgets = Shape::Budgets { distinct: vec![1.5, 1.2] };
    for (shape, names) in [
        (budgets.clone(), &iid[..]),
        (levels(&[2, 2], Drafting::Iid), &iid[..]),
        (levels(&[3, 1], Drafting::Iid), &iid[..]),
        (levels(&[1, 2], Drafting::Iid), &iid[..]),
        (levels(&[2, 2], Drafting::WithoutReplacement), &["specinfer", "walk:naive", "traversal"]),
        (levels(&[3, 2], Drafting::WithoutReplacement), &["specinfer", "walk:naive", "traversal"]),
        (levels(&[2, 2], Drafting::Greedy), &["walk:hub", "walk:naive"]),
        (levels(&[2, 2], Drafting::Hub), &["walk:hub", "walk:naive"]),
        (levels(&[2, 1, 2], Drafting::TopK), &["walk:naive"]),
        (fixed(Drafting::WithoutReplacement), &["specinfer", "walk:naive", "traversal"]),
        (fixed(Drafting::TopK), &["walk:naive"]),
        (levels(&[1, 1], Drafting::Iid), &[&iid[..], &["token", "block", "walk:single"]].concat()),
    ] {
        let supported: Vec<_> =
            VerifierKind::all().into_iter().filter(|kind| kind.build(&shape).is_ok()).collect();
        let mut expected: Vec<VerifierKind> = names.iter().map(|name| named(name)).collect();
        expected.sort_by_key(|kind| VerifierKind::all().iter().position(|other| other == kind));
        assert_eq!(supported, expected, "{shape}");
        for vocabulary in [2, 3] {
            // A peaked law allows many draws, too many to enumerate.
            let pairs = pairs((vocabulary, shape.depth(), 0, 8), 13);
            for pair in pairs.filter(|pair| shape != budgets || pair.draft.values().all(|q| spread_out(q))) {
                for kind in &supported {
                    run(kind, &shape, &pair);
                }
            }
        }
    }
}

fn spread_out(law: &Distribution) -> bool {
    law.support_size() == 1 || law.support().all(|(_, q)| q > 0.15 && law.vocabulary() == 2)
}

/// Probability of a text under a table of laws.
fn probability(laws: &HashMap<Vec<Token>, Distribution>, text: &[Token]) -> f64 {
    (0..text.len()).map(|i| laws[&text[..i]].probability(text[i])).product()
}

/// The law of the path that GBV takes, from its definition: F and q of a prefix.
fn greedy_law(pair: &Pair, count: i32, text: &[Token]) -> f64 {
    let (mut below, mut own) = (0.0, 1.0);
    for i in 0..text.len() {
        let (p, q) = (&pair.target[&text[..i]], &pair.draft[&text[..i]]);
        let rank = |token: Token| (p.probability(token) / q.probability(token), token);
        let lower = q.support().filter(|(token, _)| rank(*token) < rank(text[i]));
        below += own * lower.map(|(_, q)| q).sum::<f64>();
        own *= q.probability(text[i]);
    }
    f64::powi(below + own, count) - f64::powi(below, count)
}

#[test]
fn efficiencies_have_their_closed_forms() {
    for size in SIZES {
        let (_, depth, count, _) = size;
        for pair in pairs(size, 14) {
            let block = |selection: &dyn Fn(&[Token]) -> f64| {
                block_efficiency(depth, &pair.target, &mut |text| Ok(selection(text))).unwrap()
            };
            let got = run(&named("block"), &paths(1, depth), &pair).block_efficiency;
            close(got, block(&|text| probability(&pair.draft, text)));
            let got = run(&named("greedy-block"), &paths(count, depth), &pair).block_efficiency;
            close(got, block(&|text| greedy_law(&pair, count as i32, text)));
        }
    }
}

/// The closed form of the nested verifier's efficiency, computed by an independent program (plain numpy, bisection).
#[test]
fn nested_priority_agrees_with_an_independent_program() {
    #[derive(serde::Deserialize)]
    struct Case {
        vocabulary: usize,
        depth: usize,
        paths: usize,
        /// Block efficiency with each layout.
        intervals: f64,
        spread: f64,
        target: HashMap<String, Vec<f64>>,
        draft: HashMap<String, Vec<f64>>,
    }
    let laws = |table: &HashMap<String, Vec<f64>>| -> HashMap<Vec<Token>, Distribution> {
        let text = |text: &str| text.split_whitespace().map(|token| token.parse().unwrap()).collect();
        table.iter().map(|(key, law)| (text(key), Distribution::new(law.clone()).unwrap())).collect()
    };
    let cases: Vec<Case> = serde_json::from_str(include_str!("data/nested.json")).unwrap();
    assert_eq!(cases.len(), 24);
    for case in cases {
        if (case.vocabulary as f64).powi((case.paths * case.depth) as i32) > 5e3 {
            continue;
        }
        let pair = Pair { target: laws(&case.target), draft: laws(&case.draft) };
        for (layout, expected) in [(Layout::Intervals, case.intervals), (Layout::Spread, case.spread)] {
            let sharing = priority::Settings { layout, ..Default::default() };
            let nested = VerifierKind::NestedPriority(Settings { proportional_below: 0.0, sharing });
            close(run(&nested, &paths(case.paths, case.depth), &pair).block_efficiency, expected);
        }
    }
}

/// The laws at the nodes of a tree.
struct TreeLaws<'a> {
    tree: &'a DraftTree,
    pair: &'a Pair,
}

impl TreeLaws<'_> {
    fn text(&self, node: NodeId) -> Vec<Token> {
        self.tree.path(node).into_iter().map(|node| self.tree.token(node)).collect()
    }
}

impl Laws for TreeLaws<'_> {
    fn draft(&self, node: NodeId) -> Result<&Distribution> {
        Ok(&self.pair.draft[&self.text(node)])
    }

    fn target(&self, node: NodeId) -> Result<&Distribution> {
        Ok(&self.pair.target[&self.text(node)])
    }
}

/// The law of what a verifier emits, given a tree.
fn outcomes(
    verifier: &mut dyn Verifier,
    tree: &DraftTree,
    pair: &Pair,
) -> HashMap<(Vec<NodeId>, Token), f64> {
    let laws = TreeLaws { tree, pair };
    let mut all = HashMap::new();
    for (probability, outcome) in enumerate(|chance| verifier.verify(tree, &laws, chance)) {
        let Outcome { accepted, token } = outcome.unwrap();
        *all.entry((accepted, token)).or_insert(0.0) += probability;
    }
    all
}

fn same(a: &HashMap<(Vec<NodeId>, Token), f64>, b: &HashMap<(Vec<NodeId>, Token), f64>) {
    for key in a.keys().chain(b.keys()) {
        let probability = |all: &HashMap<_, f64>| all.get(key).copied().unwrap_or(0.0);
        close(probability(a), probability(b));
    }
}

/// Tree by tree, not only on average.
#[test]
fn one_path_is_block_verification_and_one_level_priority_coupling() {
    for size in [(3, 3, 1, 20), (2, 2, 1, 40)] {
        let shape = paths(1, size.1);
        for pair in pairs(size, 15) {
            for (_, tree) in trees(&shape, &pair.draft).unwrap() {
                let block = outcomes(named("block").build(&shape).unwrap().as_mut(), &tree, &pair);
                for name in ["nested-priority", "priority-block", "greedy-block", "traversal"] {
                    same(&block, &outcomes(named(name).build(&shape).unwrap().as_mut(), &tree, &pair));
                }
            }
        }
    }
    for size in [(3, 1, 2, 40), (4, 1, 3, 20), (2, 1, 4, 40)] {
        let shape = paths(size.2, 1);
        for pair in pairs(size, 16) {
            // Trees that are next to never drawn are decided by roundings.
            let drawn = trees(&shape, &pair.draft).unwrap();
            for (_, tree) in drawn.into_iter().filter(|tree| tree.0 > 1e-6) {
                let walk = outcomes(named("walk:priority").build(&shape).unwrap().as_mut(), &tree, &pair);
                for name in ["nested-priority", "priority-block"] {
                    same(&walk, &outcomes(named(name).build(&shape).unwrap().as_mut(), &tree, &pair));
                }
            }
        }
    }
    // The walk is the rule: the law of the emitted token given the drafts.
    let pair = pairs((3, 1, 2, 1), 17).next().unwrap();
    let (target, draft) = (&pair.target[&[][..]], &pair.draft[&[][..]]);
    let mut rule = "priority".parse::<Rule>().unwrap().build().unwrap();
    let mut coupling =
        couple(rule.as_mut(), Problem::new(target, Proposal::iid(draft, 2).unwrap()).unwrap()).unwrap();
    for (_, tree) in trees(&paths(2, 1), &pair.draft).unwrap() {
        let drafts: Vec<Token> = tree
            .children(0)
            .flat_map(|child| std::iter::repeat_n(tree.token(child), tree.draws(child)))
            .collect();
        let law = coupling.law(&drafts).unwrap();
        let walk = outcomes(named("nested-priority").build(&paths(2, 1)).unwrap().as_mut(), &tree, &pair);
        for token in 0..3 {
            // Emitted as the accepted child or as the token after nothing.
            let first =
                |(path, last): &(Vec<NodeId>, Token)| path.first().map_or(*last, |&node| tree.token(node));
            let emitted: f64 = walk.iter().filter(|(key, _)| first(key) == token).map(|(_, p)| p).sum();
            close(emitted, law.probabilities[token as usize]);
        }
    }
}

/// The flagship against the others, on the pairs of the conformance test: at or above nearly always.
#[test]
fn nested_priority_is_the_best() {
    let others = ["walk:priority", "greedy-block", "traversal", "specinfer", "spectr", "priority-block"];
    let (mut pairs_seen, mut beaten) = (0, Vec::new());
    for size in SIZES {
        let shape = paths(size.2, size.1);
        for (index, pair) in pairs(size, 18).enumerate() {
            // Exact sharing everywhere: what is measured is the algorithm.
            let nested =
                VerifierKind::NestedPriority(Settings { proportional_below: 0.0, ..Settings::default() });
            let nested = run(&nested, &shape, &pair).block_efficiency;
            let block = run(&named("block"), &paths(1, size.1), &pair).block_efficiency;
            pairs_seen += 1;
            let best = others.iter().map(|name| run(&named(name), &shape, &pair).block_efficiency);
            let best = best.fold(block, f64::max);
            if nested < best - TOLERANCE {
                beaten.push((size, index, nested - best));
            }
            // Never worse than the walk with the optimal rule is the node-by-node form.
            let walk = run(&named("walk:priority"), &shape, &pair).block_efficiency;
            assert!(run(&named("priority-block"), &shape, &pair).block_efficiency >= walk - TOLERANCE);
        }
    }
    println!("{} of {pairs_seen}: {beaten:?}", beaten.len());
    assert!(beaten.len() * 100 <= pairs_seen, "{} of {pairs_seen}: {beaten:?}", beaten.len());
    assert!(beaten.iter().all(|(.., gap)| *gap > -1e-2), "{beaten:?}");
}

/// Verifiers that are wrong in one way each.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// It takes the path of the first draw, but verifies against the law of the selection.
    WrongPath,
    /// It selects the path in whose first token the target believes most, and verifies against the draft's laws.
    Biased,
    /// It emits a token that the target never emits, once in 10^7.
    Leaks,
}

struct Faulty(Fault);

impl Verifier for Faulty {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome> {
        let shape = paths(2, 2);
        let chain = |first: NodeId| {
            let mut chain = DraftTree::new();
            let (mut node, mut end, mut ids) = (Some(first), 0, vec![0]);
            while let Some(here) = node {
                end = chain.add(end, tree.token(here));
                ids.push(here);
                node = tree.children(here).next();
            }
            (chain, ids)
        };
        match self.0 {
            Fault::WrongPath => {
                let first = tree.children(0).next().unwrap_or(0);
                let outcome = named("nested-priority").build(&shape)?.verify(tree, laws, chance)?;
                let token = laws.target(0)?.sample(chance);
                let kept = outcome.accepted.first().is_none_or(|node| *node == first);
                Ok(if kept { outcome } else { Outcome { accepted: vec![], token } })
            }
            Fault::Biased => {
                let target = laws.target(0)?;
                let likely = |node: &NodeId| target.probability(tree.token(*node));
                let first = tree.children(0).max_by(|a, b| likely(a).total_cmp(&likely(b))).unwrap_or(0);
                let (chain, ids) = chain(first);
                struct Renamed<'a>(&'a dyn Laws, Vec<NodeId>);
                impl Laws for Renamed<'_> {
                    fn draft(&self, node: NodeId) -> Result<&Distribution> {
                        self.0.draft(self.1[node])
                    }
                    fn target(&self, node: NodeId) -> Result<&Distribution> {
                        self.0.target(self.1[node])
                    }
                }
                let renamed = Renamed(laws, ids);
                // As many draws as there are nodes.
                let mut outcome = named("block").build(&Shape::chain(2))?.verify(&chain, &renamed, chance)?;
                outcome.accepted.iter_mut().for_each(|node| *node = renamed.1[*node]);
                Ok(outcome)
            }
            Fault::Leaks => {
                if chance.coin(1e-7) {
                    let target = laws.target(0)?;
                    let token = (0..target.vocabulary() as Token).find(|t| target.probability(*t) == 0.0);
                    return Ok(Outcome { accepted: vec![], token: token.unwrap_or(0) });
                }
                named("nested-priority").build(&shape)?.verify(tree, laws, chance)
            }
        }
    }
}

#[test]
fn planted_faults_are_found() {
    let mut rng = ChaCha8Rng::seed_from_u64(19);
    let pair = random_pair(3, 2, 0.3, false, &mut rng).unwrap();
    let found = |verifier: &mut dyn Verifier| {
        exact(verifier, &paths(2, 2), &pair.target, &pair.draft, &mut |_| ()).unwrap().law_deviation
    };
    for fault in [Fault::WrongPath, Fault::Biased, Fault::Leaks] {
        assert!(found(&mut Faulty(fault)) > 10.0 * TOLERANCE, "{fault:?}");
    }
    assert!(found(&mut WrongResidual(named("nested-priority").build(&paths(2, 2)).unwrap())) > 1e-3);
}

/// A verifier must not be asked what it cannot know, and says so.
#[test]
fn unfit_trees_are_refused() {
    for (name, shape) in [
        ("token", paths(2, 2)),
        ("block", paths(2, 1)),
        ("walk:single", paths(2, 1)),
        ("greedy-block", Shape::Levels { counts: vec![2, 2], drafting: Drafting::Iid }),
        ("nested-priority", Shape::Levels { counts: vec![2, 2], drafting: Drafting::Iid }),
        ("priority-block", Shape::Levels { counts: vec![2], drafting: Drafting::WithoutReplacement }),
        ("spectr", Shape::Levels { counts: vec![2], drafting: Drafting::WithoutReplacement }),
        ("traversal", Shape::Levels { counts: vec![2], drafting: Drafting::TopK }),
        ("nested-priority", paths(0, 3)),
    ] {
        let error = named(name).build(&shape).err().unwrap();
        assert!(
            matches!(error, Error::Unsupported { .. } | Error::Setting { .. }),
            "{name} {shape}: {error}"
        );
    }
    assert!("walk:nonsense".parse::<VerifierKind>().unwrap_err().to_string().contains("k-seq"));
    assert!("nested".parse::<VerifierKind>().unwrap_err().to_string().contains("nested-priority"));
    for kind in VerifierKind::all() {
        assert_eq!(kind.to_string().parse::<VerifierKind>().unwrap(), kind);
    }
}
