//! Draft heads against the reference implementation, whose logits make.py stored in heads/.

use std::fs;
use std::path::Path;

use crate::common::heads::*;
use crate::common::*;
use polydraft::{DraftTree, NodeId, Sampling, Token};
use polydraft_engine::{Drafter, Model, Sequence, Sequences};
use polydraft_models::{DraftHead, HeadOptions, LoadOptions, Precision, is_head, load, load_head};

/// Expected values from make.py: a sequence, and `[step][position]` log-probabilities of the tokens
/// that the head can draft.
struct Expected {
    tokens: Vec<Token>,
    distributions: Vec<Vec<Vec<f64>>>,
}

impl Expected {
    fn read(name: &str, count: usize) -> Self {
        let message = read_tensors(&folder(name).join("expected.safetensors"));
        let tokens = message["tokens"].integers().into_iter().map(|t| t as Token).collect();
        let [_, positions, width] = message["logits"].shape[..] else { panic!("no steps") };
        let logits: Vec<f64> = message["logits"].values().into_iter().map(f64::from).collect();
        let probs = |logits: &[f64]| {
            let top = logits[..count].iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let sum: f64 = logits[..count].iter().map(|x| (x - top).exp()).sum();
            logits[..count].iter().map(|x| x - top - sum.ln()).collect()
        };
        let steps = logits.chunks_exact(positions * width);
        let distributions =
            steps.map(|step| step.chunks_exact(width).map(probs).collect()).collect();
        Self { tokens, distributions }
    }
}

type Pair = HeadPair<DraftHead>;

impl HeadPair<DraftHead> {
    fn open(name: &str) -> Self {
        let (target, head) = open_head(name);
        Self::new(target, head)
    }

    /// Largest difference between drafted and expected log-probabilities along `path`.
    fn distance(&mut self, path: &[Token], expected: &[&Vec<f64>]) -> f64 {
        let mut tree = DraftTree::new();
        let (mut node, mut largest) = (DraftTree::ROOT, 0.0_f64);
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
                largest = largest.max((probs.probability(*token).ln() - expected).abs());
                all += probs.probability(*token);
            }
            assert!((all - 1.0).abs() < 1e-9, "{all}");
        }
        largest
    }
}

#[test]
fn logits_equal_the_reference_for_every_variant() {
    for name in HEADS {
        let mut pair = Pair::open(name);
        let Expected { tokens, distributions } = Expected::read(name, pair.head.tokens().len());
        let expected = |position: usize| {
            let steps = distributions.len().min(tokens.len() - 1 - position);
            distributions[..steps].iter().map(|step| &step[position]).collect::<Vec<_>>()
        };
        let mut largest = 0.0_f64;
        for position in 0..tokens.len() - 1 {
            pair.reset();
            pair.extend(&tokens[..position + 2], 5);
            largest = largest.max(pair.distance(&tokens[position + 2..], &expected(position)));
        }
        // Token by token: drafted states are replaced by those of the target's tokens.
        pair.reset();
        pair.extend(&tokens[..2], 9);
        for position in 0..tokens.len() - 1 {
            largest = largest.max(pair.distance(&tokens[position + 2..], &expected(position)));
            if let Some(token) = tokens.get(position + 2) {
                pair.extend(&[*token], 9);
            }
        }
        assert!(largest < 1e-4, "{name}: {largest:e}");
    }
}

/// After a truncation, tokens that were read or drafted beyond it have no effect.
#[test]
fn truncated_tokens_leave_no_trace() {
    for name in HEADS {
        let mut pair = Pair::open(name);
        let Expected { tokens, distributions } = Expected::read(name, pair.head.tokens().len());
        let position = tokens.len() / 2;
        for left in [1, 2, position, position + 1] {
            pair.reset();
            pair.extend(&[&tokens[..left], &tokens[..4]].concat(), 5);
            let [target_sequence, head_sequence] = pair.sequences;
            pair.head.score(&[(head_sequence, &DraftTree::new())]).unwrap();
            pair.target.truncate(target_sequence, left);
            pair.head.truncate(head_sequence, left);
            pair.extend(&tokens[left..position + 2], 5);
            let largest = pair.distance(&tokens[position + 2..], &[&distributions[0][position]]);
            assert!(largest < 1e-4, "{name}, {left}: {largest:e}");
        }
    }
}

#[test]
fn layers_option_changes_the_hidden_states() {
    let mut pair = Pair::open("specforge");
    let before = pair.head.hidden_states().to_vec();
    let mut target = target().model;
    let options = HeadOptions { layers: Some(vec![6, 0, 2]), ..HeadOptions::default() };
    pair.head = load_head(&folder("specforge"), &mut target, &options).unwrap();
    assert_ne!(pair.head.hidden_states(), before);
    assert_eq!(format!("{:?}", pair.head.hidden_states()), "[After(0), After(2), After(6)]");
}

