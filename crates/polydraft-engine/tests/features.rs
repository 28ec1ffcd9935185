//! Drafters that read the target's hidden states: they get the states of all decided tokens, and
//! the output has the target's distribution.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use polydraft::{
    Distribution, DraftTree, Drafting, NodeId, PolicyKind, Sampling, Token, VerifierKind, enumerate,
};
use polydraft_engine::certify::distribution_after;
use polydraft_engine::{
    Drafter, DrafterInput, Engine, HiddenState, HiddenStates, Limits, Model, ModelInfo, Request,
    Result, Sequence, Sequences, Speculation, TableModel, capture_hidden_states, hidden_states,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

const VOCABULARY: usize = 3;

/// Creates a random distribution for every context of up to two tokens.
fn table(rng: &mut ChaCha12Rng) -> TableModel {
    let mut next = BTreeMap::new();
    let tokens = || 0..VOCABULARY as Token;
    let contexts = tokens().flat_map(|a| tokens().map(move |b| vec![a, b]));
    for context in contexts.chain(tokens().map(|a| vec![a])).chain([vec![]]) {
        let probs: Vec<f64> = (0..VOCABULARY).map(|_| -rng.random::<f64>().ln()).collect();
        let sum: f64 = probs.iter().sum();
        next.insert(context, probs.iter().map(|p| p / sum).collect());
    }
    TableModel::new("table", VOCABULARY, next).unwrap()
}

/// Hidden state of a token at a position.
fn hidden_state(position: usize, token: Token) -> f32 {
    (1000 * position) as f32 + token as f32
}

/// A table model with hidden states.
struct Stateful {
    table: TableModel,
    sequences: BTreeMap<Sequence, Vec<Token>>,
    /// Number of computed tokens, by sequence.
    computed: BTreeMap<Sequence, usize>,
}

impl Sequences for Stateful {
    fn open(&mut self) -> Result<Sequence> {
        let sequence = self.table.open()?;
        self.sequences.insert(sequence, Vec::new());
        self.computed.insert(sequence, 0);
        Ok(sequence)
    }
    fn close(&mut self, sequence: Sequence) {
        self.table.close(sequence);
    }
    fn len(&self, sequence: Sequence) -> usize {
        self.table.len(sequence)
    }
    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        self.sequences.entry(sequence).or_default().extend(tokens);
        self.table.extend(sequence, tokens)
    }
    fn truncate(&mut self, sequence: Sequence, length: usize) {
        self.table.truncate(sequence, length);
    }
    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        let last = self.len(sequence).saturating_sub(1);
        let computed = self.computed.entry(sequence).or_default();
        *computed = (*computed).max(last.min(computed.saturating_add(most)));
        Ok(last - *computed)
    }
    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        for (sequence, _) in batch {
            self.computed.insert(*sequence, self.len(*sequence));
        }
        self.table.score(batch)
    }
    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.sequences
            .entry(sequence)
            .or_default()
            .extend(path.iter().map(|&node| tree.token(node)));
        self.computed.insert(sequence, self.len(sequence) + path.len());
        self.table.commit(sequence, tree, path)
    }
}

impl Model for Stateful {
    fn info(&self) -> &ModelInfo {
        self.table.info()
    }
    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        self.table.logits(sequence, node)
    }
    fn as_hidden_states(&self) -> Option<&dyn HiddenStates> {
        Some(self)
    }
    fn as_hidden_states_mut(&mut self) -> Option<&mut dyn HiddenStates> {
        Some(self)
    }
}

impl HiddenStates for Stateful {
    fn capture_hidden_states(&mut self, _: &[HiddenState]) -> Result<()> {
        Ok(())
    }
    fn hidden_states(&self, sequence: Sequence, tokens: Range<usize>) -> Result<Vec<f32>> {
        assert!(tokens.end <= self.computed[&sequence], "{tokens:?} of {:?}", self.computed);
        Ok(tokens
            .map(|position| hidden_state(position, self.sequences[&sequence][position]))
            .collect())
    }
}

#[derive(Default)]
struct ReaderState {
    tokens: Vec<Token>,
    states: Vec<f32>,
    paths: Vec<Vec<Token>>,
}

/// Never drafts the last token of the vocabulary; its other probabilities are an arbitrary function
/// of the hidden states.
struct Reader {
    sequences: Vec<ReaderState>,
    most: Arc<Mutex<usize>>,
}

impl Sequences for Reader {
    fn open(&mut self) -> Result<Sequence> {
        self.sequences.push(ReaderState::default());
        Ok(Sequence::new(self.sequences.len() as u32 - 1))
    }
    fn close(&mut self, _: Sequence) {}
    fn len(&self, sequence: Sequence) -> usize {
        self.sequences[sequence.number()].tokens.len()
    }
    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let state = &mut self.sequences[sequence.number()];
        state.tokens.extend(tokens);
        state.paths.clear();
        Ok(())
    }
    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let state = &mut self.sequences[sequence.number()];
        if length < state.tokens.len() {
            state.tokens.truncate(length);
            state.states.truncate(length);
            state.paths.clear();
        }
    }
    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        for (sequence, tree) in batch {
            let state = &mut self.sequences[sequence.number()];
            assert_eq!(state.states.len(), state.tokens.len().saturating_sub(1));
            let mut most = self.most.lock().unwrap();
            *most = (*most).max(state.states.len());
            let path = |node| tree.path(node).into_iter().map(|node| tree.token(node)).collect();
            state.paths.extend((state.paths.len()..tree.len()).map(path).collect::<Vec<_>>());
        }
        Ok(())
    }
    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        let tokens: Vec<Token> = path.iter().map(|&node| tree.token(node)).collect();
        self.extend(sequence, &tokens)
    }
}

