//! Logits processors: the emitted distribution of the whole loop, by exact enumeration, is that of
//! plain decoding with the same processor.

use std::collections::BTreeMap;

use polydraft::{Distribution, PolicyKind, RandomSource, Sampling, Token, VerifierKind, enumerate};
use polydraft_engine::{
    AllowedTokens, Engine, Limits, LogitsProcessor, MinTokens, ModelDrafter, Penalties,
    RepetitionPenalty, Request, Speculation, TableModel,
};

const TARGET: &str = r#"{"vocabulary": 3, "next": {
    "": [0.5, 0.3, 0.2], "0": [0.2, 0.5, 0.3], "1": [0.6, 0.1, 0.3],
    "1 0": [0.1, 0.2, 0.7], "2 2": [0.3, 0.3, 0.4]}}"#;
const DRAFT: &str = r#"{"vocabulary": 3, "next": {
    "": [0.4, 0.4, 0.2], "0": [0.3, 0.3, 0.4], "2": [0.1, 0.8, 0.1]}}"#;
const PROMPT: [Token; 2] = [1, 0];

/// Forbids the last token; it depends on the order of tokens, as a grammar does.
struct NoRepetition;

impl LogitsProcessor for NoRepetition {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        if let Some(&last) = path.last().or(decided.last()) {
            logits[last as usize] = f32::NEG_INFINITY;
        }
    }
}

/// Forces 2 after 1 and 0 after 2; everything else is free.
struct Certain;

impl Certain {
    fn only(last: Option<&Token>) -> Option<Token> {
        match last {
            Some(1) => Some(2),
            Some(2) => Some(0),
            _ => None,
        }
    }
}

impl LogitsProcessor for Certain {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        if let Some(only) = Self::only(path.last().or(decided.last())) {
            logits.iter_mut().enumerate().filter(|(token, _)| *token != only as usize).for_each(
                |(_, logit)| {
                    *logit = f32::NEG_INFINITY;
                },
            );
        }
    }

    fn forced(&self, decided: &[Token]) -> Vec<Token> {
        let mut forced = Vec::new();
        while let Some(only) = Self::only(forced.last().or(decided.last())) {
            forced.push(only);
        }
        forced
    }
}

fn processors() -> Vec<fn() -> Box<dyn LogitsProcessor>> {
    vec![
        || Box::new(Penalties { bias: vec![(0, -1.5), (2, 0.75)], ..Penalties::default() }),
        || Box::new(Penalties { frequency: 0.9, ..Penalties::default() }),
        || {
            Box::new(Penalties {
                frequency: -0.6,
                presence: 1.3,
                bias: vec![(1, f32::NEG_INFINITY)],
                ..Penalties::default()
            })
        },
        || {
            let repetition = RepetitionPenalty { penalty: 1.7, prompt: PROMPT.into(), last: None };
            Box::new(Penalties { repetition: Some(repetition), ..Penalties::default() })
        },
        || {
            let repetition =
                RepetitionPenalty { penalty: 0.6, prompt: PROMPT.into(), last: Some(2) };
            let bias = vec![(2, 2.5)];
            Box::new(Penalties { repetition: Some(repetition), bias, ..Penalties::default() })
        },
        || Box::new(MinTokens { tokens: 2, end_tokens: vec![2] }),
        || Box::new(AllowedTokens::new(&[2, 0, 2])),
        || Box::new(NoRepetition),
        || Box::new(Certain),
    ]
}

/// Distribution of the next `count` tokens by plain decoding from the table.
fn plain(
    target: &TableModel,
    processor: &dyn LogitsProcessor,
    sampling: &Sampling,
    count: usize,
) -> BTreeMap<Vec<Token>, f64> {
    let mut all = BTreeMap::from([(Vec::new(), 1.0)]);
    for _ in 0..count {
        let mut longer = BTreeMap::new();
        for (tokens, probability) in all {
            let probs = target.distribution(&[&PROMPT[..], &tokens].concat());
            let mut logits: Vec<f32> =
                (0..3).map(|token| probs.probability(token).ln() as f32).collect();
            processor.process(&tokens, &[], &mut logits);
            for (token, p) in Distribution::from_logits(&logits, sampling).unwrap().support() {
                longer.insert([&tokens[..], &[token]].concat(), probability * p);
            }
        }
        all = longer;
    }
    all
}

fn up_to(count: usize) -> Limits {
    Limits { max_tokens: Some(count), ..Limits::default() }
}