#[test]
fn trees_in_a_batch_are_scored_as_alone() {
    for name in HEADS {
        let (mut target, mut head) = open_head(name);
        let tokens = Expected::read(name, head.tokens().len()).tokens;
        let lengths = [3, 18, 2, 11, 1];
        let sequences: Vec<[Sequence; 2]> = lengths
            .iter()
            .map(|&length| {
                let pair = [target.open().unwrap(), head.open().unwrap()];
                target.extend(pair[0], &tokens[..length]).unwrap();
                while target.prepare(pair[0], 64).unwrap() > 0 {}
                head.extend(pair[1], &tokens[..length]).unwrap();
                head.sync_target(pair[1], &target, pair[0], length - 1).unwrap();
                pair
            })
            .collect();
        let mut tree = DraftTree::new();
        for (parent, token) in [(0, 7), (0, 8), (1, 9), (1, 7), (3, 3), (2, 9)] {
            tree.add(parent, token);
        }
        let distributions = |head: &DraftHead, sequence: Sequence| -> Vec<Vec<f64>> {
            let probs = |node: NodeId| {
                head.distribution(sequence, node, &Sampling::default(), None).unwrap()
            };
            (0..tree.len()).map(|node| probs(node).to_vec()).collect()
        };
        // All trees in one batch; then each alone and node by node.
        let batch: Vec<_> = sequences.iter().map(|pair| (pair[1], &tree)).collect();
        head.score(&batch).unwrap();
        let batched: Vec<_> = sequences.iter().map(|pair| distributions(&head, pair[1])).collect();
        for (pair, batched) in sequences.iter().zip(batched) {
            head.extend(pair[1], &[]).unwrap();
            let mut growing = DraftTree::new();
            for node in 1..=tree.len() {
                head.score(&[(pair[1], &growing)]).unwrap();
                if node < tree.len() {
                    growing.add(tree.parent(node), tree.token(node));
                }
            }
            assert_eq!(distributions(&head, pair[1]), batched, "{name}");
        }
    }
}

#[test]
fn smaller_vocabulary_renormalises_the_distribution() {
    for name in HEADS {
        let mut full = Pair::open(name);
        let tokens = Expected::read(name, full.head.tokens().len()).tokens;
        let selected: Vec<Token> = full.head.tokens().iter().copied().step_by(3).collect();
        let mut cut = Pair::open(name);
        let options = HeadOptions { tokens: Some(selected.clone()), ..HeadOptions::default() };
        cut.target.close(cut.sequences[0]);
        cut.head = load_head(&folder(name), &mut cut.target, &options).unwrap();
        cut.sequences = [cut.target.open().unwrap(), cut.head.open().unwrap()];
        assert_eq!(cut.head.tokens(), selected);
        let mut distributions = [&mut full, &mut cut].map(|pair| {
            pair.extend(&tokens, 64);
            pair.head.score(&[(pair.sequences[1], &DraftTree::new())]).unwrap();
            pair.head
                .distribution(pair.sequences[1], 0, &Sampling::default(), None)
                .unwrap()
                .to_vec()
        });
        let mass: f64 = selected.iter().map(|t| distributions[0][*t as usize]).sum();
        (0..)
            .zip(&mut distributions[0])
            .for_each(|(t, p)| *p = if selected.contains(&t) { *p / mass } else { 0.0 });
        let [full, cut] = distributions;
        // The same logits, but softmax subtracts another maximum, in single precision.
        assert!(full.iter().zip(&cut).all(|(a, b)| (a - b).abs() <= 2e-6 * a), "{name}");
    }
}

#[test]
fn restrict_output_keeps_the_logits_of_the_selected_tokens() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0] {
        let options = LoadOptions { precision, ..LoadOptions::default() };
        let [mut full, mut cut] = [(); 2].map(|()| load(&demo("draft"), options).unwrap().model);
        let selected: Vec<Token> = (0..4096).step_by(7).collect();
        cut.restrict_output(&selected).unwrap();
        let [full, cut] = [&mut full, &mut cut].map(|model| {
            let sequence = model.open().unwrap();
            model.extend(sequence, &[1, 50, 300]).unwrap();
            model.score(&[(sequence, &DraftTree::new())]).unwrap();
            model.logits(sequence, 0).to_vec()
        });
        let chosen: Vec<f32> = selected.iter().map(|t| full[*t as usize]).collect();
        // Rounding rounded numbers again may change them by one step.
        let tolerance = if precision == Precision::Q8_0 { 0.05 } else { 0.0 };
        assert!(distance(&chosen, &cut) <= tolerance, "{precision}: {}", distance(&chosen, &cut));
    }
}

