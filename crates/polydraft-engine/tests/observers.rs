//! Observers get every committed step, and do not change the output.

use std::sync::mpsc::{Sender, channel};

use polydraft::{PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::observer::{CommittedStep, StepObserver, VerifiedStep};
use polydraft_engine::{
    Engine, Finish, Limits, Model, ModelDrafter, Request, Result, Speculation, TableModel, score,
};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

const TARGET: &str = r#"{"vocabulary": 4, "next": {
    "": [0.4, 0.3, 0.2, 0.1], "0": [0.1, 0.8, 0.05, 0.05], "1": [0.1, 0.1, 0.7, 0.1],
    "2": [0.7, 0.1, 0.1, 0.1]}}"#;
const DRAFT: &str = r#"{"vocabulary": 4, "next": {
    "": [0.3, 0.3, 0.3, 0.1], "0": [0.2, 0.6, 0.1, 0.1], "1": [0.1, 0.2, 0.6, 0.1]}}"#;

fn table(json: &str) -> TableModel {
    TableModel::from_json("table", json).unwrap()
}

fn engine() -> Engine {
    let (target, draft) = (table(TARGET), table(DRAFT));
    let drafter = ModelDrafter::new(Box::new(draft), &target.info().vocabulary).unwrap();
    Engine::new(Box::new(target), Some(Box::new(drafter)))
}

fn request(limits: Limits, seed: u64) -> Request<'static> {
    let verifier = "nested-priority".parse::<VerifierKind>().unwrap().build().unwrap();
    let policy = PolicyKind::paths(2, 4).build().unwrap();
    // Scores are independent of this temperature.
    Request::new([1])
        .sampling(Sampling { temperature: 0.8, ..Sampling::default() })
        .speculation(Speculation::new(verifier, policy).unwrap())
        .limits(limits)
        .rng(ChaCha12Rng::seed_from_u64(seed))
}

/// Ends at different positions within a step, and takes the scores in parts.
#[test]
fn recorded_scores_match_rescoring() {
    let mut ends = 0;
    for seed in 0..20 {
        let mut engine = engine();
        let limits = Limits { end_tokens: vec![3], ..Limits::tokens(10 + seed as usize) };
        let mut session = engine.open(request(limits, seed)).unwrap();
        session.record_scores(2);
        engine.step(&mut [&mut session]).unwrap();
        let mut scores = session.take_scores();
        assert_eq!(scores.len(), session.tokens().len());
        let generation = engine.complete(session, &mut |_| true).unwrap();
        scores.extend(generation.scores);
        let tokens = [&[1][..], &generation.tokens].concat();
        assert_eq!(scores, score(&mut table(TARGET), &tokens, 1, 2, &mut |_| true).unwrap());
        ends += usize::from(generation.finish == Finish::End);
    }
    assert!((1..20).contains(&ends), "{ends}");
}

enum Event {
    Verified(Vec<Token>),
    Committed(Vec<Token>),
}

struct Forwarder(Sender<Event>);

impl StepObserver for Forwarder {
    fn verified(&mut self, step: &VerifiedStep) -> Result<()> {
        for (node, _) in step.decided() {
            let probs = step.distribution(node)?;
            assert_eq!(probs.argmax() as usize, argmax(step.logits(node)));
        }
        let tokens = step.decided().map(|(_, token)| token).collect();
        let _ = self.0.send(Event::Verified(tokens));
        Ok(())
    }

    fn committed(&mut self, step: &CommittedStep) {
        let tokens = step.emitted.iter().map(|emitted| emitted.token).collect();
        let _ = self.0.send(Event::Committed(tokens));
    }
}

fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

#[test]
fn observers_get_every_step_and_keep_output() {
    let mut engine = engine();
    let limits = || Limits::tokens(31);
    let plain = engine.generate(request(limits(), 5), &mut |_| true).unwrap();
    let mut session = engine.open(request(limits(), 5)).unwrap();
    let (sender, events) = channel();
    session.add_observer(Forwarder(sender));
    let generation = engine.complete(session, &mut |_| true).unwrap();
    assert_eq!(generation.tokens, plain.tokens);
    let events: Vec<Event> = events.iter().collect();
    assert_eq!(events.len(), 2 * generation.statistics.target_calls);
    let mut tokens: Vec<Token> = Vec::new();
    for step in events.chunks(2) {
        let [Event::Verified(decided), Event::Committed(emitted)] = step else { panic!("order") };
        assert!(decided.starts_with(emitted));
        tokens.extend(emitted);
    }
    assert_eq!(tokens, generation.tokens);
}

#[test]
fn failing_observer_ends_only_its_session() {
    struct Failing;
    impl StepObserver for Failing {
        fn verified(&mut self, _: &VerifiedStep) -> Result<()> {
            Err(polydraft::Error::Text("planted".to_owned()).into())
        }
    }
    let mut engine = engine();
    let mut broken = engine.open(request(Limits::tokens(20), 1)).unwrap();
    let mut other = engine.open(request(Limits::tokens(20), 2)).unwrap();
    broken.add_observer(Failing);
    while !other.is_done() {
        engine.step(&mut [&mut broken, &mut other]).unwrap();
    }
    assert!(broken.tokens().is_empty());
    assert!(engine.close(broken).unwrap_err().to_string().contains("planted"));
    let tokens = engine.close(other).unwrap().tokens;
    let alone = engine.generate(request(Limits::tokens(20), 2), &mut |_| true).unwrap();
    assert_eq!(tokens, alone.tokens);
}
