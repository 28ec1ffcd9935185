//! Block heads against the logits that block.py stored in heads/.

use std::fs;
use std::path::Path;

use crate::common::heads::*;
use crate::common::*;
use polydraft::{DraftTree, PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::{
    CostMeasurement, Drafter, Engine, Limits, Request, Sequence, Sequences, Speculation,
};
use polydraft_models::{
    BlockHead, HeadDescription, HeadOptions, Precision, is_block_head, is_head, load_block_head,
};

/// Expected values from block.py: a sequence, and `[position][level]` the probabilities of all
/// tokens.
struct Expected {
    tokens: Vec<Token>,
    distributions: Vec<Vec<Vec<f64>>>,
}

impl Expected {
    fn read(name: &str) -> Self {
        let found = read_tensors(&folder(name).join("expected.safetensors"));
        let tokens = found["tokens"].integers().into_iter().map(|t| t as Token).collect();
        let [_, levels, width] = found["logits"].shape[..] else { panic!("no levels") };
        let logits: Vec<f64> = found["logits"].values().into_iter().map(f64::from).collect();
        let probs = |logits: &[f64]| {
            let top = logits.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let sum: f64 = logits.iter().map(|x| (x - top).exp()).sum();
            logits.iter().map(|x| (x - top).exp() / sum).collect()
        };
        let positions = logits.chunks_exact(levels * width);
        let distributions =
            positions.map(|position| position.chunks_exact(width).map(probs).collect()).collect();
        Self { tokens, distributions }
    }
}

type Pair = HeadPair<BlockHead>;

impl HeadPair<BlockHead> {
    fn open(name: &str) -> Self {
        Self::at(&folder(name), &HeadOptions::default()).unwrap()
    }

    fn at(directory: &Path, options: &HeadOptions) -> polydraft_models::Result<Self> {
        let mut target = target().model;
        let head = load_block_head(directory, &mut target, &folder("target"), options)?;
        Ok(Self::new(target, head))
    }

    /// Largest difference between drafted and expected log-probabilities along `path`; infinite
    /// where only one of the two probabilities is zero.
    fn distance(&mut self, path: &[Token], expected: &[Vec<f64>]) -> f64 {
        assert_eq!(expected.len(), self.head.levels());
        let mut tree = DraftTree::new();
        let (mut node, mut worst) = (DraftTree::ROOT, 0.0_f64);
        for (level, expected) in expected.iter().enumerate() {
            if level > 0 {
                node = tree.add(node, path[level - 1]);
            }
            self.head.score(&[(self.sequences[1], &tree)]).unwrap();
            worst = worst.max(max_log_difference(&self.probs(self.sequences[1], node), expected));
        }
        worst
    }

    fn probs(&self, sequence: Sequence, node: usize) -> Vec<f64> {
        self.head.distribution(sequence, node, &Sampling::default(), None).unwrap().to_vec()
    }

    /// Largest difference over a sequence, read up to each position at once and token by token.
    fn largest_difference(&mut self, Expected { tokens, distributions }: &Expected) -> f64 {
        let mut worst = 0.0_f64;
        for (position, expected) in distributions.iter().enumerate() {
            self.reset();
            self.extend(&tokens[..=position], 5);
            worst = worst.max(self.distance(&tokens[position + 1..], expected));
        }
        self.reset();
        for (position, expected) in distributions.iter().enumerate() {
            self.extend(&[tokens[position]], 9);
            worst = worst.max(self.distance(&tokens[position + 1..], expected));
        }
        worst
    }
}

fn max_log_difference(found: &[f64], expected: &[f64]) -> f64 {
    let difference = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { (a.ln() - b.ln()).abs() };
    found.iter().zip(expected).map(difference).fold(0.0, f64::max)
}

#[test]
fn distributions_equal_the_published_form_for_every_variant() {
    for name in BLOCKS {
        let worst = Pair::open(name).largest_difference(&Expected::read(name));
        assert!(worst < 1e-4, "{name}: {worst:e}");
    }
}

/// After a truncation, tokens that were read or drafted beyond it have no effect.
#[test]
fn truncated_tokens_leave_no_trace() {
    for name in BLOCKS {
        let mut pair = Pair::open(name);
        let Expected { tokens, distributions } = Expected::read(name);
        let position = distributions.len() / 2;
        for left in [0, 1, 2, position, position + 1] {
            pair.reset();
            pair.extend(&[&tokens[..left], &tokens[..4]].concat(), 5);
            let [target_sequence, head_sequence] = pair.sequences;
            pair.head.score(&[(head_sequence, &DraftTree::new())]).unwrap();
            pair.target.truncate(target_sequence, left);
            pair.head.truncate(head_sequence, left);
            pair.extend(&tokens[left..=position], 5);
            let worst = pair.distance(&tokens[position + 1..], &distributions[position]);
            assert!(worst < 1e-4, "{name}, {left}: {worst:e}");
        }
    }
}

#[test]
fn trees_in_a_batch_are_scored_as_alone() {
    for name in BLOCKS {
        let Expected { tokens, .. } = Expected::read(name);
        let mut pair = Pair::open(name);
        let sequences: Vec<Sequence> = [3, 18, 2, 11, 1]
            .into_iter()
            .map(|length| {
                let opened = [pair.target.open().unwrap(), pair.head.open().unwrap()];
                pair.target.extend(opened[0], &tokens[..length]).unwrap();
                while pair.target.prepare(opened[0], 64).unwrap() > 0 {}
                pair.head.extend(opened[1], &tokens[..length]).unwrap();
                pair.head.sync_target(opened[1], &pair.target, opened[0], length - 1).unwrap();
                opened[1]
            })
            .collect();
        // One path is deeper than a block: beyond it the distribution is uniform.
        let mut tree = DraftTree::new();
        let nodes =
            [(0, 7), (0, 8), (1, 9), (1, 7), (3, 3), (2, 9), (5, 4), (7, 8), (8, 3), (9, 3)];
        for (parent, token) in nodes {
            tree.add(parent, token);
        }
        let all = |pair: &Pair, sequence| -> Vec<Vec<f64>> {
            (0..tree.len()).map(|node| pair.probs(sequence, node)).collect()
        };
        // All trees in one batch; then each alone and node by node.
        let batch: Vec<_> = sequences.iter().map(|sequence| (*sequence, &tree)).collect();
        pair.head.score(&batch).unwrap();
        let batched: Vec<_> = sequences.iter().map(|sequence| all(&pair, *sequence)).collect();
        for (sequence, batched) in sequences.iter().zip(batched) {
            pair.head.extend(*sequence, &[]).unwrap();
            let mut growing = DraftTree::new();
            for node in 1..=tree.len() {
                pair.head.score(&[(*sequence, &growing)]).unwrap();
                if node < tree.len() {
                    growing.add(tree.parent(node), tree.token(node));
                }
            }
            assert!(all(&pair, *sequence) == batched, "{name}");
            let tokens = pair.head.tokens();
            let even = 1.0 / tokens.len() as f64;
            let deep = batched[tree.len() - 1][tokens[1] as usize];
            assert!((deep - even).abs() < 1e-9 && tree.depth(tree.len() - 1) >= 6, "{deep}");
        }
    }
}

#[test]
fn smaller_vocabulary_renormalises_the_distribution() {
    // DFlash-2 selects a fixed number of candidates, so fewer tokens change the selection.
    for name in BLOCKS.into_iter().filter(|name| !name.starts_with("dflash2")) {
        let tokens = Expected::read(name).tokens;
        let mut full = Pair::open(name);
        let selected: Vec<Token> = full.head.tokens().iter().copied().step_by(3).collect();
        let options = HeadOptions { tokens: Some(selected.clone()), ..HeadOptions::default() };
        let mut cut = Pair::at(&folder(name), &options).unwrap();
        assert_eq!(cut.head.tokens(), selected);
        let [mut full, cut] = [&mut full, &mut cut].map(|pair| {
            pair.extend(&tokens, 64);
            pair.head.score(&[(pair.sequences[1], &DraftTree::new())]).unwrap();
            pair.probs(pair.sequences[1], 0)
        });
        let mass: f64 = selected.iter().map(|t| full[*t as usize]).sum();
        (0..)
            .zip(&mut full)
            .for_each(|(t, p)| *p = if selected.contains(&t) { *p / mass } else { 0.0 });
        assert!(full.iter().zip(&cut).all(|(a, b)| (a - b).abs() <= 2e-6 * a), "{name}");
    }
}

#[test]
fn every_tensor_changes_the_distributions() {
    for name in BLOCKS {
        let expected = Expected::read(name);
        for tensor in read_tensors(&folder(name).join("model.safetensors")).keys() {
            if tensor == "d2t" {
                continue;
            }
            let found = changed(name, |directory| {
                let path = directory.join("model.safetensors");
                let mut tensors = read_tensors(&path);
                let old = &tensors[tensor];
                let other = |(i, x): (usize, f32)| 1.5 * x + 0.1 * (i % 3) as f32;
                let numbers: Vec<f32> = old.values().into_iter().enumerate().map(other).collect();
                let new = Tensor::new(&numbers, &old.shape, Dtype::F32);
                tensors.insert(tensor.clone(), new);
                write_tensors(&tensors, &path);
            });
            let mut pair = Pair::at(found.path(), &HeadOptions::default()).unwrap();
            let worst = pair.largest_difference(&expected);
            let counts = !tensor.starts_with("confidence_head");
            assert_eq!(worst > 1e-3, counts, "{name}, {tensor}: {worst:e}");
        }
    }
}

/// GGUF files made by llama.cpp's converter (heads/to_gguf.py).
#[test]
fn gguf_files_draft_like_their_directories() {
    let with_file = BLOCKS.map(|name| (name, folder(name).join("model.gguf")));
    let with_file: Vec<_> = with_file.into_iter().filter(|(_, file)| file.exists()).collect();
    assert_eq!(with_file.len(), BLOCKS.len() - 1);
    for (name, file) in with_file {
        assert!(is_head(&file) && is_block_head(&file), "{name}");
        let expected = Expected::read(name);
        let worst = Pair::at(&file, &HeadOptions::default()).unwrap().largest_difference(&expected);
        assert!(worst < 1e-4, "{name}: {worst:e}");
        let [of_file, of_directory] = [&file, &folder(name)].map(|path| described(path).unwrap());
        assert_eq!((of_file.kind, of_file.tokens), (of_directory.kind, of_directory.tokens));
        assert_eq!(of_file.hidden_states, of_directory.hidden_states, "{name}");
        // Changing any tensor changes the distributions.
        with_each_tensor_changed(&file, |tensor, changed| {
            let worst =
                Pair::at(changed, &HeadOptions::default()).unwrap().largest_difference(&expected);
            let counts = !tensor.starts_with("conf_proj");
            assert_eq!(worst > 1e-3, counts, "{name}: {tensor}: {worst:e}");
        });
    }
}

/// A key or tensor that is ignored would change what a head drafts.
#[test]
fn rejects_missing_keys_and_unknown_tensors() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("model.gguf");
    for (name, from, to, expected) in [
        ("dflash", "dflash.block_size", "dflash.block_sizx", "block_size: expected a size"),
        ("dflash", "tokenizer.ggml.mask_token_id", "tokenizer.ggml.mask_token_ix", "mask_token_id"),
        ("dflash", "dflash.target_layers", "dflash.target_layerx", "expected layers of the target"),
        ("dflash", "blk.1.ffn_norm", "blk.1.ffn_nory", "tensor blk.1.ffn_norm.weight"),
        ("dflash", "enc.output_norm", "enc.output_nory", "tensor enc.output_norm.weight"),
        ("dspark", "markov_w1.weight", "markov_w1.weighs", "no such tensor"),
        ("dflash2", "dflash.selector_rank", "dflash.selector_ranx", "selector_rank"),
        ("dflash2", "dflash.block_count", "dflash.block_counx", "dflash.block_count: expected"),
    ] {
        assert_eq!(from.len(), to.len());
        let mut bytes = fs::read(folder(name).join("model.gguf")).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).unwrap();
        let error = Pair::at(&path, &HeadOptions::default()).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {from}: {error}");
    }
}

