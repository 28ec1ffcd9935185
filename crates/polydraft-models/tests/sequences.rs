//! Many texts in one model: each is what it would be alone, to the last bit.

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

/// What a new model says after a text that it reads at once.
fn afresh(model: &mut TransformerModel, text: &[Token]) -> Vec<u32> {
    model.limit(SequenceLimits { closed: 0, ..SequenceLimits::default() });
    let sequence = model.open().unwrap();
    model.extend(sequence, text).unwrap();
    assert_eq!(model.computed(sequence), 0);
    let said = after(model, sequence);
    model.close(sequence);
    said
}

/// What it says after a sequence.
fn after(model: &mut TransformerModel, sequence: Sequence) -> Vec<u32> {
    model.score(&[(sequence, &DraftTree::new())]).unwrap();
    bits(model.logits(sequence, DraftTree::ROOT))
}

/// Writes a text by rules of its own: trees that grow, paths of them that stay. What a model says
/// decides how it goes on, so that a single bit changes everything behind it.
struct Writer {
    sequence: Sequence,
    rng: ChaCha12Rng,
    tree: DraftTree,
    vocabulary: Token,
    turns: usize,
    read: usize,
    said: Vec<Vec<u32>>,
}

impl Writer {
    fn new(model: &mut TransformerModel, seed: u64, longest: usize) -> Self {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let vocabulary = model.info().vocabulary.size() as Token;
        let prompt: Vec<Token> =
            (0..rng.random_range(1..=longest)).map(|_| rng.random_range(0..vocabulary)).collect();
        let sequence = model.open().unwrap();
        model.extend(sequence, &prompt).unwrap();
        Self {
            sequence,
            rng,
            tree: DraftTree::new(),
            vocabulary,
            turns: 0,
            read: 0,
            said: Vec::new(),
        }
    }

    /// Before a pass.
    fn draft(&mut self) {
        for _ in 0..self.rng.random_range(0..5) {
            let parent: NodeId = self.rng.random_range(0..self.tree.len());
            self.tree.add(parent, self.rng.random_range(0..self.vocabulary));
        }
    }

    /// After it. Returns whether there is room for more.
    fn read(&mut self, model: &mut TransformerModel) -> bool {
        for node in self.read..self.tree.len() {
            self.said.push(bits(model.logits(self.sequence, node)));
        }
        self.read = self.tree.len();
        self.turns += 1;
        if self.turns.is_multiple_of(3) {
            let path = self.tree.path(self.rng.random_range(0..self.tree.len()));
            model.commit(self.sequence, &self.tree, &path).unwrap();
            let next =
                self.said[self.said.len() - 1].iter().fold(0u32, |sum, b| sum.wrapping_add(*b));
            model.extend(self.sequence, &[next % self.vocabulary]).unwrap();
            if self.turns.is_multiple_of(12) {
                model.truncate(self.sequence, model.len(self.sequence) - 1);
            }
            self.tree = DraftTree::new();
            self.read = 0;
        }
        // A tree of three turns at most is as deep as it has nodes.
        model.len(self.sequence) + 16 < model.info().context
    }
}

/// Every bit that is said to the writer of this seed in some turns, with so many others around it.
fn written(
    model: &mut TransformerModel,
    seed: u64,
    others: usize,
    turns: usize,
    longest: usize,
) -> Vec<Vec<u32>> {
    // Who is in a pass, and what they write, is left to chance.
    let mut company = ChaCha12Rng::seed_from_u64(seed ^ 0x5eed);
    let mut writer = Writer::new(model, seed, longest);
    let mut around: Vec<Writer> =
        (0..others).map(|i| Writer::new(model, seed + 100 + i as u64, longest)).collect();
    for _ in 0..turns {
        let present: Vec<bool> = around.iter().map(|_| company.random()).collect();
        let with = || present.iter().copied();
        writer.draft();
        around.iter_mut().zip(with()).filter(|(_, p)| *p).for_each(|(w, _)| w.draft());
        let mut batch: Vec<_> =
            around.iter().zip(with()).filter(|(_, p)| *p).map(|(w, _)| w).collect();
        batch.insert(company.random_range(0..=batch.len()), &writer);
        let batch: Vec<_> = batch.into_iter().map(|w| (w.sequence, &w.tree)).collect();
        model.score(&batch).unwrap();
        let done = !writer.read(model);
        for (number, _) in present.iter().enumerate().filter(|(_, p)| **p) {
            if !around[number].read(model) {
                // One that is full makes room for another.
                model.close(around[number].sequence);
                around[number] = Writer::new(model, company.random(), longest);
            }
        }
        if done {
            break;
        }
    }
    for sequence in around.iter().chain([&writer]).map(|writer| writer.sequence).collect::<Vec<_>>()
    {
        model.close(sequence);
    }
    writer.said
}

