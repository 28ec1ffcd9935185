//! Failing models: a retried step keeps the distribution, and a failure of one session does not
//! affect others.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use polydraft::random::Outcomes;
use polydraft::{
    Distribution, Draft, DraftTree, Draws, Form, Growth, NodeId, Outcome, Path, Policy, PolicyKind,
    RandomSource, StepContext, TargetDistributions, Token, Verifier, VerifierKind, enumerate,
};
use polydraft_engine::model::too_many_sequences;
use polydraft_engine::{
    Detokenizer, Engine, Error, Limits, LogitsProcessor, Model, ModelDrafter, ModelInfo, Request,
    Result, Sequence, Sequences, Session, Speculation, Statistics, TableModel,
};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

/// The call that fails.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// The second score, after the nodes were computed.
    Score,
    /// The first commit of this sequence.
    Commit(usize),
    /// The first commit of this sequence, with a panic.
    Panic(usize),
    /// Every call of `logits` returns NaN.
    Logits,
    /// The first query for forced tokens, with a panic.
    Certain,
}

/// A table model with one planted fault.
struct Flaky {
    inner: TableModel,
    info: ModelInfo,
    open: usize,
    fault: Fault,
    scores: usize,
    failed: bool,
}

impl Flaky {
    fn new(inner: TableModel, fault: Fault) -> Self {
        let info = inner.info().clone();
        Self { inner, info, open: 0, fault, scores: 0, failed: false }
    }

    fn fail(&mut self) -> Result<()> {
        self.failed = true;
        Err(polydraft::Error::Text("planted".to_owned()).into())
    }
}

impl Sequences for Flaky {
    fn open(&mut self) -> Result<Sequence> {
        if self.open == self.info.max_sequences {
            return too_many_sequences(&self.info);
        }
        self.open += 1;
        self.inner.open()
    }

    fn close(&mut self, sequence: Sequence) {
        self.open -= 1;
        self.inner.close(sequence);
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.inner.len(sequence)
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        self.inner.extend(sequence, tokens)
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        self.inner.truncate(sequence, length);
    }

    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        self.inner.prepare(sequence, most)
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        self.inner.score(batch)?;
        self.scores += 1;
        if self.fault == Fault::Score && self.scores == 2 && !self.failed {
            self.fail()
        } else {
            Ok(())
        }
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.inner.commit(sequence, tree, path)?;
        let (current, failed) = (sequence.number(), self.failed);
        match self.fault {
            Fault::Commit(number) if number == current && !failed => self.fail(),
            Fault::Panic(number) if number == current && !failed => {
                self.failed = true;
                panic!("planted")
            }
            _ => Ok(()),
        }
    }
}

impl Model for Flaky {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        if self.fault == Fault::Logits { &[f32::NAN; 2] } else { self.inner.logits(sequence, node) }
    }
}

fn table(first: f64, after_zero: f64) -> TableModel {
    let distributions = [(vec![], first), (vec![0], after_zero)];
    let next = distributions
        .into_iter()
        .map(|(context, p)| (context, vec![p, 1.0 - p]))
        .collect::<BTreeMap<_, _>>();
    TableModel::new("table", 2, next).unwrap()
}

fn engine(fault: Fault) -> Engine {
    let target = Flaky::new(table(0.9, 0.3), fault);
    let drafter = ModelDrafter::new(Box::new(table(0.5, 0.6)), &target.info().vocabulary).unwrap();
    Engine::new(Box::new(target), Some(Box::new(drafter)))
}

fn request<'c>(rng: impl RandomSource + Send + 'c, max_tokens: usize) -> Request<'c> {
    let verifier: VerifierKind = "nested-priority".parse().unwrap();
    let policy = PolicyKind::paths(2, 2).build().unwrap();
    Request::new([1])
        .speculation(Speculation::new(verifier.build().unwrap(), policy).unwrap())
        .limits(Limits::tokens(max_tokens))
        .rng(rng)
}

#[test]
fn same_distribution_after_failed_pass() {
    let mut probs = BTreeMap::<Vec<Token>, f64>::new();
    for (probability, tokens) in enumerate(|rng| {
        let mut engine = engine(Fault::Score);
        let mut session = engine.open(request(rng, 3)).unwrap();
        let mut failures = 0;
        while !session.is_done() {
            failures += usize::from(engine.step(&mut [&mut session]).is_err());
        }
        // The sequence may end in the first step.
        assert!(failures <= 1);
        engine.close(session).unwrap().tokens
    }) {
        *probs.entry(tokens).or_default() += probability;
    }
    let p = |last: Token, token: Token| {
        let zero = if last == 0 { 0.3 } else { 0.9 };
        if token == 0 { zero } else { 1.0 - zero }
    };
    for (tokens, probability) in &probs {
        let expected = p(1, tokens[0]) * p(tokens[0], tokens[1]) * p(tokens[1], tokens[2]);
        assert!((probability - expected).abs() < 1e-7, "{tokens:?}: {probability} {expected}");
    }
    assert_eq!(probs.len(), 8);
}

