//! A user-defined model: a Markov chain over bytes, decoded with n-gram drafts.
//!
//! `cargo run -p polydraft-engine --example own_model`
//!
//! A target need not be a transformer: anything that returns logits after a sequence, and after
//! each path of a tree that follows it, can be a [`Model`].

use std::collections::HashMap;

use polydraft::{DraftTree, NodeId, PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::{
    DrafterKind, Engine, Generation, Limits, Model, ModelInfo, Request, Result, Sequence,
    Sequences, Slots, Speculation, Vocabulary,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Number of bytes that the next one depends on.
const ORDER: usize = 5;

/// Last bytes of a sequence, fewer at its beginning.
type Context = Vec<Token>;

/// Counts of the byte after each context.
struct Chain {
    info: ModelInfo,
    /// Logits by context, each of shape `[256]`; the empty context is always there.
    next: HashMap<Context, Vec<f32>>,
    sequences: Slots<Tokens>,
}

#[derive(Default)]
struct Tokens {
    tokens: Vec<Token>,
    /// Context after each scored node. A larger model would store logits and hidden states here.
    scored: Vec<Context>,
}

impl Chain {
    fn new(corpus: &str) -> Self {
        let bytes: Vec<Token> = corpus.bytes().map(Token::from).collect();
        let mut counts: HashMap<Context, [u32; 256]> = HashMap::new();
        for (end, &byte) in bytes.iter().enumerate() {
            // Shorter contexts serve as fallback for unseen ones.
            for start in end.saturating_sub(ORDER)..=end {
                counts.entry(bytes[start..end].to_vec()).or_insert([0; 256])[byte as usize] += 1;
            }
        }
        // A byte that never followed has the logit −∞.
        let logits = |counts: [u32; 256]| counts.iter().map(|&count| (count as f32).ln()).collect();
        let info = ModelInfo {
            name: format!("chain of order {ORDER}"),
            vocabulary: Vocabulary::numbered(256),
            context: usize::MAX,
            hidden: None,
            accepts_empty_context: true,
            max_sequences: usize::MAX,
        };
        let next = counts.into_iter().map(|(context, counts)| (context, logits(counts))).collect();
        Self { info, next, sequences: Slots::default() }
    }

    /// Returns the longest suffix of a sequence that occurred.
    fn context(&self, tokens: &[Token]) -> Context {
        let first = tokens.len().saturating_sub(ORDER);
        let mut ends = (first..=tokens.len()).map(|start| &tokens[start..]);
        ends.find(|end| self.next.contains_key(*end)).unwrap_or_default().to_vec()
    }
}

impl Sequences for Chain {
    fn open(&mut self) -> Result<Sequence> {
        Ok(self.sequences.open(Tokens::default()))
    }

    fn close(&mut self, sequence: Sequence) {
        self.sequences.close(sequence);
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.sequences[sequence].tokens.len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let state = &mut self.sequences[sequence];
        state.tokens.extend(tokens);
        state.scored.clear();
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let state = &mut self.sequences[sequence];
        if length < state.tokens.len() {
            state.tokens.truncate(length);
            state.scored.clear();
        }
    }

    /// Scores the nodes without a score; a tree only grows between commits.
    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        for &(sequence, tree) in batch {
            for node in self.sequences[sequence].scored.len()..tree.len() {
                let path = tree.path(node).into_iter().map(|node| tree.token(node));
                let tokens: Vec<Token> =
                    self.sequences[sequence].tokens.iter().copied().chain(path).collect();
                let context = self.context(&tokens);
                self.sequences[sequence].scored.push(context);
            }
        }
        Ok(())
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        let tokens: Vec<Token> = path.iter().map(|&node| tree.token(node)).collect();
        self.extend(sequence, &tokens)
    }
}

impl Model for Chain {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        &self.next[&self.sequences[sequence].scored[node]]
    }
}

/// Generates 400 bytes after a short prompt, with n-gram drafts or without.
fn generate(engine: &mut Engine, speculate: bool, temperature: f64) -> Result<Generation> {
    let verifier: VerifierKind = "nested-priority".parse()?;
    let sampling = Sampling { temperature, ..Sampling::default() };
    let speculation = Speculation::new(verifier.build()?, PolicyKind::paths(2, 4).build()?)?;
    let prompt: Vec<Token> = "    /// ".bytes().map(Token::from).collect();
    let request = Request::new(prompt)
        .sampling(sampling)
        .speculation(speculate.then_some(speculation.with_sampling(sampling)))
        .limits(Limits::tokens(400))
        .rng(ChaCha8Rng::seed_from_u64(1));
    engine.generate(request, &mut |_| true)
}

fn main() -> Result<()> {
    let target = Chain::new(include_str!("../src/model.rs"));
    // The n-grams of the sequence itself draft, without a second model.
    let drafter = "ngram".parse::<DrafterKind>()?.build(target.info())?;
    let mut engine = Engine::new(Box::new(target), Some(drafter));

    let generation = generate(&mut engine, true, 1.0)?;
    let bytes: Vec<u8> = generation.tokens.iter().map(|&token| token as u8).collect();
    println!("    /// {}\n", String::from_utf8_lossy(&bytes));
    println!("{:.2} bytes per target pass", generation.statistics.block_efficiency());

    // The greedy output must be the same with and without speculation, a simple check of
    // losslessness.
    let (drafted, plain) = (generate(&mut engine, true, 0.0)?, generate(&mut engine, false, 0.0)?);
    assert_eq!(drafted.tokens, plain.tokens, "speculation changed the text");
    println!("at temperature 0: {:.2}", drafted.statistics.block_efficiency());
    Ok(())
}