fn company_changes_nothing(directory: &Path, options: LoadOptions, turns: usize, longest: usize) {
    let new = || open(directory, options).model;
    for seed in [1, 2] {
        let alone = written(&mut new(), seed, 0, turns, longest);
        assert!(alone.len() > turns, "{}", alone.len());
        // In one model, so that the last run finds what the others left.
        let mut model = new();
        for others in [1, 4, 9, 0] {
            let found = written(&mut model, seed, others, turns, longest);
            let first = alone.iter().zip(&found).position(|(a, b)| a != b);
            assert_eq!(first, None, "{directory:?}, {options:?}, seed {seed}, {others} others");
            assert_eq!(found.len(), alone.len());
        }
    }
}

#[test]
fn company_changes_no_bit_in_any_family() {
    for folder in fixtures() {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0] {
            company_changes_nothing(&folder, precision.into(), 40, 20);
        }
        company_changes_nothing(
            &folder,
            LoadOptions { cache: CacheType::F16, ..LoadOptions::default() },
            40,
            20,
        );
    }
}

#[test]
fn company_changes_no_bit_of_the_demo_pair() {
    for role in ["target", "draft"] {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0, Precision::Q4K] {
            company_changes_nothing(&demo(role), precision.into(), 30, 120);
        }
        let halves = LoadOptions { cache: CacheType::F16, ..Precision::Q8_0.into() };
        company_changes_nothing(&demo(role), halves, 30, 120);
    }
}

/// However a text came to be computed, the same bits come out.
#[test]
fn a_prompt_may_be_computed_in_any_pieces() {
    for precision in [Precision::F32, Precision::Q8_0] {
        let mut rng = ChaCha12Rng::seed_from_u64(5);
        let text = random_text(&mut rng, 600);
        let expected = afresh(&mut model(5, precision), &text);
        for most in [1, 7, 100, 256, 257, 1000] {
            let mut model = model(5, precision);
            let sequence = model.open().unwrap();
            model.extend(sequence, &text).unwrap();
            let mut left = text.len() - 1;
            while left > 0 {
                let now = model.prepare(sequence, most).unwrap();
                assert_eq!(now, left - left.min(most));
                assert_eq!(model.computed(sequence), text.len() - 1 - now);
                left = now;
            }
            assert_eq!(model.prepare(sequence, most).unwrap(), 0);
            assert_eq!(after(&mut model, sequence), expected, "{most}, {precision}");
        }
        // Beside others, some of whose prompts are longer than a pass.
        let mut model = model(5, precision);
        let others = [3, 300, 513].map(|length| {
            let text = random_text(&mut rng, length);
            let sequence = model.open().unwrap();
            model.extend(sequence, &text).unwrap();
            (sequence, text)
        });
        let sequence = model.open().unwrap();
        model.extend(sequence, &text).unwrap();
        let tree = DraftTree::new();
        let batch =
            [(others[2].0, &tree), (sequence, &tree), (others[0].0, &tree), (others[1].0, &tree)];
        model.score(&batch).unwrap();
        assert_eq!(bits(model.logits(sequence, 0)), expected);
        for (sequence, text) in &others {
            let alone = afresh(&mut self::model(5, precision), text);
            assert_eq!(bits(model.logits(*sequence, 0)), alone);
        }
    }
}

/// Half the bytes, and nearly the same model.
#[test]
fn keys_and_values_in_halves() {
    let text = random_text(&mut ChaCha12Rng::seed_from_u64(11), 300);
    let [(single, bytes), (half, fewer)] = CacheType::ALL.map(|cache| {
        let mut model = open(&demo("target"), LoadOptions { cache, ..LoadOptions::default() });
        let logits = alone(&mut model, &text);
        (logits, model.model.cache_bytes())
    });
    assert_eq!(bytes, 2 * fewer);
    let far = distance(&single, &half);
    assert!(far > 0.0 && far < 2e-2, "{far}");
}

