//! Sessions verified on several threads have the same output as alone.

use std::sync::atomic::{AtomicUsize, Ordering};

use polydraft::{DraftTree, NodeId, PolicyKind, Token, VerifierKind};
use polydraft_engine::{
    Engine, Limits, Model, ModelDrafter, ModelInfo, Request, Result, Sequence, Sequences, Session,
    Speculation, TableModel, ThreadPool, Vocabulary,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Large enough for a batch to be verified on several threads.
const VOCABULARY: usize = 1 << 14;

/// A model with different likely tokens after 0 and after 1; all tokens are possible.
fn table(name: &str, sharpness: f64) -> TableModel {
    let row = |first: usize| {
        let weight = |token: usize| {
            let near = (token * 31 + first * 977) % VOCABULARY;
            (-sharpness * near as f64 / VOCABULARY as f64).exp()
        };
        let weights: Vec<f64> = (0..VOCABULARY).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect::<Vec<f64>>()
    };
    let json = serde_json::json!({ "vocabulary": VOCABULARY,
        "next": { "": row(2), "0": row(0), "1": row(1) } });
    TableModel::from_json(name, &json.to_string()).unwrap()
}

/// Runs work on scoped threads, the last item first.
struct Threaded {
    table: TableModel,
    parallel_runs: &'static AtomicUsize,
}

impl Sequences for Threaded {
    fn open(&mut self) -> Result<Sequence> {
        self.table.open()
    }
    fn close(&mut self, sequence: Sequence) {
        self.table.close(sequence);
    }
    fn len(&self, sequence: Sequence) -> usize {
        self.table.len(sequence)
    }
    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        self.table.extend(sequence, tokens)
    }
    fn truncate(&mut self, sequence: Sequence, length: usize) {
        self.table.truncate(sequence, length);
    }
    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        self.table.score(batch)
    }
    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.table.commit(sequence, tree, path)
    }
}

impl Model for Threaded {
    fn info(&self) -> &ModelInfo {
        self.table.info()
    }
    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        self.table.logits(sequence, node)
    }
    fn thread_pool(&self) -> Option<&dyn ThreadPool> {
        Some(self)
    }
}

impl ThreadPool for Threaded {
    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.parallel_runs.fetch_add(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for number in (0..count).rev() {
                scope.spawn(move || work(number));
            }
        });
    }
}

fn outputs(
    verifier: &str,
    seeds: &[u64],
    batched: bool,
    parallel_runs: &'static AtomicUsize,
) -> Vec<Vec<Token>> {
    let target = Threaded { table: table("target", 6.0), parallel_runs };
    let draft = Box::new(table("draft", 5.0));
    let drafter = ModelDrafter::new(draft, &Vocabulary::numbered(VOCABULARY)).unwrap();
    let mut engine = Engine::new(Box::new(target), Some(Box::new(drafter)));
    let open = |engine: &mut Engine, seed: u64| -> Session<'static> {
        let speculation = (verifier != "none").then(|| {
            let verifier: VerifierKind = verifier.parse().unwrap();
            let tree: PolicyKind = "paths:2,2".parse().unwrap();
            Speculation::new(verifier.build().unwrap(), tree.build().unwrap()).unwrap()
        });
        let limits = Limits { max_tokens: Some(12), ..Limits::default() };
        let request = Request::new([0]).speculation(speculation).limits(limits);
        engine.open(request.rng(ChaCha8Rng::seed_from_u64(seed))).unwrap()
    };
    let mut made = Vec::new();
    let batches: Vec<&[u64]> = if batched { vec![seeds] } else { seeds.chunks(1).collect() };
    for seeds in batches {
        let mut sessions: Vec<_> = seeds.iter().map(|seed| open(&mut engine, *seed)).collect();
        while sessions.iter().any(|session| !session.is_done()) {
            engine.step(&mut sessions.iter_mut().collect::<Vec<_>>()).unwrap();
        }
        made.extend(sessions.into_iter().map(|session| engine.close(session).unwrap().tokens));
    }
    made
}

#[test]
fn same_output_on_any_number_of_threads() {
    static PARALLEL_RUNS: AtomicUsize = AtomicUsize::new(0);
    let seeds = [1, 2, 3, 4, 5, 6];
    for verifier in ["none", "nested-priority", "walk:priority", "specinfer"] {
        PARALLEL_RUNS.store(0, Ordering::SeqCst);
        let batched = outputs(verifier, &seeds, true, &PARALLEL_RUNS);
        assert!(PARALLEL_RUNS.load(Ordering::SeqCst) > 0, "{verifier}: nothing ran in parallel");
        assert_eq!(batched, outputs(verifier, &seeds, false, &PARALLEL_RUNS), "{verifier}");
        assert!(batched.iter().all(|tokens| tokens.len() == 12));
    }
}