fn decoded(
    engine: &mut Engine,
    (verifier, tree): (&VerifierKind, &PolicyKind),
    processor: Box<dyn LogitsProcessor>,
    sampling: Sampling,
    limits: Limits,
    rng: impl RandomSource + Send,
) -> Vec<Token> {
    let (verifier, policy) = (verifier.build().unwrap(), tree.build().unwrap());
    let speculation = Speculation::new(verifier, policy).unwrap();
    let request = Request::new(PROMPT).sampling(sampling).speculation(speculation).limits(limits);
    let mut session = engine.open(request.rng(rng)).unwrap();
    session.set_processor(processor);
    while !session.is_done() {
        engine.step(&mut [&mut session]).unwrap();
    }
    engine.close(session).unwrap().tokens
}

#[test]
fn every_verifier_keeps_processed_distribution() {
    const COUNT: usize = 3;
    let target = TableModel::from_json("target", TARGET).unwrap();
    let draft = TableModel::from_json("draft", DRAFT).unwrap();
    let drafter =
        ModelDrafter::new(Box::new(draft), &polydraft_engine::Vocabulary::numbered(3)).unwrap();
    let mut engine = Engine::new(Box::new(target.clone()), Some(Box::new(drafter)));
    let samplings =
        [Sampling::default(), Sampling { temperature: 0.7, top_k: Some(2), ..Sampling::default() }];
    let trees: Vec<PolicyKind> =
        ["paths:1,2", "paths:2,2", "2,1"].map(|tree| tree.parse().unwrap()).into();
    let mut tried = 0;
    for verifier in VerifierKind::all() {
        for tree in &trees {
            let form = tree.build().unwrap().form();
            if verifier.build().unwrap().supports(&form).is_err() {
                continue;
            }
            for (number, processor) in processors().into_iter().enumerate() {
                let sampling = samplings[number % 2];
                let mut expected = plain(&target, processor().as_ref(), &sampling, COUNT);
                for (probability, tokens) in enumerate(|rng| {
                    decoded(
                        &mut engine,
                        (&verifier, tree),
                        processor(),
                        sampling,
                        up_to(COUNT),
                        rng,
                    )
                }) {
                    *expected.entry(tokens).or_insert(0.0) -= probability;
                }
                let worst = expected.values().map(|d| d.abs()).max_by(f64::total_cmp).unwrap();
                // The table's logits are f32, its distributions f64.
                assert!(worst < 1e-7, "{verifier}, {tree}, changes {number}: {worst}");
                tried += 1;
            }
        }
    }
    assert!(tried >= 120, "{tried}");
}

/// Nothing is drafted after an end token, and the processor is not called: a complete grammar would
/// allow no token there.
#[test]
fn processor_is_not_called_after_end_token() {
    const END: Token = 2;
    struct Complete;
    impl LogitsProcessor for Complete {
        fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
            if path.last().or(decided.last()) == Some(&END) {
                logits.fill(f32::NEG_INFINITY);
            }
        }
    }
    let target = TableModel::from_json("target", TARGET).unwrap();
    let draft = TableModel::from_json("draft", DRAFT).unwrap();
    let drafter =
        ModelDrafter::new(Box::new(draft), &polydraft_engine::Vocabulary::numbered(3)).unwrap();
    let mut engine = Engine::new(Box::new(target.clone()), Some(Box::new(drafter)));
    for verifier in VerifierKind::all() {
        for tree in ["paths:1,2", "paths:2,2", "2,2"] {
            let policy = tree.parse::<PolicyKind>().unwrap();
            if verifier.build().unwrap().supports(&policy.build().unwrap().form()).is_err() {
                continue;
            }
            let mut expected = BTreeMap::new();
            for (mut tokens, probability) in
                plain(&target, &Penalties::default(), &Sampling::default(), 3)
            {
                let end = tokens.iter().position(|&token| token == END);
                tokens.truncate(end.map_or(3, |end| end + 1));
                *expected.entry(tokens).or_insert(0.0) += probability;
            }
            for (probability, tokens) in enumerate(|rng| {
                let limits = Limits { end_tokens: vec![END], ..up_to(3) };
                let (complete, sampling) = (Box::new(Complete), Sampling::default());
                decoded(&mut engine, (&verifier, &policy), complete, sampling, limits, rng)
            }) {
                *expected.entry(tokens).or_insert(0.0) -= probability;
            }
            let worst = expected.values().map(|d| d.abs()).max_by(f64::total_cmp).unwrap();
            assert!(worst < 1e-7, "{verifier}, {tree}: {worst}");
        }
    }
}

/// Forced tokens take no pass, and count against the limit.
#[test]
fn forced_tokens_take_no_target_pass() {
    let target = TableModel::from_json("target", TARGET).unwrap();
    let mut engine = Engine::new(Box::new(target), None);
    for (probability, (tokens, statistics)) in enumerate(|rng| {
        let request = Request::new(PROMPT).limits(Limits::tokens(4)).rng(rng);
        let mut session = engine.open(request).unwrap();
        session.set_processor(Box::new(Certain));
        while !session.is_done() {
            engine.step(&mut [&mut session]).unwrap();
        }
        let generation = engine.close(session).unwrap();
        (generation.tokens, generation.statistics)
    }) {
        assert!(probability > 0.0);
        let certain = (1..4).filter(|&n| Certain::only(Some(&tokens[n - 1])).is_some()).count();
        assert_eq!((tokens.len(), statistics.forced), (4, certain), "{tokens:?}");
        assert_eq!(statistics.target_calls, 4 - certain);
    }
}