#[test]
fn every_field_changes_the_distributions() {
    use serde_json::json;
    let distance = |name: &str, path: &str, value: serde_json::Value| {
        let found = changed(name, |directory| {
            change_config(directory, |config| {
                assert_ne!(*config.pointer(path).expect(path), value);
                *config.pointer_mut(path).unwrap() = value;
            });
        });
        let mut pair = Pair::at(found.path(), &HeadOptions::default()).unwrap();
        pair.largest_difference(&Expected::read(name))
    };
    for (name, path, value) in [
        ("dflash", "/dflash_config/mask_token_id", json!(62)),
        ("dflash", "/dflash_config/target_layer_ids", json!([1, 3, 6])),
        ("dflash", "/rope_theta", json!(900.0)),
        ("dflash-causal", "/dflash_config/causal", json!(false)),
        ("dflash-windows", "/sliding_window", json!(4)),
        ("dflash-windows", "/layer_types", json!(["sliding_attention", "full_attention"])),
        ("dflash-speculators", "/aux_hidden_state_layer_ids", json!([3, 5])),
        ("dflash-speculators", "/mask_token_id", json!(61)),
        ("dspark", "/target_layer_ids", json!([2, 4])),
        ("dflash2", "/dflash_config/output_multiplier", json!(1.0)),
        ("dflash2", "/dflash_config/input_embedding_scale", json!(1.0)),
        ("dflash2", "/dflash_config/selector_top_k", json!(6)),
        ("dflash2-capped", "/dflash_config/final_logit_softcapping", json!(5.0)),
    ] {
        let worst = distance(name, path, value);
        assert!(worst > 1e-3, "{name}, {path}: {worst:e}");
    }
    // Another block size changes the number of levels.
    for (name, levels) in [("dflash", 5), ("dspark", 6)] {
        let found = changed(name, |directory| {
            change_config(directory, |config| config["block_size"] = json!(6));
        });
        let pair = Pair::at(found.path(), &HeadOptions::default()).unwrap();
        assert_eq!(pair.head.levels(), levels, "{name}");
    }
}

