//! Draft heads against the reference implementation: the logits of heads/, which make.py made.

use std::fs;
use std::path::Path;

use crate::common::heads::*;
use crate::common::*;
use polydraft::{DraftTree, NodeId, Sampling, Token};
use polydraft_engine::{Drafter, Model, Sequence, Sequences};
use polydraft_models::{Head, HeadOptions, LoadOptions, Precision, is_head, load, load_head};

/// What make.py expects: a text, and `[step][place]` log-probabilities of the tokens that the head
/// can draft.
struct Expected {
    text: Vec<Token>,
    distributions: Vec<Vec<Vec<f64>>>,
}

impl Expected {
    fn read(name: &str, count: usize) -> Self {
        let found = read_tensors(&folder(name).join("expected.safetensors"));
        let text = found["tokens"].integers().into_iter().map(|t| t as Token).collect();
        let [_, places, width] = found["logits"].shape[..] else { panic!("no steps") };
        let logits: Vec<f64> = found["logits"].values().into_iter().map(f64::from).collect();
        let probs = |logits: &[f64]| {
            let top = logits[..count].iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let sum: f64 = logits[..count].iter().map(|x| (x - top).exp()).sum();
            logits[..count].iter().map(|x| x - top - sum.ln()).collect()
        };
        let steps = logits.chunks_exact(places * width);
        let distributions =
            steps.map(|step| step.chunks_exact(width).map(probs).collect()).collect();
        Self { text, distributions }
    }
}

type Pair = HeadPair<Head>;

impl HeadPair<Head> {
    fn open(name: &str) -> Self {
        let (target, head) = open_head(name);
        Self::of(target, head)
    }

    /// The largest distance of what is drafted along `path` from log-probabilities.
    fn distance(&mut self, path: &[Token], expected: &[&Vec<f64>]) -> f64 {
        let mut tree = DraftTree::new();
        let (mut node, mut worst) = (DraftTree::ROOT, 0.0_f64);
        for (step, expected) in expected.iter().enumerate() {
            if step > 0 {
                node = tree.add(node, path[step - 1]);
            }
            self.head.score(&[(self.sequences[1], &tree)]).unwrap();
            let probs = self
                .head
                .distribution(self.sequences[1], node, &Sampling::default(), None)
                .unwrap();
            let mut all = 0.0;
            for (token, expected) in self.head.tokens().iter().zip(*expected) {
                worst = worst.max((probs.probability(*token).ln() - expected).abs());
                all += probs.probability(*token);
            }
            assert!((all - 1.0).abs() < 1e-9, "{all}");
        }
        worst
    }
}

#[test]
fn every_variant_gives_the_logits_of_the_reference() {
    for name in HEADS {
        let mut pair = Pair::open(name);
        let Expected { text, distributions } = Expected::read(name, pair.head.tokens().len());
        let expected = |place: usize| {
            let steps = distributions.len().min(text.len() - 1 - place);
            distributions[..steps].iter().map(|step| &step[place]).collect::<Vec<_>>()
        };
        let mut worst = 0.0_f64;
        for place in 0..text.len() - 1 {
            pair.reset();
            pair.extend(&text[..place + 2], 5);
            worst = worst.max(pair.distance(&text[place + 2..], &expected(place)));
        }
        // One token after the other: what was drafted gives way to what the target says.
        pair.reset();
        pair.extend(&text[..2], 9);
        for place in 0..text.len() - 1 {
            worst = worst.max(pair.distance(&text[place + 2..], &expected(place)));
            if let Some(token) = text.get(place + 2) {
                pair.extend(&[*token], 9);
            }
        }
        assert!(worst < 1e-4, "{name}: {worst:e}");
    }
}

/// What was read, and drafted, after a place that is gone back to is as if it had never been.
#[test]
fn tokens_that_are_taken_back_leave_no_trace() {
    for name in HEADS {
        let mut pair = Pair::open(name);
        let Expected { text, distributions } = Expected::read(name, pair.head.tokens().len());
        let place = text.len() / 2;
        for left in [1, 2, place, place + 1] {
            pair.reset();
            pair.extend(&[&text[..left], &text[..4]].concat(), 5);
            let [own, its] = pair.sequences;
            pair.head.score(&[(its, &DraftTree::new())]).unwrap();
            pair.target.truncate(own, left);
            pair.head.truncate(its, left);
            pair.extend(&text[left..place + 2], 5);
            let worst = pair.distance(&text[place + 2..], &[&distributions[0][place]]);
            assert!(worst < 1e-4, "{name}, {left}: {worst:e}");
        }
    }
}