#[test]
fn an_open_text_shares_its_beginning() {
    let mut rng = ChaCha12Rng::seed_from_u64(6);
    let (mut model, mut fresh) = (model(6, Precision::F32), model(6, Precision::F32));
    let text = random_text(&mut rng, 200);
    let first = model.open().unwrap();
    model.extend(first, &text).unwrap();
    let before = after(&mut model, first);
    for length in [200, 150, 64, 1] {
        let mut other = text[..length].to_vec();
        other.extend(random_text(&mut rng, 20));
        let second = model.open().unwrap();
        // In pieces: the first decides.
        model.extend(second, &other[..length + 10]).unwrap();
        assert_eq!(model.computed(second), length + common(&text[length..], &other[length..]));
        model.extend(second, &other[length + 10..]).unwrap();
        assert_eq!(after(&mut model, second), afresh(&mut fresh, &other), "{length}");
        // Both go on, and neither sees the other's.
        let more = random_text(&mut rng, 40);
        model.extend(second, &more).unwrap();
        model.extend(first, &more[..5]).unwrap();
        let tree = DraftTree::new();
        model.score(&[(second, &tree), (first, &tree)]).unwrap();
        let whole = [&other[..], &more].concat();
        assert_eq!(bits(model.logits(second, 0)), afresh(&mut fresh, &whole));
        let whole = [&text[..], &more[..5]].concat();
        assert_eq!(bits(model.logits(first, 0)), afresh(&mut fresh, &whole));
        model.truncate(first, 200);
        assert_eq!(after(&mut model, first), before);
        model.close(second);
    }
}

/// Of how many tokens two texts begin alike.
fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[test]
fn a_closed_text_serves_its_continuation() {
    let mut rng = ChaCha12Rng::seed_from_u64(7);
    let (mut model, mut fresh) = (model(7, Precision::F32), model(7, Precision::F32));
    let mut text = random_text(&mut rng, 100);
    for round in 0..5 {
        let sequence = model.open().unwrap();
        model.extend(sequence, &text).unwrap();
        assert_eq!(model.computed(sequence), if round == 0 { 0 } else { text.len() - 3 });
        assert_eq!(after(&mut model, sequence), afresh(&mut fresh, &text), "{round}");
        model.close(sequence);
        // It went over to its continuation: nothing is held twice.
        assert_eq!(model.cache_bytes(), page_bytes(&mut fresh) * text.len().div_ceil(32));
        text.extend(random_text(&mut rng, 3));
    }
}

/// Bytes of the smallest cache.
fn page_bytes(model: &mut TransformerModel) -> usize {
    let sequence = model.open().unwrap();
    model.extend(sequence, &[1]).unwrap();
    after(model, sequence);
    let bytes = model.cache_bytes();
    model.close(sequence);
    bytes
}

#[test]
fn what_many_begin_with_stays_with_the_longer_text() {
    let mut rng = ChaCha12Rng::seed_from_u64(8);
    let (mut model, mut fresh) = (model(8, Precision::F32), model(8, Precision::F32));
    let long = random_text(&mut rng, 300);
    let sequence = model.open().unwrap();
    model.extend(sequence, &long).unwrap();
    after(&mut model, sequence);
    model.close(sequence);
    let other = [&long[..50], &random_text(&mut rng, 10)].concat();
    let sequence = model.open().unwrap();
    model.extend(sequence, &other).unwrap();
    assert!(model.computed(sequence) >= 50);
    assert_eq!(after(&mut model, sequence), afresh(&mut fresh, &other));
    let again = model.open().unwrap();
    model.extend(again, &long).unwrap();
    assert_eq!(model.computed(again), 300);
    assert_eq!(after(&mut model, again), afresh(&mut fresh, &long));
}

