//! Cost of rules, from probabilities to an emitted token, in units of the softmax of two logit
//! vectors, which any verifier pays. All tasks of a row take turns within one run. Each time is the
//! minimum of many; for rules it is the mean of that over several emissions, each with its own
//! drafts.
//!
//! `cargo bench -p polydraft --bench ratios [-- VOCABULARY…]`

mod common;

use common::{SHAPES, VOCABULARIES, logits};
use polydraft::coupling::priority::{Form, Settings};
use polydraft::coupling::{Problem, Rule};
use polydraft::{Distribution, Proposal, RuleKind, Sampling, acceptance, couple};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

/// A textbook softmax in single precision.
fn softmax(logits: &[f32], out: &mut [f32]) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for (x, y) in logits.iter().zip(&mut *out) {
        *y = (x - max).exp();
        sum += *y;
    }
    out.iter_mut().for_each(|y| *y /= sum);
}

/// Adds up both arrays: the lower bound of any task that reads them.
fn read(p: &[f64], q: &[f64]) -> [f64; 8] {
    let mut lanes = [0.0; 8];
    for (p, q) in p.as_chunks::<8>().0.iter().zip(q.as_chunks::<8>().0) {
        for i in 0..8 {
            lanes[i] += p[i] + q[i];
        }
    }
    lanes
}

/// Emissions per cell of the table; the cost depends on whether the drafts are accepted.
const EMISSIONS: usize = 12;

/// The minimum time of each task, in seconds, over `rounds` in which the tasks take turns.
fn time(rounds: usize, tasks: &mut [Box<dyn FnMut() + '_>]) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; tasks.len()];
    for _ in 0..rounds {
        for (task, best) in tasks.iter_mut().zip(&mut best) {
            let start = Instant::now();
            task();
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    best
}

/// `recursive` has two columns, mean and most expensive emission, because each rejected draft costs
/// a pass.
const HEADER: &str = "      V   shape  n  unit µs | textbook  read | \
     pooled  exact  k-seq recursive   max |  optimum  pooled's loss";

fn main() {
    let selected: Vec<usize> =
        std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find(|line| line.starts_with("model name")).unwrap_or("model name: unknown");
    println!("{model}; {} {}, one thread", std::env::consts::OS, std::env::consts::ARCH);
    println!(
        "unit: the softmax pair by Distribution::from_logits (µs); all else in multiples of it"
    );
    println!("{HEADER}");
    let rules: Vec<RuleKind> = vec![
        RuleKind::Priority(Settings { form: Form::Pooled, ..Settings::default() }),
        RuleKind::Priority(Settings { form: Form::Exact, ..Settings::default() }),
        "k-seq".parse().expect("a rule"),
        "recursive".parse().expect("a rule"),
    ];
    for vocabulary in VOCABULARIES {
        if !selected.is_empty() && !selected.contains(&vocabulary) {
            continue;
        }
        for shape in SHAPES {
            let (target_logits, draft_logits) = logits(shape, vocabulary, 1);
            let plain = Sampling::default();
            let target = Distribution::from_logits(&target_logits, &plain).expect("a distribution");
            let draft = Distribution::from_logits(&draft_logits, &plain).expect("a distribution");
            let (p, q) = (target.to_vec(), draft.to_vec());
            for count in [2, 4, 8] {
                let problem = Problem::new(&target, Proposal::iid(&draft, count).expect("drafts"))
                    .expect("a problem");
                let optimum = acceptance::optimal(&problem).expect("a formula");
                let mut built: Vec<Box<dyn Rule>> =
                    rules.iter().map(|rule| rule.build().expect("valid")).collect();
                // Checks the results before measuring times.
                let mut rng = ChaCha8Rng::seed_from_u64(2);
                let reached: Vec<f64> = built
                    .iter_mut()
                    .map(|rule| {
                        couple(rule.as_mut(), problem)
                            .expect("supported")
                            .acceptance(&mut rng)
                            .probability
                    })
                    .collect();
                assert!((optimum - reached[1]).abs() < 1e-9, "exact: {} {optimum}", reached[1]);
                assert!(reached.iter().all(|a| *a <= optimum + 1e-9));

                let (mut a, mut b) = (target.clone(), draft.clone());
                let (mut c, mut d) = (vec![0.0; vocabulary], vec![0.0; vocabulary]);
                let emitters: Vec<_> = built.iter_mut().map(RefCell::new).collect();
                let mut tasks: Vec<Box<dyn FnMut()>> = vec![
                    Box::new(|| {
                        a.set_from_logits(black_box(&target_logits), &plain)
                            .expect("a distribution");
                        b.set_from_logits(black_box(&draft_logits), &plain)
                            .expect("a distribution");
                    }),
                    Box::new(|| {
                        softmax(black_box(&target_logits), &mut c);
                        softmax(black_box(&draft_logits), &mut d);
                    }),
                    Box::new(|| {
                        black_box(read(black_box(&p), black_box(&q)));
                    }),
                ];
                for rule in &emitters {
                    for seed in 0..EMISSIONS {
                        let mut drafts = Vec::new();
                        tasks.push(Box::new(move || {
                            let mut rng = ChaCha8Rng::seed_from_u64(seed as u64);
                            problem.proposal.draw(&mut rng, &mut drafts);
                            let mut rule = rule.borrow_mut();
                            let mut coupling =
                                couple(rule.as_mut(), black_box(problem)).expect("supported");
                            black_box(coupling.emit(&drafts, &mut rng).expect("drawn"));
                        }));
                    }
                }
                let rounds = if vocabulary > 100_000 { 12 } else { 40 };
                let times = time(rounds, &mut tasks);
                let mut r: Vec<f64> = times[..3].iter().map(|time| time / times[0]).collect();
                let mean =
                    |emissions: &[f64]| emissions.iter().sum::<f64>() / EMISSIONS as f64 / times[0];
                r.extend(times[3..].chunks(EMISSIONS).map(mean));
                r.push(
                    times[times.len() - EMISSIONS..].iter().fold(0.0_f64, |a, b| a.max(*b))
                        / times[0],
                );
                println!(
                    "{vocabulary:>7} {:>7} {count:>2} {:>8.1} | {:>8.2} {:>5.2} | \
                     {:>6.2} {:>6.2} {:>6.2} {:>9.2} {:>5.2} | {optimum:>8.6} {:>8.1e}",
                    format!("{shape:?}"),
                    times[0] * 1e6,
                    r[1],
                    r[2],
                    r[3],
                    r[4],
                    r[5],
                    r[6],
                    r[7],
                    optimum - reached[0]
                );
            }
        }
    }
}