#[test]
fn errors_name_invalid_and_unsupported_fields() {
    use serde_json::json;
    for (name, path, value, expected) in [
        ("dflash", "/vocab_size", json!(65), "vocab_size: expected the target's 64, got 65"),
        ("dflash", "/hidden_size", json!(48), "hidden_size: expected the target's 32, got 48"),
        ("dflash", "/block_size", json!(1), "block_size: expected from 2 to 1024, got 1"),
        ("dflash", "/block_size", json!(null), "block_size: expected a size, got none"),
        ("dflash", "/dflash_config/mask_token_id", json!(null), "mask_token_id: expected one"),
        ("dflash", "/dflash_config/mask_token_id", json!(64), "a row for mask_token_id = 64"),
        ("dflash", "/dflash_config/target_layer_ids", json!([0, 8]), "at most its 8, got 9"),
        ("dflash", "/dflash_config/target_layer_ids", json!([]), "expected layers of the target"),
        ("dflash", "/dflash_config", json!({"new": 1}), "expected known options, got new"),
        ("dflash", "/dflash_config", json!({"use_swa": true}), "use_swa: expected false, got true"),
        ("dflash-windows", "/sliding_window", json!(null), "sliding_window: expected a width"),
        (
            "dflash-speculators",
            "/sliding_window_non_causal",
            json!(true),
            "layer_types: expected full_attention with attention to later positions",
        ),
        ("dspark-speculators", "/markov_head_type", json!("gated"), "expected vanilla, got"),
        (
            "dflash2",
            "/dflash_config/selector_rank",
            json!(null),
            "selector_rank: expected both it and selector_top_k",
        ),
        (
            "dflash2-capped",
            "/dflash_config",
            json!({
                "output_multiplier": 0.5, "final_logit_softcapping": 3.0, "mask_token_id": 63,
                "target_layer_ids": [4],
            }),
            "final_logit_softcapping: expected none with output_multiplier",
        ),
        ("dflash2", "/dflash_config/conv_group_size", json!(8), "kernel_projection.weight"),
        ("dflash2", "/dflash_config/conv_group_size", json!(5), "conv_group_size"),
        ("dspark", "/markov_rank", json!(7), "markov_head.markov_w1.weight"),
    ] {
        let found = changed(name, |directory| {
            change_config(directory, |config| {
                *config.pointer_mut(path).expect(path) = value.clone();
            });
        });
        let error = Pair::at(found.path(), &HeadOptions::default()).map(drop).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(expected), "{name}, {path} = {value}: {error}");
        if let Err(described) = described(found.path()) {
            assert_eq!(described.to_string(), error);
        }
    }
}

