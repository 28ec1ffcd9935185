//! Many sequences in one model: each has the logits that it has alone, bit for bit.

use std::path::Path;

use crate::common::*;
use polydraft::{DraftTree, NodeId, PolicyKind, Token, VerifierKind};
use polydraft_engine::{
    DrafterKind, Engine, Limits, Model, Request, Sequence, Sequences, Speculation,
};
use polydraft_models::{CacheType, LoadOptions, Precision, SequenceLimits, TransformerModel, load};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

fn model(seed: u64, precision: Precision) -> TransformerModel {
    random_model(seed, precision).model
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Logits of a model after a sequence that is read at once, without reuse of a cache.
fn fresh_logits(model: &mut TransformerModel, tokens: &[Token]) -> Vec<u32> {
    model.set_limits(SequenceLimits { closed: 0, ..SequenceLimits::default() });
    let sequence = model.open().unwrap();
    model.extend(sequence, tokens).unwrap();
    assert_eq!(model.computed_tokens(sequence), 0);
    let logits = after(model, sequence);
    model.close(sequence);
    logits
}

/// Logits after a sequence.
fn after(model: &mut TransformerModel, sequence: Sequence) -> Vec<u32> {
    model.score(&[(sequence, &DraftTree::new())]).unwrap();
    bits(model.logits(sequence, DraftTree::ROOT))
}

/// Generates a sequence with growing trees of which random paths are committed. The logits
/// determine the next tokens, so a single different bit changes everything after it.
struct Writer {
    sequence: Sequence,
    rng: ChaCha12Rng,
    tree: DraftTree,
    vocabulary: Token,
    passes: usize,
    read: usize,
    logits: Vec<Vec<u32>>,
}

impl Writer {
    fn new(model: &mut TransformerModel, seed: u64, max_prompt: usize) -> Self {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let vocabulary = model.info().vocabulary.size() as Token;
        let prompt: Vec<Token> = (0..rng.random_range(1..=max_prompt))
            .map(|_| rng.random_range(0..vocabulary))
            .collect();
        let sequence = model.open().unwrap();
        model.extend(sequence, &prompt).unwrap();
        Self {
            sequence,
            rng,
            tree: DraftTree::new(),
            vocabulary,
            passes: 0,
            read: 0,
            logits: Vec::new(),
        }
    }

    /// Grows the tree before a pass.
    fn draft(&mut self) {
        for _ in 0..self.rng.random_range(0..5) {
            let parent: NodeId = self.rng.random_range(0..self.tree.len());
            self.tree.add(parent, self.rng.random_range(0..self.vocabulary));
        }
    }

    /// Records the logits after a pass and commits a path after every third. Returns whether the
    /// context has space left.
    fn read(&mut self, model: &mut TransformerModel) -> bool {
        for node in self.read..self.tree.len() {
            self.logits.push(bits(model.logits(self.sequence, node)));
        }
        self.read = self.tree.len();
        self.passes += 1;
        if self.passes.is_multiple_of(3) {
            let path = self.tree.path(self.rng.random_range(0..self.tree.len()));
            model.commit(self.sequence, &self.tree, &path).unwrap();
            let next =
                self.logits[self.logits.len() - 1].iter().fold(0u32, |sum, b| sum.wrapping_add(*b));
            model.extend(self.sequence, &[next % self.vocabulary]).unwrap();
            if self.passes.is_multiple_of(12) {
                model.truncate(self.sequence, model.len(self.sequence) - 1);
            }
            self.tree = DraftTree::new();
            self.read = 0;
        }
        // A tree grows for three passes, and its depth is at most its number of nodes.
        model.len(self.sequence) + 16 < model.info().context
    }
}

/// Bits of all logits of the writer with this seed over some passes, with `others` other writers in
/// the same model.
fn generate(
    model: &mut TransformerModel,
    seed: u64,
    others: usize,
    passes: usize,
    max_prompt: usize,
) -> Vec<Vec<u32>> {
    // The writers in a pass and their tokens are random.
    let mut rng = ChaCha12Rng::seed_from_u64(seed ^ 0x5eed);
    let mut writer = Writer::new(model, seed, max_prompt);
    let mut other_writers: Vec<Writer> =
        (0..others).map(|i| Writer::new(model, seed + 100 + i as u64, max_prompt)).collect();
    for _ in 0..passes {
        let present: Vec<bool> = other_writers.iter().map(|_| rng.random()).collect();
        let with = || present.iter().copied();
        writer.draft();
        other_writers.iter_mut().zip(with()).filter(|(_, p)| *p).for_each(|(w, _)| w.draft());
        let mut batch: Vec<_> =
            other_writers.iter().zip(with()).filter(|(_, p)| *p).map(|(w, _)| w).collect();
        batch.insert(rng.random_range(0..=batch.len()), &writer);
        let batch: Vec<_> = batch.into_iter().map(|w| (w.sequence, &w.tree)).collect();
        model.score(&batch).unwrap();
        let done = !writer.read(model);
        for (number, _) in present.iter().enumerate().filter(|(_, p)| **p) {
            if !other_writers[number].read(model) {
                // A full sequence is replaced by a new one.
                model.close(other_writers[number].sequence);
                other_writers[number] = Writer::new(model, rng.random(), max_prompt);
            }
        }
        if done {
            break;
        }
    }
    for sequence in
        other_writers.iter().chain([&writer]).map(|writer| writer.sequence).collect::<Vec<_>>()
    {
        model.close(sequence);
    }
    writer.logits
}

fn assert_others_change_nothing(
    directory: &Path,
    options: LoadOptions,
    passes: usize,
    max_prompt: usize,
) {
    let new = || open(directory, options).model;
    for seed in [1, 2] {
        let alone = generate(&mut new(), seed, 0, passes, max_prompt);
        assert!(alone.len() > passes, "{}", alone.len());
        // One model for all, so that the last run reuses what the others cached.
        let mut model = new();
        for others in [1, 4, 9, 0] {
            let found = generate(&mut model, seed, others, passes, max_prompt);
            let first = alone.iter().zip(&found).position(|(a, b)| a != b);
            assert_eq!(first, None, "{directory:?}, {options:?}, seed {seed}, {others} others");
            assert_eq!(found.len(), alone.len());
        }
    }
}

#[test]
fn same_logits_for_any_batch_in_every_family() {
    for folder in fixtures() {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0] {
            assert_others_change_nothing(&folder, precision.into(), 40, 20);
        }
        assert_others_change_nothing(
            &folder,
            LoadOptions { cache: CacheType::F16, ..LoadOptions::default() },
            40,
            20,
        );
    }
}