#[test]
fn token_bytes_bound_the_cache_size() {
    let mut pair = Pair::open("specforge");
    let without_capture = target().model.token_bytes();
    pair.extend(&(0..32).map(|i| i * 7 % 60).collect::<Vec<Token>>(), 64);
    // One page; caches of small heads are padded.
    assert!(pair.target.cache_bytes() as u64 >= 32 * pair.target.token_bytes());
    assert!(
        pair.head.cache_bytes() as u64 >= 32 * pair.head.token_bytes()
            && pair.head.token_bytes() > 0
    );
    // Three hidden states of 32 numbers.
    assert_eq!(pair.target.token_bytes(), without_capture + 3 * 32 * 4);
}

/// Tensors of a file without `t2d`, the mask of the draft vocabulary, which is not read.
fn tensors_of(path: &Path) -> Tensors {
    read_tensors(path).into_iter().filter(|(name, _)| name != "t2d").collect()
}

/// Error of loading a head; a description gives the same error if the headers show it.
fn load_error(directory: &Path) -> String {
    let error =
        load_head(directory, &mut target().model, &HeadOptions::default()).unwrap_err().to_string();
    if let Err(described) = described(directory) {
        assert_eq!(described.to_string(), error);
    }
    error
}

#[test]
fn errors_name_missing_unexpected_and_misshapen_tensors_of_a_head() {
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
        let error = load_error(directory.path());
        for part in [&[tensor], expected].concat() {
            assert!(error.contains(part), "{name}, {tensor}: {error}, expected {part}");
        }
        directory
    };
    let shorter = |x: &Tensor| Some(x.without_last_row());
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
    let several =
        tensor("specforge", "mask_hidden", &|x| Some(x.clone()), &["several tokens in one pass"]);
    assert!(described(several.path()).is_err());
    tensor("specforge", "something.else", &|x| Some(x.clone()), &["no such tensor"]);
    tensor("specforge", "d2t", &|_| None, &["expected shape [24]", "no tensor of that name"]);
    let numbers = |change: fn(&mut Vec<i64>)| {
        move |x: &Tensor| {
            let mut numbers = x.integers();
            change(&mut numbers);
            Some(Tensor::from_integers(&numbers))
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
}

#[test]
fn errors_name_invalid_config_fields_of_a_head() {
    use serde_json::json;
    let field = |name: &str, path: &str, value: serde_json::Value, expected: &str| {
        let directory = changed(name, |directory| {
            change_config(directory, |config| *config.pointer_mut(path).unwrap() = value);
        });
        let error = load_error(directory.path());
        assert!(error.contains("config.json") && error.contains(expected), "{path}: {error}");
        assert!(described(directory.path()).is_err(), "{path}: {error}");
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
    field("specforge", "/eagle_config", json!({"new": 1}), "expected known options, got new");
    let layers = "/eagle_config/eagle_aux_hidden_state_layer_ids";
    field("specforge", layers, json!([0, 2, 8]), "expected at most its 8, got 9");
    field("specforge", layers, json!([0, 2, 2]), "expected distinct layers, got 3 twice");
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
    field("specforge", "/eagle_config", both, "norm_before_fc: expected false with fc_norm");
    let sliding = json!(["sliding_attention"]);
    let types = "/transformer_layer_config/layer_types";
    field("speculators-qwen3", types, sliding, "layer_types: expected full_attention");
}

#[test]
fn damaged_pickles_never_panic() {
    let path = |directory: &Path| directory.join("pytorch_model.bin");
    let bytes = fs::read(path(&folder("original"))).unwrap();
    let cut = changed("original", |directory| fs::write(path(directory), &bytes[..900]).unwrap());
    let error = load_error(cut.path());
    assert!(error.contains("expected a zip"), "{error}");
    // Changing any byte of the pickle gives an error or another head, never a panic.
    let list = bytes.windows(8).position(|w| w == b"data.pkl").unwrap() + 8;
    for at in (list..list + 3000).step_by(7) {
        let mut broken = bytes.clone();
        broken[at] ^= 0x55;
        let damaged = changed("original", |directory| fs::write(path(directory), &broken).unwrap());
        let _ = load_head(damaged.path(), &mut target().model, &HeadOptions::default());
    }
}

#[test]
fn memory_error_names_precisions_that_fit() {
    let message = |name: &str, memory| {
        let options = HeadOptions { memory: Some(memory), ..HeadOptions::default() };
        load_head(&folder(name), &mut target().model, &options).map(drop).map_err(|e| e.to_string())
    };
    for name in HEADS {
        assert_eq!(message(name, 1 << 20), Ok(()), "{name}");
        let error = message(name, 10_000).unwrap_err();
        assert!(error.contains("as f32") && error.contains("10.0 kB are free"), "{name}: {error}");
    }
    // The weights take 55 kB in f32, keys and values of the context 8 kB.
    let error = message("specforge", 50_000).unwrap_err();
    assert!(error.contains("would fit: f16 ("), "{error}");
}

#[test]
fn is_head_accepts_heads_only() {
    for name in HEADS {
        assert!(is_head(&folder(name)), "{name}");
    }
    assert!(
        !is_head(&folder("target")) && !is_head(&demo("draft")) && !is_head(Path::new("/nowhere"))
    );
}