impl Drafter for Reader {
    fn name(&self) -> &str {
        "reader"
    }
    fn context(&self) -> usize {
        usize::MAX
    }
    fn input(&self) -> DrafterInput {
        DrafterInput::HiddenStates
    }
    fn sync_target(
        &mut self,
        sequence: Sequence,
        target: &dyn Model,
        target_sequence: Sequence,
        known: usize,
    ) -> Result<()> {
        let state = &mut self.sequences[sequence.number()];
        for value in hidden_states(target, target_sequence, state.states.len()..known)? {
            let position = state.states.len();
            assert_eq!(value, hidden_state(position, state.tokens[position]));
            state.states.push(value);
        }
        Ok(())
    }
    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        _: Option<Distribution>,
    ) -> Result<Distribution> {
        let state = &self.sequences[sequence.number()];
        let sum = state.states.iter().sum::<f32>() + state.paths[node].iter().sum::<Token>() as f32;
        let logits: Vec<f32> = (1..VOCABULARY).map(|i| (sum * i as f32).sin()).collect();
        let tokens: Vec<Token> = (0..VOCABULARY as Token - 1).collect();
        Ok(Distribution::from_sparse_logits(VOCABULARY, &tokens, &logits, sampling)?)
    }
}

fn deviation(
    verifier: &VerifierKind,
    tree: &PolicyKind,
    prompt: &[Token],
    rng: &mut ChaCha12Rng,
) -> f64 {
    const COUNT: usize = 3;
    let mut table = table(rng);
    let sampling = Sampling::default();
    let mut expected = BTreeMap::from([(Vec::new(), 1.0)]);
    for _ in 0..COUNT {
        let sequences = std::mem::take(&mut expected);
        for (state, probability) in sequences {
            let probs =
                distribution_after(&mut table, &sampling, &[prompt, &state].concat()).unwrap();
            for (token, p) in probs.support() {
                expected.insert([&state[..], &[token]].concat(), probability * p);
            }
        }
    }
    let most = Arc::new(Mutex::new(0));
    for (probability, state) in enumerate(|rng| {
        let target = Stateful {
            table: table.clone(),
            sequences: BTreeMap::new(),
            computed: BTreeMap::new(),
        };
        let reader = Reader { sequences: Vec::new(), most: Arc::clone(&most) };
        let mut engine = Engine::new(Box::new(target), Some(Box::new(reader)));
        let (verifier, policy) = (verifier.build().unwrap(), tree.build().unwrap());
        let request = Request::new(prompt)
            .speculation(Speculation::new(verifier, policy).unwrap())
            .limits(Limits::tokens(COUNT))
            .rng(rng);
        // The longest prompt is prefilled token by token, the others are not.
        let mut session = engine.open(request).unwrap();
        while prompt.len() > 2 && engine.prepare(&mut session, 1).unwrap() > 0 {}
        while !session.is_done() {
            engine.step(&mut [&mut session]).unwrap();
        }
        engine.close(session).unwrap().tokens
    }) {
        *expected.entry(state).or_insert(0.0) -= probability;
    }
    assert!(*most.lock().unwrap() >= prompt.len(), "no hidden states were read");
    expected.values().map(|d| d.abs()).max_by(f64::total_cmp).unwrap()
}

#[test]
fn drafter_reading_hidden_states_keeps_distribution() {
    let mut rng = ChaCha12Rng::seed_from_u64(12);
    let mut worst = 0.0_f64;
    for (verifier, tree) in [
        ("token", PolicyKind::chain(3)),
        ("block", PolicyKind::chain(2)),
        ("nested-priority", PolicyKind::paths(2, 2)),
        ("traversal", PolicyKind::levels(&[2, 1], Drafting::WithoutReplacement)),
        ("walk:hub", PolicyKind::levels(&[2], Drafting::Hub)),
    ] {
        for prompt in [&[][..], &[2], &[1, 0, 2, 1]] {
            worst = worst.max(deviation(&verifier.parse().unwrap(), &tree, prompt, &mut rng));
        }
    }
    assert!(worst < 1e-12, "{worst:e}");
}

#[test]
fn rejects_capture_from_model_without_hidden_states() {
    let mut table = table(&mut ChaCha12Rng::seed_from_u64(1));
    let error = capture_hidden_states(&mut table, &[HiddenState::Output]).unwrap_err().to_string();
    assert!(
        error.contains("hidden states of the target: expected a model that gives them"),
        "{error}"
    );
    let sequence = table.open().unwrap();
    assert!(hidden_states(&table, sequence, 0..0).is_err());
}