#[test]
fn same_logits_for_any_batch_of_the_demo_pair() {
    for role in ["target", "draft"] {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0, Precision::Q4K] {
            assert_others_change_nothing(&demo(role), precision.into(), 30, 120);
        }
        let halves = LoadOptions { cache: CacheType::F16, ..Precision::Q8_0.into() };
        assert_others_change_nothing(&demo(role), halves, 30, 120);
    }
}

/// The logits do not depend on how a prompt is divided into chunks.
#[test]
fn same_logits_for_any_prefill_chunk_size() {
    for precision in [Precision::F32, Precision::Q8_0] {
        let mut rng = ChaCha12Rng::seed_from_u64(5);
        let tokens = random_tokens(&mut rng, 600);
        let expected = fresh_logits(&mut model(5, precision), &tokens);
        for max_tokens in [1, 7, 100, 256, 257, 1000] {
            let mut model = model(5, precision);
            let sequence = model.open().unwrap();
            model.extend(sequence, &tokens).unwrap();
            let mut left = tokens.len() - 1;
            while left > 0 {
                let now = model.prepare(sequence, max_tokens).unwrap();
                assert_eq!(now, left - left.min(max_tokens));
                assert_eq!(model.computed_tokens(sequence), tokens.len() - 1 - now);
                left = now;
            }
            assert_eq!(model.prepare(sequence, max_tokens).unwrap(), 0);
            assert_eq!(after(&mut model, sequence), expected, "{max_tokens}, {precision}");
        }
        // Together with other prompts, some longer than a pass.
        let mut model = model(5, precision);
        let others = [3, 300, 513].map(|length| {
            let tokens = random_tokens(&mut rng, length);
            let sequence = model.open().unwrap();
            model.extend(sequence, &tokens).unwrap();
            (sequence, tokens)
        });
        let sequence = model.open().unwrap();
        model.extend(sequence, &tokens).unwrap();
        let tree = DraftTree::new();
        let batch =
            [(others[2].0, &tree), (sequence, &tree), (others[0].0, &tree), (others[1].0, &tree)];
        model.score(&batch).unwrap();
        assert_eq!(bits(model.logits(sequence, 0)), expected);
        for (sequence, tokens) in &others {
            let alone = fresh_logits(&mut self::model(5, precision), tokens);
            assert_eq!(bits(model.logits(*sequence, 0)), alone);
        }
    }
}