#[test]
fn another_convention_of_layers_can_be_asked_for() {
    let mut pair = Pair::open("specforge");
    let before = pair.head.hidden_states().to_vec();
    let mut target = target().model;
    let options = HeadOptions { layers: Some(vec![6, 0, 2]), ..HeadOptions::default() };
    pair.head = load_head(&folder("specforge"), &mut target, &options).unwrap();
    assert_ne!(pair.head.hidden_states(), before);
    assert_eq!(format!("{:?}", pair.head.hidden_states()), "[After(0), After(2), After(6)]");
}

#[test]
fn trees_in_company_are_scored_as_alone() {
    for name in HEADS {
        let (mut target, mut head) = open_head(name);
        let text = Expected::read(name, head.tokens().len()).text;
        let lengths = [3, 18, 2, 11, 1];
        let sequences: Vec<[Sequence; 2]> = lengths
            .iter()
            .map(|&length| {
                let own = [target.open().unwrap(), head.open().unwrap()];
                target.extend(own[0], &text[..length]).unwrap();
                while target.prepare(own[0], 64).unwrap() > 0 {}
                head.extend(own[1], &text[..length]).unwrap();
                head.sync_target(own[1], &target, own[0], length - 1).unwrap();
                own
            })
            .collect();
        let mut tree = DraftTree::new();
        for (parent, token) in [(0, 7), (0, 8), (1, 9), (1, 7), (3, 3), (2, 9)] {
            tree.add(parent, token);
        }
        let distributions = |head: &Head, sequence: Sequence| -> Vec<Vec<f64>> {
            let probs = |node: NodeId| {
                head.distribution(sequence, node, &Sampling::default(), None).unwrap()
            };
            (0..tree.len()).map(|node| probs(node).to_vec()).collect()
        };
        // All at once, whole trees; then each by itself and level by level.
        let batch: Vec<_> = sequences.iter().map(|own| (own[1], &tree)).collect();
        head.score(&batch).unwrap();
        let together: Vec<_> = sequences.iter().map(|own| distributions(&head, own[1])).collect();
        for (own, together) in sequences.iter().zip(together) {
            head.extend(own[1], &[]).unwrap();
            let mut growing = DraftTree::new();
            for node in 1..=tree.len() {
                head.score(&[(own[1], &growing)]).unwrap();
                if node < tree.len() {
                    growing.add(tree.parent(node), tree.token(node));
                }
            }
            assert_eq!(distributions(&head, own[1]), together, "{name}");
        }
    }
}

#[test]
fn a_smaller_vocabulary_is_the_same_distribution_on_fewer_tokens() {
    for name in HEADS {
        let mut whole = Pair::open(name);
        let text = Expected::read(name, whole.head.tokens().len()).text;
        let kept: Vec<Token> = whole.head.tokens().iter().copied().step_by(3).collect();
        let mut cut = Pair::open(name);
        let options = HeadOptions { tokens: Some(kept.clone()), ..HeadOptions::default() };
        cut.target.close(cut.sequences[0]);
        cut.head = load_head(&folder(name), &mut cut.target, &options).unwrap();
        cut.sequences = [cut.target.open().unwrap(), cut.head.open().unwrap()];
        assert_eq!(cut.head.tokens(), kept);
        let mut distributions = [&mut whole, &mut cut].map(|pair| {
            pair.extend(&text, 64);
            pair.head.score(&[(pair.sequences[1], &DraftTree::new())]).unwrap();
            pair.head
                .distribution(pair.sequences[1], 0, &Sampling::default(), None)
                .unwrap()
                .to_vec()
        });
        let mass: f64 = kept.iter().map(|t| distributions[0][*t as usize]).sum();
        (0..)
            .zip(&mut distributions[0])
            .for_each(|(t, p)| *p = if kept.contains(&t) { *p / mass } else { 0.0 });
        let [whole, cut] = distributions;
        // The same logits, whose powers are taken against another largest, in single precision.
        assert!(whole.iter().zip(&cut).all(|(a, b)| (a - b).abs() <= 2e-6 * a), "{name}");
    }
}