#[test]
fn rejects_separate_mask_embedding() {
    let found = changed("dflash", |directory| {
        fs::write(directory.join("mask_embedding.pt"), b"PK").unwrap();
    });
    let error = Pair::at(found.path(), &HeadOptions::default()).map(drop).unwrap_err().to_string();
    assert!(error.contains("mask_embedding.pt: expected"), "{error}");
}

#[test]
fn block_heads_are_recognised_and_described() {
    for name in BLOCKS {
        assert!(is_head(&folder(name)) && is_block_head(&folder(name)), "{name}");
        let HeadDescription { kind, layers, .. } = described(&folder(name)).unwrap();
        let expected = match name {
            _ if name.starts_with("dflash2") => "DFlash-2",
            _ if name.starts_with("dspark") => "DSpark",
            _ => "DFlash",
        };
        assert_eq!((kind, layers), (expected, 2), "{name}");
        let error = polydraft_models::load_head(
            &folder(name),
            &mut target().model,
            &HeadOptions::default(),
        );
        assert!(error.unwrap_err().to_string().contains("a block head"), "{name}");
    }
    for name in HEADS {
        assert!(!is_block_head(&folder(name)), "{name}");
    }
}

#[test]
fn memory_error_names_required_and_free_memory() {
    for name in BLOCKS {
        let at = |memory| {
            let options = HeadOptions { memory: Some(memory), ..HeadOptions::default() };
            Pair::at(&folder(name), &options).map(drop).map_err(|e| e.to_string())
        };
        assert_eq!(at(1 << 20), Ok(()), "{name}");
        let found = at(10_000).unwrap_err();
        assert!(found.contains("as f32") && found.contains("10.0 kB are free"), "{name}: {found}");
    }
}