/// An f16 cache takes half the bytes and changes the logits little.
#[test]
fn f16_cache_takes_half_the_bytes_and_changes_little() {
    let tokens = random_tokens(&mut ChaCha12Rng::seed_from_u64(11), 300);
    let [(single, bytes), (half, fewer)] = CacheType::ALL.map(|cache| {
        let mut model = open(&demo("target"), LoadOptions { cache, ..LoadOptions::default() });
        let logits = alone(&mut model, &tokens);
        (logits, model.model.cache_bytes())
    });
    assert_eq!(bytes, 2 * fewer);
    let difference = distance(&single, &half);
    assert!(difference > 0.0 && difference < 2e-2, "{difference}");
}

#[test]
fn open_sequence_shares_its_prefix() {
    let mut rng = ChaCha12Rng::seed_from_u64(6);
    let (mut model, mut fresh) = (model(6, Precision::F32), model(6, Precision::F32));
    let tokens = random_tokens(&mut rng, 200);
    let first = model.open().unwrap();
    model.extend(first, &tokens).unwrap();
    let before = after(&mut model, first);
    for length in [200, 150, 64, 1] {
        let mut other = tokens[..length].to_vec();
        other.extend(random_tokens(&mut rng, 20));
        let second = model.open().unwrap();
        // Appended in two chunks; only the first can reuse a cache.
        model.extend(second, &other[..length + 10]).unwrap();
        assert_eq!(
            model.computed_tokens(second),
            length + common_prefix(&tokens[length..], &other[length..])
        );
        model.extend(second, &other[length + 10..]).unwrap();
        assert_eq!(after(&mut model, second), fresh_logits(&mut fresh, &other), "{length}");
        // Both continue, and neither sees the other's tokens.
        let more = random_tokens(&mut rng, 40);
        model.extend(second, &more).unwrap();
        model.extend(first, &more[..5]).unwrap();
        let tree = DraftTree::new();
        model.score(&[(second, &tree), (first, &tree)]).unwrap();
        let complete = [&other[..], &more].concat();
        assert_eq!(bits(model.logits(second, 0)), fresh_logits(&mut fresh, &complete));
        let complete = [&tokens[..], &more[..5]].concat();
        assert_eq!(bits(model.logits(first, 0)), fresh_logits(&mut fresh, &complete));
        model.truncate(first, 200);
        assert_eq!(after(&mut model, first), before);
        model.close(second);
    }
}

/// Length of the common prefix of two sequences.
fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[test]
fn closed_sequence_is_reused_by_its_continuation() {
    let mut rng = ChaCha12Rng::seed_from_u64(7);
    let (mut model, mut fresh) = (model(7, Precision::F32), model(7, Precision::F32));
    let mut tokens = random_tokens(&mut rng, 100);
    for round in 0..5 {
        let sequence = model.open().unwrap();
        model.extend(sequence, &tokens).unwrap();
        assert_eq!(model.computed_tokens(sequence), if round == 0 { 0 } else { tokens.len() - 3 });
        assert_eq!(after(&mut model, sequence), fresh_logits(&mut fresh, &tokens), "{round}");
        model.close(sequence);
        // The cache was moved to the continuation: nothing is cached twice.
        assert_eq!(model.cache_bytes(), page_bytes(&mut fresh) * tokens.len().div_ceil(32));
        tokens.extend(random_tokens(&mut rng, 3));
    }
}

