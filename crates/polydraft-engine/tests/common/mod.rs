//! Random table models, and the distribution that the decode loop emits with them.

use std::collections::BTreeMap;

use polydraft::{PolicyKind, RandomSource, Sampling, Token, Verifier, VerifierKind, enumerate};
use polydraft_engine::certify::distribution_after;
use polydraft_engine::{Engine, Limits, Model, ModelDrafter, Request, Speculation, TableModel};
use rand::RngExt;
use rand_chacha::ChaCha12Rng;

/// Creates a random model of all contexts up to `memory` tokens; every third distribution has zeros
/// or a tie.
pub fn random_model(rng: &mut ChaCha12Rng, vocabulary: usize, memory: usize) -> TableModel {
    let mut contexts: Vec<Vec<Token>> = vec![Vec::new()];
    let mut next = BTreeMap::new();
    for _ in 0..=memory {
        for context in &contexts {
            let mut probs: Vec<f64> = (0..vocabulary).map(|_| -rng.random::<f64>().ln()).collect();
            match rng.random_range(0..6) {
                0 if vocabulary > 1 => probs[rng.random_range(0..vocabulary)] = 0.0,
                1 => probs = vec![1.0; vocabulary],
                _ => {}
            }
            let sum: f64 = probs.iter().sum();
            let probs = probs.iter().map(|p| p / sum).collect();
            next.insert(context.clone(), probs);
        }
        contexts = contexts
            .iter()
            .flat_map(|c| (0..vocabulary as Token).map(move |t| [&[t][..], c].concat()))
            .collect();
    }
    TableModel::new("random", vocabulary, next).unwrap()
}

/// Returns the target's distribution of the next `count` tokens after `prompt`, from its logits.
pub fn target_distribution(
    model: &mut dyn Model,
    sampling: &Sampling,
    prompt: &[Token],
    count: usize,
) -> BTreeMap<Vec<Token>, f64> {
    let mut all = BTreeMap::from([(Vec::new(), 1.0)]);
    for _ in 0..count {
        let mut longer = BTreeMap::new();
        for (tokens, probability) in all {
            let probs = distribution_after(model, sampling, &[prompt, &tokens].concat()).unwrap();
            for (token, p) in probs.support() {
                longer.insert([&tokens[..], &[token]].concat(), probability * p);
            }
        }
        all = longer;
    }
    all
}

/// Settings of decoding.
#[derive(Clone)]
pub struct Setup {
    pub kind: VerifierKind,
    pub tree: PolicyKind,
    pub target: Sampling,
    pub draft: Sampling,
}

pub fn setup(kind: &str, tree: PolicyKind) -> Setup {
    let plain = Sampling::default();
    Setup { kind: kind.parse().unwrap(), tree, target: plain, draft: plain }
}

pub fn engine(target: &TableModel, draft: &TableModel) -> Engine {
    let drafter = ModelDrafter::new(Box::new(draft.clone()), &target.info().vocabulary).unwrap();
    Engine::new(Box::new(target.clone()), Some(Box::new(drafter)))
}

impl Setup {
    pub fn request<'c>(
        &self,
        verifier: Box<dyn Verifier>,
        prompt: &[Token],
        count: usize,
        rng: impl RandomSource + Send + 'c,
    ) -> Request<'c> {
        let policy = self.tree.build().unwrap();
        // Each further draft has a higher temperature.
        let at = |number| Sampling {
            temperature: self.draft.temperature * (1.0 + number as f64),
            ..self.draft
        };
        let each = (0..policy.form().distinct()).map(at).collect();
        let speculation = Speculation::new(verifier, policy).unwrap().with_sampling(self.draft);
        let speculation = speculation.with_draft_samplings(each).unwrap();
        Request::new(prompt)
            .sampling(self.target)
            .speculation(speculation)
            // The limit ends the last step early, which must not change the distribution.
            .limits(Limits::tokens(count))
            .rng(rng)
    }

    /// Returns the largest deviation of the loop's distribution of the next `count` tokens from the
    /// target's.
    pub fn deviation(
        &self,
        engine: &mut Engine,
        verifier: &dyn Fn() -> Box<dyn Verifier>,
        prompt: &[Token],
        count: usize,
    ) -> f64 {
        let mut expected = target_distribution(engine.target(), &self.target, prompt, count);
        let mut total = 0.0;
        for (probability, tokens) in enumerate(|rng| {
            let request = self.request(verifier(), prompt, count, rng);
            engine.generate(request, &mut |_| true).unwrap().tokens
        }) {
            total += probability;
            *expected.entry(tokens).or_insert(0.0) -= probability;
        }
        assert!((total - 1.0).abs() < 1e-12, "{total}");
        expected.values().fold(0.0, |worst, d| worst.max(d.abs()))
    }

    pub fn exact(&self, engine: &mut Engine, prompt: &[Token], count: usize) -> f64 {
        self.deviation(engine, &|| self.kind.build().unwrap(), prompt, count)
    }
}
