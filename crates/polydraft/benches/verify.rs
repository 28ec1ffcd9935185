//! Cost of one verification step, from logits to the decision, in units of the softmax of all
//! target and draft logits at the drafted nodes, which any verifier that reads them pays.
//! Everything runs on all threads, and the tasks of a row take turns within one run.
//!
//! `cargo bench -p polydraft --bench verify [-- VOCABULARY…]`

mod common;

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

use common::{SHAPES, VOCABULARIES, logits};
use polydraft::{
    Distribution, Draft, NodeId, PolicyKind, Result, Sampling, TargetDistributions, Verifier,
    VerifierKind,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

/// A draft with the logits at its nodes.
struct Case {
    drawn: Draft,
    target: Vec<Vec<f32>>,
    /// Logits at nodes that have children.
    draft: Vec<Option<Vec<f32>>>,
}

impl Case {
    /// Draws paths; all nodes have logits of one shape, with different seeds.
    fn new(paths: usize, depth: usize, shape: common::Shape, vocabulary: usize, seed: u64) -> Self {
        let policy = PolicyKind::paths(paths, depth).build().expect("a tree");
        let mut drawn = Draft::new();
        let (mut target, mut draft) = (Vec::new(), Vec::new());
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        while target.len() < drawn.tree().len() {
            let node = target.len();
            let (p, q) = logits(shape, vocabulary, seed * 1000 + node as u64);
            target.push(p);
            let grows = policy.may_grow(&drawn.path(node));
            if grows {
                let probs =
                    Distribution::from_logits(&q, &Sampling::default()).expect("a distribution");
                drawn.grow(node, probs, policy.as_ref(), &mut rng).expect("a tree");
            }
            draft.push(grows.then_some(q));
        }
        Self { drawn, target, draft }
    }
}

/// Distributions made on demand, in reused memory.
struct Lazy<'a> {
    case: &'a Case,
    spare: Vec<std::sync::Mutex<Option<Distribution>>>,
    made: Vec<OnceLock<Distribution>>,
}

impl TargetDistributions for Lazy<'_> {
    fn target(&self, node: NodeId) -> Result<&Distribution> {
        Ok(self.made[node].get_or_init(|| {
            let mut probs =
                self.spare[node].lock().expect("no panic").take().expect("initialised once");
            probs
                .set_from_logits(&self.case.target[node], &Sampling::default())
                .expect("a distribution");
            probs
        }))
    }
}

fn softmaxes(logits: &[Option<Vec<f32>>], distributions: &mut [Option<Distribution>]) {
    distributions.par_iter_mut().zip(logits).for_each(|(probs, logits)| {
        if let (Some(probs), Some(logits)) = (probs, logits) {
            probs.set_from_logits(black_box(logits), &Sampling::default()).expect("a distribution");
        }
    });
}

fn distributions(logits: &[Option<Vec<f32>>]) -> Vec<Option<Distribution>> {
    let probs = |logits: &Vec<f32>| {
        Distribution::from_logits(logits, &Sampling::default()).expect("a distribution")
    };
    logits.iter().map(|logits| logits.as_ref().map(probs)).collect()
}

const ROUNDS: usize = 9;

fn main() {
    let selected: Vec<usize> =
        std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    println!(
        "{} threads; unit: the softmax of all logits at the drafted nodes; the step includes it",
        rayon::current_num_threads()
    );
    println!(
        "      V   shape  K  L nodes  unit ms | verifier           median     min  targets made"
    );
    for vocabulary in
        VOCABULARIES.into_iter().filter(|v| selected.is_empty() || selected.contains(v))
    {
        for shape in SHAPES {
            for (paths, names) in [
                (1, &["token", "block"][..]),
                (
                    4,
                    &[
                        "specinfer",
                        "spectr",
                        "traversal",
                        "greedy-block",
                        "priority-block",
                        "nested-priority",
                    ],
                ),
            ] {
                let depth = 8;
                let cases: Vec<Case> =
                    (0..3).map(|seed| Case::new(paths, depth, shape, vocabulary, seed)).collect();
                for name in names {
                    let mut verifier = name
                        .parse::<VerifierKind>()
                        .expect("a verifier")
                        .build()
                        .expect("valid settings");
                    let row = measure(verifier.as_mut(), &cases);
                    println!(
                        "{vocabulary:>7} {:>7} {paths:>2} {depth:>2} {:>5.1} {:>8.2} | {name:<16} \
                         {:>8.2} {:>7.2} {:>9.1}",
                        format!("{shape:?}"),
                        row.nodes,
                        row.unit * 1e3,
                        row.median,
                        row.min,
                        row.made
                    );
                }
            }
        }
    }
}

struct Row {
    nodes: f64,
    unit: f64,
    /// Median of the ratios of step and unit over the rounds.
    median: f64,
    /// Minimum of these ratios.
    min: f64,
    /// Target distributions made per step.
    made: f64,
}

fn measure(verifier: &mut dyn Verifier, cases: &[Case]) -> Row {
    let (mut ratios, mut units, mut made, mut nodes) = (Vec::new(), Vec::new(), 0, 0);
    for case in cases {
        let all: Vec<Option<Vec<f32>>> = case.target.iter().cloned().map(Some).collect();
        let (mut targets, mut drafts) = (distributions(&all), distributions(&case.draft));
        nodes += case.drawn.tree().len() - 1;
        for round in 0..ROUNDS {
            let start = Instant::now();
            softmaxes(&case.draft, &mut drafts);
            softmaxes(&all, &mut targets);
            let unit = start.elapsed().as_secs_f64();
            let spare =
                targets.iter_mut().map(|probs| std::sync::Mutex::new(probs.take())).collect();
            let mut rng = ChaCha8Rng::seed_from_u64(round as u64);
            let start = Instant::now();
            softmaxes(&case.draft, &mut drafts);
            let lazy = Lazy { case, spare, made: vec![OnceLock::new(); case.drawn.tree().len()] };
            black_box(verifier.verify(&case.drawn, &lazy, &mut rng).expect("a decision"));
            ratios.push(start.elapsed().as_secs_f64() / unit);
            units.push(unit);
            for (node, probs) in lazy.made.into_iter().enumerate() {
                let probs = probs.into_inner();
                made += usize::from(probs.is_some());
                targets[node] = probs.or_else(|| lazy.spare[node].lock().expect("no panic").take());
            }
        }
    }
    ratios.sort_by(f64::total_cmp);
    units.sort_by(f64::total_cmp);
    let runs = ratios.len();
    Row {
        nodes: nodes as f64 / cases.len() as f64,
        unit: units[runs / 2],
        median: ratios[runs / 2],
        min: ratios[0],
        made: made as f64 / runs as f64,
    }
}