#[test]
fn quantised_blocks_stay_close() {
    for name in BLOCKS {
        let options = HeadOptions { precision: Precision::Q8_0, ..HeadOptions::default() };
        let Expected { tokens, .. } = Expected::read(name);
        let mut found = [HeadOptions::default(), options].map(|options| {
            let mut pair = Pair::at(&folder(name), &options).unwrap();
            pair.extend(&tokens[..12], 64);
            pair.head.score(&[(pair.sequences[1], &DraftTree::new())]).unwrap();
            pair.probs(pair.sequences[1], 0)
        });
        let [exact, rounded] = &mut found;
        let apart: f64 = exact.iter().zip(rounded).map(|(a, b)| (*a - *b).abs()).sum::<f64>() / 2.0;
        assert!(apart < 0.1 && apart > 0.0, "{name}: {apart}");
    }
}

/// Nothing is drafted beyond the block, and costs are measured only for trees within it.
#[test]
fn trees_and_costs_end_with_the_block() {
    let speculation = |tree: &PolicyKind| {
        let verifier: VerifierKind = "block".parse().unwrap();
        Speculation::new(verifier.build().unwrap(), tree.build().unwrap()).unwrap()
    };
    for (name, levels) in [("dflash", 4), ("dspark", 4), ("dflash2-capped", 2)] {
        let (target, head) = open_drafter(name);
        let mut engine = Engine::new(Box::new(target), Some(head));
        assert_eq!(engine.draft_levels(), Some(levels));
        let request = Request::new(&[3, 4, 5][..])
            .speculation(speculation(&PolicyKind::chain(11)))
            .limits(Limits::tokens(24))
            .rng(<rand_chacha::ChaCha12Rng as rand::SeedableRng>::seed_from_u64(1));
        let statistics = engine.generate(request, &mut |_| true).unwrap().statistics;
        assert_eq!(statistics.drafted.len(), levels, "{statistics:?}");
        let mut request = |prompt, tree: PolicyKind| {
            Ok(Request::new(prompt)
                .speculation(speculation(&tree))
                .rng(<rand_chacha::ChaCha12Rng as rand::SeedableRng>::seed_from_u64(1)))
        };
        let mut measurement = CostMeasurement::new(&engine, &[3, 4, 5]);
        while measurement.advance(&mut engine, &mut request).unwrap() {}
        let tokens: Vec<usize> =
            measurement.costs().target.0.iter().map(|pass| pass.tokens).collect();
        let expected: &[usize] = if levels == 2 { &[1, 2, 3] } else { &[1, 2, 4, 5] };
        assert_eq!(tokens, expected, "{name}");
    }
}
