//! Is the output the target's own? As the program's `certify` finds out, seed for seed.

use std::sync::Mutex;

use polydraft::conformance::statistics::GTest;
use polydraft::{DraftTree, Sampling, Token};
use polydraft_engine::certify::{Counts, WrongResidual, compare, count_sequences};
use polydraft_engine::{Engine, Limits, Model, Request};
use pyo3::prelude::*;
use rand::Rng;

use crate::arguments::Seed;
use crate::distribution::PySampling;
use crate::drafting::Drafting;
use crate::engine::PyEngine;
use crate::errors::{Failure, Result, lock};
use crate::names::Named;
use crate::random::seeded;
use crate::threads::work;
use crate::verify::{self, PyVerifier};

/// Result of a test of losslessness. `verdict`: `pass`, `fail`, or `not-enough-data`; the G-test of
/// the first tokens' joint distribution: its `statistic`, `freedom` and `p_value`; and at
/// temperature 0 the sequences that were equal to plain decoding's (`greedy_equal`), diverged at a
/// tie within rounding (`greedy_ties`) or differed (`greedy_different`).
#[pyclass(name = "Certificate", module = "polydraft", frozen, get_all)]
pub struct PyCertificate {
    verdict: &'static str,
    statistic: f64,
    freedom: usize,
    p_value: f64,
    greedy_equal: usize,
    greedy_ties: usize,
    greedy_different: usize,
}

#[pymethods]
impl PyCertificate {
    fn __repr__(&self) -> String {
        let Self { verdict, statistic, freedom, p_value, .. } = self;
        format!(
            "Certificate('{verdict}', G={statistic:.1}, freedom={freedom}, p_value={p_value:.1e})"
        )
    }
}

/// With fewer degrees of freedom the test can hardly fail.
const ENOUGH: usize = 20;
/// Largest difference between logits that only differ by rounding.
const ROUNDING: f32 = 1e-3;

/// Settings of a test.
struct Test<'a> {
    verifier: &'a PyVerifier,
    drafting: Drafting,
    sampling: Sampling,
    plant_fault: bool,
}

impl Test<'_> {
    fn request(
        &self,
        prompt: &[Token],
        sampling: Sampling,
        max_tokens: Option<usize>,
        seed: u64,
    ) -> Result<Request<'static>> {
        let mut verifier = self.verifier.build()?;
        if self.plant_fault {
            verifier = Box::new(WrongResidual(verifier));
        }
        Ok(Request::new(prompt)
            .sampling(sampling)
            .speculation(self.drafting.verified_by(verifier)?)
            .limits(Limits { max_tokens, ..Limits::default() })
            .rng(seeded(seed)))
    }

    /// Where the sequence at temperature 0 diverges from plain decoding's, how far apart the logits
    /// of the two tokens are.
    fn greedy(
        &self,
        engine: &mut Engine,
        prompt: &[Token],
        tokens: usize,
        seed: u64,
    ) -> Result<Option<f32>> {
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let with = self.request(prompt, sampling, Some(tokens), seed)?;
        let plain = self.request(prompt, sampling, Some(tokens), seed)?.speculation(None);
        let [plain, with] = [plain, with].map(|request| engine.generate(request, &mut |_| true));
        parting(engine.target(), prompt, &plain?.tokens, &with?.tokens)
    }

    /// Decodes the first `length` tokens `runs` times and compares their distribution with the
    /// target's.
    fn distribution(
        &self,
        engine: &Mutex<Engine>,
        prompt: &[Token],
        length: usize,
        runs: usize,
        seed: u64,
    ) -> Result<GTest> {
        let mut seeds = seeded(seed);
        // As in use: the limit does not end with the test.
        let mut next = |_| self.request(prompt, self.sampling, None, seeds.next_u64());
        let mut counts = Counts::new();
        for _ in 0..runs {
            interrupted()?;
            for (text, count) in
                count_sequences(&mut lock(engine), length, 1, &mut next, &mut || true)?
            {
                *counts.entry(text).or_default() += count;
            }
        }
        Ok(compare(lock(engine).target(), &self.sampling, prompt, length, &counts)?)
    }
}

/// Runs Python's signal handlers, which may end the test. Never while the engine is locked: a
/// handler may want it, if only to give back a session that it forgets.
fn interrupted() -> Result<()> {
    Ok(Python::attach(|py| py.check_signals())?)
}