/// Bytes of the smallest cache, one page.
fn page_bytes(model: &mut TransformerModel) -> usize {
    let sequence = model.open().unwrap();
    model.extend(sequence, &[1]).unwrap();
    after(model, sequence);
    let bytes = model.cache_bytes();
    model.close(sequence);
    bytes
}

#[test]
fn shared_prefix_stays_cached_with_the_longer_sequence() {
    let mut rng = ChaCha12Rng::seed_from_u64(8);
    let (mut model, mut fresh) = (model(8, Precision::F32), model(8, Precision::F32));
    let long = random_tokens(&mut rng, 300);
    let sequence = model.open().unwrap();
    model.extend(sequence, &long).unwrap();
    after(&mut model, sequence);
    model.close(sequence);
    let other = [&long[..50], &random_tokens(&mut rng, 10)].concat();
    let sequence = model.open().unwrap();
    model.extend(sequence, &other).unwrap();
    assert!(model.computed_tokens(sequence) >= 50);
    assert_eq!(after(&mut model, sequence), fresh_logits(&mut fresh, &other));
    let again = model.open().unwrap();
    model.extend(again, &long).unwrap();
    assert_eq!(model.computed_tokens(again), 300);
    assert_eq!(after(&mut model, again), fresh_logits(&mut fresh, &long));
}

#[test]
fn closed_sequences_are_limited_in_number_and_bytes() {
    let mut rng = ChaCha12Rng::seed_from_u64(9);
    let mut model = model(9, Precision::F32);
    let page = page_bytes(&mut model);
    let write = |model: &mut TransformerModel, tokens: &[Token]| {
        let sequence = model.open().unwrap();
        model.extend(sequence, tokens).unwrap();
        let known = model.computed_tokens(sequence);
        after(model, sequence);
        model.close(sequence);
        known
    };
    let limits = SequenceLimits { closed: 3, ..SequenceLimits::default() };
    model.set_limits(limits);
    // Sequences that differ from the first token on.
    let sequences: Vec<Vec<Token>> =
        (2..8).map(|i| [&[i as Token], &random_tokens(&mut rng, 39)[..]].concat()).collect();
    sequences.iter().for_each(|tokens| assert_eq!(write(&mut model, tokens), 0));
    assert_eq!(model.cache_bytes(), 3 * 2 * page);
    // The last three are cached, the first are not; reuse keeps a sequence cached.
    assert_eq!(write(&mut model, &sequences[3]), 40);
    assert_eq!(write(&mut model, &sequences[0]), 0);
    assert_eq!(write(&mut model, &sequences[4]), 0);
    assert_eq!(write(&mut model, &sequences[3]), 40);
    model.set_limits(SequenceLimits { closed_bytes: 4 * page, ..limits });
    assert_eq!(model.cache_bytes(), 2 * 2 * page);
    model.set_limits(SequenceLimits { closed: 0, ..limits });
    assert_eq!(model.cache_bytes(), 0);
    assert_eq!(write(&mut model, &sequences[3]), 0);
    assert_eq!(model.cache_bytes(), 0);
}

#[test]
fn truncated_sequence_equals_the_shorter_sequence() {
    let mut rng = ChaCha12Rng::seed_from_u64(10);
    let (mut model, mut fresh) = (model(10, Precision::F32), model(10, Precision::F32));
    let mut tokens = random_tokens(&mut rng, 90);
    let sequence = model.open().unwrap();
    model.extend(sequence, &tokens).unwrap();
    for length in [80, 64, 63, 10, 30, 1, 0] {
        let mut tree = DraftTree::new();
        grow(&mut tree, &mut rng, 6);
        if !tokens.is_empty() {
            model.score(&[(sequence, &tree)]).unwrap();
        }
        model.truncate(sequence, tokens.len() + 1);
        model.truncate(sequence, tokens.len());
        // Nothing was truncated: the tree is still scored.
        assert_eq!(bits(model.logits(sequence, tree.len() - 1)).len(), VOCABULARY);
        tokens.truncate(length);
        model.truncate(sequence, length);
        assert_eq!(model.len(sequence), tokens.len());
        if tokens.is_empty() {
            assert!(model.score(&[(sequence, &tree)]).unwrap_err().to_string().contains("empty"));
        } else {
            assert_eq!(after(&mut model, sequence), fresh_logits(&mut fresh, &tokens), "{length}");
            // The same tokens are still cached; others are not.
            let more = random_tokens(&mut rng, 25);
            tokens.extend(&more);
            model.extend(sequence, &more).unwrap();
            assert_eq!(after(&mut model, sequence), fresh_logits(&mut fresh, &tokens));
            model.truncate(sequence, tokens.len() - 9);
            model.extend(sequence, &more[16..]).unwrap();
            assert_eq!(model.computed_tokens(sequence), tokens.len());
            assert_eq!(after(&mut model, sequence), fresh_logits(&mut fresh, &tokens));
        }
    }
}