#[test]
fn a_model_with_a_smaller_output_drafts_the_same_distribution_on_fewer_tokens() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0] {
        let options = LoadOptions { precision, ..LoadOptions::default() };
        let [mut whole, mut cut] = [(); 2].map(|()| load(&demo("draft"), options).unwrap().model);
        let kept: Vec<Token> = (0..4096).step_by(7).collect();
        cut.cut_output(&kept).unwrap();
        let [whole, cut] = [&mut whole, &mut cut].map(|model| {
            let sequence = model.open().unwrap();
            model.extend(sequence, &[1, 50, 300]).unwrap();
            model.score(&[(sequence, &DraftTree::new())]).unwrap();
            model.logits(sequence, 0).to_vec()
        });
        let chosen: Vec<f32> = kept.iter().map(|t| whole[*t as usize]).collect();
        // Rounding what was rounded may move a number by a step.
        let tolerance = if precision == Precision::Q8_0 { 0.05 } else { 0.0 };
        assert!(distance(&chosen, &cut) <= tolerance, "{precision}: {}", distance(&chosen, &cut));
    }
}

#[test]
fn what_a_token_takes_is_known_before() {
    let mut pair = Pair::open("specforge");
    let unwatched = target().model.token_bytes();
    pair.extend(&(0..32).map(|i| i * 7 % 60).collect::<Vec<Token>>(), 64);
    // A page; heads as small as these are held with room to spare.
    assert!(pair.target.cache_bytes() as u64 >= 32 * pair.target.token_bytes());
    assert!(
        pair.head.cache_bytes() as u64 >= 32 * pair.head.token_bytes()
            && pair.head.token_bytes() > 0
    );
    // Three hidden states of 32 numbers.
    assert_eq!(pair.target.token_bytes(), unwatched + 3 * 32 * 4);
}

/// All but what says which tokens are in the draft vocabulary, which nobody needs.
fn tensors_of(path: &Path) -> Tensors {
    read_tensors(path).into_iter().filter(|(name, _)| name != "t2d").collect()
}

/// What loading says; a description says the same, where headers tell it.
fn message(directory: &Path) -> String {
    let error =
        load_head(directory, &mut target().model, &HeadOptions::default()).unwrap_err().to_string();
    if let Err(described) = described(directory) {
        assert_eq!(described.to_string(), error);
    }
    error
}