#[test]
fn failed_commit_ends_only_its_session() {
    let seeded = ChaCha12Rng::seed_from_u64;
    let mut engine = engine(Fault::Commit(0));
    let mut broken = engine.open(request(seeded(1), 20)).unwrap();
    let mut other = engine.open(request(seeded(2), 20)).unwrap();
    while !other.is_done() {
        engine.step(&mut [&mut broken, &mut other]).unwrap();
    }
    assert!(broken.failure().is_some() && broken.finish().is_none());
    assert!(engine.close(broken).unwrap_err().to_string().contains("planted"));
    let tokens = engine.close(other).unwrap().tokens;
    assert_eq!(tokens, engine.generate(request(seeded(2), 20), &mut |_| true).unwrap().tokens);
}

/// Draws as many paths of one token as there are sessions, and one more for every observed step.
struct BatchSizePolicy(usize, usize);

impl Policy for BatchSizePolicy {
    fn draws(&self, _: &Path, _: &Distribution) -> Option<Growth> {
        Some(Growth::Fresh(Draws::iid(self.0 + self.1)))
    }

    fn depth(&self) -> usize {
        1
    }

    fn form(&self) -> Form {
        Form::paths(64)
    }

    fn begin_step(&mut self, context: &StepContext) {
        self.0 = context.batch_size;
    }

    fn observe(&mut self, _: &Draft, _: &Outcome) {
        self.1 += 1;
    }
}

/// An rng whose state can be restored.
#[derive(Clone)]
struct RestorableRng(Arc<Mutex<ChaCha12Rng>>);

impl RandomSource for RestorableRng {
    fn coin(&mut self, probability: f64) -> bool {
        self.0.lock().unwrap().coin(probability)
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        self.0.lock().unwrap().choose(outcomes)
    }
}

/// Emits a token of the target's distribution, and reports a fallback each time.
struct Counting(u64);

impl Verifier for Counting {
    fn supports(&self, _: &Form) -> polydraft::Result<()> {
        Ok(())
    }

    fn verify(
        &mut self,
        _: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> polydraft::Result<Outcome> {
        self.0 += 1;
        Ok(Outcome { accepted: Vec::new(), token: target.target(DraftTree::ROOT)?.sample(rng) })
    }

    fn fallbacks(&self) -> u64 {
        self.0
    }
}

/// Changes nothing, and panics in the first query for forced tokens.
struct PanicsOnce(AtomicBool);

impl LogitsProcessor for PanicsOnce {
    fn process(&self, _: &[Token], _: &[Token], _: &mut [f32]) {}

    fn forced(&self, _: &[Token]) -> Vec<Token> {
        assert!(!self.0.swap(false, Ordering::Relaxed), "planted");
        Vec::new()
    }
}

/// A panic in either session's commit, or before the target pass: after restoring the rngs both
/// outputs are unchanged.
#[test]
fn same_output_after_panic_and_restore() {
    let outputs = |fault: Fault| {
        let mut engine = engine(fault);
        let generators = [1, 2]
            .map(|seed| RestorableRng(Arc::new(Mutex::new(ChaCha12Rng::seed_from_u64(seed)))));
        let mut sessions = generators.each_ref().map(|generator| {
            let speculation =
                Speculation::new(Box::new(Counting(0)), Box::new(BatchSizePolicy(1, 0))).unwrap();
            engine.open(request(generator.clone(), 12).speculation(speculation)).unwrap()
        });
        sessions[0].record_traces(1);
        sessions[1].set_processor(Box::new(PanicsOnce((fault == Fault::Certain).into())));
        while !sessions.iter().all(Session::is_done) {
            let before = generators.each_ref().map(|generator| generator.0.lock().unwrap().clone());
            let [one, other] = &mut sessions;
            if catch_unwind(AssertUnwindSafe(|| {
                engine.step(&mut [&mut *one, &mut *other]).unwrap()
            }))
            .is_ok()
            {
                continue;
            }
            for ((session, generator), before) in sessions.iter_mut().zip(&generators).zip(before) {
                *generator.0.lock().unwrap() = before;
                engine.restore(session, &[1]).unwrap();
                engine.step(&mut [session]).unwrap();
            }
        }
        sessions.map(|mut session| {
            let steps = session.take_traces().len();
            let done = engine.close(session).unwrap();
            assert_eq!(done.statistics.fallbacks, done.statistics.target_calls as u64);
            (done.tokens, done.statistics.target_calls, steps)
        })
    };
    let other = outputs(Fault::Commit(usize::MAX));
    assert_eq!(outputs(Fault::Panic(0)), other);
    assert_eq!(outputs(Fault::Panic(1)), other);
    assert_eq!(outputs(Fault::Certain), other);
}

/// A drafter that supports one sequence admits one session; a restored session reuses its slot.
#[test]
fn drafter_limits_open_sequences() {
    let (target, mut draft) = (table(0.9, 0.3), Flaky::new(table(0.5, 0.6), Fault::Panic(0)));
    draft.info.max_sequences = 1;
    let drafter = ModelDrafter::new(Box::new(draft), &target.info().vocabulary).unwrap();
    let mut engine = Engine::new(Box::new(target), Some(Box::new(drafter)));
    assert_eq!(engine.max_sequences(), 1);
    let new_request = || request(ChaCha12Rng::seed_from_u64(1), 12);
    let mut session = engine.open(new_request()).unwrap();
    assert!(matches!(engine.open(new_request()), Err(Error::TooManySequences { .. })));
    assert!(catch_unwind(AssertUnwindSafe(|| engine.step(&mut [&mut session]).unwrap())).is_err());
    engine.restore(&mut session, &[1]).unwrap();
    while !session.is_done() {
        engine.step(&mut [&mut session]).unwrap();
    }
    assert_eq!(engine.close(session).unwrap().tokens.len(), 12);
}

/// One path of one token; panics when it observes a step.
struct Explosive;

impl Policy for Explosive {
    fn draws(&self, _: &Path, _: &Distribution) -> Option<Growth> {
        Some(Growth::Fresh(Draws::iid(1)))
    }