#[test]
fn invalid_calls_are_errors_and_leave_other_sequences_intact() {
    let mut model = model(11, Precision::F32);
    // At most three sequences may be open.
    model.set_limits(SequenceLimits { open: 3, ..SequenceLimits::default() });
    assert_eq!(model.info().max_sequences, 3);
    let [good, bad] = [(); 2].map(|()| model.open().unwrap());
    let message = model.open().unwrap_err().to_string();
    assert!(message.contains("at most 3 sequences"), "{message}");
    model.extend(good, &[1, 2, 3]).unwrap();
    let expected = after(&mut model, good);
    let tree = DraftTree::new();

    // An empty sequence in the batch.
    assert_eq!(model.prepare(bad, 5).unwrap(), 0);
    model.extend(bad, &[]).unwrap();
    let message = model.score(&[(good, &tree), (bad, &tree)]).unwrap_err().to_string();
    assert!(message.contains("empty"), "{message}");
    // A token outside the vocabulary: nothing is appended.
    let message = model.extend(bad, &[1, VOCABULARY as Token]).unwrap_err().to_string();
    assert!(message.contains("below 96"), "{message}");
    assert_eq!(model.len(bad), 0);
    // A sequence longer than the context, and a tree after a full one.
    model.extend(bad, &vec![1; 641]).unwrap();
    for message in [
        model.prepare(bad, 5).unwrap_err().to_string(),
        model.score(&[(good, &tree), (bad, &tree)]).unwrap_err().to_string(),
    ] {
        assert!(message.contains("641") && message.contains("640"), "{message}");
    }
    model.truncate(bad, 640);
    model.score(&[(bad, &tree)]).unwrap();
    let mut deeper = DraftTree::new();
    deeper.add(0, 1);
    let message = model.score(&[(good, &tree), (bad, &deeper)]).unwrap_err().to_string();
    assert!(message.contains("641") && message.contains("640"), "{message}");

    model.commit(good, &tree, &[]).unwrap();
    assert_eq!(after(&mut model, good), expected);
    // A slot that is free again.
    model.close(bad);
    let next = model.open().unwrap();
    assert_eq!(model.len(next), 0);
    assert!(model.open().is_err());
}

/// The number of cached tokens is that of the target, whatever its drafter has to compute.
#[test]
fn cached_prompt_is_reported_with_a_drafter_without_cache() {
    let folder = fixtures().remove(0);
    let options = LoadOptions { precision: Precision::F32, ..LoadOptions::default() };
    let target = load(&folder, options).unwrap();
    let prompt = target.language.tokenizer.encode("what a tree is").unwrap();
    let kind: DrafterKind = "ngram".parse().unwrap();
    let drafter = kind.build(target.model.info()).unwrap();
    let mut engine = Engine::new(Box::new(target.model), Some(drafter));
    for cached in [0, prompt.len() - 1] {
        let verifier = VerifierKind::all()[0].build().unwrap();
        let speculation = Speculation::new(verifier, PolicyKind::paths(1, 2).build().unwrap());
        let request = Request::new(&prompt[..])
            .speculation(Some(speculation.unwrap()))
            .limits(Limits { max_tokens: Some(3), ..Limits::default() });
        let mut session = engine.open(request).unwrap();
        assert!(engine.prepare(&mut session, 0).unwrap() > 0);
        assert_eq!(engine.cached_tokens(&session).unwrap(), cached);
        while !session.is_done() {
            engine.step(&mut [&mut session]).unwrap();
        }
        engine.close(session).unwrap();
    }
}