/// Where two sequences diverge, how far apart the target's logits of the two tokens are; none if
/// they are equal.
fn parting(
    target: &mut dyn Model,
    prompt: &[Token],
    one: &[Token],
    other: &[Token],
) -> Result<Option<f32>> {
    let common = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (a, b) = match (one.get(common), other.get(common)) {
        (None, None) => return Ok(None),
        (Some(&a), Some(&b)) => (a as usize, b as usize),
        _ => return Ok(Some(f32::INFINITY)),
    };
    let sequence = target.open()?;
    let text = [prompt, &one[..common]].concat();
    let scored = target
        .extend(sequence, &text)
        .and_then(|()| target.score(&[(sequence, &DraftTree::new())]));
    let gap = scored.map(|()| {
        let logits = target.logits(sequence, DraftTree::ROOT);
        (logits[a] - logits[b]).abs()
    });
    target.close(sequence);
    Ok(Some(gap?))
}

/// Tests on an engine's own models that its output is the target's: at temperature 0 token for
/// token as plain decoding's (but for ties within rounding), and the joint distribution of the
/// `first` tokens after each prompt, decoded `runs` times, by a G-test. With several drafts the
/// tree is by default a path from each.
///
/// A lossless verifier fails with the probability `false_alarm`. `plant_fault` decodes wrongly on
/// purpose: then it must fail.
///
/// >>> engine = Engine(TableModel({(): [0.5, 0.3, 0.2]}), TableModel({(): [0.2, 0.3, 0.5]}))
/// >>> certify(engine, [[0]], runs=1000).verdict
/// 'pass'
/// >>> certify(engine, [[0]], runs=1000, plant_fault=True).verdict
/// 'fail'
#[pyfunction]
#[pyo3(signature = (
    engine, prompts, *, verifier="nested-priority".into(), tree=None,
    sampling=None, runs=2000, first=3, greedy_tokens=64, false_alarm=1e-3,
    seed=Seed(0),
    plant_fault=false
))]
#[pyo3(text_signature = "(engine, prompts, *, verifier='nested-priority', tree='paths:2,3', \
        sampling=None, runs=2000, first=3, greedy_tokens=64, false_alarm=0.001, seed=0, \
        plant_fault=False)")]
#[allow(clippy::too_many_arguments)]
pub fn certify(
    py: Python<'_>,
    engine: &PyEngine,
    prompts: &Bound<'_, PyAny>,
    verifier: Named<'_>,
    tree: Option<Named<'_>>,
    sampling: Option<PySampling>,
    runs: usize,
    first: usize,
    greedy_tokens: usize,
    false_alarm: f64,
    seed: Seed,
    plant_fault: bool,
) -> Result<PyCertificate> {
    let Seed(seed) = seed;
    let verifier = verify::given(&verifier.object(py)?)?;
    // A test of verifiers: one that drafts whatever it costs.
    let tree = tree.or((engine.drafters < 2).then(|| "paths:2,3".into()));
    let tree = tree.map(|tree| tree.object(py)).transpose()?;
    let sampling = sampling.unwrap_or_default().settings;
    let prompts: Vec<Vec<Token>> =
        prompts.try_iter()?.map(|prompt| engine.prompt(&prompt?)).collect::<Result<_>>()?;
    if prompts.is_empty() || first == 0 || runs == 0 || !(0.0..1.0).contains(&false_alarm) {
        return Err(Failure::input(
            "certify: expected at least one prompt, run and first token, and a false-alarm rate \
             below 1",
        ));
    }
    let verifier = verifier.get();
    let drafting =
        engine.drafting().with(py, &verifier.kind, tree.as_ref(), sampling, None, true)?;
    let test = Test { verifier, drafting, sampling, plant_fault };
    let greedy_only = sampling.temperature == 0.0;
    work(py, || {
        let engine = &engine.engine;
        let (mut probs, mut equal, mut ties, mut different) = (GTest::default(), 0, 0, 0);
        for (number, prompt) in prompts.iter().enumerate() {
            interrupted()?;
            match test.greedy(&mut lock(engine), prompt, greedy_tokens, seed)? {
                None => equal += 1,
                Some(gap) if gap <= ROUNDING => ties += 1,
                Some(_) => different += 1,
            }
            if !greedy_only {
                let seed = seed ^ (number as u64) << 32;
                probs = probs.combined(test.distribution(engine, prompt, first, runs, seed)?);
            }
        }
        let p_value = probs.p_value();
        let verdict = match () {
            () if p_value < false_alarm || different > 0 => "fail",
            () if !greedy_only && probs.degrees_of_freedom < ENOUGH => "not-enough-data",
            () => "pass",
        };
        Ok(PyCertificate {
            verdict,
            statistic: probs.statistic,
            freedom: probs.degrees_of_freedom,
            p_value,
            greedy_equal: equal,
            greedy_ties: ties,
            greedy_different: different,
        })
    })
}
