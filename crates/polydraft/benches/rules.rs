//! Time of each rule from probabilities to an emitted token. `cargo bench -p polydraft --bench
//! rules`

mod common;

use common::{SHAPES, Shape, VOCABULARIES, logits};
use divan::Bencher;
use polydraft::coupling::Problem;
use polydraft::coupling::priority::{Form, Settings};
use polydraft::{Distribution, Proposal, RuleKind, Sampling, couple};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn main() {
    divan::main();
}

/// Names of the rules; `priority` in both forms.
const RULES: [&str; 4] = ["pooled", "exact", "k-seq", "recursive"];

fn rule(name: &str) -> RuleKind {
    match name {
        "pooled" => RuleKind::Priority(Settings { form: Form::Pooled, ..Settings::default() }),
        "exact" => RuleKind::Priority(Settings { form: Form::Exact, ..Settings::default() }),
        other => other.parse().expect("a rule"),
    }
}

fn cases() -> Vec<(&'static str, usize, Shape, usize)> {
    let mut cases = Vec::new();
    for name in RULES {
        for vocabulary in VOCABULARIES {
            for shape in SHAPES {
                cases.extend([2, 4, 8].map(|count| (name, vocabulary, shape, count)));
            }
        }
    }
    cases
}

#[divan::bench(args = cases(), sample_count = 20)]
fn emit(bencher: Bencher, (name, vocabulary, shape, count): (&str, usize, Shape, usize)) {
    let (target, draft) = logits(shape, vocabulary, 1);
    let target = Distribution::from_logits(&target, &Sampling::default()).expect("a distribution");
    let draft = Distribution::from_logits(&draft, &Sampling::default()).expect("a distribution");
    let problem = Problem::new(&target, Proposal::iid(&draft, count).expect("drafts"))
        .expect("one vocabulary");
    let mut rule = rule(name).build().expect("valid settings");
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut drafts = Vec::new();
    bencher.bench_local(|| {
        problem.proposal.draw(&mut rng, &mut drafts);
        couple(rule.as_mut(), problem).expect("supported").emit(&drafts, &mut rng).expect("drawn")
    });
}

#[divan::bench(args = VOCABULARIES, sample_count = 50)]
fn softmax_pair(bencher: Bencher, vocabulary: usize) {
    let (target, draft) = logits(Shape::Peaked, vocabulary, 1);
    let plain = Sampling::default();
    let mut distributions = [&target, &draft]
        .map(|logits| Distribution::from_logits(logits, &plain).expect("a distribution"));
    bencher.bench_local(|| {
        distributions[0].set_from_logits(&target, &plain).expect("a distribution");
        distributions[1].set_from_logits(&draft, &plain).expect("a distribution");
    });
}