#[test]
fn closed_texts_are_limited_in_number_and_bytes() {
    let mut rng = ChaCha12Rng::seed_from_u64(9);
    let mut model = model(9, Precision::F32);
    let page = page_bytes(&mut model);
    let write = |model: &mut TransformerModel, text: &[Token]| {
        let sequence = model.open().unwrap();
        model.extend(sequence, text).unwrap();
        let known = model.computed(sequence);
        after(model, sequence);
        model.close(sequence);
        known
    };
    let limits = SequenceLimits { closed: 3, ..SequenceLimits::default() };
    model.limit(limits);
    // Texts that differ from the first token on.
    let texts: Vec<Vec<Token>> =
        (2..8).map(|i| [&[i as Token], &random_text(&mut rng, 39)[..]].concat()).collect();
    texts.iter().for_each(|text| assert_eq!(write(&mut model, text), 0));
    assert_eq!(model.cache_bytes(), 3 * 2 * page);
    // The last three are there, the first are not; using one keeps it.
    assert_eq!(write(&mut model, &texts[3]), 40);
    assert_eq!(write(&mut model, &texts[0]), 0);
    assert_eq!(write(&mut model, &texts[4]), 0);
    assert_eq!(write(&mut model, &texts[3]), 40);
    model.limit(SequenceLimits { closed_bytes: 4 * page, ..limits });
    assert_eq!(model.cache_bytes(), 2 * 2 * page);
    model.limit(SequenceLimits { closed: 0, ..limits });
    assert_eq!(model.cache_bytes(), 0);
    assert_eq!(write(&mut model, &texts[3]), 0);
    assert_eq!(model.cache_bytes(), 0);
}

#[test]
fn a_text_cut_short_is_the_shorter_text() {
    let mut rng = ChaCha12Rng::seed_from_u64(10);
    let (mut model, mut fresh) = (model(10, Precision::F32), model(10, Precision::F32));
    let mut text = random_text(&mut rng, 90);
    let sequence = model.open().unwrap();
    model.extend(sequence, &text).unwrap();
    for length in [80, 64, 63, 10, 30, 1, 0] {
        let mut tree = DraftTree::new();
        grow(&mut tree, &mut rng, 6);
        if !text.is_empty() {
            model.score(&[(sequence, &tree)]).unwrap();
        }
        model.truncate(sequence, text.len() + 1);
        model.truncate(sequence, text.len());
        // Nothing was taken back: the tree is still there.
        assert_eq!(bits(model.logits(sequence, tree.len() - 1)).len(), VOCABULARY);
        text.truncate(length);
        model.truncate(sequence, length);
        assert_eq!(model.len(sequence), text.len());
        if text.is_empty() {
            assert!(model.score(&[(sequence, &tree)]).unwrap_err().to_string().contains("empty"));
        } else {
            assert_eq!(after(&mut model, sequence), afresh(&mut fresh, &text), "{length}");
            // The same tokens once more are known; others are not.
            let more = random_text(&mut rng, 25);
            text.extend(&more);
            model.extend(sequence, &more).unwrap();
            assert_eq!(after(&mut model, sequence), afresh(&mut fresh, &text));
            model.truncate(sequence, text.len() - 9);
            model.extend(sequence, &more[16..]).unwrap();
            assert_eq!(model.computed(sequence), text.len());
            assert_eq!(after(&mut model, sequence), afresh(&mut fresh, &text));
        }
    }
}

#[test]
fn misuse_is_an_error_and_harms_nobody() {
    let mut model = model(11, Precision::F32);
    // One is open already, for the decode loop.
    model.limit(SequenceLimits { open: 3, ..SequenceLimits::default() });
    assert_eq!(model.info().sequences, 3);
    let [good, bad] = [(); 2].map(|()| model.open().unwrap());
    let message = model.open().unwrap_err().to_string();
    assert!(message.contains("at most 3 sequences"), "{message}");
    model.extend(good, &[1, 2, 3]).unwrap();
    let expected = after(&mut model, good);
    let tree = DraftTree::new();

    // An empty one in the batch.
    assert_eq!(model.prepare(bad, 5).unwrap(), 0);
    model.extend(bad, &[]).unwrap();
    let message = model.score(&[(good, &tree), (bad, &tree)]).unwrap_err().to_string();
    assert!(message.contains("empty"), "{message}");
    // A token that is none: nothing of what it came with is taken.
    let message = model.extend(bad, &[1, VOCABULARY as Token]).unwrap_err().to_string();
    assert!(message.contains("below 96"), "{message}");
    assert_eq!(model.len(bad), 0);
    // More than the context, and a tree behind a full one.
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
    // A place that is free again.
    model.close(bad);
    let next = model.open().unwrap();
    assert_eq!(model.len(next), 0);
    assert!(model.open().is_err());
}

/// What the target has in its KV cache is told of the target, whatever its drafter has to read.
#[test]
fn a_cached_prompt_is_known_beside_a_drafter_without_a_cache() {
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
        assert_eq!(engine.computed(&session).unwrap(), cached);
        while !session.is_done() {
            engine.step(&mut [&mut session]).unwrap();
        }
        engine.close(session).unwrap();
    }
}