#[test]
fn malformed_heads_are_refused_by_name() {
    use serde_json::json;
    let tensor = |name: &str,
                  tensor: &str,
                  change: &dyn Fn(&Tensor) -> Option<Tensor>,
                  expected: &[&str]| {
        let directory = changed(name, |directory| {
            let path = directory.join("model.safetensors");
            let mut tensors = tensors_of(&path);
            let old = tensors.remove(tensor);
            let old = old.unwrap_or_else(|| Tensor::zeros(&[1, 96], Dtype::F32));
            if let Some(new) = change(&old) {
                tensors.insert(tensor.to_owned(), new);
            }
            write_tensors(&tensors, &path);
        });
        let found = message(directory.path());
        for part in [&[tensor], expected].concat() {
            assert!(found.contains(part), "{name}, {tensor}: {found}, expected {part}");
        }
        directory
    };
    let shorter = |x: &Tensor| Some(x.shorter());
    tensor(
        "specforge",
        "fc.weight",
        &|_| None,
        &["expected shape [32, 96]", "no tensor of that name"],
    );
    tensor("specforge", "fc.weight", &shorter, &["expected shape [32, 96]", "got shape [31, 96]"]);
    tensor(
        "specforge",
        "lm_head.weight",
        &shorter,
        &["expected shape [24, 32]", "got shape [23, 32]"],
    );
    tensor("specforge", "input_norm.weight", &|_| None, &["expected shape [96]"]);
    tensor("speculators", "layers.0.hidden_norm.weight", &|_| None, &["expected shape [32]"]);
    tensor("speculators", "layers.1.mlp.up_proj.weight", &shorter, &["got shape [23, 32]"]);
    tensor("eagle1", "fc.bias", &|_| None, &["expected shape [32]", "no tensor of that name"]);
    tensor("eagle1", "layers.0.self_attn.q_proj.weight", &shorter, &["got shape [31, 32]"]);
    let several = tensor("specforge", "mask_hidden", &|x| Some(x.clone()), &["several at once"]);
    assert!(described(several.path()).is_err());
    tensor("specforge", "something.else", &|x| Some(x.clone()), &["no such tensor"]);
    tensor("specforge", "d2t", &|_| None, &["expected shape [24]", "no tensor of that name"]);
    let numbers = |change: fn(&mut Vec<i64>)| {
        move |x: &Tensor| {
            let mut numbers = x.integers();
            change(&mut numbers);
            Some(Tensor::whole(&numbers))
        }
    };
    tensor(
        "specforge",
        "d2t",
        &numbers(|d| d[3] = 1000),
        &["below the target's 64", "got 1003 at entry 3"],
    );
    tensor("specforge", "d2t", &numbers(|d| d[0] = -1), &["got -1 at entry 0"]);
    tensor(
        "specforge",
        "d2t",
        &numbers(|d| d[5] = d[4] - 1),
        &["every token once", "again at entry 5"],
    );
    tensor(
        "specforge",
        "d2t",
        &numbers(|d| d.truncate(9)),
        &["expected shape [24], got shape [9]"],
    );
    tensor("specforge", "d2t", &|x| Some(x.to_dtype(Dtype::F32)), &["type I64", "got type F32"]);

    let field = |name: &str, path: &str, value: serde_json::Value, expected: &str| {
        let directory = changed(name, |directory| {
            change_config(directory, |config| *config.pointer_mut(path).unwrap() = value);
        });
        let found = message(directory.path());
        assert!(found.contains("config.json") && found.contains(expected), "{path}: {found}");
        assert!(described(directory.path()).is_err(), "{path}: {found}");
    };
    field("specforge", "/vocab_size", json!(65), "vocab_size: expected the target's 64, got 65");
    field("specforge", "/hidden_size", json!(48), "hidden_size: expected the target's 32, got 48");
    field(
        "specforge",
        "/draft_vocab_size",
        json!(65),
        "draft_vocab_size: expected from 1 to vocab_size",
    );
    let nested = "/eagle_config/use_aux_hidden_state";
    field("specforge", nested, json!(false), "use_aux_hidden_state: expected true, got false");
    field("specforge", "/eagle_config", json!({"new": 1}), "expected no unknown choice, got new");
    let layers = "/eagle_config/eagle_aux_hidden_state_layer_ids";
    field("specforge", layers, json!([0, 2, 8]), "expected at most its 8, got 9");
    field("specforge", layers, json!([0, 2, 2]), "expected layers that differ, got 3 twice");
    field(
        "speculators",
        "/norm_before_residual",
        json!(null),
        "expected true or false in this format",
    );
    field(
        "speculators",
        "/speculators_model_type",
        json!("peagle"),
        "expected eagle3, dflash, dflash2, dspark, got \"peagle\"",
    );
    let both = json!({"norm_before_fc": true, "fc_norm": true});
    field("specforge", "/eagle_config", both, "norm_before_fc: expected false beside fc_norm");
    let sliding = json!(["sliding_attention"]);
    let types = "/transformer_layer_config/layer_types";
    field("speculators-qwen3", types, sliding, "layer_types: expected full_attention");
}

#[test]
fn broken_pickles_are_refused() {
    let path = |directory: &Path| directory.join("pytorch_model.bin");
    let bytes = fs::read(path(&folder("original"))).unwrap();
    let found = changed("original", |directory| fs::write(path(directory), &bytes[..900]).unwrap());
    assert!(message(found.path()).contains("expected a zip"), "{}", message(found.path()));
    // Any byte of the list of tensors: an error or another head, never a panic.
    let list = bytes.windows(8).position(|w| w == b"data.pkl").unwrap() + 8;
    for at in (list..list + 3000).step_by(7) {
        let mut broken = bytes.clone();
        broken[at] ^= 0x55;
        let found = changed("original", |directory| fs::write(path(directory), &broken).unwrap());
        let _ = load_head(found.path(), &mut target().model, &HeadOptions::default());
    }
}

#[test]
fn heads_that_do_not_fit_say_what_would() {
    let message = |name: &str, memory| {
        let options = HeadOptions { memory: Some(memory), ..HeadOptions::default() };
        load_head(&folder(name), &mut target().model, &options).map(drop).map_err(|e| e.to_string())
    };
    for name in HEADS {
        assert_eq!(message(name, 1 << 20), Ok(()), "{name}");
        let found = message(name, 10_000).unwrap_err();
        assert!(found.contains("as f32") && found.contains("10.0 kB are free"), "{name}: {found}");
    }
    // Its numbers take 55 kB in f32, keys and values of the context 8 kB.
    let found = message("specforge", 50_000).unwrap_err();
    assert!(found.contains("would fit: f16 ("), "{found}");
}

#[test]
fn heads_are_told_from_models() {
    for name in HEADS {
        assert!(is_head(&folder(name)), "{name}");
    }
    assert!(
        !is_head(&folder("target")) && !is_head(&demo("draft")) && !is_head(Path::new("/nowhere"))
    );
}
