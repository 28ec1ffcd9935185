//! Remote drafts: exactness whatever the server returns, waits, failures, seeds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polydraft::policy::{Auto, Costs};
use polydraft::{DraftTree, PolicyKind, Sampling, VerifierKind};
use polydraft_engine::drafter::remote::{
    DraftQuery, DraftSource, DraftedTree, MAX_LEVELS, Patience, RemoteDrafter, expand,
};
use polydraft_engine::{
    Drafter, Engine, Generation, Limits, Model, Request, Result, Sequences, Speculation, TableModel,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::common::{Setup, random_model, setup};

type Answer = std::result::Result<Vec<DraftedTree>, String>;

/// A server in this process, whose answers a function may change.
struct Local<F> {
    model: TableModel,
    change: F,
    queries: Arc<Mutex<Vec<DraftQuery>>>,
    prefilled: Option<Arc<AtomicBool>>,
}

impl<F: FnMut(&DraftQuery, DraftedTree) -> std::result::Result<DraftedTree, String>> Local<F> {
    fn new(model: &TableModel, change: F) -> Self {
        Self { model: model.clone(), change, queries: Arc::default(), prefilled: None }
    }

    fn answer(&mut self, query: &DraftQuery) -> Result<DraftedTree> {
        let sequence = self.model.open()?;
        self.model.extend(sequence, &query.tokens)?;
        let tree = expand(&mut self.model, &[(sequence, query)])?.remove(0);
        self.model.close(sequence);
        Ok(tree)
    }
}

impl<F> DraftSource for Local<F>
where
    F: FnMut(&DraftQuery, DraftedTree) -> std::result::Result<DraftedTree, String> + Send,
{
    fn name(&self) -> &str {
        "local"
    }
    fn context(&self) -> usize {
        self.model.info().context
    }
    fn draft(&mut self, queries: &[DraftQuery], _: Duration) -> Answer {
        self.queries.lock().unwrap().extend_from_slice(queries);
        let answer = |query| {
            let tree = self.answer(query).map_err(|error| error.to_string())?;
            (self.change)(query, tree)
        };
        queries.iter().map(answer).collect()
    }
    fn prefill(&mut self, _: DraftQuery) -> Option<Arc<AtomicBool>> {
        self.prefilled.clone()
    }
}

fn unchanged(_: &DraftQuery, tree: DraftedTree) -> std::result::Result<DraftedTree, String> {
    Ok(tree)
}

/// Without pauses, so that results depend on no time.
const AT_ONCE: Patience = Patience {
    answer: Duration::from_secs(1),
    reproducible: Duration::from_millis(120),
    first_pause: Duration::ZERO,
    longest_pause: Duration::ZERO,
};

fn engine(target: &TableModel, source: impl DraftSource + 'static) -> Engine {
    let drafter = RemoteDrafter::new(Box::new(source), target.info()).with_patience(AT_ONCE);
    Engine::new(Box::new(target.clone()), Some(Box::new(drafter)))
}

/// A server that leaves out nodes, changes probabilities, fails, or answers with nonsense, each
/// depending on the tokens so far.
fn unreliable(
    query: &DraftQuery,
    mut tree: DraftedTree,
) -> std::result::Result<DraftedTree, String> {
    match query.tokens.iter().sum::<u32>() % 5 {
        0 => return Err("no answer".to_owned()),
        1 => tree.nodes.truncate(2),
        2 => tree.nodes.iter_mut().for_each(|node| node.logprobs.fill(-3.0)),
        3 => tree.nodes.iter_mut().for_each(|node| node.tokens.fill(7)),
        _ => {}
    }
    Ok(tree)
}

#[test]
fn keeps_distribution_whatever_the_server_returns() {
    let mut rng = ChaCha12Rng::seed_from_u64(31);
    let plain = Sampling::default();
    let samplings = [
        (plain, plain),
        (Sampling { temperature: 0.7, ..plain }, Sampling { temperature: 1.6, ..plain }),
        (Sampling { top_k: Some(2), ..plain }, Sampling { temperature: 0.0, ..plain }),
    ];
    let cheap = Auto { depth: 3, costs: Costs::with_cheap_drafts(), ..Auto::default() };
    let trees = [
        ("token", PolicyKind::chain(3)),
        ("block", PolicyKind::Auto(cheap)),
        ("nested-priority", PolicyKind::paths(2, 2)),
        ("traversal", "2,1/without-replacement".parse().unwrap()),
    ];
    let (mut worst, mut warnings) = (0.0_f64, Vec::new());
    for (verifier, tree) in &trees {
        for (target, draft) in samplings {
            let setup = Setup { target, draft, ..setup(verifier, tree.clone()) };
            let (big, small) = (random_model(&mut rng, 3, 2), random_model(&mut rng, 3, 1));
            let mut reliable = engine(&big, Local::new(&small, unchanged));
            worst = worst.max(setup.exact(&mut reliable, &[1], 3));
            let mut unreliable = engine(&big, Local::new(&small, unreliable));
            worst = worst.max(setup.exact(&mut unreliable, &[1], 3));
            warnings.extend(unreliable.take_warning());
        }
    }
    assert!(worst < 1e-12, "{worst:e}");
    assert!(warnings.iter().any(|text| text.contains("invalid draft")), "{warnings:?}");
}

fn chain(engine: &mut Engine, length: usize, seed: u64, tokens: usize) -> Result<Generation> {
    let block: VerifierKind = "block".parse()?;
    let speculation = Speculation::new(block.build()?, PolicyKind::chain(length).build()?)?;
    let request = Request::new([0, 1])
        .speculation(speculation)
        .limits(Limits::tokens(tokens))
        .rng(ChaCha12Rng::seed_from_u64(seed));
    engine.generate(request.reproducible(seed > 0), &mut |_| true)
}

/// A model that is nearly certain of its next token, so that draws stay in the server's tree.
fn certain() -> TableModel {
    let next =
        r#"{"": [1, 0, 0], "0": [0, 0.99, 0.01], "1": [0.01, 0, 0.99], "2": [0.99, 0.01, 0]}"#;
    TableModel::from_json("certain", &format!(r#"{{"vocabulary": 3, "next": {next}}}"#)).unwrap()
}

#[test]
fn accepts_many_tokens_with_one_round_trip_per_step() {
    let source = Local::new(&certain(), unchanged);
    let queries = source.queries.clone();
    let mut engine = engine(&certain(), source);
    let generation = chain(&mut engine, MAX_LEVELS, 0, 200).unwrap();
    let queries = queries.lock().unwrap();
    let steps = generation.statistics.target_calls;
    assert!((queries.len() as isize - steps as isize).abs() <= 1, "{} {steps}", queries.len());
    assert!(steps < 40, "{steps}");
    // The number of levels grows while all are used.
    let levels: Vec<usize> = queries.iter().take(3).map(|query| query.levels).collect();
    assert_eq!(levels, [4, 8, 16]);
}

#[test]
fn asks_for_fewer_levels_where_drafts_are_short() {
    let source = Local::new(&certain(), unchanged);
    let queries = source.queries.clone();
    chain(&mut engine(&certain(), source), 1, 0, 20).unwrap();
    assert!(queries.lock().unwrap()[1..].iter().all(|query| query.levels == 2));
}

#[test]
fn failures_cost_plain_steps_and_one_warning() {
    let mut left = 3;
    let source = Local::new(&certain(), move |_: &DraftQuery, tree| {
        left -= 1;
        if left >= 0 { Ok(tree) } else { Err("killed".to_owned()) }
    });
    let mut engine = engine(&certain(), source);
    let generation = chain(&mut engine, 4, 0, 60).unwrap();
    assert_eq!(generation.tokens.len(), 60);
    assert!(generation.statistics.target_calls > 40);
    assert!(engine.take_warning().unwrap().contains("local does not draft: killed; decoding"));
    assert_eq!(engine.take_warning(), None);
}

#[test]
fn leaves_a_failed_server_alone_for_a_while() {
    let source = Local::new(&certain(), |_: &DraftQuery, _| Err("killed".to_owned()));
    let queries = source.queries.clone();
    let drafter = RemoteDrafter::new(Box::new(source), certain().info());
    let patience = Patience { first_pause: Duration::from_secs(60), ..Patience::default() };
    let drafter = Box::new(drafter.with_patience(patience));
    let mut engine = Engine::new(Box::new(certain()), Some(drafter));
    assert_eq!(chain(&mut engine, 4, 0, 30).unwrap().statistics.target_calls, 30);
    assert_eq!(queries.lock().unwrap().len(), 1);
}

#[test]
fn reproducible_sequences_fail_without_an_answer() {
    let source = Local::new(&certain(), |_: &DraftQuery, _| Err("killed".to_owned()));
    let (queries, started) = (source.queries.clone(), Instant::now());
    let error = chain(&mut engine(&certain(), source), 4, 1, 30).unwrap_err().to_string();
    assert!(error.contains("killed") && error.contains("give no seed"), "{error}");
    assert!(started.elapsed() >= Duration::from_millis(60));
    assert!(queries.lock().unwrap().len() > 1);
}

#[test]
fn reproducible_sequences_wait_for_late_answers() {
    let expected = chain(&mut engine(&certain(), Local::new(&certain(), unchanged)), 4, 7, 40);
    let mut calls = 0;
    let source = Local::new(&certain(), move |_: &DraftQuery, tree| {
        calls += 1;
        if calls % 3 == 1 { Err("late".to_owned()) } else { Ok(tree) }
    });
    let late = chain(&mut engine(&certain(), source), 4, 7, 40);
    assert_eq!(late.unwrap().tokens, expected.unwrap().tokens);
}

#[test]
fn nobody_waits_while_the_server_reads_the_prompt() {
    let prefilled = Arc::new(AtomicBool::new(false));
    let mut source = Local::new(&certain(), unchanged);
    source.prefilled = Some(prefilled.clone());
    let mut drafter = RemoteDrafter::new(Box::new(source), certain().info());
    let sequence = drafter.open().unwrap();
    drafter.extend(sequence, &[0, 1]).unwrap();
    drafter.prepare(sequence, 10).unwrap();
    let mut confidence = || {
        drafter.score(&[(sequence, &DraftTree::new())]).unwrap();
        let plain = Sampling::default();
        let probs = drafter.distribution(sequence, DraftTree::ROOT, &plain, None).unwrap();
        drafter.extend(sequence, &[1]).unwrap();
        probs.confidence()
    };
    assert_eq!(confidence(), 0.0);
    prefilled.store(true, Ordering::Release);
    assert!(confidence() > 0.9);
}

#[test]
fn drafts_nothing_beyond_the_servers_context() {
    let source = Local::new(&certain().with_context_length(8), unchanged);
    let queries = source.queries.clone();
    let generation = chain(&mut engine(&certain(), source), 4, 1, 40).unwrap();
    assert_eq!(generation.tokens.len(), 40);
    assert!(queries.lock().unwrap().iter().all(|query| query.tokens.len() <= 8));
}

/// Answers of which a few bytes were changed are used, or rejected, and nothing worse.
#[test]
fn survives_damaged_answers() {
    const CHARACTERS: &[u8] = b"0123456789-.eE+,:[]{}\"null ";
    let (mut used, mut rejected) = (0, 0);
    for seed in 0..300 {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let source = Local::new(&certain(), move |_: &DraftQuery, tree| {
            let mut answer = serde_json::to_vec(&tree).unwrap();
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..answer.len());
                answer[at] = CHARACTERS[rng.random_range(0..CHARACTERS.len())];
            }
            serde_json::from_slice(&answer).map_err(|error| error.to_string())
        });
        let mut engine = engine(&certain(), source);
        let generation = chain(&mut engine, 6, 0, 60).unwrap();
        assert!(generation.tokens.len() == 60 && generation.tokens.iter().all(|token| *token < 3));
        used += usize::from(generation.statistics.target_calls < 60);
        rejected += usize::from(engine.take_warning().is_some());
    }
    assert!(used > 100 && rejected > 100, "{used} {rejected}");
}
