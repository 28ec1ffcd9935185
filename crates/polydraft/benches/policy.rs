//! Wall-clock time of `auto` per step: its decisions at the nodes, and its update from the outcome.
//! Sequences are decoded with distributions that depend on four tokens only, so that nothing else
//! takes long.
//!
//! `cargo bench -p polydraft --bench policy`

use std::cell::Cell;
use std::time::{Duration, Instant};

use polydraft::Growth;
use polydraft::conformance::tree::{ContextDistributions, NodeTargets, draw, random_pair};
use polydraft::draft::{Draft, Form, Path};
use polydraft::policy::{Costs, Pass, Passes, StepContext};
use polydraft::{Distribution, Policy, PolicyKind, Token, VerifierKind, verify::Outcome};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const STEPS: usize = 5_000;

/// Distributions that depend on the last four tokens.
struct LastTokens<'a>(&'a dyn ContextDistributions);

impl ContextDistributions for LastTokens<'_> {
    fn distribution(&self, sequence: &[Token]) -> polydraft::Result<&Distribution> {
        self.0.distribution(&sequence[sequence.len().saturating_sub(4)..])
    }
}

/// A policy that measures its own time.
struct TimedPolicy {
    policy: Box<dyn Policy>,
    growing: Cell<Duration>,
    observing: Duration,
}

impl TimedPolicy {
    fn measure<T>(&self, call: impl FnOnce(&dyn Policy) -> T) -> T {
        let start = Instant::now();
        let result = call(self.policy.as_ref());
        self.growing.set(self.growing.get() + start.elapsed());
        result
    }
}

impl Policy for TimedPolicy {
    fn may_grow(&self, path: &Path) -> bool {
        self.measure(|policy| policy.may_grow(path))
    }

    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
        self.measure(|policy| policy.draws(path, probs))
    }

    fn depth(&self) -> usize {
        self.policy.depth()
    }

    fn form(&self) -> Form {
        self.policy.form()
    }

    fn observe(&mut self, draft: &Draft, outcome: &Outcome) {
        let start = Instant::now();
        self.policy.observe(draft, outcome);
        self.observing += start.elapsed();
    }
}

/// Returns per step: microseconds of growing the tree, microseconds of the update, number of nodes,
/// and the fraction of steps with draft passes.
fn time(tree: &str, costs: &Costs, agreement: f64) -> polydraft::Result<[f64; 4]> {
    let mut kind: PolicyKind = tree.parse()?;
    kind.auto_mut().expect("auto").costs = costs.clone();
    let mut timed =
        TimedPolicy { policy: kind.build()?, growing: Cell::default(), observing: Duration::ZERO };
    let mut verifier = "nested-priority".parse::<VerifierKind>()?.build()?;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let pair = random_pair(4, 4, agreement, false, &mut rng)?;
    let (target, drafter) = (LastTokens(&pair.target), LastTokens(&pair.draft));
    let (mut nodes, mut drafted) = (0, 0);
    for step in 0..STEPS {
        if step % 64 == 0 {
            timed.policy = kind.build()?;
        }
        let context_length = 256 + step % 64;
        timed.policy.begin_step(&StepContext {
            batch_size: 1,
            context_length,
            ..StepContext::default()
        });
        let draft = draw(&timed, &drafter, &mut rng)?;
        nodes += draft.tree().len() - 1;
        drafted += usize::from(!draft.pass_sizes().is_empty());
        let outcome =
            verifier.verify(&draft, &NodeTargets::new(draft.tree(), &target), &mut rng)?;
        timed.observe(&draft, &outcome);
    }
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / STEPS as f64;
    let per_step = |count: usize| count as f64 / STEPS as f64;
    Ok([micros(timed.growing.get()), micros(timed.observing), per_step(nodes), per_step(drafted)])
}

fn main() -> polydraft::Result<()> {
    // SmolLM2 in f32 with its quantised self-draft, measured on an EPYC.
    let target = [(1, 1.0), (3, 1.0), (5, 1.04), (6, 1.14), (8, 1.22), (16, 1.94), (32, 3.37)];
    let draft = [(1, 0.27), (4, 0.29), (32, 1.85)];
    let pass = |&(tokens, seconds): &(usize, f64)| Pass { tokens, seconds, longer: 1e-4 };
    let passes = |known: &[(usize, f64)]| Passes(known.iter().map(pass).collect());
    let (target, draft) = (passes(&target), passes(&draft));
    let costs = Costs { target, draft, rejected: 0.3, ..Costs::default() };
    println!(
        "{:8} {:>9} {:>8} {:>9} {:>6} {:>7}",
        "tree", "agreement", "growing", "observing", "nodes", "drafted"
    );
    for tree in ["auto", "auto:4"] {
        for agreement in [0.2, 0.6, 0.9] {
            let [growing, observing, nodes, drafted] = time(tree, &costs, agreement)?;
            println!(
                "{tree:8} {agreement:9.1} {growing:5.1} us {observing:6.1} us {nodes:6.2} \
                 {drafted:7.2}"
            );
        }
    }
    Ok(())
}