/// A penalty that ignores the path has another distribution, which the test detects.
#[test]
fn test_detects_penalty_that_ignores_the_path() {
    struct Forgetful(Penalties);
    impl LogitsProcessor for Forgetful {
        fn process(&self, decided: &[Token], _: &[Token], logits: &mut [f32]) {
            self.0.process(decided, &[], logits);
        }
    }
    let penalties = Penalties { frequency: 0.9, ..Penalties::default() };
    let target = TableModel::from_json("target", TARGET).unwrap();
    let draft = TableModel::from_json("draft", DRAFT).unwrap();
    let drafter =
        ModelDrafter::new(Box::new(draft), &polydraft_engine::Vocabulary::numbered(3)).unwrap();
    let mut engine = Engine::new(Box::new(target.clone()), Some(Box::new(drafter)));
    let (verifier, tree) = ("token".parse().unwrap(), "paths:1,2".parse().unwrap());
    let plain_sampling = Sampling::default();
    let mut expected = plain(&target, &penalties, &plain_sampling, 3);
    for (probability, tokens) in enumerate(|rng| {
        let faulty = Box::new(Forgetful(penalties.clone()));
        decoded(&mut engine, (&verifier, &tree), faulty, plain_sampling, up_to(3), rng)
    }) {
        *expected.entry(tokens).or_insert(0.0) -= probability;
    }
    assert!(expected.values().any(|d| d.abs() > 1e-3));
}

#[test]
fn trace_matches_tokens_and_scores() {
    let target = TableModel::from_json("target", TARGET).unwrap();
    let draft = TableModel::from_json("draft", DRAFT).unwrap();
    let drafter =
        ModelDrafter::new(Box::new(draft), &polydraft_engine::Vocabulary::numbered(3)).unwrap();
    let mut engine = Engine::new(Box::new(target), Some(Box::new(drafter)));
    let (verifier, tree): (VerifierKind, PolicyKind) =
        ("nested-priority".parse().unwrap(), "paths:2,2".parse().unwrap());
    for (probability, ()) in enumerate(|rng| {
        let speculation = Speculation::new(verifier.build().unwrap(), tree.build().unwrap());
        let request =
            Request::new(PROMPT).speculation(speculation.unwrap()).limits(Limits::tokens(4));
        let mut session = engine.open(request.rng(rng)).unwrap();
        session.record_traces(3);
        session.record_scores(1);
        engine.step(&mut [&mut session]).unwrap();
        let [trace] = &session.take_traces()[..] else { panic!("one step") };
        let path =
            trace.accepted.iter().map(|&node| trace.nodes[node].drawn.as_ref().unwrap().token);
        let decided: Vec<Token> = path.chain([trace.token]).collect();
        assert_eq!(session.tokens(), decided);
        let scores = session.take_scores();
        assert_eq!(scores.iter().map(|scored| scored.token).collect::<Vec<_>>(), decided);
        let root = &trace.nodes[0];
        // Distribution after 1 0.
        assert_eq!(root.target.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [2, 1, 0]);
        assert!((scores[0].logprob.exp() - [0.1, 0.2, 0.7][decided[0] as usize]).abs() < 1e-6);
        assert!((root.overlap.unwrap() - (0.1 + 0.2 + 0.4)).abs() < 1e-6);
        // Averaged over the draft's tokens, a priority is uniform on [0, 1].
        let density = |z: f64| {
            let part_density = |[start, length, p]: [f64; 3]| {
                if (start..start + length).contains(&z) { p / length } else { 0.0 }
            };
            let draft_probability =
                |token| root.draft.iter().find(|(other, _)| *other == token).unwrap().1;
            let each = root.shares.iter().map(|(token, parts)| {
                draft_probability(*token) * parts.iter().copied().map(part_density).sum::<f64>()
            });
            each.sum::<f64>()
        };
        for z in [0.01, 0.2, 0.437, 0.71, 0.99] {
            assert!((density(z) - 1.0).abs() < 1e-6, "{z}: {}, {:?}", density(z), root.shares);
        }
        for node in &trace.nodes[1..] {
            let drawn = node.drawn.as_ref().unwrap();
            let parent = &trace.nodes[drawn.parent];
            assert!(parent.draft.contains(&(drawn.token, drawn.draft)));
            assert!(parent.target.contains(&(drawn.token, drawn.target)));
        }
        engine.close(session).unwrap();
    }) {
        assert!(probability > 0.0);
    }
}