    fn depth(&self) -> usize {
        1
    }

    fn form(&self) -> Form {
        Form::paths(1)
    }

    fn observe(&mut self, _: &Draft, _: &Outcome) {
        panic!("planted")
    }
}

impl Detokenizer for Explosive {
    fn push(&mut self, _: Token) -> polydraft::Result<String> {
        panic!("planted")
    }

    fn finish(&mut self) -> polydraft::Result<String> {
        Ok(String::new())
    }
}

impl LogitsProcessor for Explosive {
    fn process(&self, _: &[Token], _: &[Token], _: &mut [f32]) {}

    fn forced(&self, _: &[Token]) -> Vec<Token> {
        vec![0]
    }
}

/// A session interrupted while a step was applied to it cannot be restored; the other session of
/// the batch continues with unchanged output.
#[test]
fn rejects_restore_after_panic_during_commit() {
    for is_certain in [false, true] {
        panic_during_commit(is_certain);
    }
}

/// Panics while a session applies a step's decision or, if `is_certain`, a forced token.
fn panic_during_commit(is_certain: bool) {
    let mut engine = engine(Fault::Commit(usize::MAX));
    let before = ChaCha12Rng::seed_from_u64(2);
    let generator = RestorableRng(Arc::new(Mutex::new(before.clone())));
    let new_request = request(ChaCha12Rng::seed_from_u64(1), 12);
    let verifier = "nested-priority".parse::<VerifierKind>().unwrap().build().unwrap();
    let new_request = match is_certain {
        true => new_request.detokenizer(Explosive),
        false => new_request.speculation(Speculation::new(verifier, Box::new(Explosive)).unwrap()),
    };
    let mut broken = engine.open(new_request).unwrap();
    if is_certain {
        broken.set_processor(Box::new(Explosive));
    }
    let mut other = engine.open(request(generator.clone(), 12)).unwrap();
    assert!(
        catch_unwind(AssertUnwindSafe(|| engine.step(&mut [&mut broken, &mut other]).unwrap()))
            .is_err()
    );
    assert!(matches!(engine.restore(&mut broken, &[1]), Err(Error::Interrupted)));
    engine.close(broken).unwrap();

    *generator.0.lock().unwrap() = before.clone();
    engine.restore(&mut other, &[1]).unwrap();
    while !other.is_done() {
        engine.step(&mut [&mut other]).unwrap();
    }
    let tokens = engine.close(other).unwrap().tokens;
    assert_eq!(tokens, engine.generate(request(before, 12), &mut |_| true).unwrap().tokens);
}

#[test]
fn nan_logits_of_the_target_are_an_error_and_of_the_draft_are_noted() {
    let faulty = || Flaky::new(table(0.9, 0.3), Fault::Logits);
    let sound = || table(0.9, 0.3);
    let drafter =
        |model: Box<dyn Model>| ModelDrafter::new(model, &sound().info().vocabulary).unwrap();
    let output = |mut engine: Engine| {
        let seeded = ChaCha12Rng::seed_from_u64(1);
        engine.generate(request(seeded, 5), &mut |_| true)
    };
    let target = Engine::new(Box::new(faulty()), Some(Box::new(drafter(Box::new(sound())))));
    let draft = Engine::new(Box::new(sound()), Some(Box::new(drafter(Box::new(faulty())))));
    assert!(
        output(target)
            .unwrap_err()
            .to_string()
            .starts_with("the logits of the target table: distribution from logits: entry 0")
    );
    let generation = output(draft).unwrap();
    let Statistics { invalid_drafts, draft_problem, nodes, .. } = generation.statistics;
    // Nothing is drafted for the last token.
    assert_eq!((generation.tokens.len(), invalid_drafts, nodes), (5, 4, 0));
    let expected = "the logits of the draft table: distribution from logits: entry 0";
    assert!(draft_problem.unwrap().starts_with(expected));
}
